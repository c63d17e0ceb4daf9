"""PyTorch's operator samples as calls to compare: dense, strided and broadcast, in several dtypes."""

from __future__ import annotations

import collections
import itertools
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

import staxlab
from tests.transform.bit_identity import rules_applied
from tests.transform.observation import difference, observe, tensors_in

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
VARIANTS = ("dense", "strided", "broadcast")
# PyTorch's own kernels read past the memory of an expanded argument here, and give another value at each call.
NOT_EXPANDED = {"median", "nanmedian", "masked.median", "native_group_norm"}
# Threads write running statistics at once, all into the one element of an expanded tensor: 3,000 calls of eager's
# own batch norm gave 81 different results.
NOT_EXPANDED |= {
    "_native_batch_norm_legit", "native_batch_norm", "_batch_norm_with_update", "nn.functional.batch_norm",
    "nn.functional.instance_norm",
}  # fmt: skip
# Memory nobody wrote.
UNINITIALIZED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}


def operators() -> list:
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.name not in UNINITIALIZED]


def broadcast(value):
    """The same structure with every tensor of two or more elements expanded from its first slice: strides of zero."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.dim() == 0 or value.shape[0] < 2 or value.dtype == torch.long:
            return value  # integers are often indices, which had better stay different
        return value.detach()[:1].clone().expand(value.shape).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(broadcast(part) for part in value)
    return value


def samples(
    op, dtype: torch.dtype, variant: str, limit: int, requires_grad: bool = False
) -> Iterator[tuple[list, dict]]:
    """Arguments and keywords of some samples, taken from the whole list."""
    if variant == "broadcast" and op.name in NOT_EXPANDED:
        return
    everything = [*itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), 40)]
    step = max(1, len(everything) // limit)
    for sample in everything[::step][:limit]:
        if variant == "strided":
            try:
                sample = sample.noncontiguous()
            except Exception:  # it has no strided twin
                continue
        arguments = [sample.input, *sample.args]
        yield (broadcast(arguments) if variant == "broadcast" else arguments), sample.kwargs


def fresh(value):
    """A twin: same geometry, own memory, a leaf that requires grad as the original; tensors that were one stay one."""
    copies: dict[int, torch.Tensor] = {}

    def twin(part):
        if isinstance(part, torch.Tensor):
            if id(part) not in copies:
                copies[id(part)] = _twin(part).requires_grad_(part.requires_grad)
            return copies[id(part)]
        if isinstance(part, (list, tuple)) and not hasattr(part, "_fields"):
            return type(part)(twin(p) for p in part)
        if isinstance(part, dict):
            return {key: twin(p) for key, p in part.items()}
        return part

    return twin(value)


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return tensor.detach().clone()
    extent = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if tensor.numel() == 0:
        return tensor.detach().clone().as_strided(tensor.shape, tensor.stride())
    flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride())


def compare(op, arguments: list, keywords: dict, backend: str, counts: collections.Counter) -> str | None:
    def function(*args, **kwargs):
        return op.op(*args, **kwargs)

    first, own = fresh((arguments, keywords)), fresh((arguments, keywords))
    try:
        expected = observe(function, *first)
        if observe(function, *fresh((arguments, keywords))) != expected:  # it read memory nobody wrote
            counts["eager differs from itself"] += 1
            return None
    except Exception:
        counts["eager refuses"] += 1
        return None
    compiled = staxlab.compile(function, backend=backend)
    try:
        actual = observe(compiled, *own)
    except staxlab.CaptureError:
        counts["refused"] += 1
        return None
    except Exception as error:
        return f"raised {error!r:.300}"
    counts["compared"] += 1
    rules = rules_applied(compiled)
    taken_apart = sorted(rule for rule in rules if rule.startswith(("decomposed", "expand")))
    if not taken_apart:
        return difference(actual, expected)
    counts["taken apart"] += 1
    for key in ("structure", "geometry", "identity", "storage", "drawn", "versions"):
        if actual[key] != expected[key]:
            return f"{taken_apart}: {difference(actual, expected)}"
    results, wanted = compiled(*fresh((arguments, {}))[0], **fresh(keywords)), function(*fresh(arguments), **keywords)
    return close(tensors_in(results), tensors_in(wanted), taken_apart, counts)


# A rule of PyTorch's table computes the operator's value by other steps, in the operator's dtype or a wider one. What
# it may differ by: roundings, counted in units in the last place of the largest element (or of 1, if that is larger).
STEPS = 64


def close(results: list, wanted: list, rules: list[str], counts: collections.Counter) -> str | None:
    for result, expected in zip(results, wanted, strict=True):
        if not expected.is_floating_point() and not expected.is_complex():
            if not torch.equal(result, expected):
                return f"{rules}: integers differ"
            continue
        a, b = (t.detach().resolve_conj().resolve_neg() for t in (result, expected))
        a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
        if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
            return f"{rules}: NaN or infinity elsewhere"
        if not torch.equal(a[b.isinf()], b[b.isinf()]):
            return f"{rules}: infinities of other sign"
        finite = b.isfinite()
        a, b = a[finite].double(), b[finite].double()
        if not len(b):
            continue
        if bool(((a - b).abs() > STEPS * torch.finfo(result.dtype).eps * b.abs().max().clamp(min=1)).any()):
            return f"{rules}: {float((a - b).abs().max())} apart"
        counts["taken apart, exact"] += bool((a == b).all())
    return None


def survey(chosen, dtype, variant: str, limit: int) -> tuple[collections.Counter, list[str]]:
    """Compare some samples of each operator under both backends; what happened, and every failure.

    In a thread of its own: the database inspects the whole stack for every sample, and a test runner's is deep.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_survey, chosen, dtype, variant, limit).result()


def _survey(chosen, dtype, variant, limit):
    counts: collections.Counter = collections.Counter()
    failures: list[str] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in chosen:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for position, (arguments, keywords) in enumerate(samples(op, dtype, variant, limit)):
                for backend in ("eager", "aot_eager"):
                    try:
                        found = compare(op, arguments, keywords, backend, counts)
                    except Exception as error:
                        found = f"comparing raised {error!r:.300}"
                    if found is not None:
                        name = f"{op.formatted_name} {dtype} {variant} sample {position}"
                        failures.append(f"{name}, {backend}: {found:.500}")
    return counts, failures
