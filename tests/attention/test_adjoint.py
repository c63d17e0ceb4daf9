"""The derivative of whole modifications, and what captured tensors get of it, against autograd in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.attention.modification import modification
from staxlab.attention.reference import subscript_tensors
from staxlab.errors import CaptureError
from staxlab.loops.formatting import body_lines
from staxlab.loops.semantics import Evaluator
from tests.attention.variants import VARIANTS, Variant

F64 = torch.float64
SCORED = [variant for variant in VARIANTS if variant.score is not None]


def check(function, learned, sizes, seed=0, score=None):
    """The sweep's derivatives by the score and by ``learned`` tensors are autograd's, for a random upstream."""
    generator = torch.Generator().manual_seed(seed)
    places = subscript_tensors(sizes)
    score = torch.randn(sizes, generator=generator, dtype=F64) if score is None else score
    upstream = torch.randn(sizes, generator=generator, dtype=F64)
    leaf = score.clone().requires_grad_()
    result = function(leaf, *places).double().expand(sizes)
    want = torch.autograd.grad(result, [leaf, *learned], upstream, allow_unused=True)
    made = modification(function, "score", sizes, F64)
    d_score, sums = made.adjoint.evaluate([c.tensor for c in made.captured], score, upstream, *places)
    assert d_score.dtype == F64
    torch.testing.assert_close(d_score, torch.zeros_like(leaf) if want[0] is None else want[0], equal_nan=True)
    numbers = {id(c.tensor): number for number, c in enumerate(made.captured) if c.requires_grad}
    for tensor, gradient in zip(learned, want[1:], strict=True):
        torch.testing.assert_close(sums[numbers[id(tensor)]].to(tensor.dtype), gradient, equal_nan=True)
    assert len(sums) == len(learned)
    return made


@pytest.mark.parametrize("variant", SCORED, ids=str)
def test_variants(variant: Variant):
    made = variant.make(F64)
    check(made.score_mod, list(made.learnable.values()), variant.sizes.scores)


# -- kinks ------------------------------------------------------------------------------------------------------------

POINTS = [-7.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 20.0, 25.5]

KINKS = {
    "relu": F.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "hardswish": F.hardswish,
    "hardtanh of other bounds": lambda x: F.hardtanh(x, -3.0, 0.5), "leaky relu": F.leaky_relu,
    "elu": F.elu, "selu": F.selu, "celu": lambda x: F.celu(x, 1.5), "softplus": F.softplus, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "threshold": lambda x: F.threshold(x, 0.5, 0.1), "abs": torch.abs, "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1, 1), "clamp from below": lambda x: x.clamp(min=0.5),
    "clamp by tensors": lambda x: x.clamp(torch.zeros_like(x), torch.ones_like(x)),
    "clamp from above by a tensor": lambda x: torch.clamp_max(x, torch.full_like(x, 0.5)),
    "clamp with crossed bounds": lambda x: x.clamp(2.0, -1.0),
    "maximum": lambda x: torch.maximum(x, torch.full_like(x, 0.5)),
    "minimum": lambda x: torch.minimum(x, torch.zeros_like(x)),
    "fmax": lambda x: torch.fmax(x, torch.zeros_like(x)), "fmin": lambda x: torch.fmin(x, torch.ones_like(x)),
    "xlogy": lambda x: torch.xlogy(x, torch.full_like(x, 2.0)), "sinc": torch.sinc,
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)), "copysign": lambda x: torch.copysign(x, -x),
    "remainder": lambda x: x % 3, "frac": torch.frac, "round": torch.round,
    "masked": lambda x: x.masked_fill(x > 0, 1.0),
    "piecewise": lambda x: torch.where(x > 1, x * x, torch.where(x > 0, x, -x)), "cube": lambda x: x**3,
    "absolute power": lambda x: torch.abs(x) ** 1.5, "huber": lambda x: F.huber_loss(x, x * 0, reduction="none"),
    "gelu": F.gelu, "silu": F.silu,
    "mish": F.mish, "log sigmoid": F.logsigmoid, "float32 on the way": lambda x: x.float() * 2,
    "softsign": F.softsign, "tanh shrink": F.tanhshrink,
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "nan to num": torch.nan_to_num, "lerp": lambda x: torch.lerp(x, torch.ones_like(x), 0.3),
    "log gamma": lambda x: torch.lgamma(x.abs() + 1.3), "logit": lambda x: torch.logit(torch.sigmoid(x / 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_operators_at_their_kinks(name):
    """Operators with pieces, where they meet: PyTorch's side is taken."""
    function = KINKS[name]
    points = torch.tensor(POINTS, dtype=F64).reshape(1, 1, 1, -1)
    check(lambda score, b, h, q, kv: function(score), [], (1, 1, 1, len(POINTS)), score=points)


# -- captured tensors -------------------------------------------------------------------------------------------------


