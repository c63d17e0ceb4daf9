"""``omni_attention`` whole: every variant called at once and in a compiled region, forward and gradients, against the
N x M specification in float64; and what the operator is to autograd, to the compiler's stages and to memory."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import staxlab
from staxlab import create_block_mask, omni_attention
from staxlab.attention import backends, operator
from staxlab.attention.masks import causal
from staxlab.attention.modification import modification
from staxlab.attention.reference import reference_attention
from staxlab.autodiff.budget import floating_point_operations
from staxlab.measure.operator_cost import operations
from staxlab.operators.structure import flatten
from staxlab.options import GPU_SPECS, host_device_spec
from tests.attention.variants import BY_NAME, VARIANTS, Variant, expected

REFERENCE = {"BACKEND": "reference"}
#: Compiled by day; together they have every kind of mask, capture, gradient and grouping. The rest by night.
BY_DAY = ("plain", "causal ALiBi", "documents", "learned relative bias", "hidden rows", "grouped queries, learned",
          "values of another size", "T5 buckets", "partial")  # fmt: skip
IN_CPP = ("causal ALiBi", "learned relative bias", "grouped queries, learned")
IN_TRITON = ("causal ALiBi", "learned relative bias", "hidden rows")


def some(names: tuple[str, ...]) -> list:
    """All variants, those not named marked slow."""
    marked = [v if v.name in names else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS]
    assert sum(isinstance(v, Variant) for v in marked) == len(names)
    return marked


def check(variant: Variant, call: Callable, dtype: torch.dtype, tolerance: float, options: dict | None = None) -> None:
    """Results and gradients of ``call`` are the specification's, up to ``tolerance`` times the largest of each."""
    made = variant.make(dtype)
    query, key, value = variant.inputs(dtype, requires_grad=True)
    mask = None
    if made.mask_mod is not None:
        s = variant.sizes
        mask = create_block_mask(made.mask_mod, s.batch, s.heads, s.queries, s.keys, BLOCK_SIZE=16)
    wanted = expected(variant, made, query, key, value)
    output, lse = call(
        query, key, value, made.score_mod, mask, variant.scale, variant.enable_gqa, True, kernel_options=options
    )
    assert output.dtype == dtype and lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    upstream, lse_upstream = variant.upstream(dtype)
    inputs = [query, key, value, *made.learnable.values()]
    found = torch.autograd.grad((output, lse), inputs, (upstream, lse_upstream))
    hidden = wanted.lse == -math.inf
    assert hidden.any() == variant.hides_rows
    assert torch.equal(lse == -math.inf, hidden) and not output[hidden].any()
    pairs = [(output, wanted.output), (lse[~hidden], wanted.lse[~hidden])]
    pairs += zip(found, (wanted.query, wanted.key, wanted.value, *wanted.learnable.values()), strict=True)
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        if theirs.numel():
            assert (ours - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max())


# -- variants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants_on_matrices(variant):
    check(variant, omni_attention, torch.float64, 1e-12, REFERENCE)


@pytest.mark.parametrize("variant", some(BY_DAY), ids=str)
def test_variants_in_a_region(variant):
    compiled = staxlab.compile(omni_attention, strict_native=True)
    check(variant, compiled, torch.float64, 1e-12, REFERENCE)
    assert compiled.cache_info().compilations == 1


@pytest.mark.parametrize("variant", some(IN_CPP), ids=str)
def test_variants_in_cpp(variant):
    check(variant, omni_attention, torch.float32, 2e-5)
    check(variant, staxlab.compile(omni_attention, strict_native=True), torch.float32, 2e-5)


@pytest.mark.parametrize("variant", some(IN_TRITON), ids=str)
def test_variants_through_the_interpreter(variant):
    check(variant, omni_attention, torch.float32, 2e-5, {"BACKEND": "triton", "INTERPRET": True})


