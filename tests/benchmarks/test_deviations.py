"""Predicted and measured speedups: budgets of time, their causes, the roof beside the peers, and the summary."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks import cases, deviations, harness, peers, summary
from staxlab.errors import OptionError
from staxlab.measure import roofs
from staxlab.measure.bytes import TrafficRow
from staxlab.measure.timing import Comparison, Timing

GB = 1e9
ROOF = roofs.roof_of(
    {"read": 1.0, "copy": 2.0, "streaming copy": 1.0},
    {"read": 50 * GB, "copy": 50 * GB, "streaming copy": 50 * GB},
    1e12,
)


def row(read, written, operations=0):
    return TrafficRow("k", (read // 4,), (written // 4,), read, written, operations)


COPY = row(500_000_000, 500_000_000)  # 20 ms at the roof


def test_seconds_at_the_roof_follow_the_mix():
    assert roofs.seconds_at_roof([COPY], ROOF) == pytest.approx(0.020)
    assert roofs.seconds_at_roof([COPY], roofs.without_streaming(ROOF)) == pytest.approx(0.040)
    assert roofs.seconds_at_roof([row(1_000_000_000, 0)], ROOF) == pytest.approx(0.020)
    many = row(4_000_000, 0, operations=10**10)  # limited by arithmetic: 10 ms
    assert roofs.seconds_at_roof([many], ROOF) == pytest.approx(0.010)


def test_ordinary_stores_are_charged_for_what_was_not_faulted_in():
    plain = deviations.budget("a", 0.045, [COPY], ROOF, streaming=False, faults=0, fault_seconds=0.0)
    assert plain.excess == {"write-allocate": pytest.approx(0.020)}
    assert plain.unexplained == pytest.approx(0.005)
    pages = 500_000_000 // 4096 + 1
    faulted = deviations.budget("a", 0.15, [COPY], ROOF, streaming=False, faults=pages, fault_seconds=1e-6)
    assert set(faulted.excess) == {"page faults"}
    assert faulted.excess["page faults"] == pytest.approx(pages * 1e-6)
    streamed = deviations.budget("a", 0.045, [COPY], ROOF, streaming=True, faults=0, fault_seconds=0.0)
    assert streamed.excess == {}


def test_causes_never_exceed_the_time_there_is():
    b = deviations.budget(
        "a", 0.03, [COPY], ROOF, streaming=False, faults=10**6, fault_seconds=1e-6, in_cache=1.0,
        copied_bytes=500_000_000,
    )  # fmt: skip
    assert sum(b.excess.values()) == pytest.approx(0.010)
    assert b.unexplained == pytest.approx(0.0)


def test_arithmetic_and_copies_are_named():
    b = deviations.budget("a", 0.09, [COPY], ROOF, streaming=True, faults=0, fault_seconds=0.0, in_cache=0.08)
    assert b.excess == {"arithmetic": pytest.approx(0.06)}
    assert b.named() == ["a: bound by arithmetic, 80 ms even with all data in cache"]
    b = deviations.budget(
        "a", 0.06, [COPY], ROOF, streaming=True, faults=0, fault_seconds=0.0, copied_bytes=500_000_000
    )
    assert b.excess == {"copies": pytest.approx(0.04)}
    below = deviations.budget("a", 0.01, [COPY], ROOF, streaming=True, faults=0, fault_seconds=0.0)
    assert "data stayed in a cache" in below.named()[0]


def test_a_small_deviation_has_no_cause_and_a_large_one_always_has():
    fast = deviations.Budget("staxlab", 0.02, 0.02, 0)
    near = deviations.Deviation(2.2, 2.0, deviations.Budget("eager", 0.044, 0.04, 0), fast)
    assert near.predicted == pytest.approx(2.0)
    assert near.causes == []
    slow = deviations.Budget("eager", 0.1, 0.04, 100_000, {"page faults": 0.055})
    far = deviations.Deviation(5.0, 2.0, slow, fast)
    assert far.causes == [
        "eager: 55 ms of 100 ms are 100,000 page faults of new memory",
        "staxlab: no page faults, its results come from memory used before",
    ]
    unknown = deviations.Deviation(5.0, 2.0, deviations.Budget("eager", 0.1, 0.04, 0), fast)
    assert unknown.causes == ["eager: 60 ms of 100 ms unexplained"]
    assert json.loads(json.dumps(far.to_json()))["predicted"] == pytest.approx(2.0)
    assert "S = 5 measured, 2 predicted = 2 (bytes) x 1 (bandwidth at the roof), +150%" in far.text()


def test_new_memory_is_counted_as_faults():
    existing = torch.zeros(1 << 24)  # 64 MiB: an allocator does not keep that for itself
    new = deviations.faults_of(lambda: torch.empty(1 << 24).fill_(1.0))
    assert deviations.faults_of(lambda: existing.fill_(1.0)) < new  # huge pages make it few
    assert deviations.seconds_per_fault(1 << 22, readings=3) >= 0


def test_a_case_whose_rows_do_not_fit_has_no_time_in_cache():
    case = cases.select("softmax_long_rows")[0]
    assert deviations.seconds_in_cache(case, case.size, peers.PEERS["eager"], harness.Settings()) is None


def test_the_roof_takes_turns_and_is_taken_out_again():
    roof = roofs.roofs_for(64 * 64 * 4, "cpu")
    assert roof.nbytes == roofs.LEAST_BYTES
    assert set(roof.sides) == {f"roof: {name}" for name in roofs.PROBES}
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="no CUDA device is visible"):
            roofs.roofs_for(1 << 20, "cuda")
    timings = [Timing("eager", (2.0, 2.0)), *(Timing(f"roof: {n}", (1.0, 0.5)) for n in roofs.PROBES)]
    rest = roof.take(Comparison(tuple(timings)))
    assert [t.name for t in rest.timings] == ["eager"]
    amount = roof.probes[0].amount
    share = roof.share([row(int(amount), 0)], [2.0, 2.0])
    assert share["median"] == pytest.approx((0.5 + 0.25) / 2)
    assert roof.to_json()["buffer_bytes"] == roofs.LEAST_BYTES


def test_a_whole_run_is_explained_and_summarized():
    settings = harness.Settings(readings=3, warmup=1, rounds=2, pause=0.0)
    chosen = [peers.PEERS["eager"], peers.PEERS["staxlab"]]
    result = harness.run_case(cases.select("example_1_1")[0], (256, 512), chosen, settings, lambda line: None)
    record = json.loads(json.dumps(harness.run_record([result], settings, False, True), allow_nan=False))
    case = record["cases"][0]
    assert case["roof"]["single_pass"]
    assert len(case["roof"]["readings_s"]["read"]) == 6
    assert case["prediction"]["rho"] == pytest.approx(case["rho"])
    assert case["prediction"]["predicted"] > 0
    assert (abs(case["prediction"]["relative_deviation"]) > 0.2) == bool(case["prediction"]["causes"])
    assert "of the roof (one pass)" in harness.result_table(result).text()
    over = record["summary"]["speedup_over"]["eager"]
    assert over["geometric_mean"] == pytest.approx(over["cases"]["example_1_1"]["median"])
    assert over["interval"]["low"] <= over["geometric_mean"] <= over["interval"]["high"]


# --- Summary ----------------------------------------------------------------------------------------------------------


def saved(name, **seconds):
    rows = [{"peer": peer, "rounds": [{"readings_s": r} for r in rounds]} for peer, rounds in seconds.items()]
    return {"case": name, "peers": rows}


def test_the_geometric_mean_of_pairwise_ratios():
    runs = [
        saved("a", eager=[[4.0, 4.0, 4.0]], staxlab=[[1.0, 1.0, 1.0]]),
        saved("b", eager=[[1.0, 1.0, 1.0]], staxlab=[[1.0, 1.0, 1.0]]),
        saved("c", eager=[[1.0]]),
    ]
    entry = summary.summarize(runs)["speedup_over"]["eager"]
    assert entry["geometric_mean"] == pytest.approx(2.0)
    assert (entry["interval"]["low"], entry["interval"]["high"]) == (2.0, 2.0)
    assert entry["worst"] == "b"
    assert len(entry["cases"]) == 2


def test_the_bootstrap_interval_holds_the_mean_and_repeats():
    groups = [[1.0, 1.1, 0.9, 1.2, 1.05], [2.0, 2.2, 1.9, 2.1, 2.05]]
    low, high = summary.bootstrap(groups)
    assert low < math.sqrt(1.05 * 2.05) < high
    assert (low, high) == summary.bootstrap(groups)
    assert summary.bootstrap(groups, seed=1) != summary.bootstrap([[1.0], [2.0]])


def test_what_falls_short_is_named():
    noisy = [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]
    runs = [
        saved("a", eager=[[0.5] * 8], torch_compile=[[0.9] * 8], xla=[[3.0] * 8], staxlab=noisy),
        saved("b", eager=[[0.9, 1.2] * 4], torch_compile=[[4.0] * 8], xla=[[3.0] * 8], staxlab=noisy),
    ]
    runs[0]["roof"] = {"single_pass": True, "share": {"median": 0.5}}
    runs[1]["roof"] = {"single_pass": False, "share": {"median": 0.5}}
    found = summary.shortfalls(summary.summarize(runs))
    assert found == [
        "a: 0.9 times torch_compile's speed, wanted 0.95",
        "a: 0.5 times eager's speed, wanted 1",
        "a: 50% of the roof, wanted 80%",
        "geometric mean over torch_compile: 1.9, wanted 2.5",
    ]
    assert summary.shortfalls(summary.summarize(runs), preallocated=True) == []
    text = summary.table(summary.summarize(runs)).text()
    assert "below its aim: a: 0.9 times torch_compile's speed, wanted 0.95" in text
    runs[0]["peers"][-1] |= {"problem": "failed: no", "rounds": []}
    assert summary.shortfalls(summary.summarize(runs), preallocated=True) == ["a: failed: no"]


def test_a_mean_of_what_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="positive"):
        summary.geometric_mean([1.0, 0.0])
    assert math.isnan(summary.geometric_mean([]))