def test_strides_and_layouts_of_learned_tensors():
    """Transposed, sliced and expanded views: contributions go where the elements are."""
    whole = torch.randn(9, 12, dtype=F64)
    for seen in (whole.t()[:7, 2:8], whole[::2, 1::3], whole[:5, :4]):
        bias = seen.detach().requires_grad_()
        rows, columns = bias.shape
        made = check(lambda s, b, h, q, kv, bias=bias: s * bias[q, kv], [bias], (2, 2, rows, columns))
        assert made.captured[0].strides == seen.stride()


def test_elements_that_share_memory_have_gradients_of_their_own():
    """An expanded tensor that learns is read as if it were contiguous; one that does not, as it is."""
    row = torch.randn(1, 4, dtype=F64).expand(3, 4)
    learned = row.detach().requires_grad_()

    def function(s, b, h, q, kv):
        return s * learned[h, kv] + row[h, kv]

    made = modification(function, "score", (1, 3, 2, 4), F64)
    assert {c.path: c.strides for c in made.captured} == {"learned": (4, 1), "row": (0, 1)}
    places, score = subscript_tensors((1, 3, 2, 4)), torch.randn(1, 3, 2, 4, dtype=F64)
    torch.testing.assert_close(made.evaluate(score, *places), function(score, *places).detach())
    _, sums = made.adjoint.evaluate([c.tensor for c in made.captured], score, torch.ones_like(score), *places)
    torch.testing.assert_close(next(iter(sums.values())), score.sum((0, 2)))


def test_one_tensor_read_in_several_places():
    table = torch.randn(9, dtype=F64, requires_grad=True)
    check(lambda s, b, h, q, kv: s * table[q] - table[kv] * table[q - kv], [table], (1, 2, 4, 5))


def test_negative_subscripts_and_subscripts_that_are_data():
    table, kind = torch.randn(6, dtype=F64, requires_grad=True), torch.tensor([5, -1, 0, -6, 2])
    made = check(lambda s, b, h, q, kv: s + table[kind[q]] * table[-1 - kv], [table], (2, 1, 5, 4))
    assert [c.dims for c in made.adjoint.contributions] == [("kv",), ("q",)]


def test_joined_and_padded_tensors():
    """Reads that count only where a condition holds."""
    table = torch.randn(4, dtype=F64, requires_grad=True)

    def padded(s, b, h, q, kv):
        return s * F.pad(table, (1, 1))[h + q] + torch.cat([table, table * 3])[q] * torch.sin(s)

    made = check(padded, [table], (1, 2, 4, 5))

    def shared(s, b, h, q, kv):
        return s * table[q] + torch.cat([table * table, table])[q] * kv  # one load, outside of the block that reads it

    check(shared, [table], (1, 1, 4, 5))
    assert any(s.operation == "masked" for s in made.adjoint.reverse.statements)


def test_a_read_inside_a_joined_tensor_is_refused_for_gradients_only():
    table, kind = torch.randn(4, dtype=F64, requires_grad=True), torch.tensor([3, 1])
    made = modification(lambda s, b, h, q, kv: s + torch.cat([table[kind], table])[q], "score", (1, 1, 6, 2), F64)
    with pytest.raises(CaptureError, match="inside a joined or padded tensor"):
        _ = made.adjoint


def test_detached_tensors_get_nothing():
    table = torch.randn(3, dtype=F64, requires_grad=True)

    def held(s, b, h, q, kv):
        with torch.no_grad():
            factor = torch.exp(table[h])
        return s * factor + table.detach()[q] + table[kv]

    made = check(held, [table], (1, 3, 3, 3))
    assert [c.requires_grad for c in made.captured].count(True) == 1
    assert [c.tensor.requires_grad for c in made.captured] == [c.requires_grad for c in made.captured]


def test_whole_numbers_cut_the_path():
    table = torch.randn(3, dtype=F64, requires_grad=True)
    check(lambda s, b, h, q, kv: s * s.to(torch.int32) + table[q].to(torch.int64) * table[q], [table], (1, 1, 3, 4))


def test_a_score_that_is_not_used():
    table = torch.randn(3, dtype=F64, requires_grad=True)
    check(lambda s, b, h, q, kv: table[q] * kv, [table], (1, 2, 3, 4))
    made = modification(lambda s, b, h, q, kv: (q - kv) * 1.0, "score", (1, 2, 3, 4), F64)
    assert not made.adjoint.evaluate(
        [], torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), *subscript_tensors((1, 2, 3, 4))
    )[0].any()


def test_half_precision_tables():
    table = torch.randn(5, dtype=torch.bfloat16, requires_grad=True)
    check(lambda s, b, h, q, kv: s * table[q], [table], (1, 1, 5, 1))


