"""Which results require grad, and the gradients of a captured graph, over PyTorch's own operator samples."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from staxlab.capture.autograd import flat_tensors
from staxlab.capture.tracer import trace
from staxlab.errors import StaxError

OPERATORS = [op for op in op_db if torch.float32 in op.dtypes]


def differences(op, count):
    """What is not as in eager for the first samples of an operator; and whether one was compared."""
    compared = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), count):
            args, kwargs, fn = (sample.input, *sample.args), sample.kwargs, op.op

            def call(*args, fn=fn, **kwargs):
                return fn(*args, **kwargs)

            torch.manual_seed(0)
            try:
                expected = flat_tensors(call(*args, **kwargs))
                capture = trace(call, args, kwargs)
            except StaxError:
                continue  # refused: no graph to be wrong
            except Exception:
                continue  # the sample itself is one that eager refuses
            torch.manual_seed(0)
            found = flat_tensors(capture(*args, **kwargs))
            said = [node.val.requires_grad for node in flat_nodes(capture.graph.output.args[0])]
            actual = [t.requires_grad for t in capture.flat_results(capture.module(*capture.bind(args, kwargs)))]
            if said != actual:
                yield f"{op.full_name}: the graph says {said}, and it is {actual}"
            if [t.requires_grad for t in found] != [t.requires_grad for t in expected]:
                yield f"{op.full_name}: requires_grad differs from eager"
            compared = True
            wanted = [t for t in flat_tensors([args, list(kwargs.values())]) if t.requires_grad]
            if wanted and not same_gradients(found, expected, wanted):
                yield f"{op.full_name}: gradients differ from eager"
    if not compared:
        yield None


def flat_nodes(value):
    return list(value) if isinstance(value, tuple) else [value]


def gradients(results, inputs):
    total = sum(t.abs().sum() for t in results if t.requires_grad)
    if not isinstance(total, torch.Tensor):
        return None
    try:
        return torch.autograd.grad(total, inputs, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        return type(error).__name__


def same_gradients(found, expected, inputs):
    a, b = gradients(found, inputs), gradients(expected, inputs)
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return a == b
    return all(
        x is y is None or (x is not None and y is not None and torch.allclose(x, y, 1e-4, 1e-5, equal_nan=True))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("op", OPERATORS[::12], ids=lambda op: op.full_name)
def test_some_operators_require_grad_as_in_eager(op):
    assert not list(filter(None, differences(op, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.full_name)
def test_every_operator_requires_grad_as_in_eager(op):
    assert not list(filter(None, differences(op, 2)))


def test_most_operators_are_compared():
    refused = [op.full_name for op in OPERATORS[::12] if None in differences(op, 1)]
    assert len(refused) < len(OPERATORS[::12]) / 5, refused
