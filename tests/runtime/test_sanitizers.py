"""Kernels compiled with the sanitizers: what they are for is seen to happen, and they never pass for unchecked ones."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import sanitizers as runner
from staxlab.errors import BuildError, OptionError
from staxlab.runtime import build, sanitizers, toolchain
from tests.codegen.cpp_support import compile_program, pointwise

OVERFLOW = "heap-buffer-overflow|unknown-crash"  # the second where a vector lies across the end
#: What `planted_faults.py` plants, and what must be said about it.
EXPECTED = {
    "nothing": "",
    "nothing, generated": "",
    "nothing, in the pool": "",
    "read after an input": f"(?s)({OVERFLOW}).*READ of size 4",
    "read before an input": f"(?s)({OVERFLOW}).*READ of size 4",
    "write after an output": f"(?s)({OVERFLOW}).*WRITE of size 4",
    "read after a view, vectors": f"(?s)({OVERFLOW}).*READ",
    "read after a view, masked tail": f"(?s)({OVERFLOW}).*READ",
    "read after a view, scalar": f"(?s)({OVERFLOW}).*READ of size 4",
    "write after an output, masked tail": f"(?s)({OVERFLOW}).*WRITE",
    "write after an output, scalar": f"(?s)({OVERFLOW}).*WRITE of size 4",
    "write after a block of the pool": "(?s)use-after-poison.*WRITE of size 4",
    "write into a block given back to the pool": "(?s)use-after-poison.*WRITE of size 4",
    "shift by more than the width": "runtime error: shift exponent 38 is too large",
}


def checked_process() -> dict[str, str]:
    """Variables of a process whose kernels are checked; skips where the compiler has no sanitizers."""
    try:
        return sanitizers.environment(toolchain.find().command)
    except BuildError as error:
        pytest.skip(f"no sanitizers here: {error.what}")


def planted(faults: tuple[str, ...], directory: Path, extension: Path | None) -> dict[str, str]:
    """What the sanitizers say about each of some faults."""
    variables = runner.variables_of("planted", extension, directory)
    command = [sys.executable, "-m", "tests.runtime.planted_faults", *faults]
    done = subprocess.run(command, cwd=runner.ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def judge(said: dict[str, str]) -> None:
    for fault, text in said.items():
        if EXPECTED[fault]:
            assert re.search(EXPECTED[fault], text), f"{fault}: {text or 'nothing is said'}"
        else:
            assert text == "", fault


def test_some_planted_faults_are_found(tmp_path):
    checked_process()
    faults = ("nothing, generated", "read after an input", "write after an output, masked tail")
    judge(planted(faults, tmp_path, None))


@pytest.mark.slow
def test_all_planted_faults_are_found(tmp_path):
    checked_process()
    try:
        extension = runner.build_extension(tmp_path)
    except BuildError as error:
        pytest.skip(f"no sanitized extension here: {error.what}")
    said = planted((), tmp_path, extension)
    assert set(said) == set(EXPECTED)
    judge(said)


def example():
    x = {"x": torch.arange(37.0)}
    return pointwise(x, (37,), torch.float32, lambda ops, i: ops.neg(ops.load("x", i[0])))


def keys(monkeypatch, kernel) -> dict[str, str]:
    found = {}
    for names in ("", "address", "undefined", "address,undefined", "undefined, address"):
        monkeypatch.setenv(sanitizers.VARIABLE, names)
        found[names] = build.key_of(kernel, toolchain.find())
    return found


def test_the_flags_are_part_of_the_key(monkeypatch, cache_dir):
    _, kernels, _ = compile_program(example())
    found = keys(monkeypatch, kernels[0])
    assert found["address,undefined"] == found["undefined, address"]
    assert len(set(found.values())) == 4
    monkeypatch.delenv(sanitizers.VARIABLE)
    assert build.key_of(kernels[0], toolchain.find()) == found[""]


def test_a_compilers_own_arguments_are_part_of_the_key(cache_dir):
    """STAXLAB_CXX="g++ -ffast-math" is another compiler than g++."""
    _, kernels, _ = compile_program(example())
    tools = toolchain.find()
    other = dataclasses.replace(tools, command=(*tools.command, "-ffast-math"))
    elsewhere = dataclasses.replace(tools, command=("/elsewhere/c++", *tools.command[1:]))
    assert build.key_of(kernels[0], other) != build.key_of(kernels[0], tools)
    assert build.key_of(kernels[0], elsewhere) == build.key_of(kernels[0], tools)


def test_unknown_sanitizers_are_refused(monkeypatch):
    monkeypatch.setenv(sanitizers.VARIABLE, "address,adress")
    with pytest.raises(OptionError, match="adress"):
        sanitizers.flags()


def test_checked_kernels_are_loaded_only_where_they_can_report(monkeypatch, cache_dir):
    checked_process()
    if not sanitizers.requested():  # not itself part of a checked run
        monkeypatch.setenv(sanitizers.VARIABLE, "address")
        build.clear()
        with pytest.raises(BuildError, match="started without the library of address"):
            compile_program(example())


def test_the_compiler_is_not_checked(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.delenv(sanitizers.VARIABLE, raising=False)
    assert sanitizers.compiler_environment() is None
    monkeypatch.setenv(sanitizers.VARIABLE, "undefined")
    given = sanitizers.compiler_environment()
    assert given is not None and "LD_PRELOAD" not in given and given["PATH"] == os.environ["PATH"]


def test_a_compiler_without_sanitizers_is_named(tmp_path):
    other = tmp_path / "c++"
    other.write_text("#!/bin/sh\necho libasan.so\n")
    other.chmod(0o755)
    with pytest.raises(BuildError, match="has no libasan.so"):
        sanitizers.libraries((str(other),))


@pytest.mark.slow
def test_a_run_accounts_for_kernels_and_tells_faults_planted_on_purpose_apart(tmp_path, monkeypatch):
    checked_process()
    wanted = ("tests/codegen/test_cpp_planted.py", "-k", "forgotten or reversed")
    monkeypatch.setitem(runner.SUITES, "planted", wanted)
    account = runner.run_suite("planted", None, tmp_path, 1, ())
    if "passed" not in account["tests"]:
        pytest.skip("the kernels that are broken there have 16 lanes")
    assert account["status"] == 0 and account["tests"] == {"passed": 2}
    assert account["kernels"] >= 3 and account["launches"] >= 4
    assert account["findings"] == [] and account["found_in_kernels_broken_on_purpose"] == 1


def test_unknown_suites_are_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["--suites", "codgen"])
    assert "no suite named 'codgen'" in capsys.readouterr().err
