"""Reading every entry, copying a warm cache, looking into it, and libraries that must not reach the loader."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from staxlab import cli, view
from staxlab.errors import OptionError
from staxlab.runtime import cache, cache_directory, cache_entries, cache_format, cache_upkeep
from tests.view.reading import read, references

KEYS = ["ab" + f"{number:062x}" for number in range(8)]


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(cache, "_outcomes", {})
    cache_directory.clear()
    yield
    cache_directory.clear()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> bytes:
    """A small shared library of this machine."""
    where = tmp_path_factory.mktemp("library")
    (where / "x.cpp").write_text('extern "C" int answer() { return 42; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", str(where / "x.cpp"), "-o", str(where / "x.so")], check=True)
    return (where / "x.so").read_bytes()


def changed(library: bytes, at: int, form: str, value: int) -> bytes:
    made = bytearray(library)
    struct.pack_into(form, made, at, value)
    return bytes(made)


def segment(library: bytes, field: int, value: int) -> bytes:
    """The first loadable segment with one of its fields (by offset) set to something else."""
    table = struct.unpack_from("<Q", library, 32)[0]
    (count,) = struct.unpack_from("<H", library, 56)
    place = next(table + 56 * n for n in range(count) if struct.unpack_from("<I", library, table + 56 * n) == (1,))
    return changed(library, place + field, "<Q", value)


FOREIGN = {
    "another machine": (lambda x: changed(x, 18, "<H", 183 if x[18] != 183 else 62), "is made for another machine"),
    "another word size": (lambda x: changed(x, 4, "<B", 1), "is made for another machine"),
    "another byte order": (lambda x: changed(x, 5, "<B", 2), "is made for another machine"),
    "a text": (lambda x: b"#!/bin/sh\necho hello\n", "is no shared library"),
    "nothing": (lambda x: b"", "is no shared library"),
    "macOS": (lambda x: b"\xcf\xfa\xed\xfe" + struct.pack("<I", 0x0100000C) + x[8:], "is made for another machine"),
    "an object file": (lambda x: changed(x, 16, "<H", 1), "is no shared library"),
    "only a header": (lambda x: x[:64], "is cut short"),
    "only a piece of a header": (lambda x: x[:30], "is cut short"),
    "half": (lambda x: x[: len(x) // 2], "is cut short"),
    "a segment beyond the end": (lambda x: segment(x, 32, 1 << 40), "is cut short"),
    "no segments": (lambda x: changed(x, 56, "<H", 0), "is cut short"),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds an ELF file")
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_library_that_cannot_run_here_never_reaches_the_loader(cache_dir, library, kind):
    """Its digest is right, so it is what somebody wrote: on another machine, or by another program."""
    assert cache_format.library_problem(library) is None
    change, said = FOREIGN[kind]
    bad = change(library)
    assert cache_format.library_problem(bad).startswith(said)
    cache.write_verified(KEYS[0], bad, title="a kernel")
    assert cache.read_library(KEYS[0]) is None and not cache.path_of(KEYS[0]).exists()
    cache.write_verified(KEYS[0], library)
    assert cache.read_library(KEYS[0]) == library


def faulty(cache_dir: Path, library: bytes) -> dict[str, str]:
    """A directory with everything that can be wrong: path below it -> state."""
    cache.write_verified("plan-" + "0" * 64, b"a plan", title="sound")
    for key in KEYS[:5]:
        cache.write_verified(key, library, title="a kernel")
    path = cache.path_of
    path(KEYS[0]).write_bytes(path(KEYS[0]).read_bytes()[:-1])
    path(KEYS[1]).write_bytes(b"\x7fELF, a stranger's")
    cache.write_verified(KEYS[2], changed(library, 18, "<H", 40))
    path(KEYS[3]).chmod(0o666)
    (cache_dir / "ab" / ".writing-old").write_text("half")
    os.utime(cache_dir / "ab" / ".writing-old", (1, 1))
    (cache_dir / "ab" / ".writing-now").write_text("half")
    (cache_dir / "thesis.tex").write_text("mine")
    (cache_dir / "ab" / "notes").write_text("mine")
    return {
        f"ab/{KEYS[0]}": "damaged", f"ab/{KEYS[1]}": "foreign", f"ab/{KEYS[2]}": "another machine's",
        f"ab/{KEYS[3]}": "not private", "ab/.writing-old": "left behind", "thesis.tex": "not the cache's",
        "ab/notes": "not the cache's",
    }  # fmt: skip


@pytest.fixture
def own_temporary_directory(tmp_path, monkeypatch):
    """Nothing that other processes have left in the system's is found."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(cache_entries.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds an ELF file")
def test_verify_finds_every_fault_and_removes_what_is_the_caches(cache_dir, library, own_temporary_directory):
    expected = faulty(cache_dir, library)
    found = cache_upkeep.verify()
    assert {str(Path(f.path).relative_to(cache_dir)): f.state for f in found.findings} == expected
    assert found.sound == 2 and not found.clean and not any(f.removed for f in found.findings)
    removed = cache_upkeep.verify(remove=True)
    assert removed.clean and {f.state for f in removed.findings if not f.removed} == {"not the cache's"}
    again = cache_upkeep.verify()
    assert again.clean and {f.state for f in again.findings} == {"not the cache's"} and again.sound == 2
    assert (cache_dir / "thesis.tex").exists() and (cache_dir / "ab" / ".writing-now").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds an ELF file")
