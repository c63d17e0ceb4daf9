"""The student's file: written whole, kept when damaged, shared between processes, and never in the way of feedback."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading

import pytest

from staxlab.learn import records
from staxlab.learn.records import StudentRecord, record_path


@pytest.fixture
def record(tmp_path):
    return StudentRecord("Ada", tmp_path)


def add(record, value):
    return record.update(lambda data: record.exercise(data, "ex01")["attempts"].append({"parts": [value]}))


def attempts(record):
    return [attempt["parts"][0] for attempt in record.load().data["exercises"]["ex01"]["attempts"]]


def test_a_record_grows(record):
    for value in "abc":
        _, notes = add(record, value)
        assert notes == ()
    assert attempts(record) == ["a", "b", "c"]
    assert json.loads(record.path.read_text())["student"] == "Ada"


def test_ids_map_to_files_one_to_one(tmp_path):
    ids = ["ada", "ada/../../etc", "a" * 300, "ädä", "../ada", "", "ada_", "CON"]
    paths = {record_path(each, tmp_path) for each in ids}
    assert len(paths) == len(ids)
    assert all(path.parent == tmp_path and len(path.name) < 80 for path in paths)
    assert record_path(" ADA ", tmp_path) == record_path("ada", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe\x00", b"[]", b'{"schema": 99, "exercises": {}}', b'{"schema": 1, "exercises": []}',
     b'{"schema": 1, "exercises": {"ex01": {"attempts": 3, "hints": {}, "hint_log": []}}}',
     b'{"schema": 1, "exercises": {"ex01": {"attempts": [3], "hints": {}, "hint_log": []}}}',
     b'{"schema": 1, "exercises": {"ex01": {"attempts": [], "hints": {"1": "x"}, "hint_log": []}}}',
     b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_is_kept_and_the_copy_before_it_restored(record, damage):
    add(record, "a")
    add(record, "b")
    record.path.write_bytes(damage)
    _, notes = add(record, "c")
    assert attempts(record) == ["a", "c"]  # the copy is from before "b"
    (aside,) = record.path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == damage
    assert len(notes) == 1 and aside.name in notes[0] and "restored" in notes[0]


def test_two_damaged_files_are_both_kept(record):
    add(record, "a")
    add(record, "b")
    record.path.write_text("first")
    record.previous.write_text("second")
    _, notes = add(record, "c")
    assert attempts(record) == ["c"] and "a new record was begun" in notes[0]
    assert sorted(path.read_text() for path in record.path.parent.glob("*.damaged-*")) == ["first", "second"]


def test_repeated_damage_overwrites_nothing(record):
    for content in ("one", "two", "three"):
        record.path.write_text(content)
        record.previous.unlink(missing_ok=True)
        add(record, content)
    assert {path.read_text() for path in record.path.parent.glob("*.damaged-*")} == {"one", "two", "three"}


def test_a_lost_file_comes_back_from_its_copy(record):
    add(record, "a")
    add(record, "b")
    record.path.unlink()
    assert record.load().data["exercises"]["ex01"]["attempts"] == [{"parts": ["a"]}]


def test_a_crash_while_writing_leaves_the_old_record(record, monkeypatch):
    add(record, "a")
    before = record.path.read_bytes()

    def crash(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="no space"):
        add(record, "b")
    assert record.path.read_bytes() == before
    assert not list(record.path.parent.glob(".*.tmp")), "temporary files stay behind"


def test_a_change_that_raises_writes_nothing(record):
    add(record, "a")
    before = record.path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        record.update(lambda data: 1 / 0)
    assert record.path.read_bytes() == before
    add(record, "b")  # and the lock is free again


def test_any_text_can_be_kept(record):
    for text in ("äß漢\u0000", "\ud800", "\\", '"', "\u2028"):
        add(record, text)
    assert attempts(record) == ["äß漢\u0000", "\ud800", "\\", '"', "\u2028"]


def _append_many(folder, name):
    record = StudentRecord("ada", folder)
    for i in range(15):
        add(record, f"{name}{i}")


def test_processes_do_not_lose_each_others_changes(tmp_path):
    # "spawn" needs no copy of this process with its threads
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    workers = [context.Process(target=_append_many, args=(tmp_path, name)) for name in "xy"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(attempts(StudentRecord("ada", tmp_path))) == sorted(f"{n}{i}" for n in "xy" for i in range(15))


def test_a_lock_held_too_long_is_reported(record, monkeypatch):
    pytest.importorskip("fcntl")
    monkeypatch.setattr(records, "LOCK_SECONDS", 0.05)
    release, held = threading.Event(), threading.Event()

    def hold(data):
        held.set()
        release.wait(10)

    thread = threading.Thread(target=lambda: record.update(hold))
    thread.start()
    held.wait(10)
    try:
        with pytest.raises(TimeoutError, match="locked"):
            add(record, "b")
    finally:
        release.set()
        thread.join()
