"""The comparison of attention kernels, tried without a device: every path but the clock."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import attention
from benchmarks.attention_cases import CASES, WINDOW, causal, sliding_window, small

pytest.importorskip("triton")


def test_work_counts_visible_positions():
    case = next(c for c in CASES if c.name == "causal")
    n = 1024
    tiny = case.__class__("causal", "forward", 1, 1, 1, n, n, 8, mask="causal")
    assert tiny.visible_share(causal, "cpu") == (n + 1) / (2 * n)
    assert tiny.operations(0.5) == 2 * 2 * 0.5 * n * n * 8
    assert tiny.visible_share(sliding_window, "cpu") == tiny.visible_share(causal, "cpu"), f"{n} <= {WINDOW}"
    backward = next(c for c in CASES if c.name == "causal backward")
    assert backward.operations(0.5) == 2.5 * case.operations(0.5)
    decode = next(c for c in CASES if c.name == "decode")
    assert decode.moved(1.0) > 2 * 8 * 8 * 32768 * 128 * 2


def test_documents_cover_the_sequence():
    for case in small():
        if case.mask == "documents":
            share = case.visible_share(case.mask_mod("cpu"), "cpu")
            assert 1 / case.keys <= share < 0.5


def test_a_comparison_writes_what_it_found(tmp_path, capsys):
    path = tmp_path / "found.json"
    arguments = ["--smoke", "--only", "decode", "--readings", "2", "--without", "flex", "--quick", "2"]
    assert attention.main([*arguments, "--out", str(path)]) == 0
    record = json.loads(path.read_text())
    assert [entry["case"] for entry in record["cases"]] == [c.name for c in CASES if "decode" in c.name]
    for entry in record["cases"]:
        assert {"staxlab", "staxlab, kernel", "staxlab, best"} <= set(entry["peers"]) and "flex" not in entry["peers"]
        assert all(peer["error"] <= attention.ALLOWED and "problem" not in peer for peer in entry["peers"].values())
    assert "nothing is measured without a device" in capsys.readouterr().out


def test_a_sweep_goes_on_where_it_stopped_and_leaves_out_what_did_not_return(tmp_path, capsys):
    path = tmp_path / "sweep.json"
    arguments = ["--smoke", "--sweep", "--only", "decode", "--out", str(path)]
    assert attention.main([*arguments, "--most", "1"]) == 0
    record = json.loads(path.read_text())
    (name,) = record["cases"]["decode"]["configurations"]
    record["cases"]["decode"]["configurations"][name] = {
        "configuration": record["cases"]["decode"]["configurations"][name]["configuration"], "trying": True,
    }  # fmt: skip
    path.write_text(json.dumps(record))
    assert attention.main([*arguments, "--most", "2"]) == 0
    found = json.loads(path.read_text())["cases"]["decode"]["configurations"]
    assert len(found) == 2 and found[name]["problem"] == "an earlier run did not come back from it"
    assert "median_s" in next(entry for key, entry in found.items() if key != name)
    assert attention.main(["--best", str(path)]) == 0
    assert "TB/s" in capsys.readouterr().out


def test_a_wrong_peer_is_named_and_not_timed(monkeypatch):
    def wrong(made, configuration=None):
        return lambda: (torch.zeros_like(made.tensors[0]),)

    monkeypatch.setattr(attention, "kernel_run", wrong)
    case = next(c for c in small() if c.name == "causal")
    entry = attention.compare(case, attention.Pretended(), None, 1, ["flex", "staxlab"], 0)
    assert entry["peers"]["staxlab, kernel"]["problem"].startswith("wrong by 1")
    assert "median_s" not in entry["peers"]["staxlab, kernel"] and "median_s" in entry["peers"]["sdpa"]
