"""The handler that writes a modification into a tile of scores (Section 9.10).

It is the Triton handler of every other kernel with three differences. A load of ``"score"`` is the tile of scores,
which is in registers already. What does not vary along the dimension that the loop walks along goes in front of the
loop. And positions stay symbolic for as long as they are added, subtracted or scaled: ``(q_idx - kv_idx).to(float32)``
asked of a tile one conversion per element, as slow as the exponential; as ``float(q_idx) - float(kv_idx)`` it takes one
per row and one per column, and where all numbers are below 2**24 both are exact, so they are the same number. Likewise
``q_idx - kv_idx <= 1024`` subtracts for each element, and ``kv_idx >= q_idx - 1024`` for each row, once.
"""

from __future__ import annotations

from typing import Any

import torch

from ....loops.expressions import Expr, Symbol
from ....provenance import NO_ORIGINS, CodeWriter, Origins
from ..handler import BlockValue, Emission, TritonOps
from ..operations import triton_dtype
from ..space import INT32_MAX, largest_magnitude

WHOLE = (torch.int32, torch.int64)
EXACT = 1 << 24  # integers up to here are float32 numbers

#: Operations of float32 for scores whose probabilities are rounded to half precision: without the branches, one for
#: each score, of the accurate functions. Absolute errors of at most 2**-22.
RELAXED = {
    "tanh": "1.0 - 2.0 / (tl.exp2({a} * 2.8853900817779268) + 1.0)",
    "sigmoid": "1.0 / (1.0 + tl.exp2({a} * -1.4426950408889634))",
}


#: Comparisons, and what holds of the negated operands.
COMPARISONS = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


class Position:
    """An integer that is a sum of multiples of positions: a :class:`BlockValue` whose variable exists once it is asked
    for."""

    def __init__(self, ops: ScoreOps, index: Expr, dtype: torch.dtype):
        self.ops, self.index, self.dtype = ops, index, dtype
        self.dims = ops.emission.space.dims_of(index)

    @property
    def name(self) -> str:
        return self.ops.spelled(self.index, self.dtype)

    def __str__(self) -> str:
        return self.name


