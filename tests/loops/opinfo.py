"""PyTorch's own operator samples as a test of recording and lowering.

``torch.testing``'s operator database lists, for every public operator, which dtypes it takes and sample arguments for
each. A sample is recorded, lowered and evaluated by the reference semantics, and must agree with eager execution in
values, dtypes, strides and in what it leaves in its inputs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from staxlab.errors import LoweringError
from staxlab.loops.ir import ExternBuffer
from staxlab.loops.lowering import lower
from staxlab.operators.structure import flatten, rebuild
from staxlab.options import Options

from .lowered import CPU, operators_of, run

DTYPES = {
    "float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "int32": torch.int32,
    "uint8": torch.uint8, "bool": torch.bool, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.bfloat16: {"rtol": 3e-2, "atol": 2e-2},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
}
# Computed in double precision here, while eager execution loses digits near the poles: held to eager in float64.
MORE_EXACT = ("polygamma", "special.polygamma", "digamma")
# Differences that are meant to be: what an uninitialised tensor holds.
NOT_COMPARED = ("empty", "new_empty", "empty_like", "empty_permuted", "empty_strided", "new_empty_strided")


def operators_database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[Any]:
    """Up to ``limit`` samples, each followed by its twin with strided tensors."""
    for position, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if limit is not None and position >= limit:
            return
        yield sample
        leaves = flatten((sample.input, sample.args, sample.kwargs))
        if all(t.layout == torch.strided for t in leaves if isinstance(t, torch.Tensor)):
            yield sample.noncontiguous()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides and offset in a storage of its own."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    storage = torch.zeros(tensor.storage_offset() + reach + 1, dtype=tensor.dtype)
    twin = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.numel():
        twin.copy_(tensor)
    return twin


def outcome(op: Any, sample: Any) -> str:
    """What became of a sample: "native", "library" or "fallback" (some operator left to PyTorch), "obstacle: ..." (the
    region is refused), "skipped". AssertionError for a wrong result."""
    structure = (sample.input, sample.args, sample.kwargs)
    leaves = flatten(structure)
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    generators = any(isinstance(leaf, torch.Generator) for leaf in leaves)
    if generators or op.name in NOT_COMPARED or any(t.layout != torch.strided for t in tensors):
        return "skipped"

    def function(*given: torch.Tensor) -> Any:
        remaining = iter(given)
        filled = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = rebuild(structure, filled)
        return op.op(first, *args, **kwargs)

    for_eager, for_us = [copy_of(t) for t in tensors], [copy_of(t) for t in tensors]
    torch.default_generator.manual_seed(42)  # the database seeds random operators with this number at every call
    try:
        expected = function(*for_eager)
    except Exception:
        return "skipped"  # a sample this build of PyTorch does not run
    operators = operators_of(function, *tensors)
    for tensor, kept in zip(tensors, for_us, strict=True):
        torch.testing.assert_close(tensor, kept, rtol=0, atol=0, equal_nan=True, msg="recording changed an input")
    if operators.obstacles:
        return f"obstacle: {operators.obstacles[0].kind}"
    try:
        program = lower(operators, CPU, Options())
    except LoweringError as refusal:
        if "pending conjugation" in str(refusal):
            return "obstacle: conjugation"
        if "as a copy only" not in str(refusal):
            raise
        return "obstacle: aliasing"
    torch.default_generator.manual_seed(42)
    result = run(operators, program, *for_us)
    largest = max((t.abs().max().item() for t in tensors if t.dtype.is_floating_point and t.numel()), default=0.0)
    compare(op, result, expected, lambda: function(*[_widened(copy_of(t)) for t in tensors]), largest)
    for ours, eagers in zip(for_us, for_eager, strict=True):
        torch.testing.assert_close(ours, eagers, equal_nan=True, **TOLERANCE.get(eagers.dtype, {}))
    externs = [b.data.reason for b in program.buffers if isinstance(b, ExternBuffer)]
    return "fallback" if "fallback" in externs else "library" if externs else "native"


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wider = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
    return tensor.to(wider.get(tensor.dtype, tensor.dtype))


def compare(op: Any, result: Any, expected: Any, precise: Any, largest: float) -> None:
    """Close to eager execution; or, in half precision, which eager rounds after every operator and we do not, close to
    the same computation in float32, as close as a few roundings of the ``largest`` input allow."""
    truth: list[Any] | None = None
    for position, (ours, eagers) in enumerate(zip(flatten(result), flatten(expected), strict=True)):
        if not isinstance(eagers, torch.Tensor):
            assert ours == eagers or ours is eagers
            continue
        tolerance = TOLERANCE.get(eagers.dtype, {})
        try:
            torch.testing.assert_close(ours, eagers, equal_nan=True, check_stride=True, **tolerance)
        except AssertionError:
            if eagers.dtype not in (torch.float16, torch.bfloat16) and op.name not in MORE_EXACT:
                raise
            truth = truth or flatten(precise())
            absolute = max(tolerance["atol"], 4 * torch.finfo(eagers.dtype).eps * largest)
            exact = truth[position].to(eagers.dtype)
            torch.testing.assert_close(ours, exact, equal_nan=True, rtol=tolerance["rtol"], atol=absolute)


def survey(dtype: torch.dtype, limit: int | None, every: int = 1) -> tuple[Counter, list[str]]:
    """Every operator (or each ``every``-th) of the database that takes ``dtype``: how samples came out, what failed.

    In a thread of its own: the database inspects the whole stack for every sample, and a test runner's is deep.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_survey, dtype, limit, every).result()


def _survey(dtype: torch.dtype, limit: int | None, every: int) -> tuple[Counter, list[str]]:
    tally: Counter = Counter()
    failures: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: waking threads would take most of the time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators_database()[::every]:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            try:
                for position, sample in enumerate(samples(op, dtype, limit)):
                    try:
                        with torch.no_grad():
                            tally[outcome(op, sample)] += 1
                    except Exception as error:  # a crash is as bad as a wrong value, and the rest should still run
                        tally["failed"] += 1
                        failures.append(f"{op.name} {op.variant_test_name} sample {position}: {error!r:.300}")
            except ImportError:
                tally["skipped"] += 1  # the sample needs a package that is not here
    torch.set_num_threads(threads)
    return tally, failures