def test_decoding_through_the_interpreter():
    options = {"BACKEND": "decode", "INTERPRET": True, "SPLITS": 3}
    check(BY_NAME["decoding, lengths"], omni_attention, torch.float32, 2e-5, options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_what_is_rounded(dtype):
    """Against the specification of the same (rounded) inputs: one rounding of P and one of the result."""
    check(BY_NAME["causal ALiBi"], omni_attention, dtype, 2 * torch.finfo(dtype).eps, REFERENCE)


# -- any shape ---------------------------------------------------------------------------------------------------------


@st.composite
def attentions(draw) -> dict:
    """Sizes down to nothing and one, shared keys, a scale, blocks of any size, dimensions of memory in any order."""
    key_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    sizes = {name: draw(st.integers(least, 9)) for name, least in
             (("batch", 0), ("queries", 0), ("keys", 0), ("head", 1), ("value", 1))}  # fmt: skip
    return sizes | {
        "key_heads": key_heads, "heads": key_heads * group, "scale": draw(st.sampled_from([None, 0.0, -0.7, 2.0])),
        "block": draw(st.none() | st.tuples(st.integers(1, 5), st.integers(1, 5))),
        "orders": [draw(st.permutations(range(4))) for _ in range(3)], "biased": draw(st.booleans()),
    }  # fmt: skip


@given(attentions())
def test_attention_of_any_shape(drawn):
    generator = torch.Generator().manual_seed(0)

    def tensor(order: list[int], *shape: int) -> torch.Tensor:
        made = torch.randn([shape[axis] for axis in order], generator=generator, dtype=torch.float64)
        return made.permute([order.index(axis) for axis in range(4)]).requires_grad_()

    query = tensor(drawn["orders"][0], drawn["batch"], drawn["heads"], drawn["queries"], drawn["head"])
    columns = (drawn["batch"], drawn["key_heads"], drawn["keys"])
    key = tensor(drawn["orders"][1], *columns, drawn["head"])
    value = tensor(drawn["orders"][2], *columns, drawn["value"])
    bias = torch.randn(drawn["heads"], generator=generator, dtype=torch.float64, requires_grad=True)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * bias[h] + 0.1 * q_idx

    def mask_mod(b, h, q_idx, kv_idx):
        return (q_idx * 7 + kv_idx * 5 + h) % 3 > 0

    mask, score = None, score_mod if drawn["biased"] else None
    if drawn["block"] is not None:
        heads, lengths = drawn["heads"], (drawn["queries"], drawn["keys"])
        mask = create_block_mask(mask_mod, None, heads, *lengths, BLOCK_SIZE=drawn["block"])
    rest = (drawn["scale"], drawn["heads"] != drawn["key_heads"])
    found = omni_attention(query, key, value, score, mask, *rest, True, kernel_options=REFERENCE)
    wanted = reference_attention(query, key, value, score, mask_mod if mask else None, *rest)
    leaves = (query, key, value, *([bias] if score else []))
    upstream = torch.randn(found[0].shape, generator=generator, dtype=torch.float64)
    gradients = [
        torch.autograd.grad(x[0], leaves, upstream, allow_unused=True) if x[0].requires_grad else [None] * len(leaves)
        for x in (found, wanted)
    ]
    assert found[0].shape == wanted[0].shape
    for ours, theirs in zip((*found, *gradients[0]), (*wanted, *gradients[1]), strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)


# -- autograd ---------------------------------------------------------------------------------------------------------


def inputs(*shape: int, requires_grad: bool = True, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]


def by_matrices(*args, **kwargs):
    return omni_attention(*args, kernel_options=REFERENCE, **kwargs)


def test_only_the_logarithm_is_differentiated():
    query, key, value = inputs(1, 2, 5, 4)
    _, lse = by_matrices(query, key, value, return_lse=True)
    found = torch.autograd.grad(lse.sum(), (query, key, value))
    exact = torch.logsumexp(query @ key.mT / 2, -1)
    wanted = torch.autograd.grad(exact.sum(), (query, key))
    assert torch.allclose(lse, exact)
    assert all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=False)) and not found[2].any()


def test_what_requires_no_gradient_gets_none():
    query, key, value = inputs(1, 2, 5, 4)
    table = torch.randn(2, dtype=torch.float64)
    width = torch.tensor([2.0, 3.0], requires_grad=True)
    mask = create_block_mask(lambda b, h, q, k: (q - k).abs() < width[h], None, 2, 5, 5)
    output = by_matrices(query, key.detach(), value, lambda s, b, h, q, k: s + table[h], mask)
    output.sum().backward()
    assert query.grad is not None and key.grad is None and table.grad is None
    assert width.grad is None  # a mask decides, and has no derivative
    assert not by_matrices(*(x.detach() for x in (query, key, value)), block_mask=mask).requires_grad
    with torch.no_grad():
        assert not by_matrices(query, key, value).requires_grad


