"""The triple (m, l, a): its laws, exactly and in float64; splits of any kind; and what the generators write of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.attention.lse_backward import attention_backward, probabilities
from staxlab.attention.online_softmax import State, merge_all, merge_error_bound
from staxlab.codegen.triton.operations import HELPERS
from staxlab.errors import OptionError
from staxlab.loops.online_softmax import merge, of_element
from staxlab.loops.semantics import Evaluator
from staxlab.measure import online_softmax as laws

F64 = torch.float64
INF, NAN = math.inf, math.nan
OPS = Evaluator({}, {})


def whole(scores, value):
    """Softmax as PyTorch has it, rows of nothing visible being 0 and -inf."""
    seen = (scores != -INF).any(-1)
    p = torch.where(seen[..., None], torch.softmax(scores, -1), 0.0)
    return p @ value, torch.logsumexp(scores, -1)


def draw(*shape, seed=0, spread=6.0):
    return spread * torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# --- On symbols -------------------------------------------------------------------------------------------------------


def test_the_laws_are_proved_and_hold_in_float64():
    pytest.importorskip("sympy")
    found = laws.monoid_laws()
    assert found.holds and [law.name for law in found.laws] == ["associative", "commutative", "identity", "addition"]
    assert found.laws[1].difference == found.laws[2].difference == 0, "both sides round alike"
    assert "4 of 4 laws proved" in str(found)


def _first_maximum(ops, first, second):
    """Keeps the first maximum: right in exact arithmetic, but no commutative operation on triples."""
    (m, *sums), (n, *others) = first, second
    return m, *(ops.add(s, ops.mul(t, ops.exp(ops.sub(n, m)))) for s, t in zip(sums, others, strict=True))


def _values_not_rescaled(ops, first, second):
    greatest, total, _ = merge(ops, first, second)
    return greatest, total, ops.add(first[2], second[2])


def _average(ops, first, second):
    """Averages the accumulated values, as if both parts weighed the same."""
    greatest, total, _ = merge(ops, first, second)
    return greatest, total, ops.mul(ops.add(first[2], second[2]), ops.exp(ops.sub(greatest, greatest)) / 2)


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (_first_maximum, {"commutative", "identity"}),
        (_values_not_rescaled, {"addition"}),
        (_average, {"associative", "identity", "addition"}),
    ],
)
def test_a_wrong_rule_breaks_the_laws_it_should(rule, broken):
    pytest.importorskip("sympy")
    found = laws.monoid_laws(rule)
    assert {law.name for law in found.laws if not law.proved} >= broken and not found.holds


def test_symbolic_where_refuses_branches_that_differ():
    pytest.importorskip("sympy")
    ops = laws.SymbolicOps()
    (m, l, a), (n, _, _) = laws.symbolic_parts(2)
    with pytest.raises(ValueError, match="two branches"):
        ops.where(ops.eq(m, n), l, a * ops.exp(m - n))


# --- In float64 -------------------------------------------------------------------------------------------------------

maxima = st.floats(-150, 150)  # no exponential underflows, which the bound does not cover
positive = st.floats(0.01, 100)
signed = st.floats(-100, 100)
states = st.tuples(maxima, positive, signed)


def state(triple):
    m, l, a = (torch.tensor([x], dtype=F64) for x in triple)
    return State(m, l, a[:, None])


def close(one, other, parts, height):
    """Within the derived bound, twice: both sides round."""
    top = max(m for m, _, _ in parts)
    spread = top - min(m for m, _, _ in parts)
    bound = 2 * merge_error_bound(height, spread)
    weight = sum(l * math.exp(m - top) for m, l, _ in parts)
    size = sum(abs(a) * math.exp(m - top) for m, _, a in parts)
    assert torch.equal(one.maximum, other.maximum)
    assert abs(one.total - other.total).item() <= bound * weight
    assert abs(one.accumulated - other.accumulated).item() <= bound * size


@settings(max_examples=300, deadline=None)
@given(states, states, states)
def test_merging_is_associative_within_the_bound(x, y, z):
    a, b, c = map(state, (x, y, z))
    close(a.merge(b).merge(c), a.merge(b.merge(c)), (x, y, z), height=2)


@settings(max_examples=200, deadline=None)
@given(st.lists(states, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_any_order_and_grouping_is_within_the_bound(parts, rng):
    pool = [state(part) for part in parts]
    rng.shuffle(pool)
    while len(pool) > 1:
        i = rng.randrange(len(pool) - 1)
        pool[i : i + 2] = [pool[i].merge(pool[i + 1])]
    close(pool[0], merge_all(map(state, parts)), parts, height=len(parts))


@settings(max_examples=100, deadline=None)
@given(states, states)
def test_merging_is_commutative_to_the_bit(x, y):
    one, other = state(x).merge(state(y)), state(y).merge(state(x))
    assert all(torch.equal(getattr(one, n), getattr(other, n)) for n in ("maximum", "total", "accumulated"))


@settings(max_examples=100, deadline=None)
@given(states)
def test_the_identity_changes_nothing(x):
    own, nothing = state(x), State.identity((1,), 1)
    for merged in (own.merge(nothing), nothing.merge(own)):
        assert all(torch.equal(getattr(merged, n), getattr(own, n)) for n in ("maximum", "total", "accumulated"))


def test_the_bound_is_not_idle():
    """The bound is within three orders of magnitude of what is seen, and a state off by more is found."""
    parts = [(150.0 * math.sin(k * k), 1.0 + k, 1.0) for k in range(12)]
    forward, backward = merge_all(map(state, parts)), merge_all(map(state, reversed(parts)))
    seen = abs(forward.total / backward.total - 1).item()
    assert 0 < seen <= 2 * merge_error_bound(12, 300.0) < 1e3 * seen + 1e-12
    wrong = State(forward.maximum, forward.total * (1 + 1e-12), forward.accumulated)
    with pytest.raises(AssertionError):
        close(wrong, backward, parts, height=12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5), st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4), st.integers(0, 2**20),
    st.floats(0, 1),
)  # fmt: skip
def test_a_split_anywhere_is_the_whole(rows, keys, cuts, seed, hidden):
    scores, value = draw(rows, keys, seed=seed), draw(keys, 3, seed=seed + 1)
    scores[torch.rand(rows, keys, generator=torch.Generator().manual_seed(seed)) < hidden] = -INF
    ends = [0, *sorted(min(cut, keys) for cut in cuts), keys]
    parts = [State.from_block(scores[:, a:b], value[a:b]) for a, b in zip(ends, ends[1:], strict=False)]
    out, lse = merge_all(parts).finish()
    truth, truth_lse = whole(scores, value)
    torch.testing.assert_close(out, truth, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, truth_lse, rtol=0, atol=1e-12)


# --- Infinities and NaN -----------------------------------------------------------------------------------------------


def test_rows_that_see_nothing_are_zero_and_never_nan():
    scores, value = draw(2, 3, 4), draw(2, 4, 5, seed=1)
    visible = torch.tensor([True, False, True])[:, None]
    found = State.from_block(scores, value, visible)
    assert found.maximum[:, 1].eq(-INF).all() and found.total[:, 1].eq(0).all()
    twice = found.merge(State.from_block(scores, value, visible))
    for part in (found, twice, found.merge(State.identity((2, 3), 5))):
        out, lse = part.finish()
        assert out[:, 1].eq(0).all() and lse[:, 1].eq(-INF).all() and not out.isnan().any() and not lse.isnan().any()
    assert found.correction(found).eq(1).all()


def test_no_keys_and_no_rows():
    out, lse = State.from_block(torch.zeros(3, 0, dtype=F64), torch.zeros(0, 2, dtype=F64)).finish()
    assert out.shape == (3, 2) and out.eq(0).all() and lse.eq(-INF).all()
    assert State.from_block(torch.zeros(0, 3), torch.zeros(3, 2)).finish()[0].shape == (0, 2)


@pytest.mark.parametrize("special", [NAN, INF])
@pytest.mark.parametrize("place", range(4))
def test_what_is_nan_in_eager_softmax_is_nan_wherever_it_stands(special, place):
    scores, value = draw(2, 4), draw(4, 3, seed=1)
    scores[0, place] = special
    truth, truth_lse = whole(scores, value)
    for cut in range(5):
        state = State.from_block(scores[:, :cut], value[:cut]).merge(State.from_block(scores[:, cut:], value[cut:]))
        out, lse = state.finish()
        assert torch.equal(out.isnan(), truth.isnan()) and out[0].isnan().all()
        torch.testing.assert_close(out[1], truth[1]), torch.testing.assert_close(lse[1], truth_lse[1])
        assert not torch.isfinite(lse[0])


def test_maxima_far_apart_neither_overflow_nor_lose_the_greater():
    far = torch.tensor([[-1e300, 1e300]], dtype=F64)
    value = torch.tensor([[1.0], [2.0]], dtype=F64)
    out, lse = State.from_block(far[:, :1], value[:1]).merge(State.from_block(far[:, 1:], value[1:])).finish()
    assert out.item() == 2 and lse.item() == 1e300


# --- What the generators write ----------------------------------------------------------------------------------------


class _Language:
    """As much of Triton's language as a helper of the generator uses, on tensors."""

    class PropagateNan:
        ALL = object()

    where = staticmethod(torch.where)

    @classmethod
    def maximum(cls, a, b, propagate=None):
        return torch.maximum(a, b) if propagate is cls.PropagateNan.ALL else torch.fmax(a, b)


