"""The command that measures attention against its length, small and without a device; and on one where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import attention_lengths
from staxlab.measure.attention_lengths import FORMAT
from staxlab.measure.attention_lengths import attention_lengths as read_lengths


@pytest.mark.parametrize("more", [[], ["--backward"]])
def test_a_small_run_needs_no_device(tmp_path, capsys, more):
    out = tmp_path / "smoke.json"
    assert attention_lengths.main(["--smoke", "--out", str(out), *more]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == FORMAT and [entry["length"] for entry in record["lengths"]] == [128, 256]
    for entry in record["lengths"]:
        assert set(entry["peers"]) == {"staxlab", "sdpa", "matrix"}
        assert all(found["median_s"] > 0 and found["peak_bytes"] > 0 for found in entry["peers"].values())
    assert not read_lengths("smoke", tmp_path), "a smoke run is no measurement"
    (tmp_path / "kept.json").write_text(json.dumps(record | {"device_present": True}))
    kept = read_lengths("kept", tmp_path)
    assert kept and len(kept.ways) == 3 and "N = 128" in capsys.readouterr().out


def test_matrices_that_would_not_fit_are_left_out():
    ways = attention_lengths.ways_of(256, "cpu", 1000, 2, 4)
    assert isinstance(ways["matrix"], str) and "would take" in ways["matrix"] and callable(ways["sdpa"])


def test_a_way_that_is_wrong_is_found(monkeypatch, capsys):
    ways = attention_lengths.ways_of

    def with_a_wrong_one(*given):
        return ways(*given) | {"matrix": lambda q, k, v: v}

    monkeypatch.setattr(attention_lengths, "ways_of", with_a_wrong_one)
    assert attention_lengths.main(["--smoke"]) == 1
    assert "off by" in capsys.readouterr().out


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert attention_lengths.main([]) == 2 and "--smoke" in capsys.readouterr().out


@pytest.mark.gpu
def test_memory_is_linear_on_the_device(tmp_path):
    out = tmp_path / "lengths.json"
    command = ["--longest", "4096", "--heads", "4", "--readings", "3", "--out", str(out)]
    assert attention_lengths.main(command) == 0
    run = read_lengths("lengths", tmp_path)
    assert run.growth("omni_attention") < 1.2 and run.growth("operator by operator") > 1.8
