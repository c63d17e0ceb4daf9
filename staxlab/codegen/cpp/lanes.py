"""The order of a vectorised reduction, one event after the other (Sections 6.5 and 8.1).

A row of ``n`` elements goes into ``k`` accumulators of ``W`` lanes: element ``e`` of a whole block of ``k * W`` into
accumulator ``e // W``, lane ``e % W``. What is left of the row is merged vector by vector, the last one under a mask.
Then the accumulators are merged as a tree, then the lanes, halves onto halves, and the results of pieces in order.
Everything is read from the plan and from the code generator's own merge tree, and :meth:`LaneReduction.run` does the
additions in that order: its bits are those of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import OptionError
from ...loops.semantics import neutral_element
from ..kernel import Kernel, PlannedLoops
from .plan import extent
from .reductions import Merge


@dataclass(frozen=True)
class Event:
    """Something that happens to the accumulators of one output.

    ``kind`` is "read" (``elements``, from ``first`` on, into accumulators ``into``; ``masked`` if not all lanes take
    part), "merge" (accumulator ``into[1]`` into ``into[0]``), "fold" (the upper half of ``lanes`` lanes onto the lower)
    or "skip" (``elements`` that are read as those before, left out of the picture).
    """

    kind: str
    into: tuple[int, ...] = ()
    first: int = 0
    elements: int = 0
    lanes: int = 0
    masked: bool = False


class _Recorder(Merge):
    """A merge that writes down which accumulators it is asked to merge, so that the tree is the generator's own."""

    pairs: list[tuple[int, int]]

    def pair(self, a: str, b: str) -> str:
        self.pairs.append((int(a), int(b)))
        return a


def merge_tree(accumulators: int) -> tuple[tuple[int, int], ...]:
    """Which accumulators are merged, in order: the second into the first."""
    recorder = _Recorder("amax", torch.float32, True, "")  # no infix sign, so names stay as they are
    object.__setattr__(recorder, "pairs", [])
    recorder.tree([str(k) for k in range(accumulators)])
    return tuple(recorder.pairs)


