"""Measuring first calls: which processes are started with which caches, and what is made of their figures."""

from __future__ import annotations

import os

import pytest

from benchmarks import startup
from staxlab.measure.fresh_process import ProcessFailed


class Runner:
    """Stands for new processes: remembers what they were given, and answers with increasing figures."""

    def __init__(self, fails=()):
        self.calls, self.fails = [], fails

    def __call__(self, code, environment=None):
        self.calls.append((code, dict(environment or {})))
        if any(word in code for word in self.fails):
            raise ProcessFailed("no such compiler")
        seconds = len(self.calls) / 1000
        if "import_torch" in code:
            return {"import_torch": seconds, "import_staxlab": seconds}
        restored = float("STAXLAB_CACHE_DIR" in self.calls[-1][1] and "'block'" not in code)
        return {"first_call": seconds, "processor": seconds, "restored": restored, "stages": {"capture": seconds}}


def test_a_cold_start_and_two_warm_ones_share_one_directory():
    runner = Runner()
    found = startup.measure_program("mlp", runner)
    assert [*found] == ["cold", "kernels", "warm"]
    environments = [environment for _, environment in runner.calls]
    assert len({environment["STAXLAB_CACHE_DIR"] for environment in environments}) == 1
    assert [environment.get("STAXLAB_PLANS") for environment in environments] == [None, "0", None]
    assert all("'mlp'" in code for code, _ in runner.calls)
    assert [*startup.measure_compiler("torch_compile", (4, 8), Runner())] == ["cold", "warm"]


def test_programs_take_turns_after_a_run_that_does_not_count():
    runner = Runner(fails=("'no_such'",))
    record = startup.measure([], (4, 8), 2, 1, say=lambda text: None, runner=runner, programs=["mlp", "no_such"])
    assert record["complete"] and record["failed"] == {"no_such": "no such compiler"}
    assert len(record["results"]["mlp"]["warm"]["first_call"]["readings"]) == 2
    assert sum("'mlp'" in code for code, _ in runner.calls) == 9  # three states, the uncounted run and two repetitions
    text = startup.table(record).text()
    assert "mlp, first call, kernels" in text and "processor time" in text and "no such compiler" in text


def test_a_warm_start_that_found_no_plan_is_named():
    record = startup.measure([], (4, 8), 1, 1, say=lambda text: None, runner=Runner(), programs=["mlp", "block"])
    text = startup.table(record).text()
    assert "block, warm: not every process found the plan" in text and "mlp, warm: not every" not in text


def test_peers_are_measured_as_before():
    runner = Runner()
    record = startup.measure(["staxlab", "torch_compile"], (4, 8), 3, 1, say=lambda text: None, runner=runner)
    assert len(record["results"]["torch_compile"]["warm"]["first_call"]["readings"]) == 1
    assert len(record["results"]["staxlab"]["kernels"]["first_call"]["readings"]) == 3
    assert "Example 1.1 at 4x8" in startup.table(record).text()


def test_bytecode_goes_to_a_directory_of_the_benchmark(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    with startup.bytecode():
        assert os.path.isdir(os.environ["PYTHONPYCACHEPREFIX"]) and not os.environ["PYTHONDONTWRITEBYTECODE"]
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1" and "PYTHONPYCACHEPREFIX" not in os.environ


@pytest.mark.parametrize("name", ["mlp", "training_example_1_1", "decoder_prefill"])
def test_programs_of_the_corpus_and_of_the_models_run(name):
    function, call, forget = startup.program(name)
    call(function)
    forget()
    with pytest.raises(KeyError):
        startup.program("no_such_program")
