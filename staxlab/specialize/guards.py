"""Guards (Section 2.3): the key, seen one component at a time.

A guard of a compiled version says that one component of the current key equals the version's. Because guards are made
by
*projecting* the key (Definition 2.3) and by nothing else, they cannot disagree with it: all of them hold exactly if
the keys are equal, and those that fail are exactly the components in which they differ (Corollary 2.1). So every
recompilation can say why it happened.

A component has a path in the user's own terms (``x.shape[0]``, ``type(k)``, ``len(xs)``, ``self.training``,
``grad_mode``) and a value. In dynamic mode the value of a size may be "2 or more", and that of a stride a formula over
sizes: ``x.shape[0] >= 2``, ``x.stride(0) == x.shape[1]``. Shapes that Python code has read stand as ``x.shape == (4,
4)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .signature import DERIVED, MAPPING, OBJECT, RECORD, SEQUENCE, SYMBOLIC, TENSOR, VALUE, Key, Signature


class _Missing:
    def __repr__(self) -> str:
        return "<absent>"


#: The actual value of a component that the other key does not have.
MISSING = _Missing()


@dataclass(frozen=True)
class Guard:
    """One component of a key as a predicate: ``path`` must equal ``expected``. ``actual`` is its value for the call at
    hand (``MISSING`` if the call has no such component)."""

    path: str
    condition: str
    expected: Any
    actual: Any = MISSING
    kind: str = "value"

    @property
    def holds(self) -> bool:
        return type(self.expected) is type(self.actual) and self.expected == self.actual

    def __str__(self) -> str:
        return self.condition if self.holds else f"{self.condition} (got {format_value(_plain(self.actual))})"


def format_value(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    return str(value) if isinstance(value, (torch.dtype, torch.device)) else repr(value)


class _Formula(str):
    """A stride as a formula over sizes; printed without quotation marks."""

    __repr__ = str.__str__


def _stride_formula(path: str, expression: Any) -> Any:
    """A stride expression as one would write it: ``x.shape[1] * x.shape[2]``, or the number it is."""
    if not isinstance(expression, tuple):
        return expression
    factors = []
    while isinstance(expression, tuple):
        _, dimension, expression = expression
        factors.append(f"{path}.shape[{dimension}]")
    if expression != 1:
        factors.append(str(expression))
    return _Formula(" * ".join(factors))


def components(key: Key) -> dict[str, Any]:
    """The key as a flat, ordered mapping from path to value. Two keys of one function are equal exactly if these
    are."""
    return {path: value for path, (value, _) in _components(key).items()}


def _components(key: Key) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}

    def put(path: str, value: Any, kind: str) -> None:
        unique, count = path, 1
        while unique in found:
            count += 1
            unique = f"{path} #{count}"
        found[unique] = (value, kind)

    def describe(path: str, sig: Signature) -> None:
        tag = sig[0]
        if tag == TENSOR:
            _, kind, shape, dtype, device, requires_grad, stride = sig
            put(f"type({path})", kind, "type")
            symbolic = not isinstance(shape, torch.Size)
            put(f"{path}.ndim", len(shape), "rank" if symbolic else "shape")
            for dimension, extent in enumerate(shape):
                put(f"{path}.shape[{dimension}]", extent, "size class" if symbolic else "shape")
            put(f"{path}.dtype", dtype, "dtype")
            put(f"{path}.device", device, "device")
            put(f"{path}.requires_grad", requires_grad, "requires_grad")
            if not symbolic:
                put(f"{path}.stride()", stride, "stride")
                return
            for dimension, expression in enumerate(stride):
                if expression is not None:  # sizes 0 and 1, which the shape has told, have no stride that matters
                    put(f"{path}.stride({dimension})", _stride_formula(path, expression), "stride")
        elif tag in (VALUE, DERIVED):
            put(f"type({path})", sig[1], "type")
            put(path, sig[2], "value")
        elif tag == OBJECT:
            put(path, sig[2], "identity")  # the identity of an object implies its type
        elif tag == SEQUENCE:
            put(f"type({path})", sig[1], "type")
            put(f"len({path})", len(sig[2]), "length")
            names = getattr(sig[1], "_fields", None)
            for index, part in enumerate(sig[2]):
                describe(f"{path}.{names[index]}" if names else f"{path}[{index}]", part)
        elif tag == MAPPING:
            put(f"type({path})", sig[1], "type")
            put(f"list({path})", tuple(sig[2]), "keys")
            for name, part in zip(sig[2], sig[3], strict=True):
                describe(f"{path}[{_key_text(name)}]", part)
        elif tag == RECORD:
            put(f"type({path})", sig[1], "type")
            put(f"fields({path})", sig[2], "keys")
            for name, part in zip(sig[2], sig[3], strict=True):
                describe(f"{path}.{name}", part)

    sigma, names = key.sigma, key.names

    def name(group: tuple[str, ...], index: int, fallback: str) -> str:
        return group[index] if index < len(group) else f"{fallback}[{index}]"

    put("len(args)", len(sigma.args), "length")
    counts = tuple(map(len, (sigma.free, sigma.values, sigma.objects, key.gamma_s, key.gamma_g)))
    for index, sig in enumerate(sigma.args):
        describe(name(names.args, index, "args"), sig)
    put("keywords", tuple(keyword for keyword, _ in sigma.kwargs), "keys")
    for keyword, sig in sigma.kwargs:
        describe(keyword, sig)
    for group, title in (("free", "free tensors"), ("values", "free values"), ("objects", "free objects")):
        found_paths, sigs = getattr(names, group), getattr(sigma, group)
        for index, sig in enumerate(sigs):
            describe(name(found_paths, index, title.replace(" ", "_")), sig)
    put("memory overlap of inputs", sigma.aliasing, "aliasing")
    for index, (shape, stride) in enumerate(key.gamma_s):
        path = name(names.shapes, index, "shape read")
        put(f"{path}.shape", shape, "shape read")
        put(f"{path}.stride()", stride, "shape read")
    for index, value in enumerate(key.gamma_g):
        put(name(names.gates, index, "gate"), value, "gate")
    put("counts of (free tensors, free values, free objects, shape reads, data gates)", counts, "length")
    for field_name, value in zip(key.rho._fields, key.rho, strict=True):
        put(field_name, value, "ambient")
    return found


def _key_text(sig: Any) -> str:
    return repr(sig[2]) if isinstance(sig, tuple) and len(sig) == 3 and sig[0] == VALUE else repr(sig)


def _condition(path: str, value: Any, kind: str) -> str:
    if kind == "type":
        return f"{path} is {format_value(value)}"
    if kind == "gate":
        return f"{path} == {format_value(_plain(value))}"
    if kind == "identity":
        return f"{path} is {value!r}"
    if value is SYMBOLIC:
        return f"{path} >= 2"
    return f"{path} == {format_value(value)}"


def _plain(value: Any) -> Any:
    """A gate's answer back from its signature form."""
    if isinstance(value, tuple) and len(value) == 3 and value[0] == VALUE:
        return value[2]
    if isinstance(value, tuple) and len(value) == 3 and value[0] == SEQUENCE:
        return [_plain(part) for part in value[2]]
    return value


def guards(expected: Key, actual: Key | None = None) -> tuple[Guard, ...]:
    """The guards of a version with key ``expected``, evaluated for a call with key ``actual`` (default: its own)."""
    theirs = _components(expected if actual is None else actual)
    result = []
    for path, (value, kind) in _components(expected).items():
        got = theirs[path][0] if path in theirs else MISSING
        result.append(Guard(path, _condition(path, value, kind), value, got, kind))
    return tuple(result)


def failing_guards(expected: Key, actual: Key) -> tuple[Guard, ...]:
    """The guards of ``expected`` that do not hold for ``actual``. Empty exactly if the keys are equal (Corollary
    2.1)."""
    return tuple(guard for guard in guards(expected, actual) if not guard.holds)
