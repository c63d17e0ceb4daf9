"""Splitting reductions (Section 6.5): Algorithm 6.1, segments that tile, and two levels that mean what one means."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.loops.ir import Reduction
from staxlab.loops.splitting import TOPIC, Split, SplitRule, choose_split
from staxlab.measure.rounding import sequential, summation_bound, two_level, vectorized
from staxlab.options import DeviceSpec
from staxlab.schedule.dependencies import schedule

from .lowered import CPU, GPU, Options, check, lower, operators_of, program_of, run

# A device so small that short ranges are split: m = 16 threads, whole up to 32, D_min = 512, D_max = 131072.
TINY = DeviceSpec(kind="cuda", name="tiny", multiprocessors=4, warp_size=2, max_threads_per_multiprocessor=64)


def splits(program):
    return [d for d in program.decisions if d.topic == TOPIC]


def reductions(program):
    return [b for b in program.buffers if isinstance(b.data, Reduction)]


# -- Example 6.2 ------------------------------------------------------------------------------------------------------


def test_example_6_2():
    program = program_of(lambda x: (x * x).sum(-1), torch.randn(64, 16384), device=GPU)
    first, second = program.buffers
    assert (first.data.ranges, first.data.reduction_ranges, first.data.kind) == ((64, 2), (8192,), "sum")
    assert (second.data.ranges, second.data.reduction_ranges, second.data.kind) == ((64,), (2,), "sum")
    assert (first.layout.shape, first.layout.stride) == ((64, 2), (2, 1))
    assert "load a[16384*i0 + 8192*i1 + r0]" in str(program) and "load buf0[2*i0 + r0]" in str(program)
    assert "tmp1 = mul(tmp0, tmp0)" in str(program)
    (decision,) = splits(program)
    facts = dict(decision.inputs)
    assert decision.choice == 2 and decision.subject == "sum"
    assert (facts["S"], facts["w"], facts["T"], facts["m"]) == (132, 32, 2048, 256)
    assert facts["D_min"] == 8_650_752 and facts["n"] * facts["n_r"] == 1_048_576
    assert (facts["s"], facts["segments"], facts["segment length"]) == (32, 2, 8192)


def test_example_6_2_merges_to_one_loop_of_128_rows():
    program = program_of(lambda x: (x * x).sum(-1), torch.randn(64, 16384), device=GPU)
    first, second = schedule(program, GPU, Options()).nodes
    assert (first.ranges, first.reduction_ranges, second.ranges, second.reduction_ranges) == (
        (128,), (8192,), (64,), (2,),
    )  # fmt: skip
    assert str(first.reads[0].index) == "8192*i0 + r0"


# -- Algorithm 6.1 ----------------------------------------------------------------------------------------------------


def algorithm_6_1(n: int, n_r: int, S: int, w: int, T: int, whole: int) -> tuple[int, int | None]:
    """The algorithm once more, from its statement. The element count of line 6, which is stated loosely, is None."""
    e_min, e_max, m = w, 512, 8 * w
    if n >= 2 * S or n_r <= whole:
        return 1, 1
    if n * n_r <= e_min * S * T:
        return -(-n_r // (e_min * m)), e_min
    if n * n_r < e_max * S * T:
        return -(-n_r // (-(-n_r // (m * -(-(S * T // (2 * m)) // n))) * m)), None
    near = min((d for d in range(462, 563) if n_r % d == 0), key=lambda d: (abs(d - 512), d), default=512)
    return -(-n_r // (near * m)), near


@given(
    n=st.integers(1, 400), n_r=st.one_of(st.integers(1, 1 << 28), st.sampled_from([1 << k for k in range(29)])),
    S=st.sampled_from([8, 108, 132]), w=st.sampled_from([32, 64]), T=st.sampled_from([1024, 2048]),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_inner_reductions_follow_the_algorithm(n, n_r, S, w, T):
    device = DeviceSpec("cuda", "x", multiprocessors=S, warp_size=w, max_threads_per_multiprocessor=T)
    rule = SplitRule.of(n, device, across=False)
    expected, elements = algorithm_6_1(n, n_r, S, w, T, rule.whole_up_to)
    if elements is not None:
        assert rule.segments(n, n_r) == expected
    else:  # an even division may be up to a quarter away, and a thread has e_min elements at least
        assert rule.segments(n, n_r) <= max(math.ceil(expected * 4 / 3) + 1, 1)
        assert rule.segments(n, n_r) >= min(expected * 4 // 5 - 1, n_r // (w * 8 * w))
    decision = choose_split("y", "sum", n, n_r, device)[1]
    assert decision.topic == TOPIC and dict(decision.inputs)["n"] == n


@given(
    n=st.integers(1, 10_000), n_r=st.integers(1, 1 << 24), across=st.booleans(),
    device=st.sampled_from([TINY, GPU]), kind=st.sampled_from(["sum", "amax", "argmax"]),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_segments_cover_every_element_exactly_once(n, n_r, across, device, kind):
    split, decision = choose_split("y", kind, n, n_r, device, across=across)
    assert decision.choice == split.segments
    end = 0
    for number in range(split.segments):
        piece = split.segment(number)
        assert piece.start == end and len(piece) > 0
        end = piece.stop
    assert end == n_r
    assert split.is_ragged == any(len(split.segment(j)) < split.length for j in range(split.segments))
    if n >= 2 * 32 * device.multiprocessors or kind == "argmax":
        assert split.segments == 1


@pytest.mark.parametrize(("segments", "length"), [(3, 2), (2, 3), (5, 2), (0, 7)])
def test_segments_that_do_not_tile_are_refused(segments, length):
    with pytest.raises(ValueError, match="do not tile 7"):
        Split(7, segments, length)


@given(n=st.integers(1, 8447), n_r=st.integers(257, 1 << 22))
@settings(max_examples=200, deadline=None)
def test_an_outer_reduction_that_is_split_fills_the_device_or_gives_threads_e_min(n, n_r):
    rule = SplitRule.of(n, GPU, across=True)
    k = rule.segments(n, n_r)
    if k > 1:
        groups = -(-n // rule.outputs_side_by_side)
        each = n_r / k / rule.threads_per_output
        assert groups * k >= rule.blocks_wanted * 3 // 4 or each <= rule.fewest_elements


def test_outer_reductions():
    """Column sums: 32 columns to an instance, so 32 instances before and 512 after."""
    program = program_of(lambda x: x.sum(0), torch.randn(4096, 1024), device=GPU)
    first, second = program.buffers
    assert first.data.ranges == (1024, 16) and first.data.reduction_ranges == (256,)
    assert first.layout.stride == (1, 1024), "neighbouring columns stay neighbours"
    assert second.data.ranges == (1024,) and second.data.reduction_ranges == (16,)
    facts = dict(splits(program)[0].inputs)
    assert (facts["outputs side by side"], facts["enough outputs"], facts["whole up to"]) == (32, 8448, 256)


# -- the same values --------------------------------------------------------------------------------------------------

KINDS = {
    "sum": torch.sum, "mean": torch.mean, "prod": torch.prod, "amax": torch.amax, "amin": torch.amin, "any": torch.any,
    "all": torch.all, "argmax": torch.argmax, "nansum": torch.nansum, "count_nonzero": torch.count_nonzero,
}  # fmt: skip
MANY_DIMS = ("sum", "mean", "amax", "amin", "any", "all", "nansum", "count_nonzero")
# Numbers whose sums and products are exact in any order.
VALUES = {
    torch.float32: (1, -1, 2, 0, 3), torch.float64: (1, -1, 5), torch.bfloat16: (1, -1), torch.float16: (1, -1, 0),
    torch.int64: (0, 3, -2), torch.int32: (7, -2), torch.int8: (1, 0, -3), torch.uint8: (1, 9), torch.bool: (0, 1),
}  # fmt: skip
SPECIAL = (math.nan, math.inf, -math.inf, -0.0)


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    dtype = draw(st.sampled_from(list(VALUES)))
    rank = draw(st.integers(1, 3))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 16, 33, 64, 130]), min_size=rank, max_size=rank))
    while math.prod(shape) > 5000:
        shape[shape.index(max(shape))] //= 4
    if draw(st.integers(0, 12)) == 0:
        shape[draw(st.integers(0, rank - 1))] = 0
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    values = torch.tensor((1, -1) if kind == "prod" and dtype.is_signed else VALUES[dtype], dtype=dtype)
    x = values[torch.randint(len(values), tuple(shape), generator=generator)]
    if dtype.is_floating_point and x.numel():
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=2)):
            x.view(-1)[draw(st.integers(0, x.numel() - 1))] = value
    if draw(st.booleans()):
        x = x.permute(draw(st.permutations(range(rank))))  # not contiguous: another order of the loops
    if kind in MANY_DIMS:
        dims = sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    else:
        dims = draw(st.integers(0, rank - 1))
    return kind, x, dims


@given(cases())
@settings(max_examples=300, deadline=None)
def test_two_levels_mean_what_one_means(case):
    kind, x, dims = case

    def function(x):
        values = x if kind not in ("mean", "nansum") or x.dtype.is_floating_point else x.float()
        return KINDS[kind](values, dims)

    try:
        expected = function(x)
    except (IndexError, RuntimeError):
        return  # an extreme of nothing, or a kind the dtype does not have
    operators = operators_of(function, x)
    whole = lower(operators, TINY, Options(split_reductions=False))
    cut = lower(operators, TINY, Options())
    assert {d.choice for d in splits(whole)} <= {1}
    a, b = run(operators, whole, x), run(operators, cut, x)
    assert a.dtype == b.dtype == expected.dtype and b.stride() == expected.stride()
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if kind != "mean":
        torch.testing.assert_close(b, expected, rtol=0, atol=0, equal_nan=True)


def test_those_cases_are_split():
    """The property above would hold emptily if nothing were."""
    for shape, dims in (((130, 3), [0]), ((3, 130), [1]), ((16, 7, 16), [0, 2]), ((130,), [0]), ((33, 33), [0, 1])):
        program = program_of(lambda x, dims=dims: x.sum(dims), torch.ones(shape), device=TINY)
        assert splits(program)[0].choice > 1, (shape, dims)
        assert len(reductions(program)) == 2


def test_a_mistake_in_the_tail_would_be_seen(monkeypatch):
    from staxlab.loops import splitting

    monkeypatch.setattr(splitting, "neutral_element", lambda kind, dtype: 1)
    program_operators = operators_of(lambda x: x.sum(), torch.ones(133))
    program = lower(program_operators, TINY, Options())
    assert run(program_operators, program, torch.ones(133)) != 133


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_partial_results_of_half_precision_are_float32(dtype):
    x = torch.randn(64, 16384).to(dtype)
    program = program_of(lambda x: x.sum(-1), x, device=GPU)
    first, second = program.buffers
    assert first.layout.dtype == torch.float32 and second.layout.dtype == dtype
    big = torch.full((64, 16384), 8.0, dtype=dtype)  # a partial sum of 65536 overflows float16
    operators = operators_of(lambda x: x.mean(-1), big)
    assert torch.equal(run(operators, lower(operators, GPU), big), torch.full((64,), 8.0, dtype=dtype))


def test_accumulator_dtypes_of_partial_results():
    x = torch.randint(0, 9, (64, 16384), dtype=torch.int32)
    assert program_of(lambda x: x.sum(-1), x, device=GPU).buffers[0].layout.dtype == torch.int64
    assert program_of(lambda x: x.any(-1), x, device=GPU).buffers[0].layout.dtype == torch.bool
    assert program_of(lambda x: x.amax(-1), x, device=GPU).buffers[0].layout.dtype == torch.int32


# -- what is fused where, and what is left alone ----------------------------------------------------------------------


def test_producers_stay_in_the_first_level_and_epilogues_come_after_the_second():
    program = program_of(lambda x, y: torch.exp(x * y).sum().sqrt() + 1, torch.randn(512, 512), torch.randn(512, 512),
                         device=GPU)  # fmt: skip
    first, second, last = program.buffers
    text = str(program)
    assert text.index("exp(") < text.index(f"{second.name}:") < text.index("sqrt(")
    assert not isinstance(last.data, Reduction)


def test_a_tensor_is_summed_in_the_order_of_its_memory():
    """A transposed tensor is cut along its memory, not along its subscripts."""
    program = program_of(lambda x: x.t().sum(), torch.randn(512, 256), device=GPU)
    assert "load a[8192*i0 + r0]" in str(program)


def test_dimensions_that_merge_are_walked_as_one():
    """Channel sums: height and width are one loop, so one remainder is left in the subscript and not two."""
    program = program_of(lambda x: x.sum((0, 2, 3)), torch.randn(32, 64, 56, 56), device=GPU)
    line = next(line for line in str(program).splitlines() if "load a" in line)
    assert "load a[((1472*i1 + r0) % 3136) + 200704*((1472*i1 + r0) // 3136) + 3136*i0 + 401408*i1]" in line


def test_argmax_is_left_whole():
    program = program_of(lambda x: (x.argmax(-1), x.amax(-1)), torch.randn(4, 1 << 16), device=GPU)
    by_kind = {b.data.kind: [r.data.kind for r in reductions(program)].count(b.data.kind) for b in reductions(program)}
    assert by_kind == {"argmax": 1, "amax": 2}
    (decision,) = [d for d in splits(program) if "positions" in d.reason]
    assert decision.choice == 1


def test_the_option():
    x = torch.randn(1 << 16)
    for options, levels in ((Options(), 2), (Options(split_reductions=False), 1)):
        program = lower(operators_of(lambda x: x.sum(), x), GPU, options)
        assert len(program.buffers) == levels
        assert (splits(program)[0].choice == 1) == (levels == 1)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum(), lambda x: x.view(-1, 16).sum(0), lambda x: x.sum(1), lambda x: torch.softmax(x, -1),
     lambda x: x.var(), lambda x: torch.nn.functional.layer_norm(x, x.shape[1:])],
)  # fmt: skip
def test_nothing_changes_on_a_cpu(function):
    x = torch.randn(16, 20000)
    operators = operators_of(function, x)
    with_option, without = (lower(operators, CPU, Options(split_reductions=o)) for o in (True, False))
    assert not splits(with_option) and str(with_option) == str(without)
    assert with_option.decisions == without.decisions
    unsplit = lower(operators, GPU, Options(split_reductions=False))
    assert len(with_option.buffers) == len(unsplit.buffers) < len(lower(operators, GPU).buffers)


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.softmax(x, -1), lambda x: torch.log_softmax(x.t(), 0), lambda x: torch.var_mean(x),
     lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), lambda x: torch.logsumexp(x, (0, 1)),
     lambda x: torch.linalg.vector_norm(x), lambda x: torch.nn.functional.group_norm(x, 1)],
)  # fmt: skip
def test_normalisations_and_norms(function):
    for device in (TINY, GPU):
        program = check(function, torch.randn(3, 9000), device=device, rtol=1e-4, atol=1e-4)
        if device is TINY:
            assert any(d.choice > 1 for d in splits(program))


def test_the_sums_of_a_layer_norms_adjoint_are_cut_alike():
    """Reductions over the same range get the same segments, so that a schedule can make them one kernel."""
    x = torch.randn(2000, 64)
    weight, bias = torch.randn(64), torch.randn(64)
    gradient, mean, scale = torch.randn(2000, 64), x.mean(-1, True), torch.ones(2000, 1)

    def function(g, x, mean, scale, weight, bias):
        return torch.ops.aten.native_layer_norm_backward(g, x, [64], mean, scale, weight, bias, [False, True, True])

    program = program_of(function, gradient, x, mean, scale, weight, bias, device=GPU)
    chosen = [d for d in splits(program) if d.choice > 1]
    assert len(chosen) == 2 and chosen[0].choice == chosen[1].choice
    spaces = {(b.data.ranges, b.data.reduction_ranges) for b in reductions(program)}
    assert len(spaces) == 2 and len(reductions(program)) == 4


def test_checked_subscripts_stay_checked():
    index = torch.zeros(40_000, dtype=torch.int64)
    index[39_999] = 5
    operators = operators_of(lambda t, i: t[i].sum(), torch.ones(7), index)
    program = lower(operators, GPU)
    assert splits(program)[0].choice > 1
    assert run(operators, program, torch.ones(7), index) == 40_000
    index[39_999] = 7
    with pytest.raises(IndexError):
        run(operators, program, torch.ones(7), index)


def test_programs_are_equal_from_run_to_run():
    """Order of summation: a function of shapes, device and options."""
    x = torch.randn(100_001)
    texts = {str(program_of(lambda x: x.sum(), x, device=GPU)) for _ in range(3)}
    assert len(texts) == 1
    operators = operators_of(lambda x: x.sum(), x)
    results = {run(operators, lower(operators, GPU), x).item() for _ in range(3)}
    assert len(results) == 1


# -- rounding ---------------------------------------------------------------------------------------------------------


def test_the_error_bound_of_two_levels():
    plan = two_level(16384, sequential(8192), sequential(2))
    assert plan.height == 8191 + 1 and plan.n == 16384
    assert two_level(16384, vectorized(8192, lanes=4096), vectorized(2, lanes=2)).height == 1 + 12 + 1


@given(n=st.integers(40, 3000), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_reference_semantics_stay_within_the_bound(n, seed):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    operators = operators_of(lambda x: x.sum(), x)
    program = lower(operators, TINY, Options())
    segments = splits(program)[0].choice
    length = program.buffers[0].data.reduction_ranges[0]
    # One more addition at each level: to the neutral element, which is exact, so the bound holds all the more.
    plan = two_level(n, sequential(length), sequential(segments))
    error = abs(run(operators, program, x).item() - math.fsum(x.tolist()))
    assert error <= summation_bound(n, plan, x.abs().double().sum().item())
    assert plan.height < n - 1


# -- rows that are read again -----------------------------------------------------------------------------------------


def softmax(x):
    return torch.softmax(x, -1)


def divided(x):
    return x / (x * x).sum(-1, keepdim=True).sqrt()


def standardized(x):
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


@pytest.mark.parametrize("function", [softmax, divided, standardized])
@pytest.mark.parametrize(
    ("n", "n_r", "segments"),
    [(128, 65536, 1), (263, 20000, 1), (200, 1 << 20, 1), (64, 65536, 2), (16, 1 << 20, 2), (100, 1 << 20, 2)],
)
def test_rows_that_meet_their_result_again_are_left_whole_where_the_device_is_busy(function, n, n_r, segments):
    program = program_of(function, torch.empty(n, n_r, device="meta"), device=GPU)
    choices = {d.choice > 1 for d in splits(program) if dict(d.inputs)["n_r"] == n_r}
    assert choices == {segments > 1}
    for decision in splits(program):
        facts = dict(decision.inputs)
        if "split" in facts:
            cheaper = facts["transfers per element, whole"] <= facts["split"]
            assert cheaper == (decision.choice == 1) and (str(facts["split"]) in decision.reason) == cheaper


def test_what_left_whole_costs():
    """Of S multiprocessors n transfer; the cache holds a row that is under way until it is read again, or not."""
    from staxlab.loops.splitting import left_whole

    s, cache = GPU.multiprocessors, GPU.l2_bytes
    assert left_whole(2 * s, 1000, GPU) == (2.0, 2.5)
    assert left_whole(s // 2, 1000, GPU)[0] == 4.0
    assert left_whole(2 * s, cache, GPU) == (3.0, 3.0)
    costs = [left_whole(n, 1 << 18, GPU)[0] for n in range(1, s)]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.sum(-1), lambda x: x.sum(-1, keepdim=True).sqrt() * 2, lambda x: x[:, :1] * x.sum(-1, keepdim=True)],
)
def test_sums_that_do_not_meet_their_rows_again_are_split(function):
    program = program_of(function, torch.empty(200, 65536, device="meta"), device=GPU)
    assert splits(program)[0].choice > 1 and "split" not in dict(splits(program)[0].inputs)


def test_columns_that_meet_their_sums_again_are_split():
    """Lanes run across columns, of which an instance has many: there is no such thing as one row to an instance."""
    program = program_of(lambda x: x / x.sum(0), torch.empty(65536, 200, device="meta"), device=GPU)
    assert splits(program)[0].choice > 1


# -- inputs nobody here wrote -----------------------------------------------------------------------------------------


def survey_on_a_tiny_device(monkeypatch, dtype: torch.dtype, every: int) -> None:
    """PyTorch's operator samples, lowered for a device that splits almost everything."""
    pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest (the dev extra)")
    from staxlab.loops.lowering import graph

    from . import opinfo

    count = 0
    real = graph.two_levels

    def counted(*arguments):
        nonlocal count
        levels, decision = real(*arguments)
        count += levels is not None
        return levels, decision

    monkeypatch.setattr(graph, "two_levels", counted)
    monkeypatch.setattr(opinfo, "CPU", TINY)
    _, failures = opinfo.survey(dtype, 2, every=every)
    assert not failures, "\n".join(failures)
    assert count > 0


def test_samples_of_every_eighth_operator(monkeypatch):
    survey_on_a_tiny_device(monkeypatch, torch.float32, 8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_samples_of_every_operator(monkeypatch, dtype):
    survey_on_a_tiny_device(monkeypatch, dtype, 1)