def test_second_derivatives_are_refused_where_they_are_asked_for():
    query, key, value = inputs(1, 2, 5, 4)
    (first,) = torch.autograd.grad(by_matrices(query, key, value).sin().sum(), query, create_graph=True)
    with pytest.raises(staxlab.StaxError, match="a second time"):
        torch.autograd.grad(first.sum(), query)


def test_forward_mode_is_refused():
    query, key, value = inputs(1, 2, 5, 4, requires_grad=False)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(staxlab.StaxError, match="forward mode"):
            by_matrices(dual, key, value)
        assert torch.isfinite(by_matrices(query, key, value)).all()  # nothing to differentiate
    with pytest.raises(staxlab.StaxError, match="forward mode"):
        staxlab.jvp(lambda x: by_matrices(x, key, value))((query,), (query,))


def test_function_transforms():
    query, key, value = inputs(1, 2, 5, 4, requires_grad=False)
    found = torch.func.grad(lambda x: by_matrices(x, key, value).sin().sum())(query)
    leaf = query.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(by_matrices(leaf, key, value).sin().sum(), leaf)
    assert torch.equal(found, wanted)
    with pytest.raises(staxlab.StaxError, match="vmap"):
        torch.vmap(lambda x: by_matrices(x, key, value))(torch.stack([query, query]))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_is_that_of_scaled_dot_product_attention(compiled):
    query, key, value = inputs(1, 2, 5, 4, dtype=torch.float32)
    call = staxlab.compile(by_matrices) if compiled else by_matrices
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = scaled_dot_product_attention(query, key, value)
        found = call(query, key.double().float(), value)
    assert found.dtype == wanted.dtype == torch.bfloat16
    rounded = by_matrices(*(x.bfloat16() for x in (query, key, value)))
    assert torch.equal(found, rounded)
    (gradient,) = torch.autograd.grad(found.float().sum(), query)
    assert gradient.dtype == torch.float32 and gradient.any()


def test_tensors_that_are_not_contiguous():
    """Results follow the order of the query's dimensions; values are those of contiguous copies."""
    query = torch.randn(2, 5, 3, 4, dtype=torch.float64).transpose(1, 2)
    key = torch.randn(2, 3, 4, 6, dtype=torch.float64).mT
    value = torch.randn(2, 3, 6, 8, dtype=torch.float64)[..., ::2]
    found = by_matrices(query, key, value)
    assert found.stride() == (60, 4, 12, 1) and found.transpose(1, 2).is_contiguous()
    wanted = by_matrices(query.contiguous(), key.contiguous(), value.contiguous())
    assert torch.allclose(found, wanted, rtol=0, atol=1e-15)
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    for options in (REFERENCE, None, {"BACKEND": "triton", "INTERPRET": True}):
        used = leaves if options != {"BACKEND": "triton", "INTERPRET": True} else [x.float() for x in leaves]
        gradients = torch.autograd.grad(omni_attention(*used, kernel_options=options).sin().sum(), used)
        assert [g.stride() for g in gradients] == [(60, 4, 12, 1), (72, 24, 4, 1), (72, 24, 4, 1)]
        copies = [x.detach().contiguous().requires_grad_() for x in used]
        wanted = torch.autograd.grad(omni_attention(*copies, kernel_options=options).sin().sum(), copies)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(gradients, wanted, strict=True))
    wide = torch.randn(1, 1, 5, 4, dtype=torch.float64).expand(2, 3, 5, 4)
    assert torch.equal(by_matrices(wide, key, value), by_matrices(wide.contiguous(), key, value))