def helper(name):
    from types import SimpleNamespace

    names = {
        "triton": SimpleNamespace(jit=lambda f: f), "tl": _Language, "libdevice": SimpleNamespace(exp=torch.exp)
    }  # fmt: skip
    exec(HELPERS[name], names)
    return names[name]


SPECIAL = torch.tensor([-INF, INF, NAN, 0.0, -0.0, 1.0, -1e30, 88.0, -104.0, 3e38], dtype=torch.float32)


def test_the_triton_helper_is_the_rule_bit_by_bit():
    """``merge_exponential_into`` takes one element into a pair: the rule, with the pair of that element."""
    drawn = torch.tensor(np.random.default_rng(0).normal(0, 30, 200), dtype=torch.float32)
    values = torch.cat([SPECIAL, drawn])
    m, x = (t.reshape(-1) for t in torch.meshgrid(values, values, indexing="ij"))
    _, once = of_element(OPS, m, torch.float32)
    for total in (once, 3 * once):
        expected = merge(OPS, (m, total), of_element(OPS, x, torch.float32))
        written = helper("merge_exponential_into")(m, total, x)
        for a, b in zip(expected, written, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_elements_merged_one_by_one_are_the_row():
    row = draw(50).float()
    row[7] = -INF
    pair = of_element(OPS, row[0], torch.float32)
    for x in row[1:]:
        pair = merge(OPS, pair, of_element(OPS, x, torch.float32))
    torch.testing.assert_close(pair[0] + pair[1].log(), torch.logsumexp(row, 0))


# --- The backward pass ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(24, 32), (20, 8), (1, 1), (7, 13)])
def test_every_step_of_the_derivation_is_autograds(sizes):
    found = laws.lse_derivation(*sizes, size=5, tile=(4, 3), seed=sum(sizes))
    assert found.holds and {step.quantity for step in found.steps} >= {"P", "dV", "dP", "D", "dS", "dQ", "dK"}
    assert found.saved == (sizes[0] * sizes[1], sizes[0]) and "From LSE" in str(found)


def test_a_wrong_step_is_found(monkeypatch):
    monkeypatch.setattr(laws, "score_gradient", lambda p, d_p, delta, d_lse: p * d_p)
    assert not laws.lse_derivation().holds


def test_no_size_is_refused():
    with pytest.raises(OptionError, match="no size"):
        laws.lse_derivation(queries=0)


@pytest.mark.parametrize("tile", [None, (1, 1), (3, 5), (100, 2)])
@pytest.mark.parametrize("with_lse", [False, True])
def test_gradients_tile_by_tile(tile, with_lse):
    q, k, v = (draw(2, n, 4, seed=n, spread=1.0).requires_grad_() for n in (6, 9, 10))
    v = v[:, :9]
    visible = torch.rand(2, 6, 9, generator=torch.Generator().manual_seed(3)) < 0.6
    visible[:, 2] = False
    scores = torch.where(visible, 0.3 * (q @ k.mT), -INF)
    state = State.from_block(scores, v)
    out, lse = state.finish()
    d_out, d_lse = draw(2, 6, 4, seed=5), draw(2, 6, seed=6)
    seen = visible.any(-1)
    safe = torch.where(seen[..., None], scores, 0.0)
    truth = torch.where(seen[..., None], torch.softmax(safe, -1), 0.0) @ v
    torch.testing.assert_close(out, truth)
    loss = (truth * d_out).sum()
    if with_lse:
        loss = loss + (torch.where(seen, torch.logsumexp(safe, -1), 0.0) * d_lse).sum()
    expected = torch.autograd.grad(loss, (q, k, v))
    with torch.no_grad():
        found = attention_backward(q, k, v, out, lse, d_out, d_lse if with_lse else None, scale=0.3, visible=visible,
                                   tile=tile)  # fmt: skip
    for a, b in zip((found.query, found.key, found.value), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    height, width = tile or (6, 9)
    assert found.largest_tile == min(height, 6) * min(width, 9)
    assert found.query[:, 2].eq(0).all(), "a row that sees nothing has no gradient"


def test_probabilities_of_rows_that_see_nothing():
    p = probabilities(torch.full((2, 3), -INF), torch.tensor([-INF, 0.0]))
    assert p.eq(0).all()
