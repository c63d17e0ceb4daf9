"""The walk of one program instance: its states are those of prefixes of the keys, its end is attention."""

from __future__ import annotations

import math

import pytest
import torch

from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.masks import and_masks, causal, sliding_window
from staxlab.errors import OptionError
from staxlab.measure.attention_state import EMPTY, instance_run


def operands(n=20, m=20, d=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(x, d, generator=generator, dtype=torch.float64) for x in (n, m, m))


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def distance(score, b, h, q_idx, kv_idx):
    return score - 0.1 * (q_idx - kv_idx) * (h + 1)


def test_every_state_is_that_of_the_keys_so_far():
    q, k, v = operands()
    run = instance_run(q, k, v, row=1, block=(4, 3))
    scores = q[4:8] @ k.T / math.sqrt(8)
    previous = torch.full((4,), -math.inf, dtype=torch.float64)
    for step in run.steps:
        seen = scores[:, : step.keys[1]]
        maximum = seen.amax(-1)
        weights = torch.exp(seen - maximum[:, None])
        torch.testing.assert_close(exact(step.maximum), maximum)
        torch.testing.assert_close(exact(step.total), weights.sum(-1))
        norm = (weights @ v[: step.keys[1]]).norm(dim=-1)
        torch.testing.assert_close(exact(step.norm), norm)
        torch.testing.assert_close(exact(step.factor), torch.exp(previous - maximum))
        torch.testing.assert_close(exact(step.scores), scores[:, slice(*step.keys)])
        previous = maximum
    out = torch.softmax(scores, -1) @ v
    torch.testing.assert_close(exact(run.norm), out.norm(dim=-1))
    torch.testing.assert_close(exact(run.lse), torch.logsumexp(scores, -1))
    assert run.steps[-1].keys == (18, 20) and run.difference < 1e-14 and run.visits == 7


def test_blocks_of_a_mask_are_skipped_and_change_nothing():
    q, k, v = operands()
    mask = create_block_mask(and_masks(causal, sliding_window(7)), None, None, 20, 20, BLOCK_SIZE=4)
    run = instance_run(q, k, v, row=3, block_mask=mask)
    assert [step.kind for step in run.steps] == ["empty", "partial", "full", "partial", "empty"]
    assert run.visits == 3 and run.steps[0].scores == () and run.steps[4].maximum == run.steps[3].maximum
    assert run.steps[1].maximum[3] == -math.inf and run.steps[1].factor[3] == 1, "one query sees nothing of it yet"
    assert "not visited" in run.steps[0].words() and "new maximum for" in run.steps[1].words()
    rows, columns = torch.arange(12, 16)[:, None], torch.arange(20)
    hidden = (columns > rows) | (rows - columns > 7)
    scores = (q[12:16] @ k.T / math.sqrt(8)).masked_fill(hidden, -math.inf)
    torch.testing.assert_close(exact(run.lse), torch.logsumexp(scores, -1))


def test_heads_groups_and_a_score_mod():
    q = operands()[0][None, None].repeat(2, 4, 1, 1) * torch.arange(1, 9).reshape(2, 4, 1, 1) / 8
    k, v = (t[None, None].repeat(2, 2, 1, 1) * torch.arange(1, 5).reshape(2, 2, 1, 1) for t in operands()[1:])
    run = instance_run(q, k, v, batch=1, head=3, score_mod=distance, block=(20, 5), scale=0.2)
    rows, columns = torch.arange(20)[:, None], torch.arange(20)
    scores = 0.2 * q[1, 3] @ k[1, 1].T - 0.1 * (rows - columns) * 4
    torch.testing.assert_close(exact(run.lse), torch.logsumexp(scores, -1))
    assert run.score == "distance" and "score_mod: distance" in str(run)


def test_rows_that_see_nothing_end_at_zero():
    def nothing(b, h, q_idx, kv_idx):
        return q_idx < -kv_idx - 1

    mask = create_block_mask(nothing, None, None, 8, 8, BLOCK_SIZE=4)
    run = instance_run(*operands(8, 8), row=1, block_mask=mask)
    assert run.visits == 0 and run.lse == (-math.inf,) * 4 and run.norm == (0.0,) * 4 and run.difference == 0
    assert all(step.kind == EMPTY for step in run.steps) and run.score_range == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row": 5}, "no row 5"),
        ({"row": -1}, "no row -1"),
        ({"block_mask": create_block_mask(causal, None, None, 16, 16, BLOCK_SIZE=4)}, "not for 20 queries"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        instance_run(*operands(), **{"block": (4, 4), **arguments})


def test_too_much_to_look_at():
    with pytest.raises(OptionError, match="too many"):
        instance_run(*operands(300, 300), block=(300, 10))
