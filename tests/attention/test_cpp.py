"""Attention kernels in C++ against the specification, a matrix of scores in float64: results, gradients, and every
shape that tiles can be cut off at."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.modification import modification
from staxlab.attention.problem import AttentionProblem, BlockGeometry
from staxlab.codegen.cpp.attention import forward_source
from staxlab.codegen.cpp.attention_backward import backward_source
from staxlab.codegen.cpp.attention_parts import plan_attention
from staxlab.errors import CodegenError, OptionError
from staxlab.options import GPU_SPECS, host_device_spec, host_instruction_set
from staxlab.runtime.attention_cpu import build_backward, build_forward
from tests.attention.variants import VARIANTS, Sizes, Variant, expected

#: One of each kind of text: by day. All others are for the night.
BY_DAY = (
    "values of another size", "causal ALiBi soft cap", "learned relative bias", "learned bias of heads", "documents",
    "learned additive bias", "lengths", "grouped queries, learned", "nothing visible", "decoding, ALiBi window",
)  # fmt: skip
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-12}


class Case:
    """A variant with its inputs, block mask and problem."""

    def __init__(self, variant, dtype=torch.float32, block_size=16, instruction_set=None, strided=False, device=None):
        self.variant, self.dtype = variant, dtype
        self.made = variant.make(torch.float64 if dtype == torch.float64 else torch.float32)
        self.inputs = variant.inputs(dtype)
        if strided:
            self.inputs = tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in self.inputs[:1]) + tuple(
                x.mT.contiguous().mT for x in self.inputs[1:]
            )
        sizes = variant.sizes.scores
        accumulator = torch.float64 if dtype == torch.float64 else torch.float32
        self.block_mask = score = mask = geometry = None
        if self.made.mask_mod is not None:
            self.block_mask = create_block_mask(self.made.mask_mod, *sizes, BLOCK_SIZE=block_size)
            mask = modification(self.made.mask_mod, "mask", sizes, accumulator)
            geometry = BlockGeometry(*self.block_mask.block_size, batch_varies=True, head_varies=True)
        if self.made.score_mod is not None:
            score = modification(self.made.score_mod, "score", sizes, accumulator)
        q, k, v = self.inputs
        self.problem = AttentionProblem(
            *sizes[:2], variant.sizes.key_heads, *sizes[2:], q.shape[3], v.shape[3], dtype,
            variant.scale or q.shape[3] ** -0.5, q.stride(), k.stride(), v.stride(), score, mask, geometry, True,
            device or host_device_spec(instruction_set),
        )  # fmt: skip
        self.captured = [c.tensor.detach() for c in self.problem.captured]

    def forward(self, **configuration):
        return build_forward(self.problem, configuration)(*self.inputs, self.block_mask, self.captured)

    def backward(self, results, upstream, **configuration):
        launch = build_backward(self.problem, configuration)
        return launch(*self.inputs, *results, *upstream, self.block_mask, self.captured)

    def check(self, gradients=True, **configuration):
        """Hold results and gradients against the specification, each relative to its largest number."""
        results = self.forward(**configuration)
        upstream = self.variant.upstream(self.dtype)
        wanted = expected(self.variant, self.made, *self.inputs, upstream)
        assert results[0].dtype == self.dtype and results[0].stride() == self.problem.output_strides
        assert torch.equal(results[1] == -math.inf, wanted.lse == -math.inf)
        hidden = wanted.lse == -math.inf
        assert not results[0][hidden].any(), "a row that sees nothing is zero"
        self.close(results[0], wanted.output, "output")
        self.close(results[1].masked_fill(hidden, 0), wanted.lse.masked_fill(hidden, 0), "lse")
        if not gradients:
            return
        found = self.backward(results, upstream, **configuration)
        for gradient, name in zip(found, ("query", "key", "value"), strict=False):
            self.close(gradient, getattr(wanted, name), f"gradient of {name}")
        assert not found[0][hidden].any()
        learned = [c for c in self.problem.captured if c.requires_grad]
        assert len(found) == 3 + len(learned)
        for gradient, part in zip(found[3:], learned, strict=True):
            (name,) = (name for name, tensor in self.made.learnable.items() if tensor is part.tensor)
            self.close(gradient, wanted.learnable[name], f"gradient of {name}")

    def close(self, found, wanted, what):
        assert found.isfinite().all(), what
        if wanted.numel():
            difference = (found.double() - wanted).abs().max().item()
            largest = wanted.abs().max().item()
            assert difference <= TOLERANCE[self.dtype] * max(largest, 1.0), (what, difference, largest)


def plain(**sizes):
    return Variant("plain", sizes=Sizes(**sizes))


def causal(**sizes):
    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return Variant("causal", mask=lambda source, sizes: causal, sizes=Sizes(**sizes))


def capped_alibi(source, sizes):
    slopes = source.normal(sizes.heads)

    def capped_alibi(score, b, h, q_idx, kv_idx):
        return 5 * torch.tanh((score - slopes[h] * torch.abs(q_idx - kv_idx) * 0.1) / 5)

    return capped_alibi


@pytest.mark.parametrize(
    "variant", [v if v.name in BY_DAY else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS], ids=str
)
def test_variants_and_their_gradients(variant):
    Case(variant).check()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants_in_other_precisions(variant, dtype):
    Case(variant, dtype).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_precisions(dtype):
    Case(Variant("mixed", capped_alibi, causal().mask, Sizes(1, 2, 1, 21, 37, 24, 20)), dtype).check()


@pytest.mark.parametrize("unit", [False, True])
def test_bfloat16_with_and_without_a_matrix_unit(unit):
    host = host_device_spec()
    if unit and not host.bfloat16_tiles:
        pytest.skip("this processor has no matrix unit for bfloat16")
    device = dataclasses.replace(host, bfloat16_tiles=unit)
    cases = (
        Variant("mixed", capped_alibi, causal().mask, Sizes(1, 4, 2, 41, 77, 64, 80)),  # scale 1/8; 5 tiles of values
        plain(batch=2, heads=2, key_heads=2, queries=33, keys=130, head_size=20, value_size=40),
    )
    for variant in cases:
        case = Case(variant, torch.bfloat16, device=device)
        made = forward_source(case.problem)
        assert made.plan.matrix_unit == unit == ("tile_product" in made.source)
        case.check(gradients=False)


def test_a_matrix_unit_needs_pairs_side_by_side():
    device = dataclasses.replace(host_device_spec("avx512"), bfloat16_tiles=True)
    for sizes, strided in (({"head_size": 15}, False), ({"queries": 4}, False), ({}, True)):
        case = Case(plain(**sizes), torch.bfloat16, device=device, strided=strided)
        decision = next(d for d in plan_attention(case.problem).decisions if d.topic == "attention-matrix-unit")
        assert decision.choice is False and decision.reason
    assert plan_attention(Case(plain(), torch.bfloat16, device=device).problem).matrix_unit
    assert not plan_attention(Case(plain(), device=device).problem).matrix_unit


@pytest.mark.parametrize("instruction_set", ["avx2", "scalar"])
def test_other_instruction_sets(instruction_set):
    if instruction_set == "avx2" and host_instruction_set() not in ("avx2", "avx512"):
        pytest.skip("this processor has no AVX2")
    variant = Variant("mixed", capped_alibi, causal().mask, Sizes(1, 4, 2, 21, 37, 12, 9))
    Case(variant, instruction_set=instruction_set).check()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("instruction_set", ["avx2", "scalar"])
def test_variants_on_other_instruction_sets(variant, instruction_set):
    if instruction_set == "avx2" and host_instruction_set() not in ("avx2", "avx512"):
        pytest.skip("this processor has no AVX2")
    Case(variant, instruction_set=instruction_set).check()


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_shapes(data):
    shapes_case(data).check()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_many_shapes(data):
    shapes_case(data).check()


def shapes_case(data):
    """Sizes on both sides of every tile, strides, blocks that end inside a vector, and tiles that the caller chose."""
    size = st.one_of(st.integers(1, 20), st.integers(60, 70), st.integers(125, 131))
    group = data.draw(st.sampled_from((1, 1, 2, 3)))
    key_heads = data.draw(st.integers(1, 2))
    sizes = Sizes(
        data.draw(st.integers(1, 2)), group * key_heads, key_heads, data.draw(size), data.draw(size),
        data.draw(st.integers(1, 80)), data.draw(st.integers(1, 80)),
    )  # fmt: skip
    score = data.draw(st.sampled_from((None, capped_alibi)))
    mask = data.draw(st.sampled_from((None, causal().mask)))
    dtype = data.draw(st.sampled_from((torch.float32, torch.float32, torch.bfloat16, torch.float64)))
    block_size = data.draw(st.sampled_from((128, 64, 20, 7)))
    return Case(Variant("drawn", score, mask, sizes), dtype, block_size, strided=data.draw(st.booleans()))


@pytest.mark.parametrize("strided", [False, True])
def test_strides_of_the_inputs_are_followed(strided):
    Case(
        plain(batch=2, heads=2, key_heads=2, queries=19, keys=35, head_size=20, value_size=33), strided=strided
    ).check()


def test_configurations_change_the_tiles_and_not_the_result():
    variant = causal(batch=1, heads=2, key_heads=2, queries=70, keys=70, head_size=16, value_size=16)
    Case(variant, block_size=64).check(BLOCK_M=10, BLOCK_N=32)
    Case(variant, block_size=64).check(BLOCK_M=500, BLOCK_N=500)


def test_decoding_divides_the_keys_and_joins_the_heads_of_a_group():
    variant = plain(batch=1, heads=4, key_heads=2, queries=1, keys=1200, head_size=32, value_size=32)
    case = Case(variant)
    plan = plan_attention(case.problem)
    assert plan.joined and plan.pieces > 1
    case.check(gradients=False)
    case.check(gradients=False, SPLITS=3)
    masked = Variant("masked", capped_alibi, lambda source, sizes: lambda b, h, q, kv: kv >= 700, variant.sizes)
    Case(masked, block_size=128).check(gradients=False)
    hidden = Variant("hidden", None, lambda source, sizes: lambda b, h, q, kv: (kv < 0) | (h > 1), variant.sizes)
    Case(hidden, block_size=128).check(gradients=False, SPLITS=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_stands_around_the_inputs_and_in_scratch_memory_is_nobodys(dtype, monkeypatch):
    """Inputs are windows into tensors of NaN, and the workspace begins as NaN: neither gets into a result."""
    case = Case(Variant("odd", None, causal().mask, Sizes(1, 2, 1, 90, 77, 20, 24)), dtype, block_size=64)

    def window(tensor):
        batch, heads, rows, size = tensor.shape
        around = torch.full((batch, heads, rows + 6, size + 8), math.nan, dtype=dtype)
        inside = around[:, :, 2 : 2 + rows, 4 : 4 + size]
        return inside.copy_(tensor)

    case.inputs = tuple(map(window, case.inputs))
    strides = (x.stride() for x in case.inputs)
    names = ("query_strides", "key_strides", "value_strides")
    case.problem = dataclasses.replace(case.problem, **dict(zip(names, strides, strict=True)))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: empty(*sizes, **options).fill_(math.nan))
    case.check(BLOCK_M=16)


@pytest.mark.parametrize("mask", [False, True])
def test_any_number_of_threads_gives_the_same_bits(mask):
    sizes = Sizes(1, 4, 2, 200, 300, 16, 16)
    learned = next(v for v in VARIANTS if v.name == "learned bias of heads")
    case = Case(Variant("threads", learned.score, causal().mask if mask else None, sizes), block_size=32)
    upstream = case.variant.upstream()
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results = case.forward()
            found.append((*results, *case.backward(results, upstream)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_what_lies_behind_the_last_key_of_a_block_contributes_nothing():
    """A tile of 64 keys has 37: the mask says nothing of the vectors behind, where an earlier tile's words stand."""
    for name in ("learned bias of heads", "several blocks, learned"):
        Case(next(v for v in VARIANTS if v.name == name), block_size=128).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_divided_keys_do_not_depend_on_threads_either(dtype):
    case = Case(plain(batch=1, heads=1, key_heads=1, queries=9, keys=2000, head_size=16, value_size=16), dtype)
    assert plan_attention(case.problem).pieces > 1
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = case.forward()
        torch.set_num_threads(3)
        three = case.forward()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_a_captured_tensor_too_large_for_many_slots_still_gets_its_gradient(monkeypatch):
    from staxlab.codegen.cpp import attention_backward

    variant = next(v for v in VARIANTS if v.name == "learned additive bias")
    case = Case(variant)
    (size,) = attention_backward.BackwardWorkspace(case.problem, plan_attention(case.problem)).gradients.values()
    monkeypatch.setattr(attention_backward, "SLOT_BYTES", 8 * size)
    made = backward_source(case.problem)
    assert made.slots == 1
    case.check(BLOCK_M=17)  # a configuration of its own, so that the kernel is made anew


