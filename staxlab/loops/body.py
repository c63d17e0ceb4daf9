"""Loop bodies: a compute function run once on symbolic subscripts and written down (Section 6.8).

A compute function is a closure: easy to compose, hard to analyse. :func:`record` runs it under a recording handler and
yields a :class:`LoopBody`, a short straight-line program of :class:`Statement`. A body can be replayed under any other
handler (:meth:`LoopBody.replay`), so code generation, counting and validation all start from the same record. Loads of
the same element and equal operations are recorded once, which is the common subexpression elimination inside kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..provenance import NO_ORIGINS, Origins
from .expressions import Expr, Symbol
from .ir import ComputedBuffer, Pointwise, Reduction, Scan, Scatter
from .ops import OPERATIONS, Ops, compute_dtype, result_dtype


@dataclass(frozen=True)
class Statement:
    """``%id = operation(args)``.

    ``operation`` is a name of ``OPERATIONS`` (args: statement ids), or one of

    * ``load``        args ``(buffer name, Expr)``
    * ``constant``    args ``(value,)``
    * ``index_value`` args ``(Expr,)``
    * ``to_dtype``    args ``(id, dtype converted to)``; ``dtype`` is the dtype of representation afterwards
    * ``masked``      args ``(condition id, Block, other constant)``: the block's statements take effect only where the
      condition holds; the block may refer to ids outside it
    * ``indirect``    args ``(id, Expr size, check, Symbol)``: defines the symbol used by later subscripts; ``check`` as
      :meth:`staxlab.loops.ops.Ops.indirect` has it
    * ``merged``      args ``()``: what the loops around an epilogue have summed (only in epilogues)
    """

    id: int
    operation: str
    args: tuple[Any, ...]
    dtype: torch.dtype
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class Block:
    """The statements of a masked region and the id of its result."""

    statements: tuple[Statement, ...]
    result: int


@dataclass(frozen=True)
class MemoryAccess:
    """A read or write: ``buffer`` at storage subscript ``index`` for all values of ``symbols`` (loop indices).

    ``conditional`` marks reads inside a masked block, which may touch fewer elements.
    """

    buffer: str
    index: Expr
    symbols: tuple[Symbol, ...]
    conditional: bool = False

    @property
    def unique_elements(self) -> int:
        """How many distinct elements are touched (exact when subscripts are affine and do not collide, as the
        layouts of eager tensors never do; loops that do not occur in the subscript do not count).

        A subscript read at run time may be another one in every iteration, so then all loops count: an upper bound.
        """
        gathers = any(symbol.name.startswith("indirect") for symbol in self.index.symbols)
        count = 1
        for symbol in self.symbols:
            if gathers or symbol in self.index.symbols:
                count *= int(symbol.upper) + 1
        return count


@dataclass(frozen=True)
class LoopBody:
    """A recorded compute function over ``indices`` (and ``reduction_indices``), outermost first.

    ``result`` is the id of the value stored, or merged into the accumulator of a reduction. ``empty`` loops (an extent
    of 0) are for the schedule to handle: symbols always have at least one value here.

    A scan's axis is its one reduction index. A scatter's body says where its result goes: ``target``, a storage
    subscript that may hold symbols defined by ``indirect`` statements. A template's result is the product of its two
    operands, and its ``epilogue`` (over ``indices`` alone) makes what is stored from the sum of the products.
    """

    indices: tuple[Symbol, ...]
    reduction_indices: tuple[Symbol, ...]
    statements: tuple[Statement, ...]
    result: int
    target: Expr | None = None
    epilogue: LoopBody | None = None

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return self.indices + self.reduction_indices

    @property
    def origins(self) -> Origins:
        own = frozenset().union(*(s.origins for s in self.all_statements()))
        return own | self.epilogue.origins if self.epilogue is not None else own

    @property
    def may_fail(self) -> bool:
        """Whether a subscript read at run time is checked, and one out of range raises."""
        if self.epilogue is not None and self.epilogue.may_fail:
            return True
        return any(s.operation == "indirect" and s.args[2] for s in self.all_statements())

    def all_statements(self) -> list[Statement]:
        """Every statement, including those inside masked blocks."""
        found: list[Statement] = []

        def visit(statements: tuple[Statement, ...]) -> None:
            for statement in statements:
                if statement.operation == "masked":
                    visit(statement.args[1].statements)
                found.append(statement)

        visit(self.statements)
        return found

    def reads(self) -> tuple[MemoryAccess, ...]:
        """Every distinct read."""
        inside = {
            nested.id
            for statement in self.statements
            if statement.operation == "masked"
            for nested in replace(self, statements=statement.args[1].statements).all_statements()
        }
        accesses = [
            MemoryAccess(s.args[0], s.args[1], self.symbols, s.id in inside)
            for s in self.all_statements()
            if s.operation == "load"
        ]
        return tuple(dict.fromkeys((*accesses, *(self.epilogue.reads() if self.epilogue is not None else ()))))

    def operation_count(self) -> int:
        """Arithmetic cost of one iteration in floating-point operations (the counting interpretation)."""
        return sum(OPERATIONS[s.operation].cost for s in self.all_statements() if s.operation in OPERATIONS)

    def substitute(
        self, values: Mapping[Symbol, Expr], indices: tuple[Symbol, ...], reduction_indices: tuple[Symbol, ...]
    ) -> LoopBody:
        """The body over other loop indices: a change of variables, as loop merging and reordering need."""

        def change(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
            changed = []
            for s in statements:
                args = tuple(
                    a.substitute(values) if isinstance(a, Expr)
                    else Block(change(a.statements), a.result) if isinstance(a, Block)
                    else a
                    for a in s.args
                )  # fmt: skip
                changed.append(replace(s, args=args))
            return tuple(changed)

        target = None if self.target is None else self.target.substitute(values)
        epilogue = None if self.epilogue is None else self.epilogue.substitute(values, indices, ())
        return LoopBody(indices, reduction_indices, change(self.statements), self.result, target, epilogue)

    def replay(self, ops: Ops, merged: Any = None) -> Any:
        """Run the body under another handler; returns the handler's value of the result. An epilogue is given the
        handler's value of what was ``merged``."""
        return self.replay_statements(ops, merged)[0][self.result]

    def replay_target(self, ops: Ops) -> tuple[Expr, Any]:
        """As :meth:`replay` for a scatter: where the result goes, in the handler's own symbols, and the result."""
        env, symbols = self.replay_statements(ops)
        assert self.target is not None
        return self.target.substitute(symbols), env[self.result]

    def replay_statements(self, ops: Ops, merged: Any = None) -> tuple[dict[int, Any], dict[Symbol, Expr]]:
        """As :meth:`replay`, returning the handler's value of every statement by id, and the subscripts it made of
        those read at run time."""
        env: dict[int, Any] = {}
        symbols: dict[Symbol, Expr] = {}

        def run(statements: tuple[Statement, ...], interpreter: Ops) -> None:
            for s in statements:
                handler = interpreter.tagged(s.origins)
                if s.operation == "load":
                    env[s.id] = handler.load(s.args[0], s.args[1].substitute(symbols))
                elif s.operation == "constant":
                    env[s.id] = handler.constant(s.args[0], s.dtype)
                elif s.operation == "index_value":
                    env[s.id] = handler.index_value(s.args[0].substitute(symbols), s.dtype)
                elif s.operation == "to_dtype":
                    env[s.id] = handler.to_dtype(env[s.args[0]], s.args[1])
                elif s.operation == "masked":
                    condition, block, other = s.args

                    def inner(inner_ops: Ops, block: Block = block) -> Any:
                        run(block.statements, inner_ops)
                        return env[block.result]

                    env[s.id] = handler.masked(env[condition], inner, other)
                elif s.operation == "indirect":
                    value, size, check, symbol = s.args
                    symbols[symbol] = handler.indirect(env[value], size.substitute(symbols), check=check)
                elif s.operation == "merged":
                    env[s.id] = merged
                else:
                    env[s.id] = handler.apply(s.operation, *(env[a] for a in s.args))

        run(self.statements, ops)
        return env, symbols