@pytest.mark.parametrize("sizes", [(0, 3, 7, 5), (2, 0, 7, 5), (2, 3, 0, 5), (2, 3, 7, 0)])
def test_nothing_to_compute(sizes):
    batch, heads, queries, keys = sizes
    query = torch.randn(batch, heads, queries, 4, requires_grad=True)
    key, value = (torch.randn(batch, heads, keys, 4, requires_grad=True) for _ in range(2))
    for call in (omni_attention, staxlab.compile(omni_attention)):
        output, lse = call(query, key, value, return_lse=True)
        assert output.shape == query.shape and lse.shape == query.shape[:3]
        assert not output.any() and (lse == -math.inf).all()
        gradients = torch.autograd.grad(output.sum() + lse.sum(), (query, key, value))
        assert [g.shape for g in gradients] == [x.shape for x in (query, key, value)]
        assert not any(g.any() for g in gradients)


def test_a_value_that_is_not_a_number_goes_where_eager_execution_has_it():
    query, key, value = inputs(1, 2, 7, 4, requires_grad=False, dtype=torch.float32)
    mask = create_block_mask(causal, None, None, 7, 7, BLOCK_SIZE=4)
    for number in (math.nan, math.inf):
        wrong = key.clone()
        wrong[0, 0, 3, 0] = number
        wanted = scaled_dot_product_attention(query, wrong, value, is_causal=True)
        for options in (REFERENCE, None):
            found = omni_attention(query, wrong, value, block_mask=mask, kernel_options=options)
            assert torch.equal(found.isnan(), wanted.isnan())


def test_shapes_are_known_without_values():
    tensors = [torch.empty(2, 4, 7, 8, device="meta"), *(torch.empty(2, 2, n, 8, device="meta") for n in (9, 9))]
    output, lse = omni_attention(*tensors, enable_gqa=True, return_lse=True)
    assert (output.shape, lse.shape, lse.dtype) == ((2, 4, 7, 8), (2, 4, 7), torch.float32)


def test_the_operators_are_what_they_say_of_themselves():
    """PyTorch's own check: schemas, shapes without values, and that autograd knows them."""
    query, key, value = inputs(1, 2, 6, 4, dtype=torch.float32)
    query = query.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    table = torch.randn(2, requires_grad=True)
    biased = operator.Specification(score=modification(lambda s, b, h, q, k: s + table[h], "score", (1, 2, 6, 6)),
                                    options=(("BACKEND", "reference"),))  # fmt: skip
    given_forward = (query, key, value, [], [table], operator.register(biased))
    output, lse = (x.detach() for x in operator.attention(*given_forward))
    given_backward = (torch.ones_like(output), None, *given_forward[:3], output, lse, *given_forward[3:], [True])
    for overload, given_arguments in (
        (operator.attention, given_forward),
        (operator.attention_backward, given_backward),
    ):
        for check_name in ("test_schema", "test_autograd_registration", "test_faketensor"):
            torch.library.opcheck(overload, given_arguments, test_utils=check_name)


# -- regions ----------------------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Attention with a learned table, a learned temperature that the layer computes with first, and shared keys."""

    def __init__(self, length: int = 20):
        super().__init__()
        self.project = torch.nn.Linear(32, 64, dtype=torch.float64)
        self.table = torch.nn.Parameter(torch.randn(4, 2 * length - 1, dtype=torch.float64))
        self.log_temperature = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.length = length
        self.mask = create_block_mask(causal, None, None, length, length, BLOCK_SIZE=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (8, 8)).transpose(1, 2)
        query, key, value = heads.split((4, 2, 2), 1)
        temperature = self.log_temperature.exp()

        def biased(score, b, h, q_idx, kv_idx):
            return score * temperature[h] + self.table[h, q_idx - kv_idx + self.length - 1]

        found = omni_attention(query, key, value, biased, self.mask, enable_gqa=True, kernel_options=REFERENCE)
        return found.transpose(1, 2).flatten(2).sin()