def test_the_commands_say_what_is_wrong_and_end_with_it(cache_dir, library, own_temporary_directory, capsys, tmp_path):
    def run(*arguments: str) -> tuple[int, str]:
        status = cli.main(["cache", *arguments])
        out = capsys.readouterr()
        return status, out.out + out.err

    faulty(cache_dir, library)
    status, said = run("verify")
    assert status == 1 and "2 sound entries" in said and "another machine's" in said and "--remove" in said
    status, said = run("export", str(tmp_path / "out"))
    assert status == 0 and "2 entries" in said and "4 left out" in said and f"STAXLAB_CACHE_SHARED={tmp_path}" in said
    assert run("verify", "--remove")[0] == 0 and run("verify")[0] == 0
    status, said = run("list")
    assert status == 0 and "a kernel" in said and "plan-000000000000" in said
    assert run("info") == (0, f"{cache.info()}\n")
    for wrong in (["export"], ["info", "x"], ["clear", "--remove"], ["burn"]):
        try:
            assert cli.main(["cache", *wrong]) == 2
        except SystemExit as end:
            assert end.code == 2
    assert cache.info().entries == 2, "a wrong request changes nothing"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds an ELF file")
def test_what_is_exported_can_be_read_by_others_and_written_by_none(cache_dir, library, tmp_path, monkeypatch):
    cache.write_verified(KEYS[0], library, title="a kernel")
    cache.write_verified("plan-" + "0" * 64, b"a plan")
    cache.write_verified("compiler-" + "0" * 32 + ".json", b"{}", title="of this machine")
    target = tmp_path / "some" / "where"
    done = cache_upkeep.export(target)
    assert (done.entries, done.left_out) == (2, 0)
    for path in (target, *target.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)
    assert not list(target.glob("compiler-*"))
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(tmp_path / "student"))
    monkeypatch.setenv("STAXLAB_CACHE_SHARED", str(target))
    assert cache.read_library(KEYS[0]) == library and cache.read_verified("plan-" + "0" * 64) == b"a plan"
    assert cache.info().entries == 0 and cache.browse().hits == 2


def test_a_target_nobody_would_read_is_refused(cache_dir, tmp_path):
    cache.write_verified("plan-" + "0" * 64, b"a plan")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").write_text("")
    for target, said in (
        (cache_dir, "is the cache itself"), (cache_dir / "inner", "is the cache itself"),
        (tmp_path / "open", "nobody would read"), (tmp_path / "open" / "inner", "nobody would read"),
        (tmp_path / "file", "cannot be copied"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=said):
            cache_upkeep.export(target)
    assert cache.read_verified("plan-" + "0" * 64) == b"a plan"


# --- Looking into it --------------------------------------------------------------------------------------------------


def contents(cache_dir: Path) -> cache.Contents:
    cache.write_verified(KEYS[0], b"x" * 3000, title='</b><script>alert("x")</script>')
    cache.write_verified("plan-" + "0" * 64, b"y" * 500, title="a region")
    os.utime(cache_dir / ("plan-" + "0" * 64), (time.time() - 7300,) * 2)
    cache.read_verified(KEYS[0])
    cache.read_verified(KEYS[1])
    cache.write_verified(KEYS[1], b"z")
    return cache.browse()


def test_the_browser_has_kinds_sizes_ages_titles_and_what_this_process_found(cache_dir):
    found = contents(cache_dir)
    assert {e.name: e.kind for e in found.entries} == {KEYS[0]: "kernel", KEYS[1]: "kernel", "plan-" + "0" * 64: "plan"}
    assert list(found.by_kind) == ["kernel", "plan"] and found.by_kind["kernel"][0] == 2
    assert found.nbytes == cache.info().nbytes and (found.hits, found.misses) == (1, 1)
    text = str(found)
    for expected in (
        "a region",
        "2 hours ago",
        "of 2 GiB",
        "found",
        "built",
        "shared library of a kernel",
        "3 entries",
    ):
        assert expected in text, expected
    assert text.index(KEYS[0][:12]) < text.index("plan-0000"), "most recently used first"


def test_the_browser_draws_both_records(cache_dir, own_temporary_directory):
    for record in (contents(cache_dir), cache_upkeep.verify()):
        html = view.html(record)
        tree = read(html)
        assert "drawing failed" not in tree.text and references(html) == [] and "<script>alert" not in html
        assert tree.find("table") and tree.find("caption")
    html = view.html(contents(cache_dir))
    tree = read(html)
    (picture,) = [e for e in tree.find("svg") if e.attributes.get("role") == "img"]
    assert "Bytes on disk by kind of entry" in picture.attributes["aria-label"] and "kernel" in picture.text
    bars = picture.find("rect")
    assert float(bars[0].attributes["width"]) > float(bars[1].attributes["width"]) > 0


def test_a_name_does_not_reach_the_terminal_as_a_command(cache_dir, own_temporary_directory):
    (cache_dir / "\x1b[31mred\nline").write_text("mine")
    said = str(cache_upkeep.verify())
    assert "\x1b" not in said and "[31mred line" in said
    cache.write_verified(KEYS[0], b"x")
    path = cache.path_of(KEYS[0])
    path.write_bytes(cache_format.MARKER + b"0" * 64 + b" a \x1b[2J title\n")
    assert "\x1b" not in str(cache.browse()) and "[2J title" in str(cache.browse())


def test_an_empty_cache_can_be_looked_at(cache_dir, own_temporary_directory):
    assert "0 entries, 0 B of 2 GiB" in str(cache.browse()) and view.html(cache.browse())
    assert str(cache_upkeep.verify()) == f"{cache_dir}: 0 sound entries, 0 B"
