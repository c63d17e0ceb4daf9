"""Which compiler is found, and that it is asked who it is only once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from staxlab.errors import BuildError
from staxlab.runtime import cache, toolchain


@pytest.fixture(autouse=True)
def forget():
    toolchain.clear()
    yield
    toolchain.clear()


def test_no_compiler_names_the_three_remedies(monkeypatch, cache_dir, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("STAXLAB_CXX", raising=False)
    monkeypatch.setattr(toolchain, "_has_ziglang", lambda: False)
    with pytest.raises(BuildError) as caught:
        toolchain.find()
    for remedy in ("apt install g++", "pip install ziglang", "aot_eager"):
        assert remedy in str(caught.value)


def test_a_named_compiler_that_does_not_exist_is_an_error(monkeypatch, cache_dir):
    monkeypatch.setenv("STAXLAB_CXX", "no-such-compiler-anywhere")
    with pytest.raises(BuildError, match="no-such-compiler-anywhere"):
        toolchain.find()


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_order_of_candidates(monkeypatch, cache_dir, tmp_path):
    for name in ("g++", "clang++", "special"):
        script(tmp_path / name, f"#!/bin/sh\necho {name} 1.0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("STAXLAB_CXX", raising=False)
    assert toolchain.find().version == "g++ 1.0"
    monkeypatch.setenv("CXX", "clang++")
    assert toolchain.find().version == "clang++ 1.0"
    monkeypatch.setenv("STAXLAB_CXX", "special --flag")
    found = toolchain.find()
    assert found.version == "special 1.0" and found.command == (str(tmp_path / "special"), "--flag")


def test_a_broken_compiler_gives_way_to_the_next(monkeypatch, cache_dir, tmp_path):
    script(tmp_path / "g++", "#!/bin/sh\nexit 1\n")
    script(tmp_path / "clang++", "#!/bin/sh\necho fine\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("STAXLAB_CXX", raising=False)
    assert toolchain.find().version == "fine"


def test_a_warm_start_asks_nobody(monkeypatch, cache_dir):
    first = toolchain.find()
    toolchain.clear()

    def refuse(*arguments, **options):
        raise AssertionError(f"a process was started: {arguments}")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert toolchain.find() == first


def test_a_replaced_compiler_is_asked_again(monkeypatch, cache_dir, tmp_path):
    compiler = script(tmp_path / "compiler", "#!/bin/sh\necho one\n")
    monkeypatch.setenv("STAXLAB_CXX", str(compiler))
    assert toolchain.find().version == "one"
    script(compiler, "#!/bin/sh\necho another one\n")
    toolchain.clear()
    assert toolchain.find().version == "another one"


def test_a_damaged_record_is_made_again(cache_dir):
    first = toolchain.find()
    for path in cache_dir.glob("compiler-*"):
        path.write_bytes(b"damaged")
    toolchain.clear()
    assert toolchain.find() == first
    for path in cache_dir.glob("compiler-*"):
        name, content = path.name, b"[1, 2]"
        cache.write_verified(name, content)
    toolchain.clear()
    assert toolchain.find() == first


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the list of mapped files")
def test_the_openmp_runtime_is_the_one_pytorch_loaded():
    found = toolchain.openmp_runtime()
    assert found is not None and os.path.exists(found)
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "omp" in line.split()[-1].rsplit("/", 1)[-1]}
    assert found in loaded
    assert found in toolchain.link_flags(True) and found not in toolchain.link_flags(False)


def test_asking_for_openmp_leaves_no_file_where_the_user_is(tmp_path, monkeypatch):
    """A compiler for which "-" is a file name like any other still answers, and its answer lies nowhere afterwards."""
    compiler = tmp_path / "compiler"
    script = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncat > /dev/null\necho "call __kmpc_fork_call" > "$2"\n'
    compiler.write_text(script)
    compiler.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert toolchain._openmp_calls((str(compiler),)) == "llvm"
    assert not list(here.iterdir())
