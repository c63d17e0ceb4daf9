"""PyTorch's operator samples under autograd: results and gradients of compiled calls against eager execution's."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import staxlab
from staxlab.errors import FallbackWarning
from staxlab.operators.structure import flatten, rebuild
from tests.transform.observation import bits, tensors_in
from tests.transform.opinfo import fresh, operators, samples

# What a compiled gradient may be off by, in units in the last place of the largest element: the roundings of the rules
# that take an adjoint apart, and of sums in another order. In float32 both are compared with the same call in float64,
# since eager's own adjoints cancel here and there; the compiled one may be this many times as far off as eager's.
STEPS, TIMES = 256, 8
# Their derivatives in eager execution are good to nine digits left of zero; here to the last.
LESS_EXACT_IN_EAGER = {"digamma": 1e-8, "polygamma": 1e-8, "special.polygamma": 1e-8}

# Fast gradient checks multiply this by the sums of two random vectors: thousands, and the default of 1e-5 would hide a
# gradient that is a tenth too large.
ABSOLUTE = 1e-8

# -- exceptions, each with its reason ----------------------------------------------------------------------------------

# Where nothing is taken apart, the operator graph gives eager's bits; of these operators it gives its numbers.
NOT_BIT_FOR_BIT = {
    "prod": "where a mode is active, PyTorch takes the one formula of the adjoint that needs no look at the data",
    "linalg.": "where a mode is active, PyTorch takes formulas without writes; LAPACK follows memory's alignment",
    "cholesky": "as for linalg",
    "fft": "MKL's transforms follow memory's alignment on some processors",
    "ormqr": "as for linalg",
    "qr": "as for linalg",
    "svd": "as for linalg",
}
# Second derivatives are not compared.
NO_SECOND = {
    "nn.functional.linear_cross_entropy": "PyTorch's gradient of it has no graph, though create_graph asks for one"
}
# Forward mode is not compared.
NO_FORWARD_MODE = {
    "nn.functional.hardsigmoid": "PyTorch's adjoint has 1/6 in single precision whatever the dtype; ours is expanded",
}


def differentiable(dtype: torch.dtype) -> list:
    """The operators of the database that have a gradient in ``dtype``."""
    return [op for op in operators() if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")]


def drawn(operator: Any, dtype: torch.dtype, variant: str, limit: int) -> Iterator[tuple[list, dict]]:
    """Samples some tensor of which requires grad, all of whose tensors are strided."""
    for arguments, keywords in samples(operator, dtype, variant, limit, requires_grad=True):
        leaves = flatten((arguments, keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(t.layout is not torch.strided or t.is_quantized for t in tensors):
            continue
        if any(t.requires_grad for t in tensors) and not any(isinstance(leaf, torch.Generator) for leaf in leaves):
            yield arguments, keywords


class Outcome:
    """Results and gradients of one call, or the type of the exception it ended in."""

    def __init__(self, function: Callable, arguments: list, keywords: dict):
        self.error: str | None = None
        self.results: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor | None] = []
        torch.manual_seed(11)
        try:
            self.results = tensors_in(function(*arguments, **keywords))
            wanted = [t for t in tensors_in((arguments, list(keywords.values()))) if t.requires_grad]
            wanted = list({id(t): t for t in wanted}.values())
            traced = [r for r in {id(r): r for r in self.results}.values() if r.requires_grad]
            if traced:
                seeds = [_weights(r) for r in traced]
                self.gradients = list(torch.autograd.grad(traced, wanted, seeds, allow_unused=True))
        except staxlab.CaptureError:
            raise
        except Exception as error:
            self.error = f"{type(error).__name__}: {error!s:.200}"

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        return [*self.results, *self.gradients]


def _weights(result: torch.Tensor) -> torch.Tensor:
    """An upstream gradient with a value of its own for every element."""
    weights = torch.cos(torch.arange(math.prod(result.shape), dtype=torch.float64)).reshape(result.shape)
    return weights.to(result.dtype)


def compare(op: Any, arguments: list, keywords: dict, backend: str, counts: Counter) -> str | None:
    """What is not as in eager execution, or None."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    expected = Outcome(function, *fresh((arguments, keywords)))
    again = Outcome(function, *fresh((arguments, keywords)))
    if expected.error is None and not _same_bits(expected, again):  # memory nobody wrote, or a race of eager's own
        counts["eager differs from itself"] += 1
        return None
    if expected.error is None and not expected.gradients:
        counts["no gradient"] += 1
        return None
    compiled = staxlab.compile(function, backend=backend)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = Outcome(compiled, *fresh((arguments, keywords)))
        except staxlab.CaptureError:
            counts["refused"] += 1
            return None
    if expected.error is not None or found.error is not None:
        counts["eager raises"] += 1
        return None if found.error and expected.error else f"{found.error} where eager has {expected.error}"
    compilation = compiled.versions[0].compilation
    warned = any(issubclass(entry.category, FallbackWarning) for entry in seen)
    halves = [half for half in (compilation, compilation.backward) if half is not None]
    if any(half.fallback_reason or (half.kernels and half.kernels.fallbacks) for half in halves):
        counts["fallback"] += 1
        if not warned:
            return f"runs operator by operator without a warning: {compilation.fallback_reason}"
    elif not compilation.trains:
        return "compiled without gradients"
    counts["compared"] += 1
    for place, (a, b) in enumerate(zip(found.tensors, expected.tensors, strict=True)):
        what = "result" if place < len(found.results) else "gradient"
        if (a is None) != (b is None):
            return f"{what} {place} is {'None' if a is None else 'a tensor'} and eager's is not so"
        if a is None:
            continue
        if (a.dtype, a.shape, a.requires_grad) != (b.dtype, b.shape, b.requires_grad):
            return (
                f"{what} {place} has {a.dtype, a.shape, a.requires_grad}, eager's {b.dtype, b.shape, b.requires_grad}"
            )
        if what == "result" and a.stride() != b.stride() and a.numel():
            return f"result {place} has strides {a.stride()}, eager's {b.stride()}"
    rounded = any(op.name.startswith(name) for name in NOT_BIT_FOR_BIT)
    if backend == "aot_eager" and not rounded and not compilation.transforms.changes and not _taken_apart(compilation):
        counts["bit for bit"] += 1
        return None if _same_bits(found, expected) else f"bits differ: {_farthest(found, expected)}"
    return _close(op, found, expected, arguments, keywords)