@dataclass(frozen=True)
class _Value:
    """What the recording handler's values are: a statement id and a dtype."""

    id: int
    dtype: torch.dtype


def _number(value: Any, dtype: torch.dtype) -> bool | int | float:
    """A number as a constant of ``dtype``; an integer that does not fit wraps around, as eager execution has it."""
    if dtype == torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(value)
    limits = torch.iinfo(dtype)
    return (int(value) - limits.min) % (1 << limits.bits) + limits.min


class _Recorder(Ops):
    """The recording interpretation. Equal statements are merged unless a masked block separates them."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]):
        self.dtypes = dtypes
        self.scopes: list[list[Statement]] = [[]]
        self.known: list[dict[tuple, _Value]] = [{}]
        self.shared: dict[str, int] = {"next": 0, "symbols": 0}
        self.origins = NO_ORIGINS

    def tagged(self, origins: Origins) -> _Recorder:
        twin = object.__new__(_Recorder)
        twin.__dict__ = dict(self.__dict__)
        twin.origins = origins
        return twin

    def _emit(self, operation: str, args: tuple[Any, ...], dtype: torch.dtype, *, key: Any = None) -> _Value:
        # Constants are told apart by type and sign: True, 1, 1.0, 0.0 and -0.0 must not merge; NaN must equal itself.
        identity = (operation, key if key is not None else args, dtype)
        for scope in reversed(self.known):
            if identity in scope:
                known = scope[identity]
                self._absorb(known.id)
                return known
        value = _Value(self.shared["next"], dtype)
        self.shared["next"] += 1
        self.scopes[-1].append(Statement(value.id, operation, args, dtype, self.origins))
        self.known[-1][identity] = value
        return value

    def once(self, key: Any, compute: Callable[[Ops], Any]) -> Any:
        for scope in reversed(self.known):
            if ("once", key) in scope:
                return scope["once", key]
        value = compute(self)
        self.known[-1]["once", key] = value
        return value

    def _absorb(self, statement_id: int) -> None:
        """A statement shared by two sources belongs to both."""
        for scope in self.scopes:
            for position, statement in enumerate(scope):
                if statement.id == statement_id:
                    scope[position] = replace(statement, origins=statement.origins | self.origins)

    def load(self, buffer: str, index: Expr) -> _Value:
        return self._emit("load", (buffer, Expr.of(index)), compute_dtype(self.dtypes[buffer]))

    def constant(self, value: Any, dtype: torch.dtype) -> _Value:
        dtype = compute_dtype(dtype)
        value = _number(value, dtype)
        return self._emit("constant", (value,), dtype, key=(type(value), repr(value)))

    def index_value(self, expression: Expr, dtype: torch.dtype) -> _Value:
        return self._emit("index_value", (Expr.of(expression),), compute_dtype(dtype))

    def to_dtype(self, value: _Value, dtype: torch.dtype) -> _Value:
        if value.dtype == dtype:
            return value
        return self._emit("to_dtype", (value.id, dtype), compute_dtype(dtype))

    def masked(self, condition: _Value, body: Callable[[Ops], Any], other: Any) -> _Value:
        self.scopes.append([])
        self.known.append({})
        result = body(self)
        statements = tuple(self.scopes.pop())
        self.known.pop()
        other = _number(other, result.dtype)
        return self._emit("masked", (condition.id, Block(statements, result.id), other), result.dtype, key=object())

    def indirect(self, value: _Value, size: Expr, *, check: bool | None = True) -> Expr:
        size = Expr.of(size)
        symbol = Symbol(f"indirect{self.shared['symbols']}", 0, size.bounds().upper - 1)
        self.shared["symbols"] += 1
        self._emit("indirect", (value.id, size, check, symbol), torch.int64, key=object())
        return Expr.of(symbol)

    def merged(self, dtype: torch.dtype) -> _Value:
        """What the loops around an epilogue have summed, a value of ``dtype``."""
        return self._emit("merged", (), dtype)

    def apply(self, operation: str, *operands: _Value) -> _Value:
        rule = OPERATIONS[operation]
        compared = operands[1:] if operation == "where" else operands
        if len(operands) != rule.arity or len({o.dtype for o in compared}) > 1:
            kinds = ", ".join(str(o.dtype) for o in operands)
            raise TypeError(f"ops.{operation} takes {rule.arity} operands of one dtype, got ({kinds})")
        dtype = result_dtype(operation, tuple(o.dtype for o in operands))
        return self._emit(operation, tuple(o.id for o in operands), dtype)


def record(buffer: ComputedBuffer, dtypes: Mapping[str, torch.dtype], recorder: _Recorder | None = None) -> LoopBody:
    """Write down a buffer's compute function. ``dtypes`` maps buffer names to stored dtypes; ``recorder`` is a handler
    that notes more than others do.

    Indices are called ``i0, i1, ...`` and reduction indices (a scan's axis, the summed one of a template)
    ``r0, r1, ...``, outermost first.
    """
    data = buffer.data
    recorder = recorder or _Recorder(dtypes)
    if isinstance(data, Scan):
        return _checked(buffer, _record_scan(data, recorder), recorder, data.accumulate_dtype)
    indices = tuple(Symbol(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(data.ranges))
    subscript = tuple(Expr.of(s) for s in indices)
    if isinstance(data, Pointwise):
        result = data.compute(recorder, subscript)
        return _checked(buffer, (indices, (), result), recorder, compute_dtype(data.dtype))
    if isinstance(data, Scatter):
        position, result = data.compute(recorder, subscript)
        body = _checked(buffer, (indices, (), result), recorder, compute_dtype(data.dtype))
        return replace(body, target=buffer.layout.address(position))
    extents = data.reduction_ranges if isinstance(data, Reduction) else (data.depth,)
    reduction_indices = tuple(Symbol(f"r{k}", 0, max(n - 1, 0)) for k, n in enumerate(extents))
    inner = tuple(Expr.of(s) for s in reduction_indices)
    if isinstance(data, Reduction):
        result = data.compute(recorder, subscript, inner)
        return _checked(buffer, (indices, reduction_indices, result), recorder, data.accumulate_dtype)
    left = data.left(recorder, (*subscript[:-1], *inner))
    right = data.right(recorder, (*subscript[:-2], *inner, subscript[-1]))
    result = recorder.tagged(data.own).apply("mul", left, right)
    body = _checked(buffer, (indices, reduction_indices, result), recorder, data.accumulate_dtype)
    after = _Recorder(dtypes)
    result = data.epilogue(after, subscript, after.merged(data.accumulate_dtype))
    return replace(body, epilogue=_checked(buffer, (indices, (), result), after, compute_dtype(data.dtype)))


def _record_scan(data: Scan, recorder: _Recorder) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...], _Value]:
    outer = [d for d in range(len(data.ranges)) if d != data.axis]
    symbols = {d: Symbol(f"i{k}", 0, max(data.ranges[d] - 1, 0)) for k, d in enumerate(outer)}
    axis = symbols[data.axis] = Symbol("r0", 0, max(data.ranges[data.axis] - 1, 0))
    result = data.compute(recorder, tuple(Expr.of(symbols[d]) for d in range(len(data.ranges))))
    return tuple(symbols[d] for d in outer), (axis,), result


def _checked(
    buffer: ComputedBuffer,
    recorded: tuple[tuple[Symbol, ...], tuple[Symbol, ...], _Value],
    recorder: _Recorder,
    declared: torch.dtype,
) -> LoopBody:
    indices, reduction_indices, result = recorded
    if result.dtype != declared:
        raise TypeError(f"{buffer.name}: the compute function yields {result.dtype}, the node declares {declared}")
    return LoopBody(indices, reduction_indices, tuple(recorder.scopes[0]), result.id)


def store_index(buffer: ComputedBuffer, body: LoopBody) -> Expr:
    """The storage subscript that a buffer's recorded body stores its result at."""
    if body.target is not None:
        return body.target
    subscript = [Expr.of(s) for s in body.indices]
    if isinstance(buffer.data, Scan):
        subscript.insert(buffer.data.axis, Expr.of(body.reduction_indices[0]))
    return buffer.layout.address(tuple(subscript))
