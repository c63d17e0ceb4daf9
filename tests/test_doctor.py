"""The doctor: every piece is reported, what is missing comes with a remedy, and nothing it meets makes it fail."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from staxlab import doctor
from staxlab.doctor import Finding, Report, examine, writable


def test_it_reports_every_piece():
    report = examine()
    pieces = [finding.piece for finding in report.findings]
    assert len(set(pieces)) == len(pieces)
    expected = {"Python", "PyTorch", "C++ compiler", "instruction set", "threads", "OpenMP", "GPU", "Triton"}
    expected |= {
        "graphviz dot",
        "notebook packages",
        "grading packages",
        "proof packages",
        "backend packages",
        "kernel cache",
        "call entry",
    }
    assert expected <= set(pieces)
    assert all(finding.status in doctor.STATUSES and finding.found for finding in report.findings)
    assert report["Python"].found.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_a_missing_extension_is_no_problem_but_is_said(monkeypatch):
    from staxlab import native

    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "it was not built")
    finding = examine()["call entry"]
    assert finding.status == "missing" and "it was not built" in finding.found and "pip install" in finding.remedy


def test_it_imports_nothing_heavy_to_find_out():
    before = set(sys.modules)
    examine()
    added = {name.split(".")[0] for name in set(sys.modules) - before}
    assert not added & {"triton", "matplotlib", "jupyterlab", "sympy", "scipy", "nbconvert", "onnxruntime", "tvm"}


def test_a_check_that_fails_becomes_a_finding(monkeypatch):
    def broken():
        raise OSError("the disk is on fire\nand so on")

    monkeypatch.setattr(doctor, "CHECKS", (("disk", broken),))
    assert examine().findings == (Finding("disk", "problem", "could not be examined: OSError: the disk is on fire"),)


SAMPLE = Report(
    (
        Finding("A", "ok", "1.0"),
        Finding("B & <b>", "missing", "not installed", "pip install b"),
        Finding("C", "note", "none"),
    )
)


def test_it_reads_well_in_a_terminal():
    assert str(SAMPLE).splitlines() == [
        "+ A        1.0",
        "- B & <b>  not installed",
        "           -> pip install b",
        "  C        none",
        "",
        "the compiler works here; not available: B & <b>",
    ]
    assert str(Report(SAMPLE.findings[:1])).endswith("everything is here")
    broken = Report((Finding("D", "problem", "gone"),))
    assert str(broken).endswith("the compiler cannot work here yet: D") and not broken.healthy


def test_it_escapes_what_it_draws():
    drawn = SAMPLE._repr_html_()
    assert "B &amp; &lt;b&gt;" in drawn and "<b>" not in drawn and "<caption>" in drawn


def test_it_is_readable_by_a_script():
    assert json.loads(SAMPLE.to_json()) == {
        "healthy": True,
        "findings": [
            {"piece": "A", "status": "ok", "found": "1.0", "remedy": ""},
            {"piece": "B & <b>", "status": "missing", "found": "not installed", "remedy": "pip install b"},
            {"piece": "C", "status": "note", "found": "none", "remedy": ""},
        ],
    }


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "STAXLAB_CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "_has_module", lambda name: False)
    clear_compiler_cache()
    try:
        finding = examine()["C++ compiler"]
    finally:
        monkeypatch.undo()
        clear_compiler_cache()
    assert finding.status == "problem" and "g++" in finding.remedy and "ziglang" in finding.remedy


def test_the_compiler_named_by_the_user_is_the_one_reported(monkeypatch, tmp_path):
    fake = tmp_path / "my-compiler"
    fake.write_text("#!/bin/sh\necho 'my compiler 7.1'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("STAXLAB_CXX", str(fake))
    clear_compiler_cache()
    try:
        finding = examine()["C++ compiler"]
    finally:
        monkeypatch.undo()
        clear_compiler_cache()
    assert str(fake) in finding.found and "STAXLAB_CXX" in finding.found


def clear_compiler_cache() -> None:
    from staxlab.runtime import toolchain

    toolchain.clear()


def test_packages_that_are_missing_or_old_name_their_extra(monkeypatch):
    monkeypatch.setattr(doctor, "_has_module", lambda name: name == "triton")
    monkeypatch.setattr(doctor, "_version_of", lambda name: "3.2.0")
    (finding,) = doctor._triton()
    assert finding.status == "missing" and "3.2.0, older than 3.6" in finding.found and "staxlab[gpu]" in finding.remedy
    (finding,) = doctor._notebook()
    assert finding.status == "missing" and "jupyterlab" in finding.found and "staxlab[notebook]" in finding.remedy


@pytest.mark.parametrize(("version", "expected"), [("2.13.0+cpu", (2, 13, 0)), ("2.11.0a0", (2, 11)), ("x", ())])
def test_versions_are_compared_as_numbers(version, expected):
    assert doctor._release(version) == expected


def test_it_finds_out_whether_a_place_can_be_written(tmp_path):
    assert writable(tmp_path) == ""
    assert writable(tmp_path / "not" / "yet") == ""
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "irectory" in writable(blocked / "below")
    if os.geteuid() != 0:  # root may write anywhere
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        assert "ermission" in writable(closed)


def test_the_cache_directory_is_the_one_in_use(cache_dir: Path, monkeypatch):
    assert str(cache_dir) in examine()["kernel cache"].found
    monkeypatch.setenv("STAXLAB_CACHE_LIMIT", "plenty")
    assert examine()["kernel cache"].status == "problem"
    monkeypatch.delenv("STAXLAB_CACHE_LIMIT")
    cache_dir.chmod(0o777)
    found = examine()["kernel cache"]
    assert found.status == "missing" and "could have been written by another user" in found.found