def test_training_a_layer_whose_modification_reads_what_the_region_computes():
    layer, x = Layer(), torch.randn(2, 20, 32, dtype=torch.float64, requires_grad=True)
    results = {}
    for name, call in (("eager", layer), ("compiled", staxlab.compile(layer, strict_native=True))):
        layer.zero_grad()
        x.grad = None
        output = call(x)
        output.square().sum().backward()
        results[name] = [output, x.grad, *(p.grad for p in layer.parameters())]
    assert len(results["eager"]) == 6 and all(g.any() for g in results["eager"])
    for ours, theirs in zip(results["compiled"], results["eager"], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_elements_that_share_memory_get_gradients_of_their_own(compiled):
    """An expanded table: the derivative of what it was expanded from is the sum over the heads, counted once."""
    query, key, value = inputs(1, 3, 6, 4, requires_grad=False)
    row = torch.randn(1, 6, dtype=torch.float64, requires_grad=True)
    leaf = torch.randn(1, 6, dtype=torch.float64).expand(3, 6).detach().requires_grad_()

    def total(attention, row, leaf):
        expanded = (row * 2).expand(3, 6)
        found = attention(query, key, value, lambda s, b, h, q, k: s * expanded[h, k] + leaf[h, k])
        return (found[0] if isinstance(found, tuple) else found).sin().sum()

    def region(row, leaf):
        return total(by_matrices, row, leaf)

    found = torch.autograd.grad((staxlab.compile(region) if compiled else region)(row, leaf), (row, leaf))
    wanted = torch.autograd.grad(total(reference_attention, row, leaf), (row, leaf))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, wanted, strict=True))


def test_captured_tensors_in_another_layout_are_copied_into_the_one_that_was_traced():
    query, key, value = inputs(1, 3, 6, 4, requires_grad=False)
    row, table = torch.randn(1, 6, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64).mT
    expanded = row.expand(3, 6)
    traced = modification(lambda s, b, h, q, k: s * expanded[h, k] + table[h, q], "score", (1, 3, 6, 6), torch.float64)
    name = operator.register(operator.Specification(traced, options=(("BACKEND", "reference"),)))
    captured = [part.tensor for part in traced.captured]
    assert [x.stride() for x in captured] == [(0, 1), (1, 3)]
    wanted = operator.attention(query, key, value, [], captured, name)
    found = operator.attention(query, key, value, [], [x.contiguous() for x in captured], name)
    assert all(map(torch.equal, found, wanted))


def calls(graph) -> list:
    return [node for node in graph if node.target is operator.attention]


def test_a_region_has_one_operator_with_all_it_reads():
    query, key, value = inputs(1, 2, 20, 4)
    table = torch.randn(2, dtype=torch.float64, requires_grad=True)
    mask = create_block_mask(causal, None, None, 20, 20, BLOCK_SIZE=8)

    def region(query, key, value):
        return omni_attention(query, key * 2, value, lambda s, b, h, q, k: s + table[h], mask, kernel_options=REFERENCE)

    compilation = staxlab.explain(region, query, key, value)
    assert not compilation.fallback
    for stage in (compilation.graph, compilation.joint.module.graph, compilation.operators.graph):
        (node,) = calls(stage)
        assert node.location.text.startswith("return omni_attention(query, key * 2")
        tensors = [leaf for leaf in flatten(node.args) if hasattr(leaf, "val")]
        assert len(tensors) == 3 + 8 + 1  # query, key, value, the lists, the table
    assert "table" in [placeholder.name for placeholder in compilation.operators.graph.placeholders]
    (extern,) = {buffer.data.operator for buffer in compilation.loops.buffers if hasattr(buffer.data, "operator")}
    assert extern is operator.attention
    backward = {b.data.operator for b in compilation.backward.loops.buffers if hasattr(b.data, "operator")}
    assert backward == {operator.attention_backward}


def test_attention_is_computed_again_where_memory_is_short():
    """Two of them in a row; with no memory for what lies between, the first runs once more on the way back."""
    query, key, value = inputs(1, 2, 20, 4)
    bias = torch.randn(2, 20, 20, dtype=torch.float64, requires_grad=True)

    def region(query, key, value):
        first = by_matrices(query, key, value, lambda s, b, h, q, k: s + bias[h, q, k])
        twice = bias * 2
        return first + by_matrices(first, key, value, lambda s, b, h, q, k: s + twice[h, q, k])

    leaves = (query, key, value, bias)
    wanted = torch.autograd.grad(region(query, key, value).sin().sum(), leaves)
    for budget, again in ((None, 0), (0.0, 2)):
        compiled = staxlab.compile(region, options={"memory_budget": budget})
        found = torch.autograd.grad(compiled(query, key, value).sin().sum(), leaves)
        assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, wanted, strict=True))
        assert len(calls(compiled.versions[0].compilation.backward.operators.graph)) == again


