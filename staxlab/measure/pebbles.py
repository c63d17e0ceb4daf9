"""A matrix product as a game with pebbles: executed schedules that no bound may exceed (Hong & Kung, 1981).

Red pebbles lie on words in the fast memory, of which there are ``S``; blue ones on words in the slow memory. At the
start the operands are blue. The moves:

    ("read", word)          a blue word becomes red as well: one transfer
    ("write", word)         a red word becomes blue as well: one transfer
    ("drop", word)          a red pebble is taken away
    ("multiply", i, j, l)   with ``a[i, l]`` and ``b[l, j]`` red, their product joins the partial sum of ``c[i, j]``

A word is ``("a", i, l)``, ``("b", l, j)`` or ``("c", i, j)``. A partial sum begins with its first product, which takes
a pebble; later products are added in place. A sum that left for the slow memory must come back before it grows, and
none may be dropped unless its last state was written. At the end every product was made once and all of C is blue. That
is the standard product of Theorem 9.1 with one partial sum for each result.

:func:`replay` executes a schedule, refuses the first move that is against the rules, and counts. It also cuts the run
into segments of ``S`` transfers, as the proof does, with the products of each and their projections: so every step of
the proof can be looked at (:class:`Segment`). :func:`tiled` and :func:`row_by_row` write schedules.

>>> run = replay(8, 8, 8, 24, tiled(8, 8, 8, (4, 4, 1)))
>>> run.transfers, run.transfers == 2 * 8 * 8 * 8 // 4 + 8 * 8, run.keeps_bound
(320, True, True)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import OptionError, StaxError
from .matrix_traffic import Tile, keeps_bound, tile_capacity, transfer_bound
from .projections import Projections, projections
from .tables import Table, Tabular

MOST_ROWS = 24  # segments listed in a table

Word = tuple[str, int, int]
Move = tuple[Any, ...]


class PebbleError(StaxError):
    """A move against the rules of the game. ``position`` counts moves from 0 (the number of moves, for what is missing
    at the end)."""

    def __init__(self, position: int, move: Any, what: str, remedy: str):
        self.position, self.move = position, move
        super().__init__(f"move {position}, {move!r}: {what}", remedy=remedy)


def word_text(word: Word) -> str:
    """``a[0, 3]``"""
    return f"{word[0]}[{word[1]}, {word[2]}]"


@dataclass(frozen=True)
class Segment:
    """A part of a run with ``transfers`` transfers (``S``, or fewer in the last), and the ``products`` made in it as
    points ``(i, l, j)``, so that T_il, T_ij and T_lj are the operands and results they take."""

    transfers: int
    products: Projections

    def limits(self, capacity: int) -> tuple[tuple[str, int, int], ...]:
        """(projection, its size, what the proof allows): ``2S`` for either operand, ``3S`` for the partial sums."""
        il, ij, lj = self.products.sizes
        return (("T_il", il, 2 * capacity), ("T_ij", ij, 3 * capacity), ("T_lj", lj, 2 * capacity))

    def holds(self, capacity: int) -> bool:
        """Every step of the proof: the three limits, Lemma 9.1, and ``|T|^2 <= 12 S^3``."""
        within = all(size <= most for _, size, most in self.limits(capacity))
        return within and self.products.holds and len(self.products.points) ** 2 <= 12 * capacity**3


@dataclass(frozen=True, repr=False)
class PebbleRun(Tabular):
    """A schedule that was executed: its transfers by kind, the most red pebbles, and the segments of the proof."""

    m: int
    n: int
    k: int
    capacity: int
    reads: int
    writes: int
    moves: int
    most_red: int
    segments: tuple[Segment, ...]

    @property
    def transfers(self) -> int:
        return self.reads + self.writes

    @property
    def bound(self) -> float:
        """Theorem 9.1 for these sizes; negative where it says nothing."""
        return transfer_bound(self.m, self.n, self.k, self.capacity)

    @property
    def keeps_bound(self) -> bool:
        """Whether there were as many transfers as Theorem 9.1 demands. There is no run for which there were not."""
        return keeps_bound(self.transfers, self.m, self.n, self.k, self.capacity)

    @cached_property
    def proof_holds(self) -> bool:
        """Every segment, step by step."""
        return all(segment.holds(self.capacity) for segment in self.segments)

    def table(self) -> Table:
        rows, count = [], len(self.segments)
        shown = range(count) if count <= MOST_ROWS else (*range(MOST_ROWS - 3), *range(count - 3, count))
        for number in shown:
            segment = self.segments[number]
            sizes = (f"{size} of {most}" for _, size, most in segment.limits(self.capacity))
            rows.append((number, segment.transfers, len(segment.products.points), *sizes))
        head = ("segment", "transfers", "products", "T_il", "T_ij", "T_lj")
        caption = f"{self.m} x {self.k} by {self.k} x {self.n} with {self.capacity} red pebbles"
        hidden = count - len(shown)
        most = int((12 * self.capacity**3) ** 0.5)
        notes = [
            f"{self.reads:,} reads and {self.writes:,} writes; Theorem 9.1 asks for {max(self.bound, 0):,.1f}; at most "
            f"{self.most_red} red pebbles at a time",
            f"a segment of S = {self.capacity} transfers makes at most 2 sqrt(3) S^1.5 = {most:,} products",
        ]
        if hidden:
            kept = "keep" if self.proof_holds else "do not all keep"
            notes.insert(0, f"{hidden:,} segments in the middle are not listed; all {count:,} {kept} the limits")
        return Table.build(caption, head, rows, notes)


@dataclass
class _Board:
    """Where the pebbles are. ``dirty`` holds partial sums whose last state is red only."""

    m: int
    n: int
    k: int
    capacity: int
    red: set[Word] = field(default_factory=set)
    blue: set[Word] = field(default_factory=set)
    dirty: set[Word] = field(default_factory=set)
    begun: set[Word] = field(default_factory=set)
    done: set[tuple[int, int, int]] = field(default_factory=set)

    def step(self, move: Any) -> tuple[str, str] | None:
        """Make a move; (what is wrong, remedy) if it is against the rules."""
        if not isinstance(move, tuple | list) or not move:
            return "no move", 'write ("read", word), ("write", word), ("drop", word) or ("multiply", i, j, l)'
        verb, *rest = move
        if verb == "multiply" and len(rest) == 3:
            return self.multiply(*rest)
        if verb not in ("read", "write", "drop") or len(rest) != 1:
            return "no move", 'write ("read", word), ("write", word), ("drop", word) or ("multiply", i, j, l)'
        word = tuple(rest[0])
        if not self.exists(word):
            return "there is no such word", 'words are ("a", i, l), ("b", l, j) and ("c", i, j) within the matrices'
        return getattr(self, verb)(word)

    def exists(self, word: Any) -> bool:
        sizes = {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}
        if len(word) != 3 or word[0] not in sizes:
            return False
        return all(isinstance(x, int) and 0 <= x < size for x, size in zip(word[1:], sizes[word[0]], strict=True))

    def read(self, word: Word) -> tuple[str, str] | None:
        if word not in self.blue:
            return f"{word_text(word)} is not in the slow memory", "only operands and what was written can be read"
        if word in self.dirty:
            return f"{word_text(word)} has grown since it was written", "use the red one"
        return self.place(word)

    def place(self, word: Word) -> tuple[str, str] | None:
        self.red.add(word)
        if len(self.red) > self.capacity:
            return f"that takes {len(self.red)} red pebbles of {self.capacity}", "drop a word first"
        return None

    def write(self, word: Word) -> tuple[str, str] | None:
        if word not in self.red:
            return f"{word_text(word)} is not in the fast memory", "only a red word can be written"
        self.blue.add(word)
        self.dirty.discard(word)
        return None

    def drop(self, word: Word) -> tuple[str, str] | None:
        if word not in self.red:
            return f"{word_text(word)} has no red pebble", "drop only what is in the fast memory"
        if word in self.dirty:
            return f"the partial sum {word_text(word)} would be lost", "write it first"
        self.red.discard(word)
        return None

    def multiply(self, i: int, j: int, l: int) -> tuple[str, str] | None:
        total: Word = ("c", i, j)
        operands: tuple[Word, Word] = (("a", i, l), ("b", l, j))
        if not all(map(self.exists, (*operands, total))):
            return "there is no such product", "i, j and l count from 0 within m, n and k"
        for word in operands:
            if word not in self.red:
                return f"{word_text(word)} is not in the fast memory", "read it first"
        if (i, l, j) in self.done:
            return "that product was made before", "make each of them once"
        if total in self.begun and total not in self.red:
            return f"the partial sum {word_text(total)} is in the slow memory", "read it first"
        self.done.add((i, l, j))
        self.begun.add(total)
        self.dirty.add(total)
        return self.place(total)


def replay(m: int, n: int, k: int, capacity: int, moves: Iterable[Move]) -> PebbleRun:
    """Execute a schedule of ``C = A B`` (``m x k`` by ``k x n``) with ``capacity`` red pebbles; O(moves).

    Raises PebbleError at the first move that is against the rules, or at the end if a product was not made or a result
    not written; OptionError for sizes below 1.
    """
    if min(m, n, k, capacity) < 1:
        raise OptionError("sizes and the number of pebbles are 1 or more", remedy="a product takes 3 pebbles at least")
    board = _Board(m, n, k, capacity)
    board.blue |= {("a", i, l) for i in range(m) for l in range(k)} | {("b", l, j) for l in range(k) for j in range(n)}
    reads = writes = count = most = 0
    products: list[tuple[int, int, int]] = []
    segments: list[Segment] = []

    def close() -> None:
        before = sum(segment.transfers for segment in segments)
        segments.append(Segment(reads + writes - before, projections(products, ("i", "l", "j"))))
        products.clear()

    for move in moves:
        # A segment ends before the transfer that would be one too many, so that it has the products after its last.
        is_transfer = move and move[0] in ("read", "write")
        if is_transfer and reads + writes and (reads + writes) % capacity == 0:
            close()
        problem = board.step(move)
        if problem:
            raise PebbleError(count, move, *problem)
        if move[0] == "multiply":
            i, j, l = move[1:]
            products.append((i, l, j))
        reads += move[0] == "read"
        writes += move[0] == "write"
        count, most = count + 1, max(most, len(board.red))
    close()
    missing = m * n * k - len(board.done)
    if missing:
        raise PebbleError(count, "end", f"{missing} products were not made", "make each of them once")
    unwritten = [("c", i, j) for i in range(m) for j in range(n) if ("c", i, j) not in board.blue - board.dirty]
    if unwritten:
        raise PebbleError(count, "end", f"{word_text(unwritten[0])} was not written", "write every result")
    return PebbleRun(m, n, k, capacity, reads, writes, count, most, tuple(segments))


def tiled(m: int, n: int, k: int, tile: Tile) -> Iterator[Move]:
    """The schedule of a tiled product: for each tile of C the slices of A and B, ``B_K`` deep, one after the other.

    Takes :func:`~staxlab.measure.matrix_traffic.tile_capacity` red pebbles.
    """
    tile_capacity(tile)
    rows, columns, depth = tile
    for i0 in range(0, m, rows):
        for j0 in range(0, n, columns):
            down, across = range(i0, min(i0 + rows, m)), range(j0, min(j0 + columns, n))
            for l0 in range(0, k, depth):
                deep = range(l0, min(l0 + depth, k))
                words = [("a", i, l) for i in down for l in deep] + [("b", l, j) for l in deep for j in across]
                yield from (("read", word) for word in words)
                yield from (("multiply", i, j, l) for i in down for j in across for l in deep)
                yield from (("drop", word) for word in words)
            for i in down:
                for j in across:
                    yield from (("write", ("c", i, j)), ("drop", ("c", i, j)))


def row_by_row(m: int, n: int, k: int) -> Iterator[Move]:
    """The three loops as they are written, with 3 red pebbles: nothing stays but the sum."""
    return tiled(m, n, k, (1, 1, 1))
