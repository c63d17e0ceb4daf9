"""The specialization key (Sections 2.1 and 2.2): which calls may share one compiled program?

Two calls may share a program exactly if everything the compiler treated as a constant is equal in both (Proposition
2.1). Definition 2.2 collects these quantities in a key with four components:

* ``sigma``    the signature of the inputs: for a tensor its type, shape, dtype, device, ``requires_grad`` and strides;
  for a
               number or a string the value itself; containers recursively; any other object by identity. Free variables
               are inputs too, and so is the way tensors overlap in memory;
* ``gamma_s``  exact shapes that Python code has read, where ``sigma`` does not already hold them (dynamic mode);
* ``gamma_g``  the answers of the data gates (Section 3.4);
* ``rho``      the ambient state: gradient mode, autocast, default dtype...

A finer key means more constants to exploit and more versions to compile; this one is meant to be the coarsest that
keeps specialization sound. Signatures are nested tuples, so that comparing and hashing them is one C-level operation.

In dynamic mode a tensor argument is described by its rank and by how its strides follow from its sizes, so that one
version serves many shapes. Sizes 0 and 1 stay exact (Section 10.4): they decide what is broadcast, what ``squeeze``
removes and whether there is any element at all. Free tensors, such as weights, stay exact as a whole.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import torch

from ..errors import GuardError
from .ambient import Ambient, read_ambient
from .free_variables import Environment
from .library import is_library_type
from .structure import children, is_dataclass_instance

Signature = tuple[Any, ...]

# The first entry of a signature says what it describes.
TENSOR, VALUE, SEQUENCE, MAPPING, RECORD, OBJECT = "tensor", "value", "sequence", "mapping", "record", "object"
DERIVED = "derived"  # a plain value of a class of its own, which may have methods and attributes


class Identity:
    """The identity of an object as a comparable value. Serial numbers, unlike ids, are never used twice; the object
    itself is held weakly where Python allows it."""

    __slots__ = ("serial", "name", "_reference", "__weakref__")

    def __init__(self, serial: int, value: Any):
        self.serial = serial
        named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType))
        self.name = value.__qualname__ if named else type(value).__qualname__  # others may answer any attribute
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def get(self) -> Any:
        """The object, or None if it no longer exists."""
        return self._reference()

    def __repr__(self) -> str:
        return f"<{self.name} #{self.serial}>"


_identities: dict[int, Identity] = {}
_serials = itertools.count(1)
_identity_lock = threading.Lock()


def identity(value: Any) -> Identity:
    """The :class:`Identity` of an object; the same one for the same object as long as it lives."""
    token = _identities.get(id(value))
    if token is not None and token.get() is value:
        return token
    with _identity_lock:
        token = _identities.get(id(value))
        if token is None or token.get() is not value:
            token = _identities[id(value)] = Identity(next(_serials), value)
            if len(_identities) % 1024 == 0:
                clear_dead_identities()
    return token


def clear_dead_identities() -> None:
    """Forget the identities of objects that no longer exist."""
    for key in [key for key, token in list(_identities.items()) if token.get() is None]:
        _identities.pop(key, None)


class PendingStrides(NamedTuple):
    """The strides of a tensor whose memory does not hold its values: PyTorch has noted a change of sign or a complex
    conjugation (``z.conj()``, ``z.conj().imag``) and carries it out when the values are read, or there is no memory,
    since all values are zero."""

    stride: tuple[int, ...]
    negated: bool
    conjugated: bool
    zero: bool = False

    def __repr__(self) -> str:
        marks = zip(("negated", "conjugated", "zero"), self[1:], strict=True)
        return " ".join([str(self.stride), *(mark for mark, holds in marks if holds)])


def tensor_signature(tensor: torch.Tensor) -> Signature:
    """(type, shape, dtype, device, requires_grad, strides) of a tensor. The storage offset is left out on purpose: a
    kernel receives a data pointer, which already contains it."""
    if tensor.layout is not torch.strided:
        layout: Any = tensor.layout
    elif is_pending(tensor):
        layout = PendingStrides(tensor.stride(), tensor.is_neg(), tensor.is_conj(), tensor._is_zerotensor())
    else:
        layout = _stride(tensor)
    return (TENSOR, type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad, layout)


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tensor.stride()
    except RuntimeError:
        what = "a nested tensor, whose parts have shapes of their own, has neither a shape nor strides"
        raise GuardError(what, remedy="pass its parts as a list, or one padded tensor") from None


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether memory does not hold the values: a change of sign or a conjugation is noted only, or zeros have none."""
    return tensor.is_neg() or tensor._is_zerotensor() or (tensor.dtype.is_complex and tensor.is_conj())


