"""The benchmark of parallel builds: fresh caches, turns, ratios within a round, and what failed is said."""

from __future__ import annotations

import json

import pytest

from benchmarks import parallel_build
from staxlab.measure.fresh_process import ProcessFailed

SEEN = ("STAXLAB_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def pretended(slow=1.0, seen=None):
    """A runner for which work divides by the workers, and a round is ``slow`` times slower than the one before."""
    state = {"calls": 0}

    def runner(code, environment):
        compile(code, "snippet", "exec")
        workers = int(environment.get("STAXLAB_BUILD_WORKERS") or environment["TORCHINDUCTOR_COMPILE_THREADS"])
        if seen is not None:
            seen.append((next(environment[name] for name in SEEN if name in environment), workers))
        factor = slow ** (state["calls"] // 6)
        state["calls"] += 1
        if "torch.compile(f)" in code:
            return {"seconds": 30.0 * factor}
        build = 12.0 * factor / workers
        return {"seconds": 3.0 * factor + build, "serial": 3.0 * factor, "kernels": 12, "work": 12.0 * factor,
                "makespan": build, "low": build, "high": build * 1.25, "hits": 0}  # fmt: skip

    return runner


def test_every_build_has_a_cache_of_its_own_and_ratios_are_within_a_round():
    seen = []
    record = parallel_build.measure(list(parallel_build.SIDES), [1, 2], 3, lambda line: None, pretended(3.0, seen))
    assert len(seen) == len({cache for cache, _ in seen}) == 18
    assert [workers for _, workers in seen[:4]] == [1, 2, 1, 2] and [workers for _, workers in seen[6:8]] == [2, 1]
    row = record["summary"]["cpp 2"]
    assert row["speedup"]["readings"] == pytest.approx([15 / 9] * 3), "drift between rounds must not show"
    assert row["speedup_of_build"]["readings"] == pytest.approx([2.0] * 3)
    assert row["over_lower_bound"]["median"] == 1 and row["of_upper_bound"]["median"] == pytest.approx(0.8)
    assert row["work_over_makespan"]["median"] == pytest.approx(2)
    assert row["torch_compile_over_this"]["median"] == pytest.approx(30 / 9)
    assert "torch_compile_over_this" not in record["summary"]["triton 2"]
    text = parallel_build.table(record).text()
    assert "cpp 2" in text and "1.67 [1.67, 1.67]" in text and record["complete"]
    json.dumps(record, allow_nan=False)


def test_what_fails_is_left_out_and_an_interruption_keeps_whole_rounds():
    inner = pretended()

    def runner(code, environment):
        if "torch.compile(f)" in code:
            raise ProcessFailed("ended with 1: no compiler")
        runner.left -= 1
        if runner.left < 0:
            raise KeyboardInterrupt
        return inner(code, environment)

    runner.left = 6
    record = parallel_build.measure(list(parallel_build.SIDES), [1, 2], 3, lambda line: None, runner)
    assert record["failed"] == {"torch_compile": "ended with 1: no compiler"} and not record["complete"]
    assert len(record["rounds"]) == 1 and len(record["summary"]["cpp 1"]["seconds"]["readings"]) == 1
    assert "interrupted" in parallel_build.table(record).text()


@pytest.mark.parametrize("arguments", [["--workers", "0"], ["--workers", "two"], ["--sides", "x"], ["--repeats", "0"]])
def test_what_is_no_call(arguments):
    with pytest.raises(SystemExit):
        parallel_build.main(arguments)


def test_numbers_of_workers():
    assert parallel_build.powers_up_to(1) == [1] and parallel_build.powers_up_to(6) == [1, 2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["cpp", "triton"])
def test_the_regions_have_a_dozen_kernels_and_are_built(side, monkeypatch):
    if side == "triton":
        pytest.importorskip("triton")
    found = parallel_build.run_side(side, 2)
    assert found["kernels"] >= 12 and found["hits"] == 0
    assert found["low"] <= found["work"] and found["makespan"] > 0
