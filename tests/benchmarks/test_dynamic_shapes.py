"""The command that calls a block with many lengths, tried small."""

from __future__ import annotations

import json

import torch

from benchmarks import dynamic_shapes


def test_lengths_are_spread_and_without_a_trend():
    lengths = dynamic_shapes.lengths_between(16, 512, 50)
    assert len(set(lengths)) == 50 and min(lengths) == 16 and max(lengths) == 512 and lengths != sorted(lengths)


def test_the_command_counts_and_writes(tmp_path, capsys):
    out = tmp_path / "dynamic.json"
    small = ["--lengths", "3", "--least", "5", "--most", "9", "--batch", "1", "--width", "16", "--heads", "2"]
    assert dynamic_shapes.main([*small, "--timed", "1", "--readings", "3", "--peers", "none", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    for case in found["cases"].values():
        assert case["versions"] == 1 and case["back ends"] == 3 and len(case["timed"]) == 1
        assert case["largest relative difference from eager"] < 1e-4
    assert found["cases"].keys() == {"inference", "training"} and "3 back ends for 3 lengths" in capsys.readouterr().out


def test_values_are_held_against_eagers():
    block = dynamic_shapes.Block(8, 2)
    x = torch.randn(1, 4, 8, requires_grad=True)
    assert dynamic_shapes.errors(block, block, x, True) == 0
    assert dynamic_shapes.errors(lambda x: block(x) * 1.5, block, x, True) > 0.1