def value_signature(value: Any) -> Signature:
    """(type, value), so that 1, 1.0 and True differ; NaN equals NaN and 0.0 differs from -0.0, which ``==`` has the
    other way round."""
    if type(value) is float:
        return (VALUE, float, _float_key(value))
    if type(value) is complex:
        return (VALUE, complex, (_float_key(value.real), _float_key(value.imag)))
    if type(value) is slice:
        return (VALUE, slice, tuple(signature(part) for part in (value.start, value.stop, value.step)))
    return (VALUE, type(value), value)


class Bits(NamedTuple):
    """A NumPy scalar as a comparable value: as immutable as a number, and its bytes tell -0.0 and NaN apart."""

    text: str
    data: bytes

    def __repr__(self) -> str:
        return self.text


def _float_key(value: float) -> Any:
    if value != value:
        return "nan"
    return "-0.0" if value == 0.0 and math.copysign(1.0, value) < 0.0 else value


_BY_VALUE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout,
             torch.memory_format, range, slice, type(Ellipsis))  # fmt: skip
_FAST: dict[type, Callable[[Any], Signature]] = {
    torch.Tensor: tensor_signature,
    torch.nn.Parameter: tensor_signature,
    **dict.fromkeys(_BY_VALUE, value_signature),
}


def signature(value: Any) -> Signature:
    """The signature of one argument. GuardError for sets and for iterators (a look at one uses it up)."""
    fast = _FAST.get(type(value))
    if fast is not None:
        return fast(value)
    if isinstance(value, torch.Tensor):
        return tensor_signature(value)
    if isinstance(value, numpy.generic) and value.dtype.kind in "biufcSU":
        return (VALUE, type(value), Bits(repr(value), value.tobytes()))
    if isinstance(value, enum.Enum):
        return (VALUE if is_library_type(type(value)) else DERIVED, type(value), value)
    parts = children(value)
    if parts is None:
        if isinstance(value, (int, float, complex, str, bytes)):
            tag = VALUE if is_library_type(type(value)) else DERIVED
            return (tag, type(value), _float_key(float(value)) if isinstance(value, float) else value)
        if type(value).__module__ == "torch.fx.proxy":
            raise GuardError(
                "torch.fx traces through a compiled function, whose versions are made for values and not for proxies",
                remedy="trace the function it was made from (compiled.fn), and compile the result",
            )
        if hasattr(value, "__next__"):
            raise GuardError(
                f"a {type(value).__name__} cannot be an argument: reading it while compiling would use it up",
                remedy="pass a list or a tuple",
            )
        return (OBJECT, type(value), identity(value))
    return _container_signature(value, parts, signature)


def dynamic_signature(value: Any) -> Signature:
    """The signature of one argument in dynamic mode: as :func:`signature`, but tensors, also those inside containers,
    as :func:`dynamic_tensor_signature` describes them."""
    if isinstance(value, torch.Tensor):
        return dynamic_tensor_signature(value)
    parts = None if type(value) in _FAST else children(value)
    return signature(value) if parts is None else _container_signature(value, parts, dynamic_signature)


def _container_signature(value: Any, parts: list, describe: Callable[[Any], Signature]) -> Signature:
    inner = tuple(describe(part) for _, _, part in parts)
    if isinstance(value, dict):
        return (MAPPING, type(value), tuple(value_or_identity(key) for key in value), inner)
    if is_dataclass_instance(value):
        return (RECORD, type(value), tuple(key for _, key, _ in parts), inner)
    return (SEQUENCE, type(value), inner)


