"""Reproducing the tables: one small real run, the rest on records made by hand."""

from __future__ import annotations

import functools
import json
import math

import pytest
import torch

import staxlab
from staxlab.errors import OptionError, StaxError
from staxlab.measure import amortization, reproduce
from staxlab.measure.chapter_cases import CHAPTER_CASES, Reported, chapter_case
from staxlab.measure.fresh_process import ProcessFailed
from staxlab.measure.reproduce import Settings
from staxlab.measure.reproduction import CaseRun, Reproduction
from staxlab.measure.rounds import Rounds
from staxlab.measure.timing import Comparison, Timing

STRICT = functools.partial(staxlab.compile, strict_native=True)
QUICK = Settings(readings=3, warmup=1, scale=0.004, pause=0.0)


@pytest.fixture(scope="module")
def measured():
    """Two cases, with a peer that is wrong and one that fails."""
    reports = []

    def fails(function):
        raise RuntimeError("no such thing")

    found = reproduce.reproduce(
        [chapter_case("example_1_1"), chapter_case("add")], STRICT, QUICK,
        {"wrong": lambda function: lambda *inputs: function(*inputs) + 1, "fails": fails, "same": lambda f: f},
        progress=lambda fraction, message: reports.append((fraction, message)),
    )  # fmt: skip
    return found, reports


def test_a_run_counts_the_bytes_of_its_kernels_and_splits_the_speedup(measured):
    found, reports = measured
    case = found["example_1_1"]
    rows, columns = case.size
    assert case.size == (33, 2048) and found.complete
    assert case.nbytes("eager") == 4 * (8 * rows * columns + rows)
    assert case.nbytes("compiled") == 4 * (2 * rows * columns + rows)
    assert case.rho() == pytest.approx(4, rel=1e-3)
    assert case.rho(write_allocate=True) == pytest.approx((5 + 2 * 3) / 2, rel=1e-2)
    assert found["add"].rho() == 1
    for split, ratio in zip(case.decompositions(), case.speedups(), strict=True):
        assert split.speedup == pytest.approx(case.rho() * split.quality) and split.speedup == ratio.median
    assert len(case.speedups()) == 2 and case.share(0)["median"] > 0 and case.share(1, "eager")["median"] > 0
    assert case.share(7) is None and case.share(0, "same") is None
    fractions = [fraction for fraction, _ in reports]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert any(message.startswith("round B, add") for _, message in reports)


def test_wrong_and_failing_peers_are_problems_and_are_not_timed(measured):
    found, _ = measured
    assert found["add"].rounds.names == ("eager", "compiled", "same")
    assert "wrong: off by" in found["add"].problems["wrong"]
    assert found["add"].problems["fails"] == "RuntimeError: no such thing"
    assert len(found.problems) == 4 and "no such thing" in str(found) and "same" in str(found)


def test_a_record_survives_json_and_prints(measured):
    found, _ = measured
    again = Reproduction.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again == found and str(again) == str(found)
    assert "4.91 / 3.95" in str(found) and "S = rho" in str(found) and "share of the roof" in str(found["add"])
    with pytest.raises(ValueError, match="no reproduction"):
        Reproduction.from_json({"format": "else"})
    with pytest.raises(KeyError, match="measured: example_1_1, add"):
        found["relu"]


def test_all_rounds_of_all_cases_follow_each_other(monkeypatch):
    """Round A over all cases, then round B: the readings of a case lie as far apart as a run allows."""
    order = []

    def noted(prepared, settings, progress=None):
        order.append(prepared.case.name)
        return True

    monkeypatch.setattr(reproduce, "prepare", lambda case, *rest: reproduce._Prepared(case, case.size))
    monkeypatch.setattr(reproduce, "measure_round", noted)
    reproduce.reproduce("table-13.2", STRICT, QUICK)
    names = [case.name for case in CHAPTER_CASES if case.table == "13.2"]
    assert order == names + names


def test_an_interruption_keeps_the_cases_that_were_timed(monkeypatch, measured):
    done = []
    real = reproduce.measure_round

    def second_is_interrupted(prepared, settings, progress=None):
        if done:
            raise KeyboardInterrupt
        done.append(prepared)
        return real(prepared, settings, progress)

    monkeypatch.setattr(reproduce, "measure_round", second_is_interrupted)
    found = reproduce.reproduce([chapter_case("add"), chapter_case("example_1_1")], STRICT, QUICK)
    assert not found.complete and [case.name for case in found.cases] == ["add"] and "interrupted" in str(found)
    assert not found["add"].rounds.complete and not found["add"].verdict().established


@pytest.mark.parametrize(
    ("what", "count"), [("table-13.1", 6), ("table-13.2", 5), ("figure-13.1", 11), ("all", 11), ("relu", 1)]
)
def test_cases_are_found_by_what_the_text_calls_them(what, count):
    assert len(reproduce.cases_for(what)) == count


def test_what_cannot_be_measured_is_refused_before_anything_is():
    def never(function):
        raise AssertionError("nothing may be compiled")

    with pytest.raises(OptionError, match="nothing called 'table-13.3'"):
        reproduce.reproduce("table-13.3", never)
    for settings, message in (
        (Settings(scale=0.0), "a scale is positive"),
        (Settings(rounds=0), "at least one round"),
        (Settings(device="tpu"), "no device 'tpu'"),
        (Settings(scale=1e6), "are free"),
    ):
        with pytest.raises(OptionError, match=message):
            reproduce.reproduce("add", never, settings)


