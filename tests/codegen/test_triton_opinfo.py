"""PyTorch's own operator samples, compiled for a GPU and run through Triton's interpreter: inputs nobody here wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.utils._pytree as pytree

import staxlab
from staxlab.errors import StaxError
from staxlab.runtime.artifact import load

pytest.importorskip("triton")
pytest.importorskip("expecttest")

from staxlab.codegen.triton.interpreter import interpret

DTYPES = (torch.float32, torch.int64, torch.bool)
FEW = (
    "add", "sub", "mul", "div", "where", "clamp", "nn.functional.gelu", "nn.functional.layer_norm", "softmax", "sum",
    "amax", "argmax", "any", "cat", "index_select", "nn.functional.embedding", "nn.functional.pad", "tril", "flip",
    "gather", "remainder", "floor_divide", "bitwise_and", "std", "logsumexp",
)  # fmt: skip
# Values that are not determined by the arguments, or that eager computes from memory beyond the sample.
UNDETERMINED = ("empty", "rand", "normal", "bernoulli", "multinomial", "dropout", "as_strided", "new_empty", "rrelu",
                "jiterator")  # fmt: skip


def operators() -> dict:
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.name: op for op in op_db if not any(part in op.name for part in UNDETERMINED)}


def samples(op, dtype: torch.dtype, most: int) -> Iterator:
    if dtype not in op.dtypes:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if number == most:
                return
            given = [t for t in pytree.tree_leaves((sample.input, sample.args)) if isinstance(t, torch.Tensor)]
            if sum(tensor.numel() for tensor in given) <= 5000:
                yield sample


def check(op, sample) -> bool:
    """Whether a sample was compiled to Triton and compared; AssertionError where the value is wrong."""
    leaves, structure = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[k] for k in places]
    operator = op.op

    def function(*given):
        filled = list(leaves)
        for k, tensor in zip(places, given, strict=True):
            filled[k] = tensor
        first, rest, named = pytree.tree_unflatten(filled, structure)
        return operator(first, *rest, **named)

    try:
        compilation = staxlab.explain(function, *tensors, target="sm_90")
    except StaxError:
        return False  # a refusal says why; it is not a wrong value
    if compilation.fallback_reason:
        assert "'kernels'" not in compilation.fallback_reason, compilation.fallback_reason
        return False
    kernels = [k for k in compilation.kernels or () if k.language == "triton"]
    if not kernels or len(compilation.schedule.inputs) != len(tensors):
        return False
    launchers = {k.name: lambda *arguments, kernel=k: interpret(kernel, arguments) for k in kernels}
    answer = function(*(t.clone() for t in tensors))
    got = load(compilation.wrapper, launchers).call(tensors)
    expected = [t for t in pytree.tree_leaves(answer) if isinstance(t, torch.Tensor)]
    if len(expected) != len(got):
        return False  # an output that is one of the inputs
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-4)
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FEW)
def test_samples_of_common_operators(name):
    op = operators()[name]
    compared = [check(op, sample) for dtype in DTYPES for sample in samples(op, dtype, 2)]
    assert any(compared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_every_operator():
    compared = 0
    wrong: list[str] = []
    for name, op in operators().items():
        for sample in samples(op, torch.float32, 1):
            try:
                compared += check(op, sample)
            except AssertionError as error:
                wrong.append(f"{name}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)
    assert compared > 100
