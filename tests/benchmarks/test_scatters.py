"""The benchmark of scattered writes runs, on a small part of its elements, and its results are eager's."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.scatters import CASES, FORMAT, main


@pytest.fixture(autouse=True)
def same_cores(monkeypatch):
    """Measuring narrows the process to some cores; the other tests keep theirs."""
    threads = torch.get_num_threads()
    monkeypatch.setattr("benchmarks.scatters.limit_cores", lambda threads: None)
    yield
    torch.set_num_threads(threads)


def test_a_run_of_every_case(tmp_path, capsys):
    out = tmp_path / "scatters.json"
    assert main(["--divide", "512", "--alone", "--readings", "3", "--threads", "1", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == FORMAT and [r["case"] for r in record["results"]] == list(CASES)
    for result in record["results"]:
        assert set(result["seconds"]) == {"eager", "staxlab"} and all(s > 0 for s in result["seconds"].values())
        ratio, low, high = result["over_eager"]["staxlab"]
        assert low <= ratio <= high
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(CASES) and all("over eager" in line for line in printed)


def test_one_case_by_a_part_of_its_name(capsys):
    assert main(["--case", "dim 1", "--divide", "512", "--alone", "--readings", "1", "--threads", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
