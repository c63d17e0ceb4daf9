"""The digest of the package's text: changed by every change, remembered by times, and absent where times may lie."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from staxlab.runtime import cache, plan_basis, plan_sources
from tests.test_layering import RENDERING, imports_of, package_sources

pytestmark = pytest.mark.usefixtures("plans")

LATER = 3600.0  # the process began an hour after the files were written


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a file in every folder that counts."""
    for folder in plan_sources.STAGES:
        (tmp_path / folder / "below").mkdir(parents=True)
        (tmp_path / folder / "below" / "module.py").write_text(f"# {folder}")
    (tmp_path / "runtime" / "plan_sources.py").write_text("")
    (tmp_path / "codegen" / "header.h").write_text("// header")
    for module in plan_sources.MODULES:
        (tmp_path / module).write_text(f"# {module}")
    return tmp_path


def digest(package):
    return plan_sources.digest_of(package, time.time() + LATER)


def test_equal_sources_have_equal_digests_whether_remembered_or_not(package):
    first = digest(package)
    assert first is not None and digest(package) == first
    assert [entry.kind for entry in cache.entries()] == ["sources"]
    cache.clear()
    assert digest(package) == first


@pytest.mark.parametrize("name", ["loops/below/module.py", "codegen/header.h", "options.py", "runtime/plan_sources.py"])
def test_each_file_counts(package, name):
    before = digest(package)
    (package / name).write_text("# other")
    after = digest(package)
    assert after is not None and after != before


def test_files_that_come_and_go_count(package):
    digests = {digest(package)}
    (package / "schedule" / "new.py").write_text("")
    digests.add(digest(package))
    (package / "schedule" / "new.py").rename(package / "schedule" / "renamed.py")
    digests.add(digest(package))
    (package / "polyhedral" / "below" / "module.py").unlink()
    digests.add(digest(package))
    assert len(digests) == 4 and None not in digests


def test_a_file_of_the_same_size_that_is_dated_back_counts(package):
    file = package / "loops" / "below" / "module.py"
    status, before = file.stat(), digest(package)
    file.write_text("# sloop")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_size == status.st_size and file.stat().st_mtime_ns == status.st_mtime_ns
    assert digest(package) != before


def test_what_is_no_source_does_not_count(package):
    before = digest(package)
    (package / "loops" / "__pycache__").mkdir()
    (package / "loops" / "__pycache__" / "module.py").write_text("1")
    (package / "loops" / "notes.txt").write_text("1")
    (package / "view").mkdir()
    (package / "view" / "module.py").write_text("1")
    assert digest(package) == before


def test_sources_younger_than_the_process_may_not_be_what_it_runs(package):
    assert plan_sources.digest_of(package, time.time()) is None
    assert plan_sources.digest_of(package, time.time() - LATER) is None
    assert not cache.entries()


def test_a_package_without_sources_has_no_digest(package):
    (package / "runtime" / "plan_sources.py").unlink()
    assert digest(package) is None


def test_files_that_change_while_they_are_read_have_no_digest(package, monkeypatch):
    read = Path.read_bytes

    def reading(path):
        content = read(path)
        if path.name == "options.py":
            path.write_text("# edited meanwhile, too late to be read")
        return content

    monkeypatch.setattr(Path, "read_bytes", reading)
    assert digest(package) is None


#: Where the stages begin that a plan stands for.
ROOTS = (
    "staxlab.loops.lowering", "staxlab.schedule.dependencies", "staxlab.codegen.cpp", "staxlab.codegen.triton",
    "staxlab.codegen.wrapper", "staxlab.runtime.recipe", "staxlab.runtime.plan",
)  # fmt: skip


def test_everything_the_stages_import_is_in_the_digest():
    sources, packages = package_sources()
    known = {*sources}
    reached: set[str] = set()
    open_ones = [*ROOTS]
    while open_ones:
        name = open_ones.pop()
        if name in reached or name not in known:
            continue
        reached.add(name)
        for found in imports_of(name, sources[name], known, name in packages):
            if not found.type_checking and not any(part.startswith(RENDERING) for part in found.scope):
                open_ones.append(found.target)
    counted = {name.removesuffix(".py").replace("/", ".") for name, _ in plan_sources.files()}
    counted |= {name.removesuffix(".__init__") for name in counted}
    assert len(reached) > 100
    assert {name.removeprefix("staxlab.") for name in reached} <= counted


def test_the_table_of_rules_from_disk_is_the_registry_s(plans, monkeypatch):
    from staxlab.loops.lowering import basis
    from staxlab.loops.lowering.kinds import kind_of, row_of
    from tests.autodiff.programs import recorded

    monkeypatch.setattr(plan_basis, "_REGISTRY", "as if it were not loaded")
    monkeypatch.setattr(plan_sources, "digest", lambda: "sources")
    plan_basis.clear()
    for _ in range(2):  # written, then read
        named = plan_basis.basis()
        assert isinstance(named, plan_basis.NamedBasis) and len(named) == len(basis()) > 300
        assert all(overload in named and named.row_of(overload) == row_of(overload) for overload in basis())
        assert torch.ops.aten._fused_adam.default not in named
        assert named.row_of(torch.ops.aten._fused_adam.default) == row_of(torch.ops.aten._fused_adam.default)
        plan_basis.clear()
    assert [entry.kind for entry in cache.entries()] == ["basis"]
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 200, requires_grad=True)
    _, joint, _ = recorded(lambda x, w: torch.relu(x @ w).softmax(-1).sum(), [x, w], basis())
    kinds = [*map(plan_basis.kind_of(), joint.graph)]
    assert kinds == [*map(kind_of, joint.graph)] and len({*kinds}) > 3
    plan_basis.clear()


def test_rules_that_refuse_by_a_reason_of_their_own_have_no_table(plans, monkeypatch):
    from dataclasses import replace

    from staxlab.loops.lowering.registry import RULES

    mm = torch.ops.aten.mm.default
    assert plan_basis.registered_rows() is not None
    monkeypatch.setitem(RULES, mm, replace(RULES[mm], refuses=lambda node: "never"))
    assert plan_basis.registered_rows() is None