def test_the_work_is_counted():
    """Two products forward and five backward, of which one is the first again; exponentials on the way."""
    query, key, value = inputs(1, 2, 20, 16)
    joint = staxlab.explain(by_matrices, query, key, value).joint.module.graph
    (forward,) = calls(joint)
    (backward,) = [node for node in joint if node.target is operator.attention_backward]
    products = 2 * 20 * 20 * 2 * 16  # heads, queries, keys, a multiplication and an addition for each element
    assert floating_point_operations(forward) == 2 * products
    assert 2 * products < operations(forward) < 3 * products
    assert 5 * products < operations(backward) < 6 * products


def test_what_a_modification_depends_on_is_part_of_the_key():
    query, key, value = inputs(1, 1, 4, 4, requires_grad=False)
    scale, table = [2.0], torch.zeros(1, dtype=torch.float64)

    def scaled(score, b, h, q_idx, kv_idx):
        return score * scale[0] + table[h]

    def shifted(score, b, h, q_idx, kv_idx):
        return score - (q_idx - kv_idx)

    region = staxlab.compile(by_matrices)

    def agrees(function) -> None:
        assert torch.equal(region(query, key, value, function), by_matrices(query, key, value, function))

    agrees(scaled)
    agrees(scaled)
    table.fill_(1.0)  # data, not structure
    agrees(scaled)
    assert region.cache_info().compilations == 1
    scale[0] = 3.0
    agrees(scaled)
    agrees(shifted)
    agrees(None)
    assert region.cache_info().compilations == 4


def test_a_block_mask_is_data():
    """Another mask of the same function and lengths needs no other version, wherever the function finds it."""
    query, key, value = inputs(1, 1, 12, 4, requires_grad=False)
    masks = [create_block_mask(causal, None, None, 12, 12, BLOCK_SIZE=4) for _ in range(2)]
    region = staxlab.compile(by_matrices)
    wanted = by_matrices(query, key, value, block_mask=masks[0])
    assert all(torch.equal(region(query, key, value, block_mask=mask), wanted) for mask in masks)
    assert region.cache_info().compilations == 1
    held = staxlab.compile(lambda q, k, v: by_matrices(q, k, v, block_mask=masks[0]))
    assert torch.equal(held(query, key, value), wanted)
    masks[0] = create_block_mask(lambda b, h, q, k: q <= k, None, None, 12, 12, BLOCK_SIZE=4)
    assert torch.equal(held(query, key, value), by_matrices(query, key, value, block_mask=masks[0]))


def same_document(ids: torch.Tensor, least: int = 0):
    """A mask made anew for each batch, as packed documents need it."""

    def visible(b, h, q_idx, kv_idx):
        return (ids[b, q_idx] == ids[b, kv_idx]) & (q_idx >= kv_idx + least)

    return create_block_mask(visible, 2, None, 12, 12, BLOCK_SIZE=4)


def test_a_mask_of_every_batch_needs_no_version_of_its_own():
    """Of a mask that is passed, what its function computes counts, and not which function it is or whose ids it reads.
    One that an attribute holds is structure, and known by identity."""

    class Model(torch.nn.Module):
        def forward(self, query, mask=None):
            return by_matrices(query, query, query, block_mask=mask or self.mask)

    query = torch.randn(2, 1, 12, 4, dtype=torch.float64)
    model = Model()
    passed, held = staxlab.compile(Model()), staxlab.compile(model)
    for _ in range(3):
        mask = same_document(torch.randint(0, 3, (2, 12)).sort(-1).values)
        wanted = by_matrices(query, query, query, block_mask=mask)
        model.mask = mask
        assert torch.equal(passed(query, mask), wanted) and torch.equal(held(query), wanted)
    assert (passed.cache_info().compilations, held.cache_info().compilations) == (1, 3)
    for other in (same_document(torch.zeros(2, 12, dtype=torch.int64), 1), same_document(torch.zeros(2, 12), 0)):
        wanted = by_matrices(query, query, query, block_mask=other)
        assert torch.equal(passed(query, other), wanted)
    assert passed.cache_info().compilations == 3  # another constant, another dtype


