"""The C++ interpretation of a loop body (Section 8.1): every operation becomes one line of source.

:class:`CppOps` is a handler like any other (Section 6.7): a recorded body is replayed under it, and what comes back is
text. Two questions are answered per value:

* *vector or element?* A value that depends on the vectorised loop index is a vector of ``lanes`` elements; any other is
  one element, and is broadcast where it meets a vector.
* *in which loop?* A value is computed in the outermost loop where all its indices are known. That is loop-invariant
  code motion, done by construction: the row's maximum is read once per row, not once per element.

Reads fall into classes by the coefficient of the vectorised index in the subscript: 0 (one element), 1 (consecutive,
one load), -1 (reversed), anything else (lane by lane), which is the whole of Section 8.2's concern about cache lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...loops.expressions import Expr, Symbol
from ...loops.ops import Ops, compute_dtype, result_dtype
from ...provenance import NO_ORIGINS, CodeWriter, Origins
from . import operations
from .operations import COMPARISONS, Library
from .types import ELEMENT, INTEGERS, identifier, literal, stored_name, vector_name


@dataclass(frozen=True)
class CppValue:
    """Text that stands for a value; ``symbols`` are the loop indices (and run-time subscripts) it depends on."""

    text: str
    dtype: torch.dtype
    vector: bool
    symbols: frozenset[Symbol]
    is_literal: bool = False


@dataclass
class Scope:
    """What a kernel's body needs to know about its surroundings, and what it asks of the preamble.

    ``writers[k]`` collects the lines computed inside the k-th enclosing loop (0: before all loops), the last one those
    of the innermost body; ``level`` maps loop indices to positions in it (an index that is not listed: the last).
    ``streamed`` are the buffers whose stores may bypass the caches, ``streams`` those some store of which does.
    """

    vector: Symbol | None
    lanes: int
    writers: list[CodeWriter]
    level: dict[Symbol, int]
    neon: bool = False
    prefetch: int = 0
    prefetch_rows: tuple[Symbol, int] | None = None
    arguments: dict[str, tuple[str, torch.dtype]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    preloaded: dict[tuple[str, Expr], str] = field(default_factory=dict)
    vector_types: dict[str, tuple[str, int]] = field(default_factory=dict)
    imports: dict[str, tuple[str, int]] = field(default_factory=dict)
    checks: list[tuple[str, str]] = field(default_factory=list)
    streamed: frozenset[str] = frozenset()
    streams: list[str] = field(default_factory=list)
    counter: int = 0
    origins: Origins = NO_ORIGINS  # of lines that state none

    def vector_type(self, dtype: torch.dtype, lanes: int | None = None) -> str:
        """The name of a vector type, declared in the preamble."""
        lanes = lanes or self.lanes
        if dtype != torch.bool:
            self.vector_types[vector_name(dtype, lanes)] = (ELEMENT[dtype], lanes)
        return vector_name(dtype, lanes)


class CppOps(Ops):
    """Writes C++ into a :class:`Scope`."""

    operations = frozenset(operations.FLOAT) | frozenset(operations.INTEGER) | frozenset(operations.BOOL)

    def __init__(self, scope: Scope, lanes_text: str | None = None):
        self.scope = scope
        self.lanes_text = lanes_text  # the name of the lanes that take part; None: all of them
        self.origins: Origins = NO_ORIGINS
        self.masked_writer: CodeWriter | None = None
        self.indirects: dict[Symbol, tuple[CppValue, str | None]] = {}

    def tagged(self, origins: Origins) -> CppOps:
        return self._with(origins=origins or self.scope.origins)

    def _with(self, **changes: Any) -> CppOps:
        twin = object.__new__(CppOps)
        twin.__dict__ = {**self.__dict__, **changes}
        return twin

    # -- writing -----------------------------------------------------------------------------------------------------

    def type_of(self, dtype: torch.dtype, vector: bool) -> str:
        return self.scope.vector_type(dtype) if vector else ELEMENT[dtype]

    def _writer(self, vector: bool, symbols: Iterable[Symbol]) -> CodeWriter:
        if self.masked_writer is not None:
            return self.masked_writer
        last = len(self.scope.writers) - 1
        if vector:
            return self.scope.writers[last]
        return self.scope.writers[max((self.scope.level.get(s, last) for s in symbols), default=0)]

    def _define(
        self, text: str, dtype: torch.dtype, vector: bool, symbols: frozenset[Symbol], comment: str, name: str = ""
    ) -> CppValue:
        if not name:
            name = f"t{self.scope.counter}"
            self.scope.counter += 1
        line = f"const {self.type_of(dtype, vector)} {name} = {text};"
        self._writer(vector, symbols).emit(f"{line}  // {comment}" if comment else line, self.origins)
        return CppValue(name, dtype, vector, symbols)

    def as_vector(self, value: CppValue) -> str:
        """The text of a value as a vector, broadcast if it is one element."""
        if value.vector or self.scope.vector is None:
            return value.text
        if value.dtype == torch.bool:
            return f"as_mask<mask>({value.text})"
        return f"splat<{self.scope.vector_type(value.dtype)}>({value.text})"

    # -- the protocol ------------------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: torch.dtype) -> CppValue:
        dtype = compute_dtype(dtype)
        return CppValue(literal(value, dtype), dtype, False, frozenset(), is_literal=True)

    def apply(self, operation: str, *operands: CppValue) -> CppValue:
        compared = operands[1:] if operation == "where" else operands
        dtype = compared[0].dtype
        vector = any(operand.vector for operand in operands)
        symbols = frozenset().union(*(operand.symbols for operand in operands))
        row = operations.table_for(dtype)[operation]
        infix = isinstance(row, str) and "(" not in row and "select" not in row
        texts = [self._operand(o, vector, infix and not all(x.is_literal for x in operands)) for o in operands]
        one = literal(1, dtype) if dtype.is_floating_point else "1"
        if isinstance(row, Library):
            argument = row.argument.format(*texts)
            call = self._library_call(row, dtype, vector, [argument, *texts[1:]])
            if row.mend and vector:
                call = row.mend.format(*texts, call=call, other=self._other_call(row, dtype, texts))
            text = row.wrap.format(*texts, call=call, one=one)
        else:
            text = row.format(*texts, one=one)
        result = result_dtype(operation, tuple(o.dtype for o in operands))
        if vector and operation in COMPARISONS and dtype != torch.bool:
            text = f"as_mask<mask>({text})"
        return self._define(text, result, vector, symbols, operation)

    def _operand(self, operand: CppValue, vector: bool, infix: bool) -> str:
        if not vector or operand.vector:
            return operand.text
        # The compiler broadcasts one operand of an arithmetic operator by itself when the types agree exactly.
        if infix and operand.dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
            return operand.text
        return self.as_vector(operand)

    def _library_call(self, function: Library, dtype: torch.dtype, vector: bool, arguments: list[str]) -> str:
        lanes = self.scope.lanes
        if not vector:
            suffix = "f" if dtype == torch.float32 else ""
            return f"__builtin_{function.c_name}{suffix}({', '.join(arguments)})"
        if function.sleef in operations.INLINE and dtype == torch.float32 and lanes >= 8 and not self.scope.neon:
            return f"{operations.INLINE[function.sleef]}({', '.join(arguments)})"
        symbol, width = operations.sleef_symbol(function, dtype, lanes, self.scope.neon)
        arity = len(arguments)
        wide = self.scope.vector_type(dtype, width)
        self.scope.imports[symbol] = (wide, arity)
        pointer = symbol.replace("Sleef_", "sleef_")
        if width == lanes:
            return f"{pointer}({', '.join(arguments)})"
        return f"call_wider<{wide}>({', '.join([pointer, *arguments])})"

    def _other_call(self, function: Library, dtype: torch.dtype, texts: list[str]) -> str:
        """A function without parameters that computes what mends the results of another."""
        if function.other is None:
            return ""
        name, argument = function.other
        second = operations.Library(name, "u10", name)
        call = self._library_call(second, dtype, True, [argument.format(*texts, element=ELEMENT[dtype])])
        return f"[&] {{ return {call}; }}"

    def to_dtype(self, value: CppValue, dtype: torch.dtype) -> CppValue:
        target = compute_dtype(dtype)
        vector, text = value.vector, value.text
        kind = self.type_of(target, vector)
        if value.dtype == torch.bool:
            text = f"from_mask<{kind}>({text})" if target != torch.bool else text
        elif target == torch.bool:
            text = f"as_mask<mask>({text} != {self._zero(value)})" if vector else f"{text} != 0"
        elif value.dtype != target:
            text = f"convert<{kind}>({text})"
        if dtype in (torch.bfloat16, torch.float16) and value.dtype != torch.bool:
            text = f"round_{ELEMENT_STORED[dtype]}({text})"
        name = str(dtype).removeprefix("torch.")
        return self._define(text, target, vector, value.symbols, f"to {name}")

    def _zero(self, value: CppValue) -> str:
        return f"{self.type_of(value.dtype, value.vector)}{{}}"

    def index_value(self, expression: Expr, dtype: torch.dtype) -> CppValue:
        expression = Expr.of(expression)
        dtype = compute_dtype(dtype)
        vector = self._varies(expression)
        kind = self.type_of(dtype, vector)
        if not vector:
            text = f"({kind})({expression.c_style()})"
        else:
            text = self._affine_index(expression, dtype, kind)
            if text is None:
                text = f"per_lane<{kind}>([=](i64 lane) {{ return {self._lane_text(expression)}; }})"
        return self._define(text, dtype, vector, self._symbols(expression), "index")

    def _affine_index(self, expression: Expr, dtype: torch.dtype, kind: str) -> str | None:
        """``base + step*lane`` as vector arithmetic, exact for every dtype; None where that does not apply."""
        step = self._step(expression)
        if step is None or any(s in self.indirects for s in expression.symbols):
            return None
        base = expression.c_style()
        if dtype in INTEGERS:  # integers wrap, so the sum may be taken in the narrow type
            element = ELEMENT[dtype]
            return f"splat<{kind}>(({element})({base})) + iota<{kind}>() * splat<{kind}>(({element}){step})"
        integer = torch.int64 if dtype == torch.float64 else torch.int32
        limits = torch.iinfo(integer)
        if not expression.bounds().within(limits.min, limits.max):
            return None
        whole = self.scope.vector_type(integer)
        element = ELEMENT[integer]
        return f"convert<{kind}>(splat<{whole}>(({element})({base})) + iota<{whole}>() * splat<{whole}>({step}))"

    # -- subscripts --------------------------------------------------------------------------------------------------

    def _varies(self, expression: Expr) -> bool:
        """Whether lanes see different values of a subscript."""
        return any(
            s == self.scope.vector or (s in self.indirects and self.indirects[s][0].vector) for s in expression.symbols
        )

    def _symbols(self, expression: Expr) -> frozenset[Symbol]:
        found = frozenset(expression.symbols)
        for symbol in expression.symbols & self.indirects.keys():
            found = (found - {symbol}) | self.indirects[symbol][0].symbols
        return found

    def _step(self, expression: Expr) -> int | None:
        """The constant coefficient of the vectorised index, if the subscript is affine in it and in nothing else that
        differs between lanes."""
        if any(s in self.indirects and self.indirects[s][0].vector for s in expression.symbols):
            return None
        assert self.scope.vector is not None
        coefficient = expression.coefficient(self.scope.vector)
        return int(coefficient) if coefficient is not None and coefficient.is_constant else None

    def _lane_text(self, expression: Expr) -> str:
        """The subscript of one lane."""
        values: dict[Symbol, Expr] = {}
        for symbol in expression.symbols:
            if symbol == self.scope.vector:
                # The bounds of the sum are those of the index itself, so divisions keep their simple form.
                values[symbol] = Expr.of(Symbol(f"({symbol.name} + lane)", symbol.lower, symbol.upper))
            elif symbol in self.indirects and self.indirects[symbol][0].vector:
                values[symbol] = Expr.of(Symbol(f"{symbol.name}[lane]", symbol.lower, symbol.upper))
        return expression.substitute(values).c_style()

    def _lanes_of(self, expression: Expr) -> str:
        """The lanes a read may touch: those that take part, less those whose run-time subscript is out of range."""
        text = self.lanes_text or "all_lanes"
        for symbol in sorted(expression.symbols & self.indirects.keys(), key=lambda s: s.name):
            value, inside = self.indirects[symbol]
            if inside is not None:
                text = f"both({text}, {inside if value.vector else f'as_mask<mask>({inside})'})"
        return text

    def argument(self, buffer: str) -> tuple[str, torch.dtype]:
        return self.scope.arguments[buffer]

    def _relative(self, buffer: str, index: Expr) -> Expr:
        """A pointer argument points at the first element of the tensor, wherever that is in its storage."""
        return Expr.of(index) - self.scope.offsets.get(buffer, 0)

    def load(self, buffer: str, index: Expr) -> CppValue:
        pointer, stored = self.argument(buffer)
        stored_name(stored, buffer)
        dtype = compute_dtype(stored)
        if (buffer, index) in self.scope.preloaded:
            return CppValue(self.scope.preloaded[buffer, index], dtype, True, frozenset(Expr.of(index).symbols))
        index = self._relative(buffer, index)
        vector = self._varies(index)
        symbols = self._symbols(index)
        comment = f"load {identifier(buffer)}"
        address = index.c_style()
        if not vector:
            text = f"load({pointer} + {address})" if address != "0" else f"load({pointer})"
            guards = [inside for s in index.symbols & self.indirects.keys() if (inside := self.indirects[s][1])]
            if self.scope.vector is not None and self.lanes_text and self.lanes_text.startswith("within"):
                guards.append(f"any({self.lanes_text}.mask)")
            if guards:
                text = f"{' && '.join(guards)} ? {text} : {literal(0, dtype)}"
            return self._define(text, dtype, False, symbols, comment)
        kind = self.type_of(dtype, True)
        step = self._step(index)
        lanes = self._lanes_of(index)
        tail = "" if lanes == "all_lanes" else f", {lanes}"
        if step == 1 and self.scope.prefetch and self.masked_writer is None:
            self._prefetch(pointer, index, stored.itemsize)
        if step == 1:
            text = f"load<{kind}>({pointer} + {address}{tail})"
        elif step == -1:
            text = f"load_reversed<{kind}>({pointer} + {address}{tail})"
        elif step == 2:
            text = f"load_every_second<{kind}>({pointer} + {address}{tail})"
        elif step is not None:
            text = f"gather<{kind}>({pointer} + {address}, [](i64 lane) {{ return {step}*lane; }}, {lanes})"
        else:
            text = f"gather<{kind}>({pointer}, [=](i64 lane) {{ return {self._lane_text(index)}; }}, {lanes})"
        return self._define(text, dtype, True, symbols, comment)

    def _prefetch(self, pointer: str, index: Expr, itemsize: int) -> None:
        """Ask for the cache line that a later iteration of the innermost loop reads."""
        ahead = index + self.scope.prefetch // itemsize
        if self.scope.prefetch_rows is not None:
            symbol, rows = self.scope.prefetch_rows
            ahead = index.substitute({symbol: Expr.of(symbol) + rows})
            if ahead == index:
                return
        self.scope.writers[-1].emit(f"prefetch({pointer} + {ahead.c_style()});", self.origins)

    def store(self, buffer: str, index: Expr, value: CppValue) -> None:
        """Write a value (of the compute dtype of the buffer) at a subscript, into the innermost body."""
        pointer, stored = self.argument(buffer)
        index = self._relative(buffer, index)
        writer = self.scope.writers[-1]
        address = index.c_style()
        target = pointer if address == "0" else f"{pointer} + {address}"
        if self.scope.vector is None or not self._varies(index):
            writer.emit(f"store({target}, {value.text});", self.origins)
            return
        text = self.as_vector(value)
        lanes = self.lanes_text or "all_lanes"
        tail = "" if lanes == "all_lanes" else f", {lanes}"
        step = self._step(index)
        whole = step == 1 and buffer in self.scope.streamed and not lanes.startswith("first")
        if whole and 16 <= (aligned := self._aligned(index)) * stored.itemsize:
            self.scope.streams.append(buffer)
            writer.emit(f"stream<resident, {aligned}>({target}, {text}{tail});", self.origins)
        elif step == 1:
            writer.emit(f"store_vector({target}, {text}{tail});", self.origins)
        elif step is not None:
            writer.emit(f"scatter({target}, [](i64 lane) {{ return {step}*lane; }}, {text}, {lanes});", self.origins)
        else:
            lane = self._lane_text(index)
            writer.emit(f"scatter({pointer}, [=](i64 lane) {{ return {lane}; }}, {text}, {lanes});", self.origins)

    def combine(self, buffer: str, index: Expr, value: CppValue, merge: str) -> None:
        """Put ``merge`` (a C++ function of two; "": the second) of an element and a value in the element's place, at a
        subscript that may be data: nothing is touched where that is out of range. Lanes side by side are merged as a
        vector, others one after the other."""
        pointer, _ = self.argument(buffer)
        writer = self.scope.writers[-1]
        last = f", {merge}" if merge else ""
        if self.scope.vector is not None and self._step(index) != 1:
            name = "combine_lanes" if merge else "scatter"
            address = f"[=](i64 lane) {{ return {self._lane_text(index)}; }}"
            text = self.as_vector(value)
            writer.emit(f"{name}({pointer}, {address}, {text}, {self._lanes_of(index)}{last});", self.origins)
            return
        target = f"{pointer} + {index.c_style()}"
        if self.scope.vector is not None:
            name = "combine_vector" if merge else "store_vector"
            text = f"{name}({target}, {self.as_vector(value)}, {self.lanes_text or 'all_lanes'}{last});"
        else:
            text = f"{'combine' if merge else 'store'}({target}, {value.text}{last});"
        guards = [inside for s in index.symbols & self.indirects.keys() if (inside := self.indirects[s][1])]
        writer.emit(f"if ({' && '.join(sorted(guards))}) {text}" if guards else text, self.origins)

    def _aligned(self, index: Expr) -> int:
        """At a multiple of how many lanes, at most all, every vector along a subscript starts."""
        symbols = tuple(s for s in index.symbols if s != self.scope.vector)
        parts = (index - Expr.of(self.scope.vector)).affine(symbols)
        return 0 if parts is None else math.gcd(self.scope.lanes, *parts[0], parts[1])

    def store_positions(self, buffer: str, index: Expr, text: str) -> None:
        """Write a vector of positions, which may be narrower than the int64 in memory."""
        pointer, _ = self.argument(buffer)
        index = self._relative(buffer, index)
        step = self._step(index)
        lane = f"{step}*lane" if step is not None else f"{self._lane_text(index)} - ({index.c_style()})"
        target = f"{pointer} + {index.c_style()}"
        lanes = self.lanes_text or "all_lanes"
        self.scope.writers[-1].emit(
            f"store_positions({target}, {text}, [=](i64 lane) {{ return {lane}; }}, {lanes});", self.origins
        )

    # -- conditions and run-time subscripts --------------------------------------------------------------------------

    def masked(self, condition: CppValue, body: Callable[[Ops], Any], other: Any) -> CppValue:
        block = CodeWriter()
        inner = self._with(masked_writer=block)
        name = f"t{self.scope.counter}"
        within = f"within{self.scope.counter}"
        self.scope.counter += 1
        if condition.vector:
            block.emit(f"const auto {within} = both({self.lanes_text or 'all_lanes'}, {condition.text});", self.origins)
            inner.lanes_text = within
        value = body(inner)
        vector = condition.vector or value.vector
        symbols = condition.symbols | value.symbols
        default = self.constant(other, value.dtype)
        writer = self.masked_writer or self.scope.writers[-1]
        kind = self.type_of(value.dtype, vector)
        start = self.as_vector(default) if vector else default.text
        writer.emit(f"{kind} {name} = {start};  // elsewhere", self.origins)
        opening = "{  // only in lanes where the condition holds" if condition.vector else f"if ({condition.text}) {{"
        writer.emit(opening, self.origins)
        with writer.indent():
            writer.extend(block.lines())
            result = self.as_vector(value) if vector else value.text
            writer.emit(f"{name} = select({condition.text}, {result}, {name});" if condition.vector
                        else f"{name} = {result};", self.origins)  # fmt: skip
        writer.emit("}", self.origins)
        return CppValue(name, value.dtype, vector, symbols | self._innermost())

    def _innermost(self) -> frozenset[Symbol]:
        """A dependence on the innermost body, which keeps users of a value computed there from leaving it."""
        return frozenset({Symbol("innermost")})

    def indirect(self, value: CppValue, size: Expr, *, check: bool | None = True) -> Expr:
        size = Expr.of(size)
        number = len(self.indirects)
        symbol = Symbol(f"subscript{number}", 0, size.bounds().upper - 1)
        extent = size.c_style()
        kind = self.type_of(torch.int64, value.vector)
        source = value.text if value.dtype == torch.int64 else f"convert<{kind}>({value.text})"
        symbols = value.symbols | (self._innermost() if check or self.masked_writer is not None else frozenset())
        handler = self if not check or self.masked_writer is not None else self._with(
            masked_writer=self.scope.writers[-1]
        )  # fmt: skip
        text, said = f"wrap_index({source}, {extent})", "negative ones count from the end"
        if check is None:
            text, said = source, "its interval is inside the array"
        index = handler._define(text, torch.int64, value.vector, symbols, said, symbol.name)
        inside = None
        if check:
            inside = f"inside{number}"
            writer = handler._writer(value.vector, symbols)
            test = f"index_inside({index.text}, {extent})"
            mask = f"as_mask<mask>({test})" if value.vector else test
            writer.emit(f"const {self.type_of(torch.bool, value.vector)} {inside} = {mask};", self.origins)
            self.scope.checks.append((symbol.name, extent))
            lanes = self.lanes_text or "all_lanes"
            report = f"report_index(failure, {index.text}, {extent}, {len(self.scope.checks)}, {lanes});"
            writer.emit(report, self.origins)
        self.indirects[symbol] = (index, inside)
        return Expr.of(symbol)


ELEMENT_STORED = {torch.bfloat16: "bf16", torch.float16: "f16"}
