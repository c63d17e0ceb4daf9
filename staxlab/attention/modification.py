"""A modification of attention: ``score_mod`` or ``mask_mod`` as the loop body of one score (Section 9.10).

:func:`modification` traces a function (:mod:`.tracing`) and yields a :class:`Modification`: a straight-line program
over four subscripts ``b, h, q, kv`` that kernels embed between the product of queries and keys and the online softmax.
The mechanism is that of an epilogue (Section 9.8); only the place is another, in the middle of a template. The program
is replayed under the handler of whoever writes the kernel, so it becomes Triton, C++, tensors or text without being
written twice.

Two modifications compose as Python functions do: ``lambda s, b, h, q, kv: outer(inner(s, b, h, q, kv), b, h, q, kv)``.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.graph import Graph
from ..errors import CaptureError, OptionError
from ..loops.body import LoopBody
from ..loops.expressions import Expr, Symbol
from ..loops.formatting import body_lines
from ..loops.ops import Ops
from ..loops.semantics import Evaluator, flat_storage
from ..provenance import Origins, SourceLocation
from ..specialize.signature import compute_key
from . import reads
from .tracing import SCORE, SUBSCRIPTS, CapturedBuffer, Traced, captured_name, trace_modification

KINDS = ("score", "mask")


@dataclass(frozen=True, eq=False)
class Captured:
    """A tensor that a modification reads: kernels get it as an argument, never its values as constants.

    ``name`` is what the body calls it (``captured0``...), ``path`` what the user does. A kernel loads the element at a
    flat subscript, counted from the tensor's first element. The tensor is held weakly, since the function holds it.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool
    _reference: Callable[[], torch.Tensor | None] = field(repr=False)
    _detached: bool = field(default=False, repr=False)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor, detached where the function detaches it, and contiguous where the body reads it as such and it is
        not. CaptureError if it no longer exists."""
        found = self._reference()
        if found is None:
            raise CaptureError(
                f"the tensor {self.path!r} that a modification reads no longer exists",
                remedy="keep the function (and so what it captured) alive for as long as its modification is used",
            )
        found = found.detach() if self._detached else found
        return found if found.stride() == self.strides else found.contiguous()

    @property
    def key(self) -> tuple:
        """Hashable: what a kernel's text depends on."""
        return (self.shape, self.strides, self.dtype, self.device, self.requires_grad)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        learns = ", requires grad" if self.requires_grad else ""
        return f"{self.name}: {self.path}, {kind}{list(self.shape)}, stride {list(self.strides)}{learns}"