def test_a_block_mask_goes_through_a_region():
    mask = same_document(torch.zeros(2, 12, dtype=torch.int64))
    assert staxlab.compile(lambda mask: mask)(mask) is mask
    changed = staxlab.compile(lambda mask: replace(mask, kv_num_blocks=mask.kv_num_blocks * 1))
    for given_mask in (mask, same_document(torch.ones(2, 12, dtype=torch.int64))):
        found = changed(given_mask)
        assert found is not given_mask and torch.equal(found.classes(), given_mask.classes())
        assert found.seq_lengths == (12, 12) and found.block_size == (4, 4)


def test_a_mask_that_cannot_be_traced_is_known_by_identity():
    table = [[True] * 12] * 12

    def looked_up(b, h, q_idx, kv_idx):
        return torch.tensor(table)[q_idx, kv_idx] if q_idx.numel() > 0 and int(q_idx.max()) >= 0 else q_idx >= 0

    mask = create_block_mask(looked_up, None, None, 12, 12, BLOCK_SIZE=4)
    assert mask.meaning is looked_up and mask.captured == ()
    region = staxlab.compile(lambda mask: mask.kv_num_blocks + 1)
    assert torch.equal(region(mask), mask.kv_num_blocks + 1)


def test_equal_calls_share_a_kernel():
    operator.clear()
    query, key, value = inputs(1, 1, 4, 4, requires_grad=False)
    for table in (torch.zeros(1), torch.ones(1)):  # captured tensors are arguments
        by_matrices(query, key, value, lambda s, b, h, q, k, table=table: s + table[h])
        by_matrices(query, key, value)
    assert len(operator._kernels) == 2


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_the_kernel_is_among_the_kernels(target):
    query, key, value = inputs(1, 2, 20, 16, dtype=torch.float32)
    mask = create_block_mask(causal, None, None, 20, 20, BLOCK_SIZE=16)

    def alibi(score, b, h, q_idx, kv_idx):
        return score - torch.exp2(-(h + 1).to(torch.float32)) * (q_idx - kv_idx)

    compilation = staxlab.explain(omni_attention, query, key, value, score_mod=alibi, block_mask=mask, target=target)
    for half in (compilation, compilation.backward):
        (kernel,) = [k for k in half.kernels if k.written_in]
        assert (kernel.language, kernel.written_in) == ("extern", "cpp" if target == "cpu" else "triton")
        assert "alibi" in kernel.source and "causal" in kernel.source and kernel.source in str(half.kernels)
        assert not kernel.is_fallback and kernel.is_generated
        assert all(line.origins == kernel.origins for line in kernel.lines)
        assert max(len(line.text) for line in kernel.lines if not line.text.startswith("extern")) < 180
        assert kernel.decisions[0].topic == "attention-backend"
        assert kernel.decisions[0].choice == kernel.written_in
        assert all(inner.language == kernel.written_in for inner in kernel.inner)
        names = [part.name for part in kernel.embedded if hasattr(part, "name")]
        assert names == ["alibi", "causal"] and len(kernel.embedded) == (2 if half is compilation else 3)
        shown = kernel._repr_mimebundle_()["text/html"]
        assert "embedded: score_mod alibi" in shown and "embedded: mask_mod causal" in shown
        assert ("embedded: derivative by the score" in shown) == (half is not compilation)
    if target == "cpu":
        found = compilation.call([query, key, value, *mask.lists().values()])
        assert torch.allclose(found[0], omni_attention(query, key, value, alibi, mask), atol=1e-6)
    else:
        assert "tl.dot" in compilation.kernels[0].source and ".visible .entry" in compilation.kernels[0].assembly().text