def value_or_identity(key: Any) -> Any:
    """A dict key as part of a signature: plain values with their type, everything else by identity."""
    return value_signature(key) if isinstance(key, _BY_VALUE) else signature(key)


class _Symbolic:
    """The size of a dimension that may be any number from 2 on."""

    def __repr__(self) -> str:
        return "2 or more"

    def __reduce__(self) -> str:
        return "SYMBOLIC"


SYMBOLIC = _Symbolic()


def stride_expression(shape: Sequence[int], stride: Sequence[int]) -> tuple[Any, ...]:
    """Strides relative to sizes (Section 2.2), as they enter the key in dynamic mode.

    Dimensions of size 2 or more are visited in order of increasing stride. Stride 1 stays 1; a stride equal to the
    stride of the previous (inner) dimension times its size becomes ("size", inner dimension, expression of inner
    stride); anything else (slices, expanded dimensions) stays a number. Row-major tensors of every size thus share one
    expression, and together with the sizes it determines the strides.

    A dimension of size 0 or 1 has no second element that a stride could lead to: its entry is None, and no other
    dimension refers to it. PyTorch lets such strides be any number, so that numbers there would tell equal layouts
    apart, and a chain through one could not be trusted at other sizes.

    >>> stride_expression((4, 6), (6, 1)) == stride_expression((8, 2), (2, 1))
    True
    >>> stride_expression((4, 4), (4, 1)) == stride_expression((4, 4), (1, 4))
    False
    >>> stride_expression((4, 1, 6), (6, 6, 1))
    (('size', 2, 1), None, 1)
    """
    result: list[Any] = [None] * len(shape)
    inner: int | None = None
    wide = [dimension for dimension, extent in enumerate(shape) if extent > 1]
    for dimension in sorted(wide, key=lambda d: (stride[d], -d)):
        if inner is not None and stride[dimension] == stride[inner] * shape[inner] and stride[inner] != 0:
            result[dimension] = ("size", inner, result[inner])
        else:
            result[dimension] = stride[dimension]
        inner = dimension
    return tuple(result)


@functools.lru_cache(maxsize=4096)
def _dynamic_layout(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple, tuple]:
    sizes = shape if 0 in shape else (extent if extent < 2 else SYMBOLIC for extent in shape)
    return tuple(sizes), stride_expression(shape, stride)


def dynamic_tensor_signature(tensor: torch.Tensor) -> Signature:
    """The signature of a tensor in dynamic mode. Instead of the shape it has one entry a dimension: 0 or 1 where that
    is the size, :data:`SYMBOLIC` elsewhere; instead of the strides, :func:`stride_expression`.

    A tensor without elements keeps its whole shape. It occupies no memory, so nothing tells whether two arguments are
    one such tensor, and a graph may use one input for both.
    """
    if tensor.layout is not torch.strided or is_pending(tensor):
        return tensor_signature(tensor)
    sizes, strides = _dynamic_layout(tensor.shape, tensor.stride())
    return (TENSOR, type(tensor), sizes, tensor.dtype, tensor.device, tensor.requires_grad, strides)


def aliasing(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int, int], ...]:
    """How tensors overlap in memory: (i, j, distance in bytes) for each j that starts inside the extent of an earlier
    i.

    Empty for tensors that share nothing, which is nearly always. O(n log n).
    """
    if len(tensors) < 2:
        return ()
    spans = []
    for position, tensor in enumerate(tensors):
        span = _span(tensor)
        if span is not None:
            spans.append((*span, position))
    spans.sort()
    found = []
    owner = None  # the span that reaches farthest so far
    for span in spans:
        if owner is not None and span[0] < owner[1]:
            found.append((owner[2], span[2], span[0] - owner[0]))
        if owner is None or span[1] > owner[1]:
            owner = span
    return tuple(sorted(found))


