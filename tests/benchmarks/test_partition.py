"""Dividing a joint graph takes steps in proportion to it, counted and not timed; the benchmark writes what it found."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks import partition as benchmark
from staxlab.autodiff.network import maximum_flow
from staxlab.autodiff.partition import partition, rematerialization_network
from staxlab.autodiff.values import forward_values
from staxlab.capture.module import Interpreter
from staxlab.loops.lowering.kinds import kind_of


def flow_of(joint):
    return maximum_flow(rematerialization_network(forward_values(joint, kind_of)))


@pytest.mark.parametrize("family", benchmark.FAMILIES)
def test_twice_the_nodes_take_twice_the_steps(family):
    small, large = benchmark.joint_of(family, 1000), benchmark.joint_of(family, 2000)
    assert 970 <= len(small.graph) <= 1050 and 1960 <= len(large.graph) <= 2060
    one, other = flow_of(small).steps, flow_of(large).steps
    assert other <= 40 * len(large.graph)
    assert other <= 3.5 * one


@pytest.mark.parametrize("family", benchmark.FAMILIES)
def test_the_joint_graphs_differentiate_what_they_compute(family):
    joint = benchmark.joint_of(family, 60)
    joint.graph.check()
    generator = torch.Generator().manual_seed(0)
    x, w, tangent = (0.01 * torch.randn(64, 64, generator=generator) for _ in range(3))
    (value,), found = Interpreter(joint.module).run(x, w, tangent)
    part = partition(joint, kind_of=kind_of)
    x, w = x.requires_grad_(), w.requires_grad_()
    outputs = Interpreter(part.forward.module).run(x, w)
    assert torch.equal(outputs[0], value)
    expected = torch.autograd.grad(outputs[0], (x, w), tangent, allow_unused=True)
    for mine, wanted in zip(found, expected, strict=True):
        assert (mine is None) == (wanted is None)
        assert mine is None or torch.allclose(mine, wanted, rtol=1e-3, atol=1e-5)


def test_what_is_measured_is_written(tmp_path, capsys):
    out = tmp_path / "partition.json"
    assert benchmark.main(["--families", "layers,chain", "--sizes", "60,120", "--repeats", "1", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == benchmark.FORMAT and set(record["results"]) == {"layers", "chain"}
    assert [row["size"] for row in record["results"]["layers"]] == [60, 120]
    printed = capsys.readouterr().out
    assert "layers" in printed and "seconds" in printed


def test_the_exponent_is_a_slope():
    rows = [{"nodes": n, "seconds": n**1.5} for n in (100, 1000, 2000, 4000)]
    assert benchmark.exponent(rows) == pytest.approx(1.5) and benchmark.exponent(rows[:2]) is None
    assert math.isfinite(benchmark.exponent(rows))


def test_a_wrong_family_is_refused(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--families", "layer"])
    assert "no family named 'layer'" in capsys.readouterr().err
