"""Every operator PyTorch can test, through the compiler and through eager execution (Sections 6.1 and 6.9).

PyTorch keeps a database of its operators with sample inputs for each (``torch.testing._internal``, the *OpInfo*
database). Compiling each sample asks two questions at once. *Is it right?* Value, dtype and strides must be eager's,
whatever way the operator took. *Which way did it take?* As generated loops, as a call of PyTorch's own routine, as a
captured graph without kernels, or not at all: :data:`WAYS`. The second answer, counted, is what the back end covers.

>>> import staxlab
>>> compiled = staxlab.compile(torch.relu)
>>> compare(torch.relu, compiled, (torch.tensor([-1.0, 2.0]),))
'native'
"""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CaptureError
from .tables import Table, Tabular

#: How a sample can have been compiled, the most native first.
WAYS = ("native", "library call", "fallback kernel", "captured graph", "eager", "refused", "eager refuses")

#: The dtypes a survey asks for.
DTYPES = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float16,
)  # fmt: skip

#: Operators whose values are uninitialised or random by definition: there is nothing to compare.
NOT_COMPARABLE = frozenset({
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "rand_like", "randn",
    "randn_like", "randint", "randint_like", "bernoulli", "multinomial", "normal", "uniform", "cauchy", "exponential",
    "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    # The seed and offset among their results are whatever memory held where nothing is dropped.
    "torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward",
})  # fmt: skip

#: Half precision rounds after each operator in eager execution and once per fused chain here (Section 6.2), and eager
#: formulas lose digits of their own. So an element must agree with eager's, or with that of eager execution in the next
#: precision, or else be no further from that than eager's is: seven differences in a row lose every digit, wherever
#: they are rounded.
WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}

#: Relative and absolute tolerance of half precision; that of other dtypes is :func:`torch.testing.assert_close`'s.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}


def database() -> list[Any]:
    """The operators of PyTorch's database whose values can be compared, as its ``OpInfo`` objects.

    Imports PyTorch's test machinery: several seconds, and ImportError where ``expecttest`` is missing.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name not in NOT_COMPARABLE]


def supported(op: Any, dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether the database has samples of an operator in a dtype on a device ("cpu" or "cuda")."""
    return dtype in op.supported_dtypes(device)


