"""Proposition 11.1 in the small: every determinant of an artifact changes its key, and nothing else does."""

from __future__ import annotations

import dataclasses
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from staxlab.codegen.kernel import Kernel
from staxlab.errors import BuildError
from staxlab.options import host_device_spec
from staxlab.provenance import Line
from staxlab.runtime import build, sanitizers, toolchain

TOOLS = toolchain.Toolchain(("/usr/bin/g++",), "g++ 12.2.0", "gnu", "x86_64-linux-gnu", "as 2.40\nld 2.40")
SOURCE = ('#include "staxlab_math.h"', 'extern "C" void kernel(float* x) { x[0] = 1; }')


def kernel(*lines: str, flags: tuple[str, ...] = ("-mavx2",), **launch: object) -> Kernel:
    text = tuple(map(Line, lines or SOURCE))
    return Kernel("kernel", "cpp", text, (), (), host_device_spec(), launch=launch, flags=flags)


@pytest.fixture(autouse=True)
def forget():
    build.clear()
    yield
    build.clear()
    build._runtime_digest.cache_clear()


def with_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str | None) -> None:
    """The package's headers in another directory, one of them changed."""
    shutil.copytree(build.HEADER_DIRECTORY, tmp_path / "headers")
    if changed:
        with open(tmp_path / "headers" / changed, "a") as file:
            file.write("// changed\n")
    monkeypatch.setattr(build, "HEADER_DIRECTORY", tmp_path / "headers")
    build.clear()


def with_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, where: str = "a") -> None:
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / name).write_bytes(content)
    build._runtime_digest.cache_clear()
    monkeypatch.setattr(toolchain, "openmp_runtime", lambda: str(tmp_path / where / name))


PARALLEL = kernel(flags=("-mavx2", "-fopenmp"))
BOUND = kernel(imports=("Sleef_expf8_u10",))
AMX = kernel('#include "staxlab_amx.h"', SOURCE[1])

