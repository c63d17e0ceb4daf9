"""What Triton reads from disk is what it wrote: verified, found where it lies now, shared, else compiled again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import staxlab
from staxlab.codegen.triton import compile as ahead
from staxlab.codegen.triton import source_files, verified_store
from staxlab.runtime import cache_directory


@pytest.fixture(scope="module")
def kernel():
    (made,) = staxlab.explain(lambda x: torch.relu(x) * 3 + 1, torch.ones(40), target="sm_90").kernels
    return made


@pytest.fixture(scope="module")
def warm(kernel, tmp_path_factory) -> Path:
    """A cache with the compiled kernel."""
    where = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAXLAB_CACHE_DIR", str(where))
        ahead._compiled.clear()
        ahead.aot_compile(kernel)
    return where


@pytest.fixture(autouse=True)
def forget():
    cache_directory.clear()
    ahead._compiled.clear()
    yield
    cache_directory.clear()
    ahead._compiled.clear()
    verified_store.SHARED = ()


def written(monkeypatch) -> list[str]:
    """The names of the files that Triton writes from now on: none, if it finds what it needs."""
    names: list[str] = []
    store = verified_store.manager()
    put = store.put
    monkeypatch.setattr(store, "put", lambda self, data, name, binary=True: names.append(name) or put(self, data, name))
    return names


def files(directory: Path, suffix: str) -> list[Path]:
    return list((directory / "triton" / "compiled").rglob(f"*{suffix}"))


def test_what_was_compiled_is_found_again_also_in_another_place(kernel, warm, tmp_path, monkeypatch):
    names = written(monkeypatch)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(warm))
    first = ahead.aot_compile(kernel)
    shutil.copytree(warm, tmp_path / "moved")
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "moved"))
    ahead._compiled.clear()
    second = ahead.aot_compile(kernel)
    assert names == [] and first["cubin"] == second["cubin"]


DAMAGES = {
    "a bit of machine code": (".cubin", lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:]),
    "a letter of the intermediate form": (".ptx", lambda data: data.replace(b"max", b"min", 1)),
    "half of a file": (".llir", lambda data: data[: len(data) // 2]),
    "nothing in the list of files": (".json", lambda data: b""),
    "a digest": (".cubin.sha256", lambda data: b"0" * 64),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_compiled_again(kernel, warm, tmp_path, monkeypatch, damage):
    where = tmp_path / "cache"
    shutil.copytree(warm, where)
    suffix, change = DAMAGES[damage]
    for path in files(where, suffix):
        before = path.read_bytes()
        path.write_bytes(change(before))
        assert path.read_bytes() != before
    names = written(monkeypatch)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(where))
    again = ahead.aot_compile(kernel)
    (sound,) = files(warm, ".cubin")
    assert any(name.endswith(".cubin") for name in names) and again["cubin"] == sound.read_bytes()
    names.clear()
    ahead._compiled.clear()
    assert ahead.aot_compile(kernel)["cubin"] == again["cubin"] and names == [], "it was put in order"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
def test_what_others_could_have_written_is_not_read(kernel, warm, tmp_path, monkeypatch):
    where = tmp_path / "cache"
    shutil.copytree(warm, where)
    for path in files(where, ".cubin"):
        path.chmod(0o666)
    names = written(monkeypatch)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(where))
    ahead.aot_compile(kernel)
    assert names
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "open"))
    with pytest.warns(UserWarning, match="could have been written by another user"):
        assert tmp_path / "open" not in source_files.cache_root().parents


def test_a_shared_store_is_read_and_never_written(kernel, warm, tmp_path, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in warm.rglob("*")}
    names = written(monkeypatch)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", str(warm))
    assert ahead.aot_compile(kernel)["cubin"] == files(warm, ".cubin")[0].read_bytes()
    assert names == [] and before == {path: path.stat().st_mtime_ns for path in warm.rglob("*")}


def test_what_torch_compile_set_for_itself_is_not_taken_for_the_users_choice(kernel, warm, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(warm))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere/inductor")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/inductor/triton/0")
    names = written(monkeypatch)
    assert ahead.aot_compile(kernel)["cubin"] == files(warm, ".cubin")[0].read_bytes() and names == []
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/else")
    assert source_files.named_by_the_user() == "/somewhere/else"
