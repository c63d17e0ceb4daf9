"""The command that searches for launch configurations, without a GPU: everything but the clock is what runs on one."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("triton")

from benchmarks import autotune
from benchmarks.gpu_cases import from_table


def test_the_smoke_run_writes_a_file_that_says_that_nothing_was_measured(tmp_path, capsys):
    out = tmp_path / "autotune.json"
    before = os.environ.get("STAXLAB_CACHE_DIR")
    assert autotune.main(["--smoke", "--readings", "2", "--out", str(out), "--only", "example_1_1"]) == 0
    assert os.environ.get("STAXLAB_CACHE_DIR") == before
    record = json.loads(out.read_text())
    assert record["format"] == autotune.FORMAT and record["measured"] is False and record["command"]
    (case,) = record["cases"]
    (kernel,) = case["kernels"]
    assert [entry["method"] for entry in kernel["searches"]] == list(autotune.METHODS)
    for entry in kernel["searches"]:
        low, high = entry["interval"]
        assert low <= entry["ratio"] <= high and entry["ratio"] >= 1, "the rule's is never left for a slower one"
        assert 1 <= entry["compilations"] <= entry["evaluations"] and entry["space"] <= kernel["space"]
        assert set(entry["chosen"]) == set(kernel["rule"]["chosen"])
    said = capsys.readouterr().out
    assert "made up" in said and "descent" in said and "compilations" in said


def test_a_measured_file_draws_itself_and_a_trial_is_no_result(tmp_path):
    """The record of a smoke run, once as it is and once with the word that a device would have put there."""
    from staxlab.measure.saved_runs import saved_run

    out = tmp_path / "autotune_card.json"
    autotune.main(["--smoke", "--readings", "2", "--methods", "candidates,descent", "--out", str(out)])
    assert not saved_run("autotune_card", directory=tmp_path)
    record = json.loads(out.read_text())
    out.write_text(json.dumps(record | {"measured": True}))
    run = saved_run("autotune_card", directory=tmp_path)
    assert run.panels[0].series == ("candidates", "descent") and len(run.cases) >= 3
    assert "drawing failed" not in run._repr_mimebundle_()["text/html"] and "rule / descent" in str(run)


@pytest.mark.slow
def test_every_smoke_case_is_searched(capsys):
    assert autotune.main(["--smoke", "--readings", "1", "--methods", "candidates,halving"]) == 0
    said = capsys.readouterr().out
    assert all(case.title in said for case in autotune.smoke_cases())


def test_small_spaces_are_small_and_hold_the_rule():
    import staxlab

    for case in autotune.smoke_cases():
        inputs = case.inputs(0, "cpu")
        for kernel in staxlab.explain(case.function, *inputs, target="sm_90", strict_native=True).kernels:
            space = autotune.small_space(kernel.tuning)
            assert kernel.tuning.rule in space and space.size <= autotune.SMALL_SPACE
            assert all(configuration in kernel.tuning.space for configuration in space)


def test_every_case_has_a_title_of_its_own_and_a_summary_is_a_geometric_mean():
    titles, every = ([case.title for case in autotune.tuning_cases(everything)] for everything in (False, True))
    assert len(set(every)) == len(every) > 20 and len(set(titles)) == len(titles) and set(titles) <= set(every)
    entries = [{"method": "descent", "ratio": ratio} for ratio in (0.5, 2.0, 1.0)]
    record = {"cases": [{"kernels": [{"searches": [entry]} for entry in entries]}]}
    assert "descent 1.000 of 3 kernels" in autotune.summary(record, ["descent", "random"])


def test_what_is_no_method_is_refused(capsys):
    with pytest.raises(SystemExit):
        autotune.main(["--methods", "annealing", "--smoke"])
    assert "methods: candidates, descent" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        autotune.main(["--readings", "0", "--smoke"])


def test_arguments_are_made_for_buffers_that_are_no_inputs():
    import staxlab

    case = from_table("row_sum", (4, 64))
    inputs = case.inputs(0, "cpu")
    compilation = staxlab.explain(case.function, *inputs, target="sm_90")
    (kernel,) = compilation.kernels
    tensors = autotune.tensors_of(compilation, kernel, inputs)
    assert tensors[0] is inputs[0] and tensors[-1].shape == (4,)