def test_the_scale_that_is_proposed_fits():
    cases = reproduce.cases_for("all")
    free = 1 << 28
    with pytest.raises(OptionError, match="Example 1.1.* needs about .* are free") as refused:
        reproduce.require_memory(cases, Settings(), free)
    scale = float(refused.value.remedy.split()[-1])
    reproduce.require_memory(cases, Settings(scale=scale), free)
    with pytest.raises(OptionError):
        reproduce.require_memory(cases, Settings(scale=1.5 * scale), free)


def test_inputs_that_a_cache_may_hold_are_remarked():
    large = {"last_level_cache_bytes": 1 << 30}
    assert "may stay in it" in reproduce._cache_note(CHAPTER_CASES, Settings(), large)
    assert reproduce._cache_note(CHAPTER_CASES, Settings(), {"last_level_cache_bytes": 1 << 20}) is None
    assert reproduce._cache_note(CHAPTER_CASES, Settings(), {}) is None


def test_a_scale_keeps_the_length_of_rows():
    case = chapter_case("softmax_library")
    assert case.scaled(0.5) == (8192, 1000) and case.scaled(1e-9) == (1, 1000)
    with pytest.raises(KeyError, match="cases: example_1_1"):
        chapter_case("example_9_9")


# --- Amortisation -----------------------------------------------------------------------------------------------------


def case_with(eager: float, compiled: float) -> CaseRun:
    timings = (Timing("eager", (eager,) * 9), Timing("compiled", (compiled,) * 9))
    traffic = {"eager": {"read": 5, "written": 3, "operations": 4}, "compiled": {"read": 2, "written": 0,
               "operations": 4}}  # fmt: skip
    rounds = Rounds((Comparison(timings), Comparison(timings)), 2)
    return CaseRun("example_1_1", "Example 1.1: f", "13.1", (4, 4), traffic, rounds, reported=Reported())


def amortized(tau_e: float, tau_c: float, **more) -> amortization.Amortization:
    overheads = Comparison(tuple(
        Timing(f"{name}, {call}", (seconds,) * 3)
        for name, seconds in (("eager", 2 * tau_e), ("compiled", tau_c)) for call in ("same tensor", "new tensor")
    ))  # fmt: skip
    given = {"first_calls": {"cold": (5.6, 5.9, 5.7), "warm": (1.2,)}, "example": case_with(15.1e-3, 3.4e-3)}
    return amortization.Amortization(**(given | more), overheads=overheads, bandwidth=49.4e9)


def test_the_numbers_of_the_text_come_out_of_its_data():
    found = amortized(1.8e-6, 12.0e-6)
    (cold, again), (warm, _) = found.break_evens("cold"), found.break_evens("warm")
    assert cold.first_winning_call == again.first_winning_call == math.ceil(5.7 / 11.7e-3)
    assert warm.first_winning_call == math.ceil(1.2 / 11.7e-3)
    assert found.smallest_size() == pytest.approx(5.2e4, rel=0.01)
    assert found.smallest_size(operators=5) == pytest.approx((12.0 - 9.0) * 1e-6 * 49.4e9 / 32)
    assert "488 / 488" in str(found) and "above 51,870" in str(found)
    assert amortization.Amortization.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_fusing_pays_at_any_size_where_a_call_costs_less_than_the_operators():
    found = amortized(4e-6, 1.6e-6)
    assert found.smallest_size() == 0 and "at any size" in str(found)
    assert amortization.size_text(math.inf) == "never" and amortization.size_text(math.nan) == "n/a"


def test_a_slower_compiled_call_never_breaks_even():
    found = amortized(4e-6, 1.6e-6, example=case_with(1e-3, 2e-3))
    assert found.break_evens("cold")[0].first_winning_call is None and "never / never" in str(found)


def test_first_calls_are_processes_with_a_cache_of_their_own():
    seen = []

    def runner(code, environment):
        compile(code, "snippet", "exec")
        seen.append((environment["STAXLAB_CACHE_DIR"], environment.get("STAXLAB_PLANS")))
        return {"first_call": float(len(seen))}

    found, complete = amortization.first_calls(repeats=2, runner=runner)
    assert complete and found == {"cold": [1.0, 4.0], "kernels": [2.0, 5.0], "warm": [3.0, 6.0]}
    assert len({directory for directory, _ in seen[:3]}) == 1 and seen[0][0] != seen[3][0]
    assert [plans for _, plans in seen[:3]] == [None, "0", None]


def test_interruptions_and_failures_leave_what_was_measured():
    def interrupted(code, environment):
        raise KeyboardInterrupt

    found = amortization.measure_amortization(STRICT, None, runner=interrupted, repeats=1)
    assert not found.complete and found.first_calls == {} and found.overheads is None and "interrupted" in str(found)

    def dies(code, environment):
        raise ProcessFailed("ended with 1: no compiler")

    with pytest.raises(StaxError, match="a first call in a new process ended with 1: no compiler"):
        amortization.first_calls(runner=dies)


def test_overheads_and_the_bandwidth_are_measured():
    runner = lambda code, environment: {"first_call": 1.0}  # noqa: E731
    found = amortization.measure_amortization(
        STRICT, case_with(2e-3, 1e-3), repeats=1, readings=3, calls=10, elements=1 << 12, runner=runner
    )
    assert found.complete and found.eager_overhead > 0 and found.compiled_overhead("same tensor") > 0
    assert found.bandwidth > 0 and found.break_evens("warm")[0].first_winning_call == 1000
    assert found.smallest_size() >= 0 and math.isnan(found.cost("nothing"))


def test_a_reference_in_double_precision_finds_wrong_shapes_and_nan():
    one = torch.ones(3)
    assert reproduce.largest_error((one,), (one.double(),)) == 0
    assert reproduce.largest_error((one[:2],), (one.double(),)) == math.inf
    assert reproduce.largest_error((one * math.nan,), (one.double(),)) == math.inf