#: Marks two parts of a call that are not only in one place in memory, but one Python object.
ONE_OBJECT = "one object"


def one_object(objects: Iterable[Any], start: int = 0, known: dict[int, int] | None = None) -> tuple[tuple, ...]:
    """(i, j, :data:`ONE_OBJECT`) for each object j that is the earlier object i: what ``is`` can tell, and addresses
    cannot. Objects are numbered from ``start``; ``known`` has the numbers of those before, by id. Linear."""
    known, first, found = known or {}, {}, []
    for j, value in enumerate(objects, start):
        i = known.get(id(value))
        if i is None:
            i = first.setdefault(id(value), j)
        if i != j:
            found.append((i, j, ONE_OBJECT))
    return tuple(found)


def dynamic_aliasing(
    overlap: tuple[tuple[int, int, int], ...], tensors: Sequence[torch.Tensor], lifted: int = 0
) -> tuple[tuple, ...]:
    """The aliasing component in dynamic mode, from that of :func:`aliasing`, which numbers ``lifted`` free tensors
    before ``tensors``.

    A distance alone does not say how tensors overlap once their sizes are free: ``(x, x)`` and ``(x, x[:2])`` both
    start at distance 0, yet only in the first may the graph use one input for both. So overlapping tensors are either
    the same view, whatever its size, or enter with their exact layouts as (position, shape, strides).
    """
    if not overlap:
        return overlap

    def layout(position: int) -> tuple:
        tensor = tensors[position - lifted]
        return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()

    exact: set[int] = set()
    for i, j, _ in overlap:
        if min(i, j) < lifted or layout(i) != layout(j):
            exact.update((i, j))
    pending = bool(exact)
    while pending:  # whoever overlaps with a tensor that is exact is exact too
        pending = False
        for i, j, _ in overlap:
            if (i in exact) != (j in exact):
                exact.update((i, j))
                pending = True
    return (*overlap, *((i, *exact_layout(tensors[i - lifted])) for i in sorted(exact) if i >= lifted))


def exact_layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, strides) as an entry of gamma_s."""
    return tuple(tensor.shape), tensor.stride()


def _span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The addresses from the first element of a tensor to past its last; None if it has none."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    start = tensor.data_ptr()
    if start == 0:
        return None
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + extent * tensor.element_size()


def memory_spans(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """The memory the tensors occupy, as disjoint intervals in ascending order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(span for span in map(_span, tensors) if span is not None):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def object_signatures(environment: Environment) -> tuple[Signature, ...]:
    """The objects an environment reaches by identity, then the extents of its containers by value."""
    objects = tuple((OBJECT, type(value), identity(value)) for value in environment.expected)
    extents = tuple(
        value_signature(value) if isinstance(value, int) else (SEQUENCE, tuple, tuple(map(value_or_identity, value)))
        for value in environment.expected_extents
    )
    return objects + extents


@dataclass(frozen=True)
class InputSignature:
    """sigma: signatures of arguments and free variables, and how the tensors among them overlap.

    ``free`` are lifted tensors, ``values`` free scalars (training flags among them), ``objects`` the identities of the
    functions, modules and other objects the function reaches. ``aliasing`` numbers lifted tensors first, then those of
    the arguments, then the arguments' mutable containers.
    """

    args: tuple[Signature, ...]
    kwargs: tuple[tuple[str, Signature], ...] = ()
    free: tuple[Signature, ...] = ()
    values: tuple[Signature, ...] = ()
    objects: tuple[Signature, ...] = ()
    aliasing: tuple[tuple, ...] = ()