def _taken_apart(compilation: Any) -> bool:
    joint = compilation.joint
    return bool(joint is not None and joint.decomposed)


def _same_bits(a: Outcome, b: Outcome) -> bool:
    if a.error or b.error or len(a.tensors) != len(b.tensors):
        return False
    pairs = zip(a.tensors, b.tensors, strict=True)
    return all(
        x is y is None or (x is not None and y is not None and bits(x, False) == bits(y, False)) for x, y in pairs
    )


def _close(op: Any, found: Outcome, expected: Outcome, arguments: list, keywords: dict) -> str | None:
    truth: Outcome | None = None
    for place, (a, b) in enumerate(zip(found.tensors, expected.tensors, strict=True)):
        if a is None or bits(a, False) == bits(b, False):
            continue
        if not a.is_floating_point() and not a.is_complex():
            return f"integers of {place} differ"
        x, y = _numbers(a), _numbers(b)
        if not torch.equal(x.isnan(), y.isnan()) or not torch.equal(x[x.isinf()], y[y.isinf()]):
            return f"NaN or infinity elsewhere in {place}"
        finite = y.isfinite()
        x, y = x[finite], y[finite]
        relative = max(STEPS * torch.finfo(a.dtype).eps, LESS_EXACT_IN_EAGER.get(op.name, 0.0))
        allowed = relative * y.abs().max().clamp(min=1)
        if bool(((x - y).abs() <= allowed).all()):
            continue
        if a.dtype in (torch.float32, torch.complex64):
            truth = truth or _in_double(op, arguments, keywords)
            if truth is not None and truth.error is None and len(truth.tensors) == len(found.tensors):
                z = _numbers(truth.tensors[place])[finite]
                own, eagers = (x - z).abs().max(), (y - z).abs().max()
                if own <= TIMES * eagers + allowed:
                    continue
                return f"{place} is {own:.2e} off, eager {eagers:.2e}, of {y.abs().max():.2e}"
        return f"{place} is {float((x - y).abs().max()):.2e} off, of {float(y.abs().max()):.2e}"
    return None


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(value) if value.is_complex() else value).double()