@pytest.mark.parametrize(
    "sizes",
    [(0, 2, 2, 5, 5), (2, 2, 2, 0, 5), (2, 2, 2, 5, 0), (2, 0, 0, 5, 5)],
    ids=["batch", "rows", "keys", "heads"],
)
def test_nothing_to_compute(sizes):
    batch, heads, key_heads, queries, keys = sizes
    q, k, v = (torch.randn(batch, h, n, 8) for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys)))
    problem = AttentionProblem(
        *sizes, 8, 8, torch.float32, 1.0, q.stride(), k.stride(), v.stride(), None, None, None, True, host_device_spec()
    )
    out, lse = build_forward(problem)(q, k, v)
    assert out.shape == q.shape and not out.any() and (lse == -math.inf).all()
    found = build_backward(problem)(q, k, v, out, lse, torch.ones_like(out), None)
    assert [g.shape for g in found] == [x.shape for x in (q, k, v)] and not any(g.any() for g in found)


def test_nan_and_infinity_go_where_a_softmax_sends_them():
    case = Case(plain(batch=1, heads=1, key_heads=1, queries=8, keys=40, head_size=16, value_size=16))
    q, k, v = case.inputs
    q[0, 0, 2] = math.nan
    v[0, 0, 7, 3] = math.inf
    out, lse = case.forward()
    reference = torch.softmax(q.double() @ k.double().mT * case.problem.scale, -1) @ v.double()
    assert torch.equal(out.isnan(), reference.isnan()) and torch.equal(out.isinf(), reference.isinf())
    assert lse[0, 0].isnan().nonzero().flatten().tolist() == [2]