@dataclass(frozen=True)
class LaneReduction:
    """The reduction of one output: ``rows`` times ``length`` elements, of which each piece has ``piece``.

    ``whole`` elements of a row go in by blocks of ``accumulators * lanes``, then ``vectors`` single vectors, then a
    masked ``tail``. ``pieces`` are reduced apart and merged from left to right.
    """

    kernel: str
    node: str
    kind: str
    dtype: torch.dtype
    length: int
    rows: int
    lanes: int
    accumulators: int
    pieces: int
    chunk: int
    cut_rows: bool

    @property
    def width(self) -> int:
        """Elements of a block: one vector for each accumulator."""
        return self.lanes * self.accumulators

    @property
    def tail(self) -> int:
        return self.length % self.lanes

    @property
    def whole(self) -> int:
        return self.length // self.width * self.width

    @property
    def vectors(self) -> int:
        """Whole vectors behind the last block."""
        return (self.length - self.whole) // self.lanes

    @property
    def depth(self) -> int:
        """Merges that one element goes through at most, up to the result."""
        blocks = -(-min(self.chunk or self.length, self.length) // self.width) if not self.cut_rows else self.rows
        folds = self.lanes.bit_length() - 1
        return blocks + len(merge_tree(self.accumulators)).bit_length() + folds + self.pieces - 1

    def events(self, shown: int | None = None) -> Iterator[Event]:
        """What happens to the first piece of one row, in order; with ``shown`` only so many blocks, then a "skip"."""
        stop = min(self.chunk, self.length) if self.pieces > 1 and not self.cut_rows else self.length
        blocks = min(self.whole, stop // self.width * self.width) // self.width
        everyone = tuple(range(self.accumulators))
        for block in range(blocks):
            if shown is not None and shown <= block < blocks - 1:
                if block == shown:
                    yield Event("skip", everyone, block * self.width, (blocks - 1 - shown) * self.width)
                continue
            yield Event("read", everyone, block * self.width, self.width)
        if stop == self.length:
            for vector in range(self.vectors):
                yield Event("read", (vector % self.accumulators,), self.whole + vector * self.lanes, self.lanes)
            if self.tail:
                first = self.length - self.tail
                yield Event("read", (self.vectors % self.accumulators,), first, self.tail, masked=True)
        for one, other in merge_tree(self.accumulators):
            yield Event("merge", (one, other))
        lanes = self.lanes
        while lanes > 1:
            yield Event("fold", (0,), lanes=lanes)
            lanes //= 2

    def run(self, values: torch.Tensor) -> torch.Tensor:
        """Reduce ``rows * length`` values in this order, in ``dtype``, as the kernel does: the same bits.

        For sums, products and extremes (OptionError for others).
        """
        merges = {"sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}
        if self.kind not in merges:
            raise OptionError(f"{self.kind} keeps more than a value: its order is shown, not run")
        merge = merges[self.kind]
        numbers = values.reshape(self.rows, self.length).to(self.dtype)
        start = torch.tensor(neutral_element(self.kind, self.dtype), dtype=self.dtype)
        results = []
        for piece in range(self.pieces):
            into = [start.expand(self.lanes).clone() for _ in range(self.accumulators)]
            low, high = piece * self.chunk, (piece + 1) * self.chunk
            for row in numbers[low:high] if self.cut_rows and self.pieces > 1 else numbers:
                begin, end = (
                    (low, min(high, self.length)) if self.pieces > 1 and not self.cut_rows else (0, self.length)
                )
                self._row(row, begin, end, into, merge)
            for one, other in merge_tree(self.accumulators):
                into[one] = merge(into[one], into[other])
            vector = into[0]
            while len(vector) > 1:
                half = len(vector) // 2
                vector = merge(vector[:half], vector[half:])
            results.append(vector[0])
        if self.pieces == 1:
            return results[0]
        total = start
        for result in results:
            total = merge(total, result)
        return total

    def _row(self, row: torch.Tensor, begin: int, end: int, into: list[torch.Tensor], merge: Any) -> None:
        last = end == self.length
        main = self.whole if last else end
        for block in range(begin, main, self.width):
            for k in range(self.accumulators):
                first = block + k * self.lanes
                into[k] = merge(into[k], row[first : first + self.lanes])
        if not last:
            return
        for vector in range(self.vectors):
            first, k = self.whole + vector * self.lanes, vector % self.accumulators
            into[k] = merge(into[k], row[first : first + self.lanes])
        if self.tail:
            k = self.vectors % self.accumulators
            part = merge(into[k][: self.tail], row[self.length - self.tail :])
            into[k] = torch.cat([part, into[k][self.tail :]])

    def summary(self) -> str:
        size = f"{self.accumulators} accumulator{'' if self.accumulators == 1 else 's'} of {self.lanes} lanes"
        tail = f", a masked tail of {self.tail}" if self.tail else ""
        pieces = f", {self.pieces} pieces merged in order" if self.pieces > 1 else ""
        return f"{self.kind} of {self.rows * self.length:,} elements in {size}{tail}{pieces}"

    def words(self, event: Event) -> str:
        """An event in a sentence."""
        last = event.first + event.elements - 1
        if event.kind == "skip":
            return f"elements {event.first:,} to {last:,}: block after block in the same way"
        if event.kind == "merge":
            return f"accumulator {event.into[1]} is merged into accumulator {event.into[0]}, lane by lane"
        if event.kind == "fold":
            half = event.lanes // 2
            upper = f"lanes {half} to {event.lanes - 1}" if half > 1 else "lane 1"
            return f"{upper} onto lane{'s 0 to ' + str(half - 1) if half > 1 else ' 0'}"
        names = ", ".join(f"acc{k}" for k in event.into)
        masked = f", the other {self.lanes - event.elements} lanes masked" if event.masked else ""
        return f"elements {event.first:,} to {last:,} into {names}{masked}"

    def format(self) -> str:
        """The order as text, one line for each event."""
        lines = [f"lanes of {self.node} in {self.kernel}: {self.summary()}"]
        lines += [f"  {number:3}  {self.words(event)}" for number, event in enumerate(self.events(2), 1)]
        if self.rows > 1:
            lines.append(f"  (the same accumulators take in {self.rows:,} rows before they are merged)")
        if self.pieces > 1:
            what = f"{self.chunk:,} {'rows' if self.cut_rows else 'elements'}"
            lines.append(
                f"  {self.pieces} pieces of {what} are reduced so, and their results merged from left to right"
            )
        return "\n".join(lines)

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ...view import mimebundle

        return mimebundle(self)


def lane_reduction(kernel: Kernel, member: str | None = None) -> LaneReduction:
    """The lanes of a kernel's reduction; ``member`` names the node, by default the first that reduces along vectors.
    OptionError where none does: nothing is reduced, or lanes are different outputs."""
    for part in kernel.planned:
        if member in (None, part.node.name) and _along_vectors(part):
            return _of(kernel, part)
    wanted = f"node {member} of {kernel.name}" if member else kernel.name
    raise OptionError(
        f"{wanted} does not reduce along a vector",
        remedy="look at a kernel with a sum, product or extreme over the innermost dimension",
    )


def _along_vectors(part: PlannedLoops) -> bool:
    plan = part.plan
    return part.node.kind == "reduction" and plan.form == "inner" and plan.vector is not None


def _of(kernel: Kernel, part: PlannedLoops) -> LaneReduction:
    node, plan = part.node, part.plan
    assert plan.innermost is not None and node.accumulate_dtype is not None and node.reduction is not None
    rows = 1
    for symbol in plan.inner:
        rows *= extent(symbol)
    return LaneReduction(
        kernel.name, node.name, node.reduction, node.accumulate_dtype, extent(plan.innermost), rows, plan.lanes,
        plan.accumulators, plan.chunks, plan.chunk, bool(plan.inner),
    )  # fmt: skip