def test_dims_say_what_a_tile_may_sum_over():
    bias = torch.randn(2, dtype=F64, requires_grad=True)
    single, wide = torch.randn((), dtype=F64, requires_grad=True), torch.randn(2, 2, 7, dtype=F64, requires_grad=True)

    def mixed(s, b, h, q, kv):
        return s * bias[h] + single + wide[b, h, torch.clamp(q - kv, 0, 6)]

    made = check(mixed, [bias, single, wide], (2, 2, 7, 7))
    by_path = {made.captured[c.number].path: c.dims for c in made.adjoint.contributions}
    assert by_path == {"bias": ("h",), "single": (), "wide": ("b", "h", "q", "kv")}


# -- the record -------------------------------------------------------------------------------------------------------


def test_upstream_may_depend_on_the_modified_score():
    """A kernel has the derivative by the modified score only once it has that score: the sweeps share one forward."""
    made = modification(lambda s, b, h, q, kv: torch.tanh(s) * 2, "score", (1, 1, 2, 3), F64)
    score = torch.randn(1, 1, 2, 3, dtype=F64)
    seen = []

    def upstream(modified):
        seen.append(modified)
        return torch.exp(modified)

    ops = Evaluator({}, dict(zip(("b", "h", "q", "kv"), subscript_tensors((1, 1, 2, 3)), strict=True)))
    found, contributions = made.adjoint.replay(ops, score, upstream)
    leaf = score.clone().requires_grad_()
    (want,) = torch.autograd.grad(torch.exp(torch.tanh(leaf) * 2).sum(), leaf)
    torch.testing.assert_close(found, want)
    assert len(seen) == 1 and not contributions


def test_what_the_sweep_does_not_read_is_not_computed():
    """The derivative of a sum needs no value of the forward body."""
    bias = torch.randn(3, dtype=F64)
    made = modification(lambda s, b, h, q, kv: s + torch.exp(bias[h]), "score", (1, 3, 2, 2), F64)
    asked = []

    class Counting(Evaluator):
        def load(self, buffer, index):
            asked.append(buffer)
            return super().load(buffer, index)

        def apply(self, operation, *operands):
            asked.append(operation)
            return super().apply(operation, *operands)

    made.adjoint.replay(Counting({}, {}), torch.zeros(()), torch.ones(()))
    assert asked == []
    assert [line.text for line in body_lines(made.adjoint.reverse)] == ["tmp0 = load upstream[0]"]


def test_a_derivative_prints_and_draws():
    table = torch.randn(2, 3, dtype=F64, requires_grad=True)
    made = modification(lambda s, b, h, q, kv: s * table[h, q], "score", (1, 2, 3, 3), F64)
    text = str(made.adjoint)
    assert "add tmp" in text and "to captured0[3*h + q]  # varies with h, q" in text and "load forward" in text
    html = made._repr_mimebundle_()["text/html"]
    assert "Derivative" in html and "captured0[3*h + q]" in html
    assert made.adjoint._repr_mimebundle_()["text/plain"] == text


def test_masks_and_undifferentiable_operators_have_none():
    with pytest.raises(CaptureError, match=r"mask_mod 'causal' has no derivative"):
        _ = modification(causal, "mask").adjoint
    for function, name in ((torch.erfinv, "erfinv"), (torch.digamma, "digamma")):
        made = modification(lambda s, b, h, q, kv, f=function: f(s), "score", (1, 1, 2, 2), F64)
        with pytest.raises(CaptureError, match=f"uses {name}, whose derivative") as caught:
            _ = made.adjoint
        assert "test_adjoint.py" in str(caught.value)
        assert "Derivative" in made._repr_mimebundle_()["text/html"]
    found = torch.rand(2, dtype=F64)
    made = modification(lambda s, b, h, q, kv: s * torch.erfinv(found)[h], "score", (1, 2, 2, 2), F64)
    assert made.adjoint.contributions == ()  # no gradient goes through it


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


# -- programs at random -----------------------------------------------------------------------------------------------

_UNARY = (
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    torch.neg,
    torch.abs,
    F.relu,
    F.silu,
    torch.square,
    F.softplus,
    torch.atan,
)
_BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2)


@settings(max_examples=40)
@given(data=st.data())
def test_random_programs(data):
    """Programs of a dozen operations over the score, subscripts and learned tables, with values used several times."""
    table, bias = torch.randn(3, 4, dtype=F64, requires_grad=True), torch.randn(5, dtype=F64, requires_grad=True)
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=12)
    )

    def program(score, b, h, q, kv):
        values = [score, table[h, q], bias[kv - q], (q - kv) * 0.5, torch.where(q >= kv, score, -score)]
        for kind, first, second in steps:
            x, y = values[first % len(values)], values[second % len(values)]
            values.append(_UNARY[kind % 10](x) if kind < 50 else _BINARY[kind % 6](x, y))
        return sum(values[-3:]) + table[h, q] * bias[kv]

    check(program, [table, bias], (2, 3, 4, 5), seed=len(steps))
