"""The benchmark of launches: its fit finds what it was given, its smoke run checks everything without a GPU."""

from __future__ import annotations

import json

import pytest
import torch

import staxlab
from benchmarks import cuda_graphs
from staxlab.errors import OptionError
from staxlab.measure.launch_timeline import graph_time, launched_time, measured_costs


def test_the_fit_finds_the_times_the_model_was_made_with():
    launch, graph, kernel = 4e-6, 9e-6, 1.5e-6
    curves = {
        "staxlab": [(n, launched_time([kernel] * n, launch)) for n in cuda_graphs.SIZES],
        "staxlab_graphs": [(n, graph_time([kernel] * n, graph)) for n in cuda_graphs.SIZES],
    }
    costs = cuda_graphs.costs_of(curves)
    assert costs["launch_s"] == pytest.approx(launch) and costs["graph_s"] == pytest.approx(graph)
    assert costs["kernel_s"] == pytest.approx(kernel)
    assert max(map(abs, costs["deviation_launched"] + costs["deviation_graph"])) < 1e-9
    assert cuda_graphs.costs_of({"staxlab": curves["staxlab"]}) is None


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_chain_has_as_many_kernels_as_it_says(count):
    options = {"fuse": False}
    compilation = staxlab.explain(cuda_graphs.chain(count), torch.randn(8, 8), target="sm_90", options=options)
    assert len(compilation.kernels) == count


def test_a_smoke_run_writes_a_record_without_any_time(tmp_path, capsys):
    out = tmp_path / "run.json"
    assert cuda_graphs.main(["--smoke", "--sizes", "1,3", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == cuda_graphs.FORMAT and record["costs"] is None and not record["device_present"]
    assert record["smoke"]["chain of 3"]["kernels"] == 3 and record["smoke"]["chain of 3"]["replays"] == 3
    assert "replaying" in capsys.readouterr().out
    with pytest.raises(OptionError):
        measured_costs(out)


def test_the_command_line(capsys):
    for bad in (["--sizes", "a"], ["--sizes", "0,2"], ["--readings", "0"]):
        with pytest.raises(SystemExit):
            cuda_graphs.main(bad)
    capsys.readouterr()
    if not torch.cuda.is_available():
        assert cuda_graphs.main([]) == 2 and "--smoke" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_short_run_on_a_card_measures_all_sides(tmp_path):
    out = tmp_path / "run.json"
    assert cuda_graphs.main(["--sizes", "1,8", "--readings", "3", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["device_present"] and record["costs"]["launch_s"] > 0 and not record["missing"]
    assert "replaying" in record["graphs"]["region"]
