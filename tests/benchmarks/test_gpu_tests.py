"""The record of a run of tests on a device: outcomes by file, and failures with their words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import gpu_tests

ROOT = Path(__file__).resolve().parent.parent.parent

SUITE = """
import pytest
pytestmark = pytest.mark.gpu

def test_right(): pass
def test_wrong(): assert 1 == 2, "off by one"
def test_elsewhere(): pytest.skip("one GPU")
@pytest.fixture
def broken(): raise OSError("no room")
def test_without_its_fixture(broken): pass
"""

RUN = """
import sys, benchmarks.records
from pathlib import Path
benchmarks.records.header = lambda file_format, device: {"format": file_format, "device": device}
from benchmarks.gpu_tests import run
sys.exit(run(["--rootdir", sys.argv[1], "-c", sys.argv[1] + "/none.ini", sys.argv[1]], Path(sys.argv[2])))
"""


def test_outcomes_are_counted_by_file(tmp_path):
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_some.py").write_text(SUITE)
    (suite / "none.ini").write_text("[pytest]\nmarkers = gpu: a device\n")
    command = [sys.executable, "-c", RUN, str(suite), str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 2 failed, 1 skipped" in done.stdout
    record = json.loads((tmp_path / "out.json").read_text())
    ((file, counts),) = record["files"].items()
    assert file.endswith("test_some.py") and counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert record["complete"] and record["skipped"] == {"one GPU": 1}
    said = {failure["test"].split("::")[1]: failure["said"] for failure in record["failures"]}
    assert "off by one" in said["test_wrong"] and "no room" in said["test_without_its_fixture"]


def test_without_a_device_nothing_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_tests.main(["--out", str(tmp_path / "out.json")]) == 2
    assert "no CUDA device" in capsys.readouterr().err and not (tmp_path / "out.json").exists()
