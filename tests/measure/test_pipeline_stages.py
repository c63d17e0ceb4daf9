"""Pipeline stages: the budget, what Triton's compiler takes, and the model over time against its closed form."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.pipeline_stages import (
    bytes_in_flight,
    compiled_shared_bytes,
    multiplies_in_place,
    pipeline,
    stage_budget,
    stage_bytes,
)
from staxlab.options import GPU_SPECS, DeviceSpec
from tests.measure.matrix_kernels import dot_loop


def test_the_numbers_of_the_section_and_of_exercise_40():
    assert stage_bytes((128, 128, 64), 2) == stage_bytes((128, 128, 128), 1) == 32 << 10
    assert stage_budget((128, 128, 64), itemsize=2, epilogue_bytes=32 << 10).stages == 6
    assert stage_budget((128, 128, 128), itemsize=1).stages == 7
    assert stage_budget((128, 128, 64), itemsize=2, device="sm_80").stages == 5


@given(st.tuples(*[st.sampled_from((16, 32, 64, 128))] * 3), st.sampled_from((1, 2, 4)), st.integers(1, 3))
def test_one_stage_more_does_not_fit(tile, itemsize, instances):
    epilogue = tile[0] * tile[1] * itemsize
    budget = None
    try:
        budget = stage_budget(tile, itemsize=itemsize, epilogue_bytes=epilogue, instances=instances)
    except OptionError:
        assert instances * (stage_bytes(tile, itemsize) + epilogue) > 228 << 10
        return
    taken, more = (instances * budget.used(s) for s in (budget.stages, budget.stages + 1))
    assert taken <= budget.shared < more + instances
    assert budget.decision.choice in budget.decision.candidates and "do not" in budget.decision.reason


def test_bytes_in_flight():
    assert [bytes_in_flight((128, 128, 64), 2, s) >> 10 for s in (1, 2, 3, 4)] == [32, 32, 64, 96]
    assert "asks for 14.87 KiB" in str(stage_budget((128, 128, 64), itemsize=2))


@pytest.mark.parametrize("device", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("tile", "warps"), [((64, 64, 32), 4), ((128, 64, 64), 4), ((32, 64, 32), 4), ((64, 64, 32), 2)]
)
def test_what_the_compiler_takes(device, tile, warps):
    pytest.importorskip("triton")
    from staxlab.codegen.triton.compile import aot_compile

    for stages in (2, 3, 4):
        compiled = aot_compile(dot_loop(tile, device, stages, num_warps=warps))
        taken = compiled["metadata"].shared
        in_place = multiplies_in_place(tile, warps, GPU_SPECS[device])
        epilogue = 4 * tile[0] * tile[1] if in_place else 0
        reckoned = compiled_shared_bytes(tile, 2, stages, device, num_warps=warps, epilogue_bytes=epilogue)
        assert taken == reckoned, stages
        assert taken <= stages * stage_bytes(tile, 2) + epilogue, "the budget of Section 9.8 is on the safe side"
        assert ("wgmma" in compiled["ptx"]) == in_place and "cp.async" in compiled["ptx"]


def test_exact_float32_takes_no_tensor_cores():
    pytest.importorskip("triton")
    from staxlab.codegen.triton.compile import aot_compile

    tile = (64, 64, 32)
    for precision, tensor_cores in (("ieee", False), ("tf32", True)):
        compiled = aot_compile(dot_loop(tile, "sm_90", 4, torch.float32, 4, precision))
        reckoned = compiled_shared_bytes(tile, 4, 4, num_warps=4, tensor_cores=tensor_cores)
        assert compiled["metadata"].shared == reckoned and ("wgmma" in compiled["ptx"]) == tensor_cores


times = st.fractions(min_value=0, max_value=20, max_denominator=4)


@given(st.integers(1, 40), st.integers(1, 8), times, times, times)
def test_the_model_keeps_its_own_rules(steps, stages, latency, transfer, compute):
    if not latency + transfer + compute:
        return
    run = pipeline(steps, stages, latency=latency, transfer=transfer, compute=compute)
    for t, step in enumerate(run.steps):
        assert step.loaded >= step.asked + latency + transfer and step.started >= step.loaded
        assert step.computed == step.started + compute
        if t:
            before = run.steps[t - 1]
            assert step.started >= before.computed and step.loaded >= before.loaded + transfer
        if t >= stages:
            assert step.asked >= run.steps[t - stages].computed, "a buffer is free when its step has been computed"
    first = latency + transfer + compute
    assert first + (steps - 1) * max(transfer, compute) <= run.duration <= steps * first


@given(st.integers(1, 8), times, times, times)
def test_the_period_is_what_it_comes_to_in_the_long_run(stages, latency, transfer, compute):
    if not latency + transfer + compute:
        return
    run = pipeline(240 + stages, stages, latency=latency, transfer=transfer, compute=compute)
    ends = [step.computed for step in run.steps]
    assert ends[-1] - ends[-1 - stages] == stages * run.period
    if max(transfer, compute):
        enough = pipeline(1, run.enough, latency=latency, transfer=transfer, compute=compute)
        assert enough.period == max(transfer, compute)
    named = {"computation": compute, "bandwidth": transfer, "latency": (latency + transfer + compute) / stages}
    assert named[run.limit] == run.period


def test_it_prints_and_compares():
    run = pipeline(8, 1, latency=6, transfer=1, compute=2).compared((1, 2, 3, 4, 5, 6))
    assert [one.period for one in run.runs] == [9, Fraction(9, 2), 3, Fraction(9, 4), 2, 2]
    assert run.enough == 5 and "5 stages are enough" in run.format() and run.format().count("step   0 |") == 6
    assert "latency" in run.summary() and run.busy == Fraction(16, 72)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stage_bytes((1, 1), 2), lambda: stage_bytes((1, 1, 0), 2),
        lambda: stage_budget((256, 256, 256), itemsize=4), lambda: stage_budget((8, 8, 8), itemsize=2, device="sm_1"),
        lambda: stage_budget((8, 8, 8), itemsize=2, instances=0),
        lambda: stage_budget((8, 8, 8), itemsize=2, device=DeviceSpec(kind="cuda", name="x")),
        lambda: bytes_in_flight((8, 8, 8), 2, 0), lambda: pipeline(0, 1, latency=1, compute=1),
        lambda: pipeline(1, 0, latency=1, compute=1), lambda: pipeline(1, 1, latency=0, compute=0),
        lambda: pipeline(1, 1, latency=-1, compute=1), lambda: pipeline(1, 1, latency=float("inf"), compute=1),
        lambda: pipeline(1, float("nan"), latency=1, compute=1), lambda: pipeline(1, 1, latency=None, compute=1),
        lambda: stage_bytes((1.5, 1, 1), 2), lambda: stage_budget((8, 8, 8), itemsize=2, instances=1.5),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call):
    with pytest.raises(OptionError) as caught:
        call()
    assert caught.value.remedy
