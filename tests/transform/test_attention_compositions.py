"""Random compositions of what may stand in an attention: whatever is rewritten has eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import OptionError
from tests.transform.attention_runs import gradients, replaced_by, rewritten, with_gradients
from tests.transform.attention_spellings import Spelling, inputs

TAKES = "q k v bias added hidden lengths tau"
SCORES = [
    "s = q @ k.mT", "s = torch.einsum('bhqd,bhkd->bhqk', q, k)", "s = (q * 0.5) @ k.transpose(-1, -2)",
    "s = torch.matmul(k, q.mT).mT", "s = torch.bmm(q.reshape(8, 6, 8), k.reshape(8, 6, 8).mT).view(2, 4, 6, 6)",
    "s = torch.bmm(q.flatten(0, 1), k.permute(0, 1, 3, 2).flatten(0, 1))\ns = s.unflatten(0, (2, 4))",
]  # fmt: skip
BETWEEN = [
    "s = s * 0.25", "s = s / 2", "s = -s", "s = 0.5 * s + 1", "s = s + bias", "s = s - bias[:, :1]", "s = bias - s",
    "s = s + added", "s = added + s * 0.5", "s = s.masked_fill(hidden, -inf)", "s = s.masked_fill(hidden, -3e3)",
    "s = torch.where(hidden, -1e300, s)", "s = torch.where(i[:, None] >= i, s, -inf)", "s = s * tau",
    "s = s.masked_fill(i > i[:, None] + 1, torch.finfo(s.dtype).min)", "s = 4 * torch.tanh(s / 4)",
    "s = s + torch.full((6, 6), -inf, dtype=s.dtype).triu(1)", "s = s - 0.3 * (i[:, None] - i).abs()",
    "s = s.masked_fill(i >= lengths[:, None, None, None], -inf)", "s = s.transpose(-1, -2).contiguous().mT",
    "s = s.view(8, 6, 6).view(2, 4, 6, 6)", "s = s * torch.ones_like(s).tril()", "s = s.clamp(-3, 3)",
    "s = torch.where(i[:, None] == i, s * 2, s)", "s = s.masked_fill(i < 3, -inf)", "s = s + s.sin()",
    "s = s.masked_fill((i[:, None] - i) % 2 == 1, -inf)", "s = s.masked_fill(torch.eye(6).bool(), -inf)",
]  # fmt: skip
WEIGHTS = [
    "p = s.softmax(-1)", "p = torch.softmax(s, dim=3)", "p = (s - s.logsumexp(-1, keepdim=True)).exp()",
    "e = (s - s.amax(-1, keepdim=True)).exp()\np = e / e.sum(-1, keepdim=True)",
    "p = s.flatten(0, 1).softmax(2).view(2, 4, 6, 6)",
]  # fmt: skip
RESULTS = [
    "p @ v", "torch.einsum('bhqk,bhkd->bqhd', p, v)", "(p @ v).transpose(1, 2).reshape(2, 6, 32)",
    "torch.bmm(p.view(8, 6, 6), v.view(8, 6, 8))", "(v.mT @ p.mT).mT",
]  # fmt: skip

drawn = st.tuples(
    st.sampled_from(SCORES), st.lists(st.sampled_from(BETWEEN), max_size=4), st.sampled_from(WEIGHTS),
    st.sampled_from(RESULTS), st.booleans(),
)  # fmt: skip


def check(program) -> bool:
    """Whether the program was rewritten; it then does what it did."""
    scores, between, weights, result, trains = program
    # Huge numbers come last: what follows them, in eager as well, is the rounding error of a huge number.
    between = sorted(between, key=lambda line: "-1e300" in line or "finfo" in line)
    spelling = Spelling("drawn", TAKES, "\n".join(["i = torch.arange(6)", scores, *between, weights, result]))
    arguments = inputs(TAKES)
    if trains:
        arguments = with_gradients(arguments)
        arguments[4] = arguments[4].detach()
    try:
        log = rewritten(spelling.function, arguments)
    except OptionError:
        return False
    (_,) = replaced_by(log)
    actual, expected = log.final(*arguments), spelling.function(*arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert actual.stride() == expected.stride()
    if trains:
        upstream = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))
        found = (gradients(x, arguments, upstream) for x in (actual, expected))
        for one, other in zip(*found, strict=True):
            if other is None:  # nothing of it reaches the result
                assert one is None or not one.nan_to_num().any()
                continue
            assert one.isnan()[other.isnan()].all()
            if expected.isnan().any():
                one, other = one[~one.isnan()], other[~one.isnan()]
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    return True


@settings(max_examples=60, deadline=None)
@given(drawn)
def test_what_is_rewritten_does_what_it_did(program):
    check(program)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(drawn)
def test_what_is_rewritten_does_what_it_did_at_length(program):
    check(program)


def test_most_compositions_are_rewritten():
    """So that the comparison above compares something."""
    others = [line for line in WEIGHTS if "logsumexp" not in line]
    each = [check((SCORES[n % 6], [line], others[n % 4], RESULTS[n % 5], False)) for n, line in enumerate(BETWEEN)]
    assert all(each) and check((SCORES[0], [BETWEEN[0]], WEIGHTS[2], RESULTS[0], False))
