"""The repository as a whole: files that must agree with each other, and things that must never be committed."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
# conda-forge names that differ from PyPI's, and the programs that PyPI does not have.
CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib", "python-graphviz": "graphviz"}
CONDA_ONLY = {"python", "pip", "cxx-compiler", "graphviz"}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def requirements() -> dict[str, set[Requirement]]:
    """Every outside package pyproject.toml names, with all the ranges it is named with."""
    found: dict[str, set[Requirement]] = {}
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *(r for group in extras.values() for r in group)]:
        requirement = Requirement(text)
        if requirement.name != "staxlab":
            found.setdefault(canonicalize_name(requirement.name), set()).add(requirement)
    return found


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_a_package_has_one_range_whichever_extra_names_it():
    mixed = {name: sorted(map(str, ranges)) for name, ranges in requirements().items() if len(ranges) > 1}
    assert not mixed


def test_all_names_every_extra():
    extras = PROJECT["optional-dependencies"]
    (everything,) = (Requirement(text) for text in extras["all"])
    assert everything.extras == set(extras) - {"all"}


def test_the_conda_environment_asks_for_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"][0] == "conda-forge"
    plain = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (through_pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    conda = {Requirement(text) for text in plain if Requirement(text).name not in CONDA_ONLY}
    named = {CONDA_NAMES.get(r.name, r.name): str(r.specifier) for r in conda}
    for requirement in map(Requirement, through_pip):
        named[canonicalize_name(requirement.name)] = f"{requirement.specifier}; {requirement.marker or ''}"
    wanted = {}
    for name, (requirement,) in requirements().items():
        by_pip = name in {canonicalize_name(Requirement(text).name) for text in through_pip}
        wanted[name] = f"{requirement.specifier}; {requirement.marker or ''}" if by_pip else str(requirement.specifier)
    assert named == wanted
    assert set(CONDA_ONLY) <= {Requirement(text).name for text in plain}
    (python,) = (Requirement(text) for text in plain if Requirement(text).name == "python")
    assert str(python.specifier) == PROJECT["requires-python"]


def test_constraints_pin_every_package_within_its_range():
    pinned = pins()
    missing = set(requirements()) - set(pinned)
    assert not missing, f"constraints.txt does not pin {sorted(missing)}"
    outside = [
        f"{name}=={pinned[name]} is outside {requirement.specifier}"
        for name, ranges in requirements().items()
        for requirement in ranges
        if not requirement.specifier.contains(pinned[name], prereleases=True)
    ]
    assert not outside


def test_every_pip_install_is_bounded():
    """An unpinned torch may be several gigabytes."""
    for name in ("Makefile", ".ci/run", ".ci/browser"):
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if "pip install" in line:
                assert "-c constraints.txt" in line, f"{name}: {line.strip()}"


def test_every_extra_an_error_recommends_exists():
    extras = set(PROJECT["optional-dependencies"])
    unknown = [
        f"{path.relative_to(ROOT)}: staxlab[{group}]"
        for path in (ROOT / "staxlab").rglob("*.py")
        for group in re.findall(r"staxlab\[([a-z,]+)\]", path.read_text())
        if not set(group.split(",")) <= extras
    ]
    assert not unknown


def test_every_data_file_ships_with_the_package():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]
    packages = {path.parent for path in (ROOT / "staxlab").rglob("__init__.py")}
    left_behind = []
    for path in tracked_files():
        if ROOT / "staxlab" not in path.parents or path.suffix == ".py":
            continue
        package = next(parent for parent in path.parents if parent in packages)
        relative = path.relative_to(package).as_posix()
        if not any(_matches(relative, pattern) for pattern in patterns):
            left_behind.append(str(path.relative_to(ROOT)))
    assert not left_behind, f"package-data in pyproject.toml leaves out {left_behind}"


def _matches(path: str, pattern: str) -> bool:
    """A setuptools glob: * does not cross a directory."""
    return path.count("/") == pattern.count("/") and fnmatch.fnmatch(path, pattern)


def test_committed_notebooks_are_clean():
    """No outputs, no counts, no widget state: some hosts refuse a notebook whose widget metadata has no state."""
    for path in tracked_files():
        if path.suffix != ".ipynb":
            continue
        notebook = json.loads(path.read_text())
        where = path.relative_to(ROOT)
        assert "widgets" not in notebook["metadata"], f"{where}: metadata.widgets"
        for position, cell in enumerate(notebook["cells"]):
            assert "widgets" not in cell.get("metadata", {}), f"{where}: cell {position} has widget metadata"
            if cell["cell_type"] == "code":
                assert not cell["outputs"], f"{where}: cell {position} has outputs"
                assert cell["execution_count"] is None, f"{where}: cell {position} has an execution count"


# Spelled in pieces, so that this file does not contain what it forbids.
FORBIDDEN = {
    "a path of one machine": re.compile(
        r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|home/\w+|Users/\w+|opt/wheels|opt/pypi)/|/tmp/" + r"venv"
    ),
    "a package index": re.compile("--(?:extra-)?index" + "-url|find" + "-links|/sim" + r"ple\b|file:" + "///"),
    "a hard-coded token": re.compile("gh[pousr]_" + r"\w{20}|AKI" + "A[0-9A-Z]{16}"),
}


def test_no_tracked_file_names_a_machine():
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for what, pattern in FORBIDDEN.items():
            found += [f"{path.relative_to(ROOT)}: {what}: {match.group()!r}" for match in pattern.finditer(text)]
    assert not found, "\n".join(found)


def test_the_search_for_machine_paths_finds_one():
    assert FORBIDDEN["a path of one machine"].search("cd /wo" + "rk/main")
    assert FORBIDDEN["a path of one machine"].search("'/home/" + "ada/x'")
    assert FORBIDDEN["a package index"].search("pip install --index" + "-url x")
    assert not FORBIDDEN["a path of one machine"].search("notebooks/work/readme, and/root/of unity")


def test_nothing_large_is_tracked():
    large = [
        f"{path.relative_to(ROOT)}: {path.stat().st_size}" for path in tracked_files() if path.stat().st_size > 1 << 20
    ]
    assert not large


@pytest.mark.parametrize("script", [".ci/run", ".ci/browser"])
def test_scripts_stop_at_the_first_failure(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in lines
    assert subprocess.run(["bash", "-n", path], capture_output=True).returncode == 0


def test_continuous_integration_runs_the_tests_last():
    """The runner's closing line must be the last thing printed."""
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.M))


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_documents_name_only_targets_and_commands_that_exist():
    from staxlab.cli import build_parser

    subcommands = next(action for action in build_parser()._actions if action.dest == "command").choices
    for path in documents():
        text = path.read_text()
        code = "\n".join(re.findall(r"```(?:sh|bash)\n(.*?)```", text, flags=re.S)) + "\n".join(
            re.findall(r"`([^`\n]+)`", text)
        )
        unknown = set(re.findall(r"^make ([a-z][\w-]*)", code, flags=re.M)) - make_targets()
        assert not unknown, f"{path.name}: make {sorted(unknown)}"
        unknown = set(re.findall(r"^staxlab ([a-z]+)", code, flags=re.M)) - set(subcommands)
        assert not unknown, f"{path.name}: staxlab {sorted(unknown)}"