@dataclass(frozen=True, eq=False)
class Modification:
    """A traced ``score_mod`` (``kind`` "score") or ``mask_mod`` ("mask").

    ``name`` and ``source`` say which function of the user's it is, ``graph`` is the captured graph, ``body`` the loop
    body over the ``symbols`` b, h, q, kv, whose loads are of ``"score"`` (the score at hand, no memory) and of the
    ``captured`` tensors. ``dtype`` is that of the score: float32, or float64 for float64 inputs. ``undifferentiable``
    names operators, with the user's lines, for whose sake there is no :attr:`adjoint`; ``beyond`` reads of captured
    tensors that leave them for some score, whatever the data are.

    No statement of the body fails, whatever is in memory: see :class:`.clamping.ClampingRecorder`. Subscripts that were
    *proved* to be in range rely on the symbols' ranges: ``b``, ``h``, ``q`` and ``kv`` have to be inside the sizes in
    every lane that loads, so a kernel clamps the last two (``q = minimum(q, queries - 1)``) or masks its loads.
    """

    kind: str
    name: str
    source: SourceLocation | None
    graph: Graph = field(repr=False)
    body: LoopBody = field(repr=False)
    captured: tuple[Captured, ...]
    dtype: torch.dtype
    undifferentiable: tuple[tuple[str, SourceLocation | None], ...] = ()
    beyond: tuple[tuple[str, SourceLocation | None], ...] = ()

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The four subscripts, outermost first; ``upper`` of each is the largest value it has."""
        return self.body.indices

    @property
    def key(self) -> tuple:
        """Hashable: equal keys make equal kernels. It holds what the function computes, constants included, and the
        metadata of the captured tensors, never their values; and where it stands, since kernels name it."""
        found = self.__dict__.get("_key")
        if found is None:
            statements = _text(self.body)
            ranges = tuple(symbol.upper for symbol in self.symbols)
            tensors = tuple(c.key for c in self.captured)
            where = self.source and (self.source.file, self.source.line)
            found = (self.kind, self.name, where, self.dtype, statements, self.body.result, ranges, tensors)
            self.__dict__["_key"] = found
        return found

    @property
    def dims(self) -> tuple[str, ...]:
        """The subscripts that the result varies with, of b, h, q, kv (the score itself varies with all)."""
        return _varies(self.body)

    def replay(self, ops: Ops, score: Any = None, first: int = 0) -> Any:
        """The handler's value of the modified score (dtype :attr:`dtype`), or of the mask (bool).

        ``ops`` is any handler of :mod:`staxlab.loops.ops`; it sees loads of ``captured{first}``, ``captured{first +
        1}``, ... only, and symbols called b, h, q and kv. ``score`` is its value of the score (masks: None). ``first``
        is the number of captured tensors that stand before these among a kernel's arguments.
        """
        return self.body.replay(Given(ops, {SCORE: score}, first))

    @property
    def adjoint(self) -> Any:
        """The derivative (:class:`.adjoint.AdjointBody`), made when it is first asked for. CaptureError for a mask, and
        for what PyTorch cannot differentiate either."""
        found = self.__dict__.get("_adjoint")
        if found is None:
            from .adjoint import adjoint_of

            found = self.__dict__["_adjoint"] = adjoint_of(self)
        return found

    def evaluate(self, score: torch.Tensor | None, *subscripts: torch.Tensor | int) -> torch.Tensor:
        """The modification of tensors: ``score`` and the four ``subscripts`` broadcast. What the body means, by the
        reference semantics of loops (Section 6.9)."""
        storages = {c.name: flat_storage_of(c.tensor) for c in self.captured}
        places = dict(zip(SUBSCRIPTS, map(torch.as_tensor, subscripts), strict=True))
        return self.replay(Evaluator(storages, places), score)

    def format(self) -> str:
        """Where the function stands, what it reads, and its body."""
        head = f"{self.kind}_mod {self.name}" + (f"  ({self.source})" if self.source else "")
        lines = [head, *(f"    {c}" for c in self.captured)]
        lines += [f"  for one score at {', '.join(SUBSCRIPTS)}:"]
        lines += [f"    {line.text}" for line in body_lines(self.body)]
        return "\n".join([*lines, f"    yield tmp{self.body.result}"])

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)

    def __repr__(self) -> str:
        reads = f", reads {len(self.captured)} captured" if self.captured else ""
        return f"<{self.kind}_mod {self.name}: {len(self.body.all_statements())} statements{reads}>"


def _text(body: LoopBody) -> tuple[str, ...]:
    """The lines of a body, made once: every call of an attention asks for a key."""
    found = body.__dict__.get("_text")
    if found is None:
        found = body.__dict__["_text"] = tuple(line.text for line in body_lines(body))
    return found


def flat_storage_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements from a tensor's first on, as far as its strides reach: what a kernel sees of it."""
    from ..loops.ir import Layout

    detached = tensor.detach()
    return flat_storage(detached, Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)))


def _varies(body: LoopBody) -> tuple[str, ...]:
    found: set[str] = set()
    for statement in body.all_statements():
        if statement.operation == "load" and statement.args[0] == SCORE:
            return SUBSCRIPTS
        for argument in statement.args:
            if isinstance(argument, Expr):
                found |= {symbol.name for symbol in argument.symbols}
    return tuple(name for name in SUBSCRIPTS if name in found)