def test_the_text_names_the_modifications_and_their_lines():
    variant = Variant("both", capped_alibi, causal().mask)
    case = Case(variant)
    tiles = dataclasses.replace(host_device_spec("avx512"), bfloat16_tiles=True)
    in_tiles = forward_source(Case(variant, torch.bfloat16, device=tiles).problem)
    for made in (forward_source(case.problem), backward_source(case.problem), in_tiles):
        text = made.source
        assert "capped_alibi (test_cpp.py:" in text and "mask_mod causal (test_cpp.py:" in text
        assert max(map(len, text.split("\n"))) <= 120
        first, stop, what = next(p for p in made.passages if p[2].startswith("score_mod"))
        passage = [made.listing[n].text for n in range(first, stop)]
        assert any("tanh" in line for line in passage) and passage[-1].strip().startswith("// end of score_mod")
        assert any(made.listing[n].origins for n in range(first, stop))
        assert made.whose(first) == what and made.whose(0) == ""
    moved = forward_source(case.problem).traffic()
    q, k, v = case.inputs
    assert moved["inputs"] == 4 * (q.numel() + k.numel() + v.numel()) + 4 * variant.sizes.heads


def test_a_name_cannot_leave_its_comment():
    def named(score, b, h, q_idx, kv_idx):
        return score + 1

    named.__name__ = "evil\\\n#error */ \\"
    Case(Variant("named", lambda source, sizes: named)).check(gradients=False)


def test_what_is_refused():
    case = Case(plain(queries=5, keys=5))
    with pytest.raises(OptionError, match="BLOCK_M is 0"):
        build_forward(case.problem, {"BLOCK_M": 0})
    on_a_gpu = Case(plain(queries=5, keys=5), device=GPU_SPECS["sm_90"])
    with pytest.raises(CodegenError, match="sm_90"):
        forward_source(on_a_gpu.problem)
    masked = Case(causal(queries=5, keys=5))
    with pytest.raises(OptionError, match="block mask"):
        build_forward(masked.problem)(*masked.inputs)
