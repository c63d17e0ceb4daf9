"""The specification itself: against PyTorch's attention where that has the case, and by its own laws where not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from staxlab.attention.reference import reference_attention, subscript_tensors, visible
from staxlab.errors import OptionError
from tests.attention.variants import BY_NAME, VARIANTS, Variant, expected


def tensors(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_plain_and_causal_are_pytorchs(dtype):
    q, k, v = (x.to(dtype) for x in tensors((2, 3, 11, 8), (2, 3, 11, 8), (2, 3, 11, 5)))
    for causal in (False, True):
        mask = (lambda b, h, i, j: i >= j) if causal else None
        output, lse = reference_attention(q, k, v, mask_mod=mask)
        assert output.dtype == lse.dtype == torch.float64
        torch.testing.assert_close(
            output, F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
        )


def test_grouped_heads_scale_and_additive_bias_are_pytorchs():
    q, k, v, bias = tensors((2, 6, 7, 4), (2, 2, 9, 4), (2, 2, 9, 4), (6, 7, 9))
    output, _ = reference_attention(q, k, v, lambda s, b, h, i, j: s + bias[h, i, j], scale=0.7, enable_gqa=True)
    wide = [x.repeat_interleave(3, 1) for x in (k, v)]
    torch.testing.assert_close(output, F.scaled_dot_product_attention(q, *wide, attn_mask=bias, scale=0.7))


def test_lse_is_the_logarithm_of_the_sum_of_exponentials():
    q, k, v = tensors((1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    _, lse = reference_attention(q, k, v)
    torch.testing.assert_close(lse, torch.logsumexp(q @ k.mT / 2.0, -1))


def test_large_scores_do_not_overflow():
    q, k, v = tensors((1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4))
    output, lse = reference_attention(q * 1e4, k, v)
    assert torch.isfinite(output).all() and torch.isfinite(lse).all()


@pytest.mark.parametrize("how", ["mask", "score"])
def test_rows_that_see_nothing(how):
    """Results 0 and -inf, gradients 0, and other rows as if those were not there; a score of -inf hides like a mask."""
    q, k, v = (x.requires_grad_() for x in tensors((1, 2, 4, 3), (1, 2, 5, 3), (1, 2, 5, 3)))

    def mask(b, h, i, j):
        return (i % 2 == 1) & (j < 5)

    def score(s, b, h, i, j):
        return torch.where(i % 2 == 1, s, -math.inf)

    output, lse = reference_attention(q, k, v, **({"mask_mod": mask} if how == "mask" else {"score_mod": score}))
    whole, whole_lse = reference_attention(q, k, v)
    assert torch.equal(output[:, :, ::2], torch.zeros(1, 2, 2, 3, dtype=torch.float64))
    assert bool((lse[:, :, ::2] == -math.inf).all())
    torch.testing.assert_close(output[:, :, 1::2], whole[:, :, 1::2])
    torch.testing.assert_close(lse[:, :, 1::2], whole_lse[:, :, 1::2])
    found = torch.autograd.grad(output.sum() + lse[:, :, 1::2].sum(), [q, k, v])
    assert all(bool(torch.isfinite(g).all()) for g in found)
    assert bool((found[0][:, :, ::2] == 0).all())


def test_gradients_are_differences():
    q, k, v, bias = (x.requires_grad_() for x in tensors((1, 2, 3, 2), (1, 2, 4, 2), (1, 2, 4, 2), (2,)))

    def attention(q, k, v, bias):
        return reference_attention(
            q, k, v, lambda s, b, h, i, j: torch.tanh(s) * bias[h], lambda b, h, i, j: i + 1 >= j, 0.8
        )

    assert torch.autograd.gradcheck(attention, (q, k, v, bias))


def test_no_keys_and_no_queries():
    q, k, v = tensors((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 5))
    output, lse = reference_attention(q, k, v)
    assert output.shape == (1, 2, 3, 5) and not output.any()
    assert bool((lse == -math.inf).all())
    output, lse = reference_attention(q[:, :, :0], *tensors((1, 2, 3, 4), (1, 2, 3, 5)))
    assert output.shape == (1, 2, 0, 5) and lse.shape == (1, 2, 0)


def test_heads_that_do_not_fit_are_refused():
    q, k, v = tensors((1, 4, 3, 2), (1, 3, 3, 2), (1, 3, 3, 2))
    for gqa in (False, True):
        with pytest.raises(OptionError, match="4 query heads do not fit 3 key heads"):
            reference_attention(q, k, v, enable_gqa=gqa)
    with pytest.raises(OptionError, match="enable_gqa=True"):
        reference_attention(q, k[:, :2], v[:, :2])


def test_subscripts_and_visibility():
    b, h, i, j = subscript_tensors((2, 3, 4, 5))
    assert [x.shape for x in (b, h, i, j)] == [(2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 4, 1), (1, 1, 1, 5)]
    assert {x.dtype for x in (b, h, i, j)} == {torch.int32}
    assert visible(None, (1, 1, 2, 3)).all()
    assert torch.equal(visible(lambda b, h, i, j: i >= j, (1, 1, 3, 3))[0, 0], torch.ones(3, 3).tril().bool())
    assert not visible(lambda *_: False, (1, 1, 2, 3)).any()


# -- the variants -----------------------------------------------------------------------------------------------------


def test_there_are_enough_variants_and_their_names_differ():
    assert len(VARIANTS) >= 25 and len(BY_NAME) == len(VARIANTS)
    assert sum(bool(v.make().learnable) for v in VARIANTS) >= 8


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_variant_is_what_it_says(variant: Variant):
    """Everything finite, hidden rows exactly where announced, and all that is learned learns something."""
    made, again = variant.make(), variant.make()
    found = expected(variant, made, *variant.inputs())
    for tensor in (found.output, found.query, found.key, found.value, *found.learnable.values()):
        assert torch.isfinite(tensor).all()
    assert bool((found.lse == -math.inf).any()) == variant.hides_rows
    assert all(bool(gradient.any()) for gradient in found.learnable.values())
    for name, tensor in made.learnable.items():
        assert torch.equal(tensor, again.learnable[name])


def test_documents_of_more_queries_than_keys_are_defined_for_every_query():
    variant = BY_NAME["documents"].at(queries=90, keys=20)
    made = variant.make()
    lse = expected(variant, made, *variant.inputs()).lse
    assert lse.shape[2] == 90 and lse[:, :, :20].isfinite().all() and not lse.isnan().any()
