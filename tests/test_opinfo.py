"""PyTorch's own operator samples, through the whole compiler: every operator, not only those lowered natively.

A sample may be compiled natively, run through a library call or a fallback, or be refused when it is captured; what it
may never do is give another value, dtype or (dense) layout than eager, or crash.
"""

from __future__ import annotations

import collections
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import staxlab

op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

# Values that are uninitialised or random by definition.
NOT_COMPARABLE = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "rand_like", "randn",
    "randn_like", "randint", "randint_like", "bernoulli", "multinomial", "normal", "uniform", "cauchy", "exponential",
    "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
}  # fmt: skip
OPERATORS = [op for op in op_db if op.name not in NOT_COMPARABLE]
DTYPES = (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float16)
# Half precision rounds after each operator in eager and once per fused chain here (Section 6.2), so a result must agree
# with eager's, or with eager's in float32 rounded once.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}


def convert(value, source, target):
    """The same structure with tensors (and dtype arguments) of one dtype converted to another."""
    if isinstance(value, torch.Tensor):
        return value.to(target) if value.dtype == source else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(convert(part, source, target) for part in value)
    if isinstance(value, dict):
        return {key: convert(part, source, target) for key, part in value.items()}
    return target if value is source else value


def fresh(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.preserve_format)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(fresh(part) for part in value)
    return value


def is_dense(tensor: torch.Tensor) -> bool:
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    extents = sorted((stride, extent) for stride, extent in pairs if extent > 1)
    expected = 1
    for stride, extent in extents:
        if stride != expected:
            return False
        expected *= extent
    return True


def agree(result, expected, tolerance) -> None:
    if isinstance(expected, torch.Tensor):
        check_stride = expected.layout == torch.strided and expected.numel() > 0 and is_dense(expected)
        bounds = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(result, expected, equal_nan=True, **bounds)
        if check_stride:
            kept = [axis for axis, extent in enumerate(expected.shape) if extent > 1]
            assert [result.stride(a) for a in kept] == [expected.stride(a) for a in kept]
    elif isinstance(expected, (list, tuple)):
        assert type(result) is type(expected)
        for part, wanted in zip(result, expected, strict=True):
            agree(part, wanted, tolerance)
    else:
        torch.testing.assert_close(result, expected, equal_nan=True)


def outcome(compiled) -> str:
    if not compiled.versions:
        return "eager"
    compilation = compiled.versions[0].compilation
    if compilation.fallback_reason:
        return "captured graph"
    if compilation.kernels.fallbacks:
        return "fallback kernel"
    return "library call" if any(k.language == "extern" for k in compilation.kernels) else "native"


def run(op, sample, dtype) -> str:
    """Compare one sample with eager; returns how it was compiled."""
    arguments = (sample.input, *sample.args)
    torch.manual_seed(0)
    try:
        expected = op.op(*fresh(list(arguments)), **{k: fresh(v) for k, v in sample.kwargs.items()})
    except Exception:
        return "eager refuses"
    compiled = staxlab.compile(lambda *args, **kwargs: op.op(*args, **kwargs))
    torch.manual_seed(0)
    try:
        result = compiled(*fresh(list(arguments)), **{k: fresh(v) for k, v in sample.kwargs.items()})
    except staxlab.CaptureError:
        return "refused"
    try:
        agree(result, expected, TOLERANCE.get(dtype))
    except AssertionError:
        if dtype not in TOLERANCE:
            raise
        torch.manual_seed(0)
        wide_arguments = convert(fresh(list(arguments)), dtype, torch.float32)
        wide = op.op(*wide_arguments, **convert(sample.kwargs, dtype, torch.float32))
        agree(result, convert(wide, torch.float32, dtype), TOLERANCE[dtype])
    return outcome(compiled)


def survey(operators, dtype, limit: int, noncontiguous: bool = False) -> collections.Counter[str]:
    """Run samples of several operators; AssertionError listing every one that came out wrong.

    In a thread of its own: the database inspects the whole stack for every sample, and a test runner's is deep.
    """
    with ThreadPoolExecutor(1) as pool:
        counts, failures = pool.submit(_survey, operators, dtype, limit, noncontiguous).result()
    assert not failures, "\n".join(failures)
    return counts


def _survey(operators, dtype, limit, noncontiguous):
    counts: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    for op in operators:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for position, given in enumerate(itertools.islice(_samples(op, dtype, noncontiguous), limit)):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    counts[run(op, given, dtype)] += 1
            except Exception as error:  # a crash is as bad as a wrong value, and the rest should still run
                failures.append(f"{op.formatted_name} {dtype} sample {position}: {error!r:.400}")
    return counts, failures


def _samples(op, dtype, noncontiguous):
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        try:
            yield sample.noncontiguous() if noncontiguous else sample
        except Exception:  # a sample that has no non-contiguous twin
            continue


PARTS = 6


@pytest.mark.parametrize("part", range(2))
def test_float32_of_every_third_operator(part):
    counts = survey(OPERATORS[part * 3 :: 6], torch.float32, 1)
    assert counts["native"] > sum(counts.values()) / 3


@pytest.mark.slow
@pytest.mark.parametrize("noncontiguous", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("part", range(PARTS))
def test_float32(part, noncontiguous):
    survey(OPERATORS[part::PARTS], torch.float32, 2, noncontiguous)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_second_operator_in_other_dtypes(dtype):
    survey(OPERATORS[::2], dtype, 1)


NATIVE = {
    "add", "mul", "sub", "exp", "nn.functional.relu", "sum", "amax", "mean", "where", "clamp", "transpose", "cat",
    "softmax", "nn.functional.layer_norm", "nn.functional.gelu", "sigmoid", "var", "argmax",
}  # fmt: skip


def test_the_common_operators_are_compiled_natively():
    for name in NATIVE:
        op = next(op for op in OPERATORS if op.name == name)
        sample = next(iter(op.sample_inputs("cpu", torch.float32, requires_grad=False)))
        assert run(op, sample, torch.float32) == "native", name