class Given(Ops):
    """A handler that is given values for some pseudo buffers, as the score in registers; everything else goes to the
    handler it wraps, captured tensors under their numbers among a kernel's arguments."""

    def __init__(self, ops: Ops, values: dict[str, Any], first: int = 0):
        self.wrapped, self.values, self.first = ops, values, first

    def load(self, buffer: str, index: Expr) -> Any:
        if buffer in self.values:
            return self.values[buffer]
        number = int(buffer.removeprefix("captured"))
        return self.wrapped.load(captured_name(self.first + number), index)

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        return self.wrapped.constant(value, dtype)

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        return self.wrapped.index_value(expression, dtype)

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        return self.wrapped.to_dtype(value, dtype)

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: Any) -> Any:
        return self.wrapped.masked(condition, lambda inner: body(Given(inner, self.values, self.first)), other)

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        return self.wrapped.indirect(value, size, check=check)

    def apply(self, operation: str, *operands: Any) -> Any:
        return self.wrapped.apply(operation, *operands)

    def dtype_of(self, value: Any) -> torch.dtype:
        return self.wrapped.dtype_of(value)

    def tagged(self, origins: Origins) -> Given:
        return Given(self.wrapped.tagged(origins), self.values, self.first)


# -- making one ------------------------------------------------------------------------------------------------------

#: What was traced, by everything that it was specialized on. Bounded: the oldest goes first.
_TRACED: dict[tuple, Traced] = {}
_LARGEST = 512
_LOCK = threading.Lock()


def clear() -> None:
    """Forget everything traced."""
    _TRACED.clear()
    reads.clear()


def modification(
    function: Any,
    kind: str = "score",
    sizes: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    spread_out: bool = False,
) -> Modification:
    """The :class:`Modification` of a ``score_mod(score, b, h, q_idx, kv_idx)`` or ``mask_mod(b, h, q_idx, kv_idx)``.

    ``sizes`` are (batch, query heads, queries, keys): the ranges of the subscripts, with which reads of captured
    tensors are proved to be in range; None: unknown, and nothing is proved but by the function's own clamps. ``dtype``
    is the score's (float32 or float64), ``device`` that of the captured tensors. A function is traced once for each
    specialization key (Section 2): its code, what it and what it calls captures and reads, the metadata of tensors
    among that, and the arguments here. ``spread_out``: tensors whose elements share memory are read as if they were
    contiguous, as those that require grad are anyway (:func:`.tracing.trace_modification`).

    Raises CaptureError for what is no function of one score (see :func:`.tracing.trace_modification`), OptionError for
    an unknown kind or dtype. 10 ms to trace, 0.3 ms afterwards.
    """
    if kind not in KINDS:
        raise OptionError(f"unknown kind of modification {kind!r}", remedy="choose 'score' or 'mask'")
    if dtype not in (torch.float32, torch.float64):
        raise OptionError(
            f"scores are float32 or float64, not {dtype}", remedy="half-precision inputs have float32 scores"
        )
    if isinstance(function, Modification):
        raise OptionError("this modification is traced already", remedy="pass the function it was made from")
    key = None
    place = torch.device(device)
    if callable(function):
        environment = reads.environment_of(function)
        of = (_code_of(function), kind, None if sizes is None else tuple(sizes), dtype, place, spread_out)
        key = (compute_key((), {}, environment), *of)
        traced = _TRACED.get(key)
    if key is None or traced is None:
        traced = trace_modification(function, kind, sizes, dtype, place, spread_out)
        with _LOCK:
            while len(_TRACED) >= _LARGEST:
                _TRACED.pop(next(iter(_TRACED)))
            _TRACED[key] = traced
    captured = tuple(_captured(number, buffer, environment) for number, buffer in enumerate(traced.captured))
    return Modification(
        kind, traced.name, traced.location, traced.graph, traced.body, captured, dtype, traced.undifferentiable,
        traced.beyond,
    )  # fmt: skip


def _code_of(function: Any) -> tuple:
    """Which function is traced. An environment says that of the user's code; installed software it takes as it is, so
    two functions of an installed package would pass for one another."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        function = inspect.getattr_static(type(function), "__call__", function)
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    return (type(function), repr(function)) if code is None else (code, id(function.__globals__))


def _captured(number: int, buffer: CapturedBuffer, environment: Any) -> Captured:
    layout = buffer.layout
    if buffer.constant is not None:
        constant = buffer.constant
        reference: Callable[[], torch.Tensor | None] = lambda: constant  # noqa: E731
    else:
        reference = weakref.ref(environment.tensors[buffer.place].read())
    return Captured(
        captured_name(number), buffer.path, layout.shape, layout.stride, layout.dtype, layout.device,
        buffer.requires_grad, reference, buffer.detached,
    )  # fmt: skip


__all__ = ["Captured", "Given", "Modification", "clear", "modification"]
