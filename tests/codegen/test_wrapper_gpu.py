"""What a wrapper on a GPU spares the host: views of weights and of what kernels make, looks at layouts that are sure.

Values come from Triton's interpreter, through the wrapper itself."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from tests.schedule.test_in_place_gpu import explained, values

WEIGHT, BIAS, X = torch.randn(6, 4), torch.randn(6), torch.randn(3, 4)


def text_of(function, *inputs) -> str:
    """What a call executes, and a look at its values."""
    compilation = explained(function, *inputs, matmul="library")
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for found, one in zip(values(compilation, *inputs), wanted, strict=True):
        assert (found.shape, found.stride()) == (one.shape, one.stride())
        torch.testing.assert_close(found, one)
    source = compilation.wrapper.source
    return source[source.index("def call") :]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: x @ w.t(), (X, WEIGHT)),
        (F.linear, (X, WEIGHT, BIAS)),
        (F.linear, (torch.randn(2, 3, 4), WEIGHT)),
        (lambda x, w: x.exp() @ (w * 2).t(), (X, WEIGHT)),
    ],
)
def test_a_transposed_weight_is_no_view(function, inputs):
    text = text_of(function, *inputs)
    assert "linear(" in text and "mm(" not in text and "in_layout" not in text
    assert "as_strided(weight" not in text and "as_strided(w" not in text


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: x @ w, (X, WEIGHT.t().contiguous())),
        (lambda x, w: x @ w[1:].t(), (X, WEIGHT)),
        (lambda x, w: x @ w.t(), (X, WEIGHT.t().contiguous().t())),  # the memory of a transposed matrix
        (lambda x, w: x @ w.t(), (X[:, :1], WEIGHT[:, :1].contiguous())),  # one column: strides would say nothing
        (lambda x, w: x @ w.view(4, 6), (X, WEIGHT)),
        (lambda x, w: x @ w.t().reshape(6, 4).t(), (X, WEIGHT.t().contiguous().t())),  # its elements in another order
        (lambda b, x, w: torch.addmm(b, x, w.t()), (torch.randn(3, 6), X, WEIGHT)),
        (lambda b, x, w: torch.addmm(b, x, w.t(), beta=2), (BIAS, X, WEIGHT)),
    ],
)
def test_what_linear_does_not_mean_stays_a_product(function, inputs):
    text = text_of(function, *inputs)
    assert "linear(" not in text and "mm(" in text


def test_what_a_kernel_makes_has_the_shape_in_which_operators_take_it():
    x = torch.randn(2, 3, 4)
    text = text_of(lambda x, w: (x.exp() @ w.t()).tanh(), x, WEIGHT)
    assert "empty((6, 4), (4, 1)" in text and "as_strided(buf0" not in text


def test_what_is_taken_in_two_shapes_or_in_part_is_seen_through_views():
    x = torch.randn(2, 3, 4)
    two = text_of(lambda x, w: (e := x.exp(), e.reshape(6, 4) @ w.t(), e.reshape(3, 8).sort(-1)[0])[1:], x, WEIGHT)
    assert "as_strided(" in two
    part = text_of(lambda x, w: x.exp()[1] @ w.t(), x, WEIGHT)
    assert "linear(" in part
    turned = text_of(lambda x, w: x.exp().t() @ w.t(), torch.randn(4, 3), WEIGHT)
    assert "as_strided(" in turned