def test_links_between_documents_lead_somewhere():
    broken = []
    for path in documents():
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            if not re.match(r"[a-z]+:", target) and not (path.parent / target.split("#")[0]).resolve().exists():
                broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert not broken, "\n".join(broken)


def _index_builder():
    specification = importlib.util.spec_from_file_location("build_index", ROOT / "docs" / "build_index.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["build_index"] = module
    specification.loader.exec_module(module)
    return module


def test_the_index_of_numbered_results_is_fresh():
    builder = _index_builder()
    assert (ROOT / "docs" / "index.md").read_text() == builder.page(), "docs/index.md is stale: run `make docs`"


def test_the_index_reads_docstrings(tmp_path):
    builder = _index_builder()
    package = tmp_path / "staxlab" / "loops"
    package.mkdir(parents=True)
    (package / "ir.py").write_text(
        '"""Section 6.1.\n\nDefinitions 6.1 and 6.2."""\nclass A:\n    def f(self):\n        """Algorithm 6.1: x."""\n'
        '        y = "Lemma 9.9"\n'
    )
    items, modules = builder.collect(tmp_path)
    assert set(items) == {("Definition", "6.1"), ("Definition", "6.2"), ("Algorithm", "6.1")}
    assert items["Algorithm", "6.1"] == [builder.Mention("staxlab/loops/ir.py", 5, "A.f")]
    assert modules == {6: ["staxlab/loops/ir.py"]}
    assert "| Algorithm 6.1 | [`loops.ir.A.f`](../staxlab/loops/ir.py) |" in builder.page(tmp_path)


CITATION = re.compile(r"\b([A-Z][A-Za-zé'’-]+[a-zé])(?: et al\.?)?,? \(?((?:19|20)\d\d)\b")
NOT_AUTHORS = {"January", "February", "March", "April", "May", "June", "July", "August", "September", "October"}
NOT_AUTHORS |= {"November", "December", "Since", "In", "PyTorch"}


def citations(text: str) -> set[tuple[str, str]]:
    """(last author named, year) pairs: "Chan, Golub and LeVeque 1983", "Reed et al. (2022)", "Weiser, 1981"."""
    flat = " ".join(text.split())
    return {(name, year) for name, year in CITATION.findall(flat) if name not in NOT_AUTHORS}


def test_every_cited_work_is_in_the_bibliography():
    builder = _index_builder()
    entries = [" ".join(entry.split()) for entry in (ROOT / "docs" / "references.md").read_text().split("\n- ")]
    missing = set()
    for path in sorted((ROOT / "staxlab").rglob("*.py")):
        for name, _, text in builder.docstrings(path):
            for author, year in citations(text):
                if not any(author in entry and f"({year})" in entry for entry in entries):
                    missing.add(f"{author} {year} ({path.relative_to(ROOT)} {name})")
    assert not missing, "docs/references.md lacks: " + "; ".join(sorted(missing))


def test_citations_are_recognised():
    text = "After Chan, Golub and\nLeVeque 1983; Reed et al. (2022); Weiser, 1981, and IEEE 754-2019. In 2020 nothing."
    assert citations(text) == {("LeVeque", "1983"), ("Reed", "2022"), ("Weiser", "1981")}


def test_bibliography_entries_are_sorted_and_complete():
    for section in (ROOT / "docs" / "references.md").read_text().split("\n## ")[1:]:
        entries = [" ".join(entry.split()) for entry in section.split("\n- ")[1:]]
        assert entries == sorted(entries, key=str.casefold), section.split("\n")[0]
        for entry in entries:
            assert re.search(r"\((?:19|20)\d\d\)\. \S.{9,}\.( |$)", entry) or entry.startswith("IEEE"), entry