def samples(
    op: Any, dtype: torch.dtype, limit: int | None = None, noncontiguous: bool = False, device: str = "cpu"
) -> Iterator[Any]:
    """The samples of an operator, or ``limit`` of them spread evenly over all; the same ones at every call.

    ``noncontiguous``: their twins with gaps between the elements, as far as there are any.
    """
    random.seed(0)
    torch.manual_seed(0)
    found = list(op.sample_inputs(device, dtype, requires_grad=False))
    if limit is not None and limit < len(found):
        found = [found[k * (len(found) - 1) // max(limit - 1, 1)] for k in range(limit)]
    for sample in found:
        try:
            yield sample.noncontiguous() if noncontiguous else sample
        except Exception:  # a sample without such a twin
            continue


def way(compiled: Any) -> str:
    """How the one version of a compiled function was compiled: one of :data:`WAYS`."""
    if not compiled.versions:
        return "eager"
    compilation = compiled.versions[0].compilation
    if compilation.fallback_reason:
        return "captured graph"
    if compilation.kernels.fallbacks:
        return "fallback kernel"
    return "library call" if not all(kernel.is_generated for kernel in compilation.kernels) else "native"


def compare(
    function: Callable[..., Any],
    compiled: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> str:
    """Call ``function`` and ``compiled`` (the same function, just compiled) with copies of the arguments, and say how
    it was compiled (:data:`WAYS`). ``dtype``: that of the samples, which decides the tolerance.

    AssertionError if value, dtype, shape, structure or the strides of a dense result differ. What the compiled function
    raises passes through, but for a :class:`~staxlab.CaptureError` ("refused").
    """
    keywords = dict(keywords or {})
    torch.manual_seed(0)
    try:
        expected = function(*fresh(tuple(arguments)), **fresh(keywords))
    except Exception:
        return "eager refuses"
    torch.manual_seed(0)
    try:
        result = compiled(*fresh(tuple(arguments)), **fresh(keywords))
    except CaptureError:
        return "refused"
    tolerance = TOLERANCE.get(dtype)
    try:
        agree(result, expected, tolerance)
    except AssertionError:
        if dtype not in WIDER:
            raise
        alike(result, expected)
        torch.manual_seed(0)
        given = (converted(fresh(part), dtype, WIDER[dtype]) for part in (tuple(arguments), keywords))
        wide = function(*next(given), **next(given))
        if not all(map(_as_good, _tensors(result), _tensors(expected), _tensors(wide))):
            raise
    return way(compiled)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _as_good(result: torch.Tensor, expected: torch.Tensor, wide: torch.Tensor) -> bool:
    """Whether every element agrees with eager's, or with the wide one, or is no further from that than eager's is. Sums
    in another order err elsewhere: where eager's errors are small beside the largest element, four times the largest of
    them is allowed at any element."""
    if not expected.is_floating_point():
        return torch.equal(result, expected) or torch.equal(result, wide)
    tolerance = TOLERANCE.get(expected.dtype)
    bounds = {"rtol": 1.3e-6, "atol": 1e-5} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    close = torch.isclose(result, expected, equal_nan=True, **bounds)
    close |= torch.isclose(result, wide.to(result.dtype), equal_nan=True, **bounds)
    ours, eagers = ((x.double() - wide.double()).abs() for x in (result, expected))
    close |= (ours <= eagers) & eagers.isfinite()
    if eagers.numel() and eagers.max() <= 1e-5 * wide.abs().max():
        close |= ours <= 4 * eagers.max()
    return bool(close.all())


def agree(result: Any, expected: Any, tolerance: float | None = None) -> None:
    """AssertionError unless two results are of one structure and their tensors agree in dtype, value (within the
    default tolerance of their dtype, or relative and absolute ``tolerance`` of inexact ones) and, where dense, in
    strides."""
    alike(result, expected)
    for tensor, wanted in zip(_tensors(result), _tensors(expected), strict=True):
        inexact = wanted.is_floating_point() or wanted.is_complex()
        bounds = {"rtol": tolerance, "atol": tolerance} if tolerance is not None and inexact else {}
        torch.testing.assert_close(tensor, wanted, equal_nan=True, **bounds)


def alike(result: Any, expected: Any) -> None:
    """AssertionError unless two results agree in everything but the values of tensors: structure, shape, dtype, strides
    of what is dense, and what is no tensor."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(result, torch.Tensor), f"a {type(result).__name__}, not a tensor"
        for name in ("dtype", "shape", "device", "layout"):
            found, wanted = getattr(result, name), getattr(expected, name)
            assert found == wanted, f"{name} {found}, in eager execution {wanted}"
        if expected.layout == torch.strided and expected.numel() and is_dense(expected):
            kept = [axis for axis, extent in enumerate(expected.shape) if extent > 1]
            strides = [[tensor.stride(axis) for axis in kept] for tensor in (result, expected)]
            assert strides[0] == strides[1], f"strides {strides[0]}, in eager execution {strides[1]}"
    elif isinstance(expected, (list, tuple)):
        assert type(result) is type(expected), f"a {type(result).__name__}, not a {type(expected).__name__}"
        for part, wanted in zip(result, expected, strict=True):
            alike(part, wanted)
    else:
        torch.testing.assert_close(result, expected, equal_nan=True)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, in whatever order."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    expected = 1
    for stride, extent in sorted((stride, extent) for stride, extent in pairs if extent > 1):
        if stride != expected:
            return False
        expected *= extent
    return True


def fresh(value: Any) -> Any:
    """The same structure with every tensor copied, strides kept: what a call writes into changes nothing outside."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.preserve_format)
    return _mapped(fresh, value)


def converted(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """The same structure with tensors (and dtype arguments) of one dtype converted to another."""
    if isinstance(value, torch.Tensor):
        return value.to(target) if value.dtype == source else value
    return target if value is source else _mapped(lambda part: converted(part, source, target), value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(function(part) for part in value)
    if isinstance(value, dict):
        return {key: function(part) for key, part in value.items()}
    return value


@dataclass(repr=False)
class Findings(Tabular):
    """How often samples went which way (:data:`WAYS`), and one line for each that came out wrong or raised."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.failures += other.failures

    def table(self) -> Table:
        total = sum(self.counts.values())
        rows = [(way, self.counts[way], f"{self.counts[way] / total:.1%}") for way in WAYS if self.counts[way]]
        caption = f"{total} samples of operators that agree with eager execution, {len(self.failures)} that do not"
        return Table.build(caption, ("compiled as", "samples", "share"), rows, self.failures)


def survey(
    op: Any,
    dtype: torch.dtype,
    compile: Callable[[Callable[..., Any]], Any],
    limit: int | None = None,
    noncontiguous: bool = False,
    progress: Callable[[str], None] | None = None,
    device: str = "cpu",
) -> Findings:
    """Compare samples of one operator in one dtype; nothing for a dtype it does not take. ``compile`` compiles a
    function; each sample gets a compilation of its own. ``progress`` hears of every sample before it runs."""
    found = Findings()
    if not supported(op, dtype, device):
        return found
    for position, sample in enumerate(samples(op, dtype, limit, noncontiguous, device)):
        name = f"{op.full_name} {str(dtype).removeprefix('torch.')}{' strided' * noncontiguous} sample {position}"
        if progress is not None:
            progress(name)
        compiled = compile(lambda *args, **kwargs: op.op(*args, **kwargs))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = compare(op.op, compiled, (sample.input, *sample.args), sample.kwargs, dtype)
            found.counts[kind] += 1
        except Exception as error:  # a crash is as bad as a wrong value, and the rest should still run
            found.failures.append(f"{name}: {error!r:.400}")
    return found


def survey_all(
    operators: Iterable[Any],
    dtype: torch.dtype,
    compile: Callable[[Callable[..., Any]], Any],
    limit: int | None = None,
    noncontiguous: bool = False,
) -> Findings:
    """:func:`survey` of several operators, in a thread of its own: the database inspects the whole stack for every
    sample, and a caller's may be deep."""
    found = Findings()
    with ThreadPoolExecutor(1) as pool:
        for op in operators:
            found.add(pool.submit(survey, op, dtype, compile, limit, noncontiguous).result())
    return found
