"""How much memory traffic a matrix product needs, and how much its tiles cause (Section 9.8, Theorem 9.1).

``C = A B`` with ``A`` of ``m x k`` and ``B`` of ``k x n`` is ``2 m n k`` operations on ``mk + kn + mn`` elements. Its
intensity can only be as high as that if every element is read once, and for that there must be room on the chip. A tile
of ``B_M x B_N`` results reads ``B_M x k`` of one operand and ``k x B_N`` of the other: the larger the tile, the less is
read again, but the tile itself and a slice of both operands (``B_K`` deep) must fit in ``S`` elements.

No order of a standard product does with fewer than ``mnk / (2 sqrt(3) sqrt(S)) - S`` transfers (Theorem 9.1; Hong &
Kung, 1981; Irony, Toledo & Tiskin, 2004). A square tile comes within a constant factor of that, and
:class:`TileTraffic` says what the factor is made of: the rounding of the tile to a power of two, the room for the
operands, and what the proof gives away.

The bound is irrational, so it is never computed where something is decided: :func:`least_transfers` and
:func:`keeps_bound` square both sides and stay with whole numbers. The counts of a tile are exact as well, remainders at
the edges included; :func:`count_tiles` runs the loops and counts, which is what the tests hold them against.

>>> product = tile_traffic(4096, 4096, 4096, tile=(128, 128, 32), itemsize=4, capacity=48 * 1024)
>>> product.read, product.written, least_transfers(4096, 4096, 4096, 48 * 1024)
(1073741824, 16777216, 89429334)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..errors import OptionError
from ..options import Decision
from .tables import Table, Tabular, bytes_text

Tile = tuple[int, int, int]  # B_M, B_N, B_K


def _positive(**sizes: int) -> None:
    wrong = {name: size for name, size in sizes.items() if not isinstance(size, int) or size < 1}
    if wrong:
        name, size = next(iter(wrong.items()))
        raise OptionError(f"{name} = {size!r} is no size", remedy="sizes are whole numbers of 1 or more")


# --- The bound --------------------------------------------------------------------------------------------------------


def transfer_bound(m: int, n: int, k: int, capacity: int, processors: int = 1) -> float:
    """``mnk / (2 sqrt(3) P sqrt(S)) - S`` as a float, in elements (Theorem 9.1); it may be negative, and says nothing
    then. With ``processors`` it is what one of ``P`` moves at least that do the products between them, each with a
    memory of its own (Exercise 47). Raises OptionError for sizes below 1."""
    _positive(m=m, n=n, k=k, capacity=capacity, processors=processors)
    return m * n * k / (2 * math.sqrt(3 * capacity) * processors) - capacity


def least_transfers(m: int, n: int, k: int, capacity: int, processors: int = 1) -> int:
    """The fewest transfers that Theorem 9.1 does not forbid: its bound rounded up, exactly, and 0 where it is negative.

    The smallest ``Q`` with ``12 S (P (Q + S))^2 >= (mnk)^2``.

    >>> least_transfers(64, 64, 64, 48)
    10875
    """
    _positive(m=m, n=n, k=k, capacity=capacity, processors=processors)
    squared = Fraction((m * n * k) ** 2, 12 * capacity * processors**2)
    root = math.isqrt(squared.numerator // squared.denominator)
    return max(0, root + (root * root < squared) - capacity)


def keeps_bound(transfers: int, m: int, n: int, k: int, capacity: int) -> bool:
    """Whether a number of transfers satisfies Theorem 9.1; decided in whole numbers."""
    return transfers >= least_transfers(m, n, k, capacity)


def recursive_transfers(order: int, capacity: int, multiplications: int = 7) -> float:
    """``(n / sqrt(S))^w S`` with ``w = log2(multiplications)``: the order of growth of the transfers of a product by
    quarters with so many multiplications (7: Strassen's; 8: the standard one, ``n^3 / sqrt(S)``), up to a constant
    factor (Ballard, Demmel, Holtz & Schwartz, 2012). Raises OptionError for sizes below 1.

    >>> recursive_transfers(1024, 64, 8) == 1024**3 / 8
    True
    """
    _positive(order=order, capacity=capacity, multiplications=multiplications)
    return (order / math.sqrt(capacity)) ** math.log2(multiplications) * capacity


def compulsory_elements(m: int, n: int, k: int) -> int:
    """``mk + kn + mn``: every element of the operands and of the result once."""
    _positive(m=m, n=n, k=k)
    return m * k + k * n + m * n


def peak_intensity(m: int, n: int, k: int, itemsize: int) -> Fraction:
    """``I_max`` in operations per byte, ``2mnk`` over the compulsory bytes; ``2n / (3b)`` if all three are equal.

    >>> peak_intensity(4096, 4096, 4096, 4)
    Fraction(2048, 3)
    """
    _positive(itemsize=itemsize)
    return Fraction(2 * m * n * k, itemsize * compulsory_elements(m, n, k))


# --- Tiles ------------------------------------------------------------------------------------------------------------


def tile_capacity(tile: Tile) -> int:
    """Elements on the chip: both slices and the accumulators, ``(B_M + B_N) B_K + B_M B_N``."""
    rows, columns, depth = tile
    _positive(B_M=rows, B_N=columns, B_K=depth)
    return (rows + columns) * depth + rows * columns


def largest_tile(capacity: int, depth: int, power_of_two: bool = True) -> Decision:
    """The largest square tile with ``2 T B_K + T^2 <= S``; a power of two unless told otherwise.

    The choice is ``T``, the candidates what was looked at. Raises OptionError where not even ``T = 1`` fits.

    >>> largest_tile(48 * 1024, 32).choice, largest_tile(48 * 1024, 32, power_of_two=False).choice
    (128, 192)
    """
    _positive(capacity=capacity, depth=depth)
    exact = math.isqrt(depth * depth + capacity) - depth  # T^2 + 2 T B_K <= S: complete the square
    if exact < 1:
        raise OptionError(
            f"no tile fits: 1 x 1 with slices {depth} deep takes {2 * depth + 1} elements of {capacity}",
            remedy="take shallower slices, or more room",
        )
    if not power_of_two:
        candidates: tuple[int, ...] = (exact, exact + 1)
        choice = exact
    else:
        choice = 1 << (exact.bit_length() - 1)
        candidates = tuple(1 << e for e in range(choice.bit_length() + 1))
    used, beyond = tile_capacity((choice, choice, depth)), tile_capacity((candidates[-1],) * 2 + (depth,))
    reason = f"T = {choice} takes {used:,} elements, and T = {candidates[-1]} would take {beyond:,}"
    return Decision("tile", f"S = {capacity:,}", choice, reason, candidates, (("capacity", capacity), ("B_K", depth)))


@dataclass(frozen=True)
class Gap:
    """One factor between a tile's traffic and the bound: its ``value`` and where it comes from."""

    name: str
    value: float
    reason: str


@dataclass(frozen=True, repr=False)
class TileTraffic(Tabular):
    """The traffic of ``C = A B`` (``m x k`` by ``k x n``) in tiles, in elements of ``itemsize`` bytes.

    ``capacity`` is the room on the chip, in elements. The counts are exact: positions beyond the edge are masked off
    and not read. Draws the traffic of square tiles of every size, with the bound and the limit of capacity.
    """

    m: int
    n: int
    k: int
    tile: Tile
    itemsize: int
    capacity: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        return -(-self.m // self.tile[0]), -(-self.n // self.tile[1])

    @property
    def read_a(self) -> int:
        """Every tile in a row of tiles reads the same rows of A: ``m k ceil(n / B_N)`` elements."""
        return self.m * self.k * self.grid[1]

    @property
    def read_b(self) -> int:
        return self.n * self.k * self.grid[0]

    @property
    def read(self) -> int:
        """Elements read, ``mnk (1/B_M + 1/B_N)`` where the tiles divide the result."""
        return self.read_a + self.read_b

    @property
    def written(self) -> int:
        return self.m * self.n

    @property
    def elements(self) -> int:
        """Elements read and written."""
        return self.read + self.written

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def intensity(self) -> Fraction:
        """Operations per byte, writes included."""
        return Fraction(self.operations, self.nbytes)

    @property
    def read_intensity(self) -> Fraction:
        """Operations per byte read: ``2 B_M B_N / (b (B_M + B_N))`` where the tiles divide the result."""
        return Fraction(self.operations, self.read * self.itemsize)

    @property
    def peak_intensity(self) -> Fraction:
        return peak_intensity(self.m, self.n, self.k, self.itemsize)

    @property
    def fits(self) -> bool:
        """Whether slices and accumulators have room on the chip."""
        return tile_capacity(self.tile) <= self.capacity

    @property
    def bound(self) -> float:
        return transfer_bound(self.m, self.n, self.k, self.capacity)

    @property
    def ratio(self) -> float:
        """Elements moved over the bound of Theorem 9.1; infinite where the bound says nothing."""
        return self.elements / self.bound if self.bound > 0 else math.inf

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """The factors whose product is :attr:`ratio`; empty where the bound says nothing or the tile does not fit."""
        if self.bound <= 0 or not self.fits:
            return ()
        product = self.m * self.n * self.k
        best = largest_tile(self.capacity, self.tile[2], power_of_two=False).choice
        root = math.sqrt(self.capacity)
        leading = product / (2 * math.sqrt(3) * root)
        return (
            Gap("tile", self.read * best / (2 * product), f"tiles of {self.tile[0]} x {self.tile[1]}, not {best}^2"),
            Gap("operands", root / best, f"sqrt(S) = {root:.4g}, but the slices take room: T = {best}"),
            Gap("proof", 4 * math.sqrt(3), "2 mnk / sqrt(S) against the leading term of the bound, 4 sqrt(3)"),
            Gap("writes", self.elements / self.read, "the result is written, which the leading term leaves out"),
            Gap("end", leading / self.bound, "the bound's own - S, for the last segment"),
        )  # fmt: skip

    def with_tile(self, tile: Tile) -> TileTraffic:
        """The same product in other tiles."""
        return tile_traffic(self.m, self.n, self.k, tile=tile, itemsize=self.itemsize, capacity=self.capacity)

    def curve(self) -> tuple[TileTraffic, ...]:
        """Square tiles of the powers of two up to the smaller side of the result, with the same slices."""
        most = min(self.m, self.n).bit_length()
        return tuple(self.with_tile((1 << e, 1 << e, self.tile[2])) for e in range(most))

    def summary(self) -> str:
        return (
            f"{self.elements:,} elements moved ({bytes_text(self.nbytes)}), {float(self.intensity):.4g} operations per "
            f"byte of at most {float(self.peak_intensity):.4g}; {self.ratio:.3g} times the bound of Theorem 9.1"
        )

    def table(self) -> Table:
        rows = []
        for one in sorted({*self.curve(), self}, key=lambda t: (t.tile[0] * t.tile[1], t.tile)):
            used = tile_capacity(one.tile)
            rows.append(
                (f"{one.tile[0]} x {one.tile[1]}{' (this one)' if one == self else ''}", f"{one.read:,}",
                 f"{one.written:,}", f"{float(one.intensity):.4g}", f"{one.ratio:.3g}",
                 f"{used:,}{'' if one.fits else ', too much'}")
            )  # fmt: skip
        caption = f"Traffic of {self.m} x {self.k} by {self.k} x {self.n}, S = {self.capacity:,} elements"
        head = ("tile", "read", "written", "operations per byte", "over the bound", "elements on the chip")
        notes = [self.summary()]
        if self.gaps:
            factors = " x ".join(f"{gap.value:.4g} ({gap.name})" for gap in self.gaps)
            notes.append(f"{self.ratio:.4g} = {factors}")
            notes += [f"{gap.name}: {gap.reason}" for gap in self.gaps]
        return Table.build(caption, head, rows, notes)


def tile_traffic(m: int, n: int, k: int, *, tile: Sequence[int], itemsize: int = 4, capacity: int) -> TileTraffic:
    """The traffic of a product in tiles ``(B_M, B_N, B_K)``, with room for ``capacity`` elements on the chip.

    Counting is O(1). Raises OptionError for sizes below 1; a tile that does not fit is counted all the same, and
    :attr:`TileTraffic.fits` says so.
    """
    _positive(m=m, n=n, k=k, itemsize=itemsize, capacity=capacity)
    if len(tile) != 3:
        raise OptionError(f"a tile has three sizes, not {len(tile)}", remedy="give (B_M, B_N, B_K)")
    tile_capacity((tile[0], tile[1], tile[2]))
    return TileTraffic(m, n, k, (tile[0], tile[1], tile[2]), itemsize, capacity)


# --- Counting by running ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileCount:
    """What the loops of a tiled product did: elements read of A and of B, written, products computed, the most elements
    on the chip at any time, and the ``result`` as rows."""

    read_a: int
    read_b: int
    written: int
    products: int
    most_on_chip: int
    result: tuple[tuple[Any, ...], ...]


def count_tiles(a: Sequence[Sequence[Any]], b: Sequence[Sequence[Any]], tile: Tile) -> TileCount:
    """Compute ``a b`` (rows of numbers) in tiles, counting every element that passes between chip and memory; O(mnk).

    The slices of a step are read, used and dropped; the accumulators stay until they are written. Raises OptionError
    for operands that do not fit together.
    """
    m, k, n = len(a), len(b), len(b[0]) if b else 0
    if not m or not k or not n or any(len(row) != k for row in a) or any(len(row) != n for row in b):
        raise OptionError("these are no matrices that can be multiplied", remedy="give m rows of k and k rows of n")
    tile_capacity(tile)
    rows, columns, depth = tile
    reads, written, products, most = {"a": 0, "b": 0}, 0, 0, 0
    result: list[list[Any]] = [[None] * n for _ in range(m)]
    for i0 in range(0, m, rows):
        for j0 in range(0, n, columns):
            here = range(i0, min(i0 + rows, m)), range(j0, min(j0 + columns, n))
            sums = {(i, j): 0 for i in here[0] for j in here[1]}
            for l0 in range(0, k, depth):
                deep = range(l0, min(l0 + depth, k))
                slice_a = {(i, l): a[i][l] for i in here[0] for l in deep}
                slice_b = {(l, j): b[l][j] for l in deep for j in here[1]}
                reads["a"] += len(slice_a)
                reads["b"] += len(slice_b)
                most = max(most, len(slice_a) + len(slice_b) + len(sums))
                for i, j in sums:
                    for l in deep:
                        sums[i, j] += slice_a[i, l] * slice_b[l, j]
                        products += 1
            for (i, j), total in sums.items():
                result[i][j] = total
                written += 1
    return TileCount(reads["a"], reads["b"], written, products, most, tuple(map(tuple, result)))
