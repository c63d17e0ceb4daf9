"""Small sizes: what is measured, where fusion begins to pay, and the plots of saved runs."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import run, small_sizes
from staxlab.view import benchmark_roofs


def point(elements, low, high):
    return {"elements": elements, "speedup": {"median": (low + high) / 2, "interval": {"low": low, "high": high}}}


def test_the_smallest_size_never_slower_than_eager():
    fast, same, slow = (2.0, 3.0), (0.9, 1.1), (0.5, 0.6)

    def smallest(*ends):
        return small_sizes.never_slower_from([point(64 << i, *e) for i, e in enumerate(ends)])

    assert smallest(fast, same, fast) == 0
    assert smallest(slow, same, fast) == 128
    assert smallest(slow, fast, slow, fast) == 512
    assert smallest(fast, slow) is None


def test_the_model_predicts_from_the_smallest_size():
    points = {"eager": [{"median_s": 3.6e-6}], "a": [{"median_s": 12e-6}], "b": [{"median_s": 1e-6}]}
    assert small_sizes.predicted(points, "a", 49.4e9) == pytest.approx((12e-6 - 3.6e-6) * 49.4e9 / 8)
    assert small_sizes.predicted(points, "b", 49.4e9) == 0.0
    assert small_sizes.predicted(points, "c", 49.4e9) is None


def test_sides_compute_what_eager_computes():
    x = torch.randn(64)
    found, missing = small_sizes.sides(["eager", "staxlab"], x)
    assert missing == {}
    assert all(torch.equal(side(), x * 2 + 1) for side in found.values())


def test_the_command_writes_data_and_a_plot(tmp_path, capsys):
    out = tmp_path / "sizes.json"
    command = ["--peers", "eager,staxlab", "--from", "6", "--to", "7", "--readings", "3", "--out", str(out)]
    assert small_sizes.main(command) == 0
    record = json.loads(out.read_text())
    assert [p["elements"] for p in record["peers"]["staxlab"]["points"]] == [64, 128]
    assert record["peers"]["eager"]["smallest_size_never_slower"] is None
    said = capsys.readouterr().out
    assert "staxlab: never slower from" in said or "staxlab: slower than eager at the largest size" in said
    svg = ElementTree.fromstring(out.with_suffix(".svg").read_text())
    texts = ["".join(e.itertext()) for e in svg.iter() if e.tag.endswith("}text")]
    assert {"Elements (float32)", "Time of a call (us)", "Speedup over eager (times)", "staxlab"} <= set(texts)
    assert "64 elements" in svg.get("aria-label")
    with pytest.raises(SystemExit):
        small_sizes.main(["--from", "9", "--to", "8"])
    with pytest.raises(SystemExit):
        small_sizes.main(["--peers", "numpy"])


def test_the_roof_plot_is_drawn_from_the_saved_run(tmp_path):
    out = tmp_path / "r.json"
    command = ["--case", "relu,softmax_five_operators", "--size", "64x512", "--peers", "eager,staxlab"]
    assert run.main([*command, "--readings", "3", "--rounds", "1", "--out", str(out)]) == 0
    path = tmp_path / "r_roofline.svg"
    svg = ElementTree.fromstring(path.read_text())
    texts = ["".join(e.itertext()) for e in svg.iter() if e.tag.endswith("}text")]
    assert "Arithmetic intensity (op/byte)" in texts
    assert any(t.startswith("Share of the bandwidth") for t in texts)
    assert "2, Softmax of five operators: " in svg.get("aria-label")
    record = json.loads(out.read_text())
    dark = benchmark_roofs.write_roof_plot(record, tmp_path / "dark.png", "dark")
    assert dark.read_bytes().startswith(b"\x89PNG")
    for case in record["cases"]:
        case["roof"] = None
    assert benchmark_roofs.write_roof_plot(record, tmp_path / "none.svg") is None


def test_a_run_without_roof_says_nothing_of_it(tmp_path, capsys):
    out = tmp_path / "r.json"
    command = ["--case", "relu", "--size", "64x512", "--peers", "eager,staxlab", "--readings", "3", "--rounds", "1"]
    assert run.main([*command, "--no-roof", "--out", str(out)]) == 0
    case = json.loads(out.read_text())["cases"][0]
    assert case["roof"] is None and case["prediction"] is None
    assert "of the roof" not in capsys.readouterr().out.replace("wanted 80%", "")
    assert not (tmp_path / "r_roofline.svg").exists()


def test_results_made_beforehand_are_told_apart(tmp_path, capsys):
    out = tmp_path / "r.json"
    command = ["--case", "relu", "--size", "64x512", "--peers", "eager,staxlab", "--readings", "3", "--rounds", "1"]
    assert run.main([*command, "--preallocated", "--out", str(out)]) == 0
    assert "results preallocated" in capsys.readouterr().out
    record = json.loads(out.read_text())
    assert record["settings"]["preallocated"] is True
    details = {p["peer"]: p["details"] for p in record["cases"][0]["peers"]}
    assert details["eager"]["operators_with_new_results"] == []
    assert details["staxlab"]["direct"] is True
