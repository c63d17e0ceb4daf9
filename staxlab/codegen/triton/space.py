"""From loops to blocks: which index vectors a kernel has and how a subscript is spelled with them (Section 9.1).

A schedule node iterates over loops ``i0, i1, ...`` (and ``r0, r1, ...`` inside a reduction). A Triton program instance
works on a *block*: a one-dimensional block of ``XBLOCK`` points, a ``YBLOCK x XBLOCK`` rectangle, a box of
``ZBLOCK x YBLOCK x XBLOCK`` points, or ``XBLOCK`` rows of ``R0_BLOCK`` reduction elements. So loops are put into
groups, one group per dimension of the block, and each group is flattened: with ``x = 128*i0 + i1`` the loops come back
as ``i0 = x // 128`` and ``i1 = x % 128``.

Substituting these into a subscript and simplifying is exact integer algebra (:mod:`staxlab.loops.expressions`): where a
tensor is contiguous the divisions cancel and the subscript is ``x`` again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...loops.expressions import ZERO, Atom, Expr, FloorDivision, Symbol

INT32_MAX = 2**31 - 1
GRID_LIMIT = 65535  # largest second and third dimension of a grid


@dataclass(frozen=True)
class BlockDim:
    """One dimension of the block: a group of loops, flattened.

    ``prefix`` is "x", "y", "z" or "r0_"; ``symbols`` the loops, outermost first, with their ``extents``; ``axis`` the
    position in a block of ``rank`` dimensions.
    """

    prefix: str
    symbols: tuple[Symbol, ...]
    extents: tuple[int, ...]
    axis: int
    rank: int

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.extents:
            count *= extent
        return count

    @property
    def size_name(self) -> str:
        return f"{self.prefix}numel"

    @property
    def index_name(self) -> str:
        return f"{self.prefix}index"

    @property
    def mask_name(self) -> str:
        return f"{self.prefix}mask"

    @property
    def block_name(self) -> str:
        return f"{self.prefix.upper()}BLOCK"

    @property
    def flat(self) -> Symbol:
        """The flattened index; bounds are those of points that exist (masked lanes never touch memory)."""
        return Symbol(self.index_name, 0, max(self.numel - 1, 0))

    @property
    def slicing(self) -> str:
        """How ``tl.arange`` is turned to lie along this dimension: "[:, None]", "[None, :]" or nothing."""
        if self.rank == 1:
            return ""
        return "[" + ", ".join(":" if axis == self.axis else "None" for axis in range(self.rank)) + "]"

    def loop_name(self, symbol: Symbol) -> str:
        """``i1`` in dimension x is called ``x1``; ``r0`` is called ``r0_0``."""
        return f"{self.prefix}{symbol.name.lstrip('ir')}"

    def values(self) -> dict[Symbol, Expr]:
        """Every loop of the group as an expression of the flattened index."""
        found: dict[Symbol, Expr] = {}
        stride = 1
        for symbol, extent in zip(reversed(self.symbols), reversed(self.extents), strict=True):
            extent = max(extent, 1)  # an empty loop has no point; any value will do
            found[symbol] = (Expr.of(self.flat) // stride) % extent
            stride *= extent
        return dict(reversed(found.items()))


@dataclass
class BlockSpace:
    """The dimensions of a kernel's block, and the spelling of subscripts over them."""

    dims: tuple[BlockDim, ...]
    names: dict[Expr, str] = field(default_factory=dict)  # simplified expression -> variable in the kernel
    symbol_dims: dict[Symbol, frozenset[str]] = field(default_factory=dict)
    substitution: dict[Symbol, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for dim in self.dims:
            self.symbol_dims[dim.flat] = frozenset({dim.prefix})
            for symbol, value in dim.values().items():
                self.substitution[symbol] = value
                if not value.is_constant:  # an empty loop has no variable: 0 is spelled as it is
                    self.names.setdefault(value, dim.loop_name(symbol))

    def dim(self, prefix: str) -> BlockDim:
        return next(dim for dim in self.dims if dim.prefix == prefix)

    @property
    def all(self) -> frozenset[str]:
        return frozenset(dim.prefix for dim in self.dims)

    def flatten(self, expression: Expr) -> Expr:
        """A subscript over loops as one over flattened indices."""
        return expression.substitute(self.substitution)

    def dims_of(self, flattened: Expr) -> frozenset[str]:
        """The block dimensions along which an expression varies."""
        return frozenset().union(*(self.symbol_dims[symbol] for symbol in flattened.symbols))

    def shape(self, dims: Iterable[str] | None = None) -> str:
        """The block shape of a value that varies along ``dims`` (default: all): "[XBLOCK, 1]"."""
        wanted = self.all if dims is None else frozenset(dims)
        return "[" + ", ".join(d.block_name if d.prefix in wanted else "1" for d in self.dims) + "]"

    def text(self, flattened: Expr) -> str:
        """The spelling of an expression, loop variables by name, exact for Triton's truncating ``//`` and ``%``."""
        whole = self.names.get(flattened)
        return whole if whole is not None else flattened.format(self._atom)

    def _atom(self, atom: Atom) -> str:
        named = self.names.get(Expr((((atom,), 1),)))
        if named is not None:
            return named
        if isinstance(atom, Symbol):
            return atom.name
        n, d = self.text(atom.numerator), f"({self.text(atom.denominator)})"
        if atom.denominator.is_constant:
            d = d[1:-1]
        exact = atom.numerator.is_nonnegative and atom.denominator.is_nonnegative
        if isinstance(atom, FloorDivision):
            return f"(({n}) // {d})" if exact else f"((({n}) - (((({n}) % {d}) + {d}) % {d})) // {d})"
        return f"(({n}) % {d})" if exact else f"(((({n}) % {d}) + {d}) % {d})"

    def used_names(self, expressions: Iterable[Expr]) -> set[str]:
        """The loop variables the spelling of these expressions mentions."""
        used: set[str] = set()

        def visit(expression: Expr) -> None:
            if expression in self.names:
                used.add(self.names[expression])
                return
            for monomial, _ in expression.terms:
                for atom in monomial:
                    whole = Expr((((atom,), 1),))
                    if whole in self.names:
                        used.add(self.names[whole])
                    elif not isinstance(atom, Symbol):
                        visit(atom.numerator)
                        visit(atom.denominator)

        for expression in expressions:
            visit(expression)
        return used


def largest_magnitude(expression: Expr) -> float:
    """A bound on every partial sum of an expression's evaluation, in whatever order the terms are added."""
    total = 0.0
    for monomial, coefficient in expression.terms:
        part = Expr(((monomial, coefficient),)).bounds()
        total += max(abs(part.lower), abs(part.upper))
    return total


def coefficient_along(expression: Expr, symbol: Symbol) -> int | None:
    """How many elements apart neighbours along a loop lie: an integer, or None where the subscript is not affine."""
    coefficient = expression.coefficient(symbol)
    return int(coefficient) if coefficient is not None and coefficient.is_constant else None


def group(prefix: str, symbols: Iterable[Symbol], extents: Mapping[Symbol, int], axis: int, rank: int) -> BlockDim:
    """A block dimension over these loops."""
    chosen = tuple(symbols)
    return BlockDim(prefix, chosen, tuple(extents[s] for s in chosen), axis, rank)


__all__ = [
    "GRID_LIMIT", "INT32_MAX", "ZERO", "BlockDim", "BlockSpace", "coefficient_along", "group", "largest_magnitude",
]  # fmt: skip
