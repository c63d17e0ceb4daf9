"""All that a caller can tell about a call, bit for bit: values, dtypes, strides, aliasing, version counters, draws."""

from __future__ import annotations

import torch


def bits(tensor: torch.Tensor, signed_zero: bool = True) -> bytes:
    """The bytes of a tensor's elements in logical order; every NaN counts as one value, its payload is no result.
    ``signed_zero=False`` makes the two zeros one value as well."""
    value = tensor.detach()
    value = (value if value.layout is torch.strided else value.to_dense()).resolve_conj().resolve_neg()
    if value.is_quantized:
        value = value.int_repr()
    value = value.reshape(-1).clone(memory_format=torch.contiguous_format)
    if value.is_complex():
        value = torch.view_as_real(value).clone().view(-1)
    if value.is_floating_point():
        value[value.isnan()] = torch.nan
        if not signed_zero:
            value[value == 0] = 0.0
    return bytes(value.view(torch.uint8).tolist()) if value.numel() else b""


def geometry(tensor: torch.Tensor) -> tuple:
    layout = tensor.layout
    strides = tensor.stride() if layout is torch.strided else None
    return tensor.dtype, tuple(tensor.shape), strides, layout, tensor.requires_grad, tensor.device


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def structure(value):
    """A result with its tensors taken out."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [structure(part) for part in value]
    if isinstance(value, dict):
        return {key: structure(part) for key, part in value.items()}
    return repr(value)


def observe(function, arguments, keywords=None, *, seed: int = 0, signed_zero: bool = True, write: bool = True) -> dict:
    """Call a function and look at everything. ``write=True`` also writes into each result afterwards, one after the
    other, and looks at what else has changed. An exception is an observation too: its type."""
    keywords = keywords or {}
    given = tensors_in((list(arguments), keywords))
    before = [tensor._version for tensor in given]
    torch.manual_seed(seed)
    seen: dict = {}
    result = function(*arguments, **keywords)
    seen["drawn"] = torch.rand(2).tolist()
    results = tensors_in(result)
    everything = [*results, *given]
    seen["structure"] = structure(result)
    seen["geometry"] = [geometry(tensor) for tensor in everything]
    seen["values"] = [bits(tensor, signed_zero) for tensor in everything]
    seen["versions"] = [tensor._version - old for tensor, old in zip(given, before, strict=True)]
    seen["identity"] = [[a is b for b in everything] for a in results]
    seen["storage"] = [
        [_storage(a) == _storage(b) and a.storage_offset() - b.storage_offset() for b in everything]
        for a in results
        if a.layout is torch.strided
    ]
    for place, tensor in enumerate(results if write else ()):
        try:
            tensor.fill_(place + 1)
        except Exception:  # memory that cannot be written: expanded
            continue
        seen[f"after writing into result {place}"] = [bits(t, signed_zero) for t in everything]
    return seen


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def difference(actual: dict, expected: dict) -> str | None:
    """The first thing that two observations do not share."""
    for key in expected:
        if actual.get(key) != expected[key]:
            return f"{key}: {_short(actual.get(key))} where eager has {_short(expected[key])}"
    return None


def _short(value) -> str:
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        value = [part.hex() for part in value]
    return f"{value!r:.600}"