def test_backends_are_chosen_by_device_and_sizes():
    def problem(device, queries=512, head=64, dtype=torch.float32, **changes):
        query = torch.empty(1, 8, queries, head, dtype=dtype, device="meta")
        key = torch.empty(1, 2, 512, head, dtype=dtype, device="meta")
        return operator.Specification().problem(query, key, key, device, **changes)

    gpu, cpu = GPU_SPECS["sm_90"], host_device_spec()
    chosen = {
        "cpp": problem(cpu),
        "triton": problem(gpu),
        "decode": problem(gpu, queries=1),
        "reference": problem(gpu, head=512),
    }
    for name, example in chosen.items():
        decision = backends.choose(example)
        assert decision.choice == name and name in decision.candidates and decision.reason
    assert backends.choose(problem(gpu, queries=1, learnable=())).choice == "triton"  # gradients
    assert backends.choose(problem(gpu, dtype=torch.float64)).choice == "reference"
    assert backends.choose(problem(cpu), (("BACKEND", "reference"),)).choice == "reference"


# -- memory -----------------------------------------------------------------------------------------------------------


class Allocated(TorchDispatchMode):
    """Counts the bytes of all tensors made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in flatten((args, kwargs or {})) if isinstance(x, torch.Tensor)}
        for tensor in flatten(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.bytes += tensor.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("backend, grows", [("cpp", 2), ("reference", 4)])
def test_memory_grows_linearly(backend, grows):
    """Of the call, forward and backward: with twice the length twice the bytes, where matrices take four times."""

    def used(length: int) -> int:
        query, key, value = inputs(1, 2, length, 16, dtype=torch.float32)
        forward = operator.Specification().problem(query, key, value, host_device_spec())
        backward = operator.Specification().problem(query, key, value, host_device_spec(), ())
        with torch.no_grad(), Allocated() as counted:
            options = (("BACKEND", backend),)
            output, lse = backends.build(forward, options)(query, key, value, None, ())
            backends.build(backward, options)(query, key, value, output, lse, output, None, None, ())
        return counted.bytes

    length = {"cpp": 2048, "reference": 256}[backend]
    small, large = used(length), used(2 * length)
    assert small > length * 2 * (4 * 16 + 1) * 4  # the result, its logarithm and three gradients are among it
    assert 0.8 * grows < large / small < 1.1 * grows
    matrix = (2 * length) ** 2 * 2 * 4
    assert large < matrix / 10 if backend == "cpp" else large > matrix


def test_captured_tensors_go_with_the_function_that_captured_them():
    """At once, without a garbage collection: the activations of a layer may be among them. (Tracing, which happens
    once, leaves cycles.)"""
    query, key, value = inputs(1, 2, 6, 4)

    def call() -> list[weakref.ref]:
        table = torch.randn(2, dtype=torch.float64, requires_grad=True)
        ids = torch.zeros(6, dtype=torch.int64)
        mask = create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, 6, 6, BLOCK_SIZE=4)
        by_matrices(query, key, value, lambda s, b, h, q, k: s + table[h], mask).sum().backward()
        return [weakref.ref(x) for x in (table, ids, mask.kv_num_blocks)]

    call()
    gc.disable()
    try:
        assert [reference() for reference in call()] == [None] * 3
    finally:
        gc.enable()


def test_attention_loads_no_compiler_of_pytorch():
    program = (
        "import sys, torch, staxlab\n"
        "assert 'staxlab.attention.omni' not in sys.modules\n"
        "import staxlab.attention.block_mask\n"
        "causal = lambda b, h, i, j: i >= j\n"
        "def first(q):  # loads all of it while it is recorded, which leaves no trace in the graph\n"
        "    mask = staxlab.create_block_mask(causal, None, None, 4, 4)\n"
        "    return staxlab.omni_attention(q, q, q, block_mask=mask, kernel_options={'BACKEND': 'reference'})\n"
        "graph = staxlab.explain(first, torch.randn(1, 1, 4, 4)).graph\n"
        "assert not [node for node in graph if node.target is torch.tensor], graph\n"
        "q = torch.randn(1, 1, 4, 4, requires_grad=True)\n"
        "options = {'BACKEND': 'reference'}\n"
        "region = staxlab.compile(staxlab.omni_attention)\n"
        "found = region(q, q, q, lambda s, b, h, i, j: s + i, kernel_options=options)\n"
        "found.sum().backward()\n"
        "heavy = [name for name in ('torch._dynamo', 'triton', 'jinja2', 'matplotlib') if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