class ScoreOps(TritonOps):
    """Writes the statements of a modification. ``score`` is what a load of "score" yields; ``moving`` the dimension
    ("m" or "n") along which the loop advances. ``relaxed`` divides with the rounding of the hardware's own instruction,
    two units in the last place off at most, and takes :data:`RELAXED`: enough where probabilities are rounded to half
    precision afterwards, and several times faster."""

    def __init__(
        self, emission: Emission, score: BlockValue | None = None, moving: str = "n", origins: Origins = NO_ORIGINS,
        known: dict[Any, Any] | None = None, relaxed: bool = False,
    ):  # fmt: skip
        super().__init__(emission, origins)
        self.score, self.moving, self.relaxed = score, moving, relaxed
        self.known = {} if known is None else known  # variables of positions that were asked for

    def tagged(self, origins: Origins) -> ScoreOps:
        return ScoreOps(self.emission, self.score, self.moving, origins, self.known, self.relaxed)

    def writer(self, dims: frozenset[str]) -> CodeWriter:
        return self.emission.inner if self.moving in dims else self.emission.outer

    # -- positions ----------------------------------------------------------------------------------------------------

    def spelled(self, index: Expr, dtype: torch.dtype) -> str:
        """The variable that holds a position, written where it is first asked for."""
        space = self.emission.space
        if dtype == torch.int32 and len(index.terms) == 1 and index.terms[0] == ((next(iter(index.symbols)),), 1):
            return space.text(index)  # an index as it stands
        if (index, dtype) not in self.known:
            text = f"({space.text(self._widened(index))}).to({triton_dtype(dtype)})"
            self.known[index, dtype] = self.emit(text, dtype, space.dims_of(index)).name
        return self.known[index, dtype]

    def _position(self, index: Expr, dtype: torch.dtype) -> Position | None:
        """A position, unless it is a number or a partial sum does not fit into its dtype."""
        fits = dtype == torch.int64 or largest_magnitude(index) <= INT32_MAX
        return Position(self, index, dtype) if index.symbols and fits else None

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        index = self.emission.space.flatten(expression)
        return (dtype in WHOLE and self._position(index, dtype)) or super().index_value(expression, dtype)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> BlockValue:
        made = super().constant(value, dtype)
        if dtype in WHOLE or dtype == torch.float32:
            self.known["number", made.name] = value
        return made

    def _index_of(self, value: Any) -> Expr | None:
        if isinstance(value, Position):
            return value.index
        number = self.known.get(("number", value.name))
        return Expr.of(int(number)) if number is not None and value.dtype in WHOLE else None

    def apply(self, operation: str, *operands: Any) -> Any:
        if operation in ("add", "sub", "mul", "neg") and any(isinstance(o, Position) for o in operands):
            indices = [self._index_of(o) for o in operands]
            if None not in indices:
                first, *rest = indices
                combined = {"add": lambda: first + rest[0], "sub": lambda: first - rest[0],
                            "mul": lambda: first * rest[0], "neg": lambda: -first}[operation]()  # fmt: skip
                found = self._position(combined, operands[0].dtype)
                if found is not None:
                    return found
        if operation in COMPARISONS and any(isinstance(o, Position) for o in operands):
            indices = [self._index_of(o) for o in operands]
            found = None if None in indices else self._compared(operation, *indices)
            if found is not None:
                return found
        if self.relaxed and operands[0].dtype == torch.float32:
            if operation == "truediv":
                return self._quotient(*operands)
            if operation in RELAXED:
                text = RELAXED[operation].format(a=operands[0])
                return self.emit(text, torch.float32, operands[0].dims, operation)
        return super().apply(operation, *operands)

    def _compared(self, operation: str, left: Expr, right: Expr) -> BlockValue | None:
        """A comparison of sums of positions with what moves along the loop on one side and all else on the other; None
        where that is so already, or a side does not fit into 32 bits. Both are exact, so the result is the same."""
        space = self.emission.space
        if not any(self.moving in dims and len(dims) > 1 for dims in map(space.dims_of, (left, right))):
            return None
        moving, rest = Expr.of(0), Expr.of(0)
        for monomial, coefficient in (left - right).terms:
            term = Expr(((monomial, coefficient),))
            if self.moving in space.dims_of(term):
                moving = moving + term
            else:
                rest = rest - term
        if not moving.symbols or max(map(largest_magnitude, (moving, rest))) > INT32_MAX:
            return None
        if moving.terms[0][1] < 0:
            moving, rest, operation = -moving, -rest, COMPARISONS[operation]
        number = not rest.symbols
        other = self.constant(int(rest.bounds().lower), torch.int32) if number else Position(self, rest, torch.int32)
        return super().apply(operation, Position(self, moving, torch.int32), other)

    def _quotient(self, value: Any, divisor: Any) -> BlockValue:
        """A division; by a number, a multiplication by its inverse, which rounds once more."""
        number = self.known.get(("number", divisor.name))
        dims = value.dims | divisor.dims
        if number is not None and 2.0**-100 < abs(float(number)) < 2.0**100:
            note = f"divided by {float(number):g}"
            return self.emit(f"{value} * {1.0 / float(number)!r}", torch.float32, dims, note)
        return self.emit(f"{value} / {divisor}", torch.float32, dims, "truediv")

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Position):
            if dtype in WHOLE:
                return self._position(value.index, dtype) or super().to_dtype(value, dtype)
            if dtype == torch.float32 and largest_magnitude(value.index) < EXACT:
                return self._real(value.index)
        return super().to_dtype(value, dtype)

    def _real(self, index: Expr) -> BlockValue:
        """A position as float32: what varies along rows and what varies along columns, converted one by one."""
        space = self.emission.space
        parts: dict[frozenset[str], Expr] = {}
        for monomial, coefficient in index.terms:
            term = Expr(((monomial, coefficient),))
            dims = space.dims_of(term)
            parts[dims] = parts.get(dims, Expr.of(0)) + term
        number = parts.pop(frozenset(), None) if len(parts) > 1 else None
        if number is not None:  # joins the part that moves least
            least = min(parts, key=lambda dims: (self.moving in dims, len(dims)))
            parts[least] = parts[least] + number
        first, *others = sorted(parts.values(), key=lambda part: part.terms[0][1] < 0)
        total = self._converted(first)
        for part in others:  # subtracted, so that no position is negated
            sign, other = ("-", self._converted(-part)) if part.terms[0][1] < 0 else ("+", self._converted(part))
            total = self.emit(f"{total} {sign} {other}", torch.float32, total.dims | other.dims, "exact: below 2**24")
        return total

    def _converted(self, index: Expr) -> BlockValue:
        key = (index, torch.float32)
        dims = self.emission.space.dims_of(index)
        if key not in self.known:
            text = f"({self.emission.space.text(index)}).to(tl.float32)"
            self.known[key] = self.emit(text, torch.float32, dims, "exact: below 2**24").name
        return BlockValue(self.known[key], torch.float32, dims)

    # -- memory -------------------------------------------------------------------------------------------------------

    def load(self, buffer: str, index: Expr) -> BlockValue:
        if buffer == "score":
            assert self.score is not None, "a mask has no score"
            return self.score
        return super().load(buffer, index)

    def address(self, pointer: str, flattened: Expr, needed: frozenset[str]) -> tuple[str, frozenset[str]]:
        """As the base has it; a subscript that may be beyond 32 bits is computed in 64."""
        return super().address(pointer, self._widened(flattened), needed)

    def _widened(self, index: Expr) -> Expr:
        """The expression, of 64-bit variables where it may be beyond 32 bits."""
        if largest_magnitude(index) <= INT32_MAX:
            return index
        space = self.emission.space
        wide: dict[Symbol, Expr] = {}
        for symbol in index.symbols:
            twin = Symbol(f"{symbol.name}.to(tl.int64)", symbol.lower, symbol.upper)
            space.symbol_dims[twin] = space.symbol_dims[symbol]
            wide[symbol] = Expr.of(twin)
        return index.substitute(wide)