@dataclass(frozen=True)
class KeyNames:
    """What the parts of a key are called when a guard is printed."""

    args: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """The specialization key (sigma, gamma_s, gamma_g, rho) of Definition 2.2. Equal keys may share a program."""

    sigma: InputSignature
    gamma_s: tuple[Any, ...] = ()
    gamma_g: tuple[Any, ...] = ()
    rho: Ambient = field(default_factory=read_ambient)
    names: KeyNames = field(default=KeyNames(), compare=False, repr=False)

    def components(self) -> dict[str, Any]:
        """The key as a flat mapping from path to value (see :func:`staxlab.specialize.guards.components`)."""
        from .guards import components

        return components(self)

    def __str__(self) -> str:
        return "\n".join(f"{path} == {value!r}" for path, value in self.components().items())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def gate_signature(values: Iterable[Any]) -> tuple[Any, ...]:
    """gamma_g: gate answers in comparable form (types count, NaN equals NaN)."""
    return tuple(_gate_value(value) for value in values)


def _gate_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return (SEQUENCE, type(value), tuple(_gate_value(part) for part in value))
    return value_signature(value)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call, in the order of its leaves."""
    found: list[torch.Tensor] = []
    for value in args:
        _gather_tensors(value, found)
    for value in kwargs.values():
        _gather_tensors(value, found)
    return found


def attributes_of(tensors: Sequence[torch.Tensor], names: Iterable[str]) -> tuple[tuple, ...]:
    """(position, name, "attribute") for each of these attributes that an argument tensor has been given."""
    return tuple((j, name, "attribute") for j, t in enumerate(tensors) for name in names if name in t.__dict__)


def containers_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The lists, dicts and dataclass instances of a call, in order: of two equal ones it may matter whether they are
    one."""
    found: list[Any] = []
    for value in (*args, *kwargs.values()):
        if type(value) not in _FAST:
            _gather_containers(value, found)
    return found


def _gather_containers(value: Any, found: list[Any]) -> None:
    parts = None if type(value) in _FAST or isinstance(value, torch.Tensor) else children(value)
    if parts is None:
        return
    if not isinstance(value, tuple):
        found.append(value)
    for _, _, part in parts:
        _gather_containers(part, found)


def _gather_tensors(value: Any, found: list[torch.Tensor]) -> None:
    # Not a closure: one that calls itself is a reference cycle and would keep the tensors until a garbage collection.
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif type(value) not in _FAST:
        for _, _, part in children(value) or ():
            _gather_tensors(part, found)


def compute_key(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    free: Environment | None = None,
    gates: Iterable[Any] = (),
    *,
    gate_names: Iterable[str] = (),
    parameter_name: Callable[[int], str] = lambda index: f"args[{index}]",
    rho: Ambient | None = None,
    dynamic: bool = False,
    pinned: Iterable[torch.Tensor] = (),
    pinned_names: Iterable[str] = (),
) -> Key:
    """The key of a call (Definition 2.2).

    ``free`` is the function's environment of free variables, ``gates`` the answers of its data gates on these inputs.
    In dynamic mode ``pinned`` are the inputs whose exact shapes the program depends on. GuardError if an argument
    cannot be described. Linear in the number of argument leaves and free variables.
    """
    free = free or Environment()
    lifted = free.read_tensors()
    describe = dynamic_signature if dynamic else signature
    plain, own = [t for t in lifted if isinstance(t, torch.Tensor)], tensors_of(args, kwargs)
    overlap: tuple[tuple, ...] = aliasing([*plain, *own])
    if dynamic:
        overlap = dynamic_aliasing(overlap, own, len(plain))
    overlap += one_object([*plain, *own, *containers_of(args, kwargs)])
    sigma = InputSignature(
        tuple(describe(value) for value in args),
        tuple((name, describe(value)) for name, value in kwargs.items()),
        tuple(signature(value) for value in lifted),
        tuple(signature(value) for value in free.read_scalars()),
        object_signatures(free),
        overlap,
    )
    names = KeyNames(
        tuple(parameter_name(index) for index in range(len(args))),
        tuple(place.path for place in free.tensors),
        tuple(place.path for place in free.scalars),
        tuple(place.path for place in (*free.structure, *free.extents)),
        tuple(gate_names),
        tuple(pinned_names),
    )
    rho = read_ambient() if rho is None else rho
    return Key(sigma, tuple(map(exact_layout, pinned)), gate_signature(gates), rho, names)
