"""Training programs at random: value, requires_grad and gradients of every output and input are eager's."""

from __future__ import annotations

import random
import warnings

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.errors import CaptureError
from tests.capture.training import BACKENDS, outcome, same

POINTWISE = ("sin", "exp", "tanh", "relu", "neg", "abs", "sigmoid", "square")
IN_PLACE = ("mul_", "add_", "sub_", "copy_")
IN_PLACE_UNARY = ("sin_", "tanh_", "neg_", "relu_", "zero_", "clamp_")
VIEWS = (
    lambda x: x.t(),
    lambda x: x[0],
    lambda x: x[:, 1:],
    lambda x: x.reshape(-1),
    lambda x: x.view(2, 2),
    lambda x: x.unsqueeze(0),
    lambda x: x.expand(2, 2),
    lambda x: x.chunk(2)[1],
    lambda x: x.unbind()[0],
    lambda x: x.diagonal(),
)
SQUARE = (2, 2)


def program(seed: int, steps: int):
    """A training program drawn from a seed, which draws again at each run and so is the same each time."""

    def run(*inputs):
        draw = random.Random(seed)
        values = list(inputs)

        def pick():
            return values[draw.randrange(len(values))]

        def step():
            kind = draw.randrange(18)
            x, y = pick(), pick()
            if kind == 0:
                return getattr(x, draw.choice(POINTWISE))()
            if kind == 1:
                return x * y if draw.random() < 0.5 else x + y * 2
            if kind == 2 and x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]:
                return x @ y
            if kind == 3:
                return x.sum() if draw.random() < 0.5 else x.mean(-1, keepdim=True)
            if kind in (4, 5):
                view = draw.choice(VIEWS)
                return view(x) if x.shape == SQUARE else x.unsqueeze(-1)
            if kind == 6:
                return x.detach()
            if kind == 7 and x.ndim:
                x[0] = y if y.ndim == 0 else 1.0
                return None
            if kind == 8:
                getattr(x, draw.choice(IN_PLACE_UNARY[:-1]))()
                return None
            if kind == 9 and y.ndim == 0:
                getattr(x, draw.choice(IN_PLACE))(y)
                return x
            if kind == 10:
                return torch.zeros(SQUARE, requires_grad=draw.random() < 0.3)
            if kind == 11 and x.ndim == y.ndim == 1:
                x[: y.shape[0]] = y[: x.shape[0]]
                return x
            if kind == 12:
                return x * 2 if y.requires_grad else x * 3
            if kind == 13:
                return F.dropout(x, 0.5, inplace=draw.random() < 0.5)
            if kind == 14 and x.shape == SQUARE:
                first, second = x.split(1)
                return first.mul_(2) if draw.random() < 0.3 else first * second
            if kind == 15 and x.shape == y.shape:
                x.copy_(y)
                return None
            if kind == 16:
                return x.data if draw.random() < 0.3 else x.contiguous()
            if kind == 17 and x.ndim:
                return torch.cat([x, x.detach()])
            return torch.where(x > 0, x, x * 2)

        def block(length):
            for made in (step() for _ in range(length)):
                if made is not None:
                    values.append(made)

        for _ in range(steps):
            chance = draw.random()
            if chance < 0.2:
                with torch.no_grad():
                    block(draw.randint(1, 3))
            elif chance < 0.25:
                with torch.inference_mode():
                    block(1)
            elif chance < 0.3:
                with torch.set_grad_enabled(False):
                    block(1)
                    with torch.enable_grad():
                        block(1)
            else:
                block(1)
        grad_kinds = tuple(value.requires_grad for value in values)
        return (*values[-3:], pick().sum(), str(grad_kinds))

    return run


def inputs():
    torch.manual_seed(3)
    return torch.randn(SQUARE, requires_grad=True), torch.randn(SQUARE), torch.tensor(0.5, requires_grad=True)


# Where these errors are raised by an operation whose result nobody reads, the graph does without it and its error.
MISUSE = ("Inference tensors cannot be saved for backward", "A view was created in no_grad mode")


def detached_inputs():
    return tuple(tensor.detach() for tensor in inputs())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(2, 9))
def test_training_programs_have_eagers_values_and_gradients(seed, steps):
    compare(program(seed, steps), inputs, BACKENDS)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(2, 9))
def test_the_same_programs_without_gradients_make_the_same_kinds_of_tensors(seed, steps):
    compare(program(seed, steps), detached_inputs, BACKENDS[:2])


def compare(fn, inputs, backends):
    expected = outcome(fn, inputs)
    if expected[0] == "RuntimeError" and expected[1].startswith(MISUSE):
        return
    for backend in backends:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = outcome(staxlab.compile(fn, backend=backend), inputs)
            except CaptureError:
                continue
        assert same(found, expected), f"{backend}: {found}\neager {expected}"