#: Determinant -> (kernel, what changes: the kernel, the compiler, or something around them).
DETERMINANTS: dict[str, tuple[Kernel, Callable]] = {
    "source": (kernel(), lambda k, t, m, p: (kernel(*SOURCE, "// more"), t)),
    "order of lines": (kernel(), lambda k, t, m, p: (kernel(*SOURCE[::-1]), t)),
    "flags": (kernel(), lambda k, t, m, p: (kernel(flags=("-mavx2", "-ffast-math")), t)),
    "instruction set": (kernel(), lambda k, t, m, p: (kernel(flags=("-mavx512f",)), t)),
    "where one flag ends": (kernel(flags=("-DA", "-DB")), lambda k, t, m, p: (kernel(flags=("-DA-DB",)), t)),
    "threads": (kernel(), lambda k, t, m, p: (PARALLEL, t)),
    "sanitizers": (kernel(), lambda k, t, m, p: (m.setenv(sanitizers.VARIABLE, "undefined"), (k, t))[1]),
    "flags of every kernel": (kernel(), lambda k, t, m, p: (m.setattr(toolchain, "COMMON_FLAGS", ("-O2",)), (k, t))[1]),
    "compiler's version": (kernel(), lambda k, t, m, p: (k, dataclasses.replace(t, version="g++ 12.2.1"))),
    "compiler's machine": (kernel(), lambda k, t, m, p: (k, dataclasses.replace(t, target="aarch64-linux-gnu"))),
    "assembler or linker": (kernel(), lambda k, t, m, p: (k, dataclasses.replace(t, helpers="as 2.41\nld 2.40"))),
    "compiler that is a script": (kernel(), lambda k, t, m, p: (k, dataclasses.replace(t, script="0" * 64))),
    "compiler's own arguments": (
        kernel(), lambda k, t, m, p: (k, dataclasses.replace(t, command=(*t.command, "-fno-plt"))),
    ),
    "OpenMP dialect": (PARALLEL, lambda k, t, m, p: (k, dataclasses.replace(t, openmp=""))),
    "OpenMP runtime's content": (PARALLEL, lambda k, t, m, p: (with_runtime(p, m, "libgomp.so.1", b"2"), (k, t))[1]),
    "OpenMP runtime's name": (PARALLEL, lambda k, t, m, p: (with_runtime(p, m, "libgomp-a3.so.1", b"1"), (k, t))[1]),
    "PyTorch a kernel is bound to": (
        BOUND, lambda k, t, m, p: (m.setattr(torch, "__version__", "2.99.0"), (k, t))[1],
    ),
    "headers of every kernel": (kernel(), lambda k, t, m, p: (with_headers(p, m, "staxlab_simd.h"), (k, t))[1]),
    "header of an own kind": (AMX, lambda k, t, m, p: (with_headers(p, m, "staxlab_amx.h"), (k, t))[1]),
    "the package's format": (kernel(), lambda k, t, m, p: (m.setattr(build, "FORMAT", "0"), (k, t))[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", DETERMINANTS)
def test_every_determinant_changes_the_key(name, monkeypatch, tmp_path):
    made, change = DETERMINANTS[name]
    with_runtime(tmp_path, monkeypatch, "libgomp.so.1", b"1")
    before = build.key_of(made, TOOLS)
    assert before == build.key_of(made, TOOLS) and len(before) == 64
    after = build.key_of(*change(made, TOOLS, monkeypatch, tmp_path))
    assert after != before


def test_what_is_no_determinant_does_not_change_the_key(monkeypatch, tmp_path):
    with_runtime(tmp_path, monkeypatch, "libgomp.so.1", b"1")
    before = [build.key_of(k, TOOLS) for k in (kernel(), PARALLEL, BOUND, AMX)]
    with_headers(tmp_path, monkeypatch, None)
    with_runtime(tmp_path, monkeypatch, "libgomp.so.1", b"1", where="elsewhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    elsewhere = dataclasses.replace(TOOLS, command=("/opt/other/bin/g++",))
    assert [build.key_of(k, elsewhere) for k in (kernel(), PARALLEL, BOUND, AMX)] == before
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with_headers(tmp_path / "again", monkeypatch, "staxlab_amx.h")
    with_runtime(tmp_path, monkeypatch, "libgomp.so.1", b"2")
    assert build.key_of(kernel(), elsewhere) == before[0], "nothing of this concerns a kernel that uses none of it"


def test_names_of_the_region_are_no_part_of_the_key():
    import staxlab

    def one(x):
        return torch.relu(x) * 3

    def another(y):
        return torch.relu(y) * 3

    keys = set()
    for function in (one, another):
        (made,) = staxlab.explain(function, torch.ones(5)).kernels
        keys.add(build.key_of(build.anonymous(made), TOOLS))
    assert len(keys) == 1


def test_a_header_of_somebody_else_is_known_by_its_content(cache_dir, tmp_path, monkeypatch):
    """What the chapter calls the thorough remedy: a header is replaced in place, and the old artifact is not used."""
    header = tmp_path / "weights.h"
    source = f'#include "{header}"\nextern "C" int kernel() {{ return WEIGHT; }}\n'
    for weight in (3, 4, 3):
        header.write_text(f"#define WEIGHT {weight}\n")
        build.clear()
        assert build.build_library(source)["kernel"]() == weight
    assert "staxlab" not in source and build._included("\n".join(SOURCE), (), TOOLS) == ""
    header.unlink()
    with pytest.raises(BuildError, match="cannot preprocess"):
        build.build_library(source)


def test_generated_kernels_include_nothing_but_the_packages_headers():
    """So the headers of the system are no determinant of theirs."""
    for path in build.HEADER_DIRECTORY.glob("*.h"):
        assert not build._FOREIGN.search(path.read_text()), path.name
    import staxlab

    def function(x, y):
        return torch.softmax(x @ y, -1).sum(0).exp(), torch.sort(x)[0].cumsum(1), x.bfloat16().tanh()

    x = torch.randn(40, 40)
    made = staxlab.explain(function, x, x).kernels
    assert any(k.language == "cpp" for k in made)
    assert not any(build._FOREIGN.search(k.source) for k in made if k.language == "cpp")


def test_the_compiler_is_a_pure_function(cache_dir):
    """Proposition 11.1 assumes it: the same source gives the same bytes, in another directory too."""
    import staxlab

    (made,) = staxlab.explain(lambda x: torch.relu(x).sum(-1), torch.ones(50, 60)).kernels
    tools = toolchain.find()
    bare = build.anonymous(made)
    assert build.compile_kernel(bare, tools) == build.compile_kernel(bare, tools)


def test_the_identity_of_a_compiler_is_what_it_says_and_not_where_it_is(cache_dir, tmp_path, monkeypatch):
    toolchain.clear()
    script = (
        '#!/bin/sh\ncase "$1" in --version) echo cc 1.0;; -dumpmachine) echo riscv64;; '
        f"-print-prog-name=*) echo {tmp_path}/tool;; esac\n"
    )
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool 7\necho more\n")
    identities = []
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(script + "# another one, which may add flags\n" * (name == "three"))
        for path in (tmp_path / name, tmp_path / "tool"):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("STAXLAB_CXX", str(tmp_path / name))
        found = toolchain.find()
        identities.append(found.identity)
    toolchain.clear()
    assert identities[0] == identities[1] != identities[2]
    assert all(identity.startswith("cc 1.0\0riscv64\0tool 7\ntool 7\0") for identity in identities)