def _in_double(op: Any, arguments: list, keywords: dict) -> Outcome | None:
    wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(wider.get(leaf.dtype, leaf.dtype)).requires_grad_(leaf.requires_grad)
        return wider.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    structure = (arguments, keywords)
    first, keys = rebuild(structure, [widen(leaf) for leaf in flatten(structure)])
    return Outcome(op.op, list(first), keys)


def _farthest(a: Outcome, b: Outcome) -> list[float]:
    found = []
    for x, y in zip(a.tensors, b.tensors, strict=True):
        same = x is None or not x.numel() or not (x.is_floating_point() or x.is_complex())
        found.append(0.0 if same else float((_numbers(x) - _numbers(y)).abs().max()))
    return found


# -- finite differences and forward mode ------------------------------------------------------------------------------


def closed(op: Any, arguments: list, keywords: dict) -> tuple[Callable, list[torch.Tensor]]:
    """The call as a function of the real tensors that require grad, and these."""
    structure = fresh((arguments, keywords))
    leaves = flatten(structure)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    def function(*given: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, value in zip(places, given, strict=True):
            filled[place] = value
        first, keys = rebuild(structure, filled)
        return op.op(*first, **keys)

    return function, [leaves[place] for place in places]


def check_by_differences(op: Any, arguments: list, keywords: dict, backend: str, counts: Counter) -> str | None:
    """``torch.autograd.gradcheck`` on the compiled call, where it passes for the call itself."""
    function, inputs = closed(op, arguments, keywords)

    def checked(called: Callable) -> bool:
        def differentiable_results(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            torch.manual_seed(11)
            results = tensors_in(called(*given))
            return tuple(r for r in results if r.requires_grad or not torch.is_grad_enabled())

        return torch.autograd.gradcheck(
            differentiable_results, inputs, atol=ABSOLUTE, fast_mode=True, raise_exception=called is not function
        )

    try:
        if not checked(function):
            counts["eager fails"] += 1
            return None
    except Exception:
        counts["eager raises"] += 1
        return None
    try:
        checked(staxlab.compile(function, backend=backend))
    except staxlab.CaptureError:
        counts["refused"] += 1
        return None
    counts["compared"] += 1
    return None


def check_forward_mode(op: Any, arguments: list, keywords: dict, backend: str, counts: Counter) -> str | None:
    """``staxlab.jvp`` against ``torch.func.jvp``."""
    function, inputs = closed(op, arguments, keywords)
    if any(t.is_complex() for t in inputs) or not op.supports_forward_ad or op.name in NO_FORWARD_MODE:
        counts["left out"] += 1
        return None
    primals = tuple(t.detach() for t in inputs)
    tangents = tuple(_weights(t) for t in primals)
    try:
        torch.manual_seed(11)
        values, expected = torch.func.jvp(lambda *given: tuple(tensors_in(function(*given))), primals, tangents)
    except Exception:
        counts["eager raises"] += 1
        return None
    compiled = staxlab.jvp(lambda *given: tuple(tensors_in(function(*given))), backend=backend)
    try:
        torch.manual_seed(11)
        found_values, found = compiled(primals, tangents)
    except staxlab.StaxError as error:
        counts[f"refused: {type(error).__name__}"] += 1
        return None
    counts["compared"] += 1
    for a, b in zip((*found_values, *found), (*values, *expected), strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.dtype, a.shape} where torch.func.jvp has {b.dtype, b.shape}"
        scale = _numbers(b).abs().nan_to_num(0, 0, 0).max() if b.numel() else 1
        relative = max(STEPS * torch.finfo(torch.float64).eps, LESS_EXACT_IN_EAGER.get(op.name, 0.0))
        torch.testing.assert_close(a, b, rtol=0, atol=float(relative * max(scale, 1)), equal_nan=True)
    return None


def check_second_derivatives(op: Any, arguments: list, keywords: dict, backend: str, counts: Counter) -> str | None:
    """Gradients of a function of the gradients, with the option ``double_backward``."""
    function, inputs = closed(op, arguments, keywords)
    if not op.supports_gradgrad or any(op.name.startswith(name) for name in NO_SECOND):
        counts["left out"] += 1
        return None

    def derivatives(called: Callable) -> list[torch.Tensor | None]:
        torch.manual_seed(11)
        results = [r for r in tensors_in(called(*inputs)) if r.requires_grad]
        first = torch.autograd.grad(
            results, inputs, [_weights(r) for r in results], create_graph=True, allow_unused=True
        )
        traced = [g for g in first if g is not None and g.requires_grad]
        second: tuple = ()
        if traced:
            second = torch.autograd.grad(traced, inputs, [_weights(g) for g in traced], allow_unused=True)
        return [*first, *second]

    try:
        expected = derivatives(function)
    except Exception:
        counts["eager raises"] += 1
        return None
    compiled = staxlab.compile(function, backend=backend, options={"double_backward": True})
    try:
        found = derivatives(compiled)
    except staxlab.CaptureError:
        counts["refused"] += 1
        return None
    counts["compared"] += 1
    if len(found) != len(expected):
        return f"{len(found)} derivatives where eager has {len(expected)}"
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a is None or b is None:
            # what eager execution leaves undefined here and there, a graph may know to be zero, and the other way round
            if any(t is not None and t.any() for t in (a, b)):
                return f"derivative {place}: {'None' if a is None else 'a tensor'} where eager has another"
            continue
        x, y = _numbers(a), _numbers(b)
        scale = y.nan_to_num(0, 0, 0).abs().max().clamp(min=1) if y.numel() else 1
        bound = float(STEPS * torch.finfo(torch.float64).eps * scale)
        torch.testing.assert_close(x, y, rtol=1e-9, atol=bound, equal_nan=True)
    return None


# -- all samples ------------------------------------------------------------------------------------------------------

Check = Callable[[Any, list, dict, str, Counter], str | None]


def survey(
    chosen: list, dtype: torch.dtype, variant: str, backend: str, limit: int, check: Check = compare
) -> tuple[Counter, list[str]]:
    """Check some samples of each operator; what happened, and every failure, by operator.

    In a thread of its own: the database inspects the whole stack for every sample, and a test runner's is deep.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_survey, chosen, dtype, variant, backend, limit, check).result()


def _survey(
    chosen: list, dtype: torch.dtype, variant: str, backend: str, limit: int, check: Check
) -> tuple[Counter, list[str]]:
    counts: Counter = Counter()
    failures: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: waking threads would take most of the time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in chosen:
            for position, (arguments, keywords) in enumerate(drawn(op, dtype, variant, limit)):
                try:
                    found = check(op, arguments, keywords, backend, counts)
                except Exception as error:
                    found = f"raised {error!r:.400}"
                if found is not None:
                    failures.append(f"{op.formatted_name} {dtype} {variant} sample {position}, {backend}: {found:.500}")
    torch.set_num_threads(threads)
    return counts, failures
