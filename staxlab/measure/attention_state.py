"""One program instance of tiled attention, block by block: what it holds on the chip, and how that changes (Figure
9.2).

An instance has a block of queries. It walks along the blocks of keys, and after each one holds three things for every
query: the maximum ``m`` of the scores so far, the sum ``l`` of their exponentials relative to it, and the accumulator
``acc``, the sum of exponentials times values. A score above the maximum makes all that was gathered before smaller by
the factor ``exp(m_old - m_new)``. Blocks that a block mask calls empty are not visited, and change nothing.

:func:`instance_run` makes the walk on numbers, with the operations of :mod:`staxlab.attention.online_softmax`, and
keeps every state. It is for looking at: sizes that fit a page, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.online_softmax import State
from ..errors import OptionError
from .tables import Table, Tabular

EMPTY, PARTIAL, FULL = "empty", "partial", "full"
Row = tuple[float, ...]
MOST_SCORES = 1 << 16  # elements of all tiles of a walk that is kept


@dataclass(frozen=True)
class InstanceStep:
    """What one block of keys did: its number and ``keys`` (start, stop), its ``kind``, the tile of ``scores`` (one row
    for each query, minus infinity where masked; no rows for an empty block), and the state after it: ``maximum``,
    ``total``, the length ``norm`` of the accumulator, and the ``factor`` exp(m_old - m_new), for each query."""

    block: int
    keys: tuple[int, int]
    kind: str
    scores: tuple[Row, ...]
    maximum: Row
    total: Row
    norm: Row
    factor: Row

    @property
    def visited(self) -> bool:
        return self.kind != EMPTY

    def words(self) -> str:
        """What happens, in a sentence."""
        name = f"keys {self.keys[0]} to {self.keys[1] - 1}"
        if not self.visited:
            return f"{name}: an empty block is not visited; nothing is read, nothing changes"
        raised = [k for k, factor in enumerate(self.factor) if factor < 1]
        if not raised:
            return f"{name}, {self.kind}: no maximum changes, every factor is 1"
        least = min(self.factor[k] for k in raised)
        rows = "query" if len(raised) == 1 else "queries"
        return f"{name}, {self.kind}: a new maximum for {len(raised)} {rows}; smallest factor {number(least)}"


@dataclass(frozen=True, repr=False)
class InstanceRun(Tabular):
    """The walk of one program instance: ``queries`` (start, stop) over ``steps``, with the result at its end.

    ``lse`` is LSE of each query, ``norm`` the length of its row of O, and ``difference`` the largest distance of that
    row from a softmax over all keys at once. Prints the states; draws them, one block of keys after the other.
    """

    queries: tuple[int, int]
    keys: int
    tile: tuple[int, int]
    head_size: int
    steps: tuple[InstanceStep, ...]
    lse: Row
    norm: Row
    difference: float
    mask: str = ""
    score: str = ""

    @property
    def visits(self) -> int:
        return sum(step.visited for step in self.steps)

    @property
    def score_range(self) -> tuple[float, float]:
        """The least and the greatest finite score; (0, 0) where there is none."""
        found = [s for step in self.steps for row in step.scores for s in row if math.isfinite(s)]
        return (min(found), max(found)) if found else (0.0, 0.0)

    def summary(self) -> str:
        skipped = len(self.steps) - self.visits
        left = f", {skipped} skipped" if skipped else ""
        return (
            f"queries {self.queries[0]} to {self.queries[1] - 1}: {self.visits} of {len(self.steps)} blocks of keys "
            f"visited{left}; the result is within {self.difference:.2g} of a softmax over all keys at once"
        )

    def table(self) -> Table:
        rows = [("start", "", "all", "-inf", "0", "0", "")]
        for step in self.steps:
            where = f"{step.keys[0]} to {step.keys[1] - 1}"
            if not step.visited:
                rows.append((where, step.kind, "all", "", "", "", ""))
                continue
            for k in range(len(step.maximum)):
                values = (number(v[k]) for v in (step.maximum, step.total, step.norm, step.factor))
                rows.append((where if k == 0 else "", step.kind if k == 0 else "", str(self.queries[0] + k), *values))
        for k, lse in enumerate(self.lse):
            rows.append(("end" if k == 0 else "", "", str(self.queries[0] + k), "", f"LSE {number(lse)}",
                         f"|o| {number(self.norm[k])}", ""))  # fmt: skip
        head = ("keys", "block", "query", "m", "l", "|acc|", "exp(m_old - m_new)")
        caption = f"One program instance, tiles of {self.tile[0]} x {self.tile[1]}"
        named = [f"{what}: {name}" for what, name in (("score_mod", self.score), ("mask_mod", self.mask)) if name]
        return Table.build(caption, head, rows, [self.summary(), *named], text_columns=2)


def number(value: float) -> str:
    """Three digits, with -inf and nan by name."""
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def instance_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    row: int = 0,
    block: Sequence[int] = (4, 4),
    block_mask: Any = None,
    score_mod: Callable | None = None,
    batch: int = 0,
    head: int = 0,
    scale: float | None = None,
) -> InstanceRun:
    """The walk of the program instance that has row ``row`` of blocks of queries.

    Query [N, D], key [M, D], value [M, Dv] of one head, or [B, H, ...] with ``batch`` and ``head`` chosen (key heads
    are shared by groups of query heads); computed in float64. ``block`` is (B_r, B_c), that of ``block_mask`` where one
    is given. ``score_mod`` is called on tensors, as its tracing does. Raises OptionError for a row that is not there,
    for lengths that a block mask was not made for, and where the scores are too many to be kept and looked at.
    """
    if query.dim() == 4:
        group = query.shape[1] // max(key.shape[1], 1) or 1
        query, key, value = query[batch, head], key[batch, head // group], value[batch, head // group]
    query, key, value = (t.detach().to("cpu", torch.float64) for t in (query, key, value))
    (n, d), m = query.shape, key.shape[0]
    height, width = block_mask.block_size if block_mask is not None else block
    rows = -(-n // height)
    if not 0 <= row < rows:
        raise OptionError(f"there is no row {row} of blocks", remedy=f"choose one of 0 to {rows - 1}")
    if block_mask is not None and tuple(block_mask.seq_lengths) != (n, m):
        raise OptionError(
            f"the block mask is for {block_mask.seq_lengths}, not for {n} queries and {m} keys",
            remedy="make it with create_block_mask for these lengths",
        )
    here = slice(row * height, min((row + 1) * height, n))
    if (here.stop - here.start) * m > MOST_SCORES:
        raise OptionError(
            f"{here.stop - here.start} x {m} scores are too many to look at", remedy="take a small example"
        )
    kinds, visible = _blocks(block_mask, row, here, -(-m // width), batch, head)
    scores = _scores(query, key, here, scale, score_mod, batch, head)
    if visible is not None:
        scores = torch.where(visible, scores, -math.inf)
    state = State.identity((here.stop - here.start,), value.shape[1])
    steps = []
    for j, kind in enumerate(kinds):
        keys = slice(j * width, min((j + 1) * width, m))
        factor, tile = torch.ones_like(state.maximum), ()
        if kind != EMPTY:
            own = State.from_block(scores[:, keys], value[keys])
            factor = state.correction(own)
            state = state.merge(own)
            tile = _rows(scores[:, keys])
        found = (state.maximum, state.total, state.accumulated.norm(dim=-1), factor)
        steps.append(InstanceStep(j, (keys.start, keys.stop), kind, tile, *(tuple(v.tolist()) for v in found)))
    out, lse = state.finish()
    whole, whole_lse = State.from_block(scores, value).finish()
    difference = max(float((out - whole).abs().max()), float((lse - whole_lse).nan_to_num(0.0).abs().max()))
    return InstanceRun(
        (here.start, here.stop), m, (height, width), d, tuple(steps), tuple(lse.tolist()),
        tuple(out.norm(dim=-1).tolist()), difference, block_mask.name if block_mask is not None else "",
        getattr(score_mod, "__name__", "") if score_mod else "",
    )  # fmt: skip


def _rows(tile: torch.Tensor) -> tuple[Row, ...]:
    return tuple(tuple(row) for row in tile.tolist())


def _blocks(
    block_mask: Any, row: int, here: slice, columns: int, batch: int, head: int
) -> tuple[list[str], torch.Tensor | None]:
    """The kind of each block of the row, and its visible positions."""
    if block_mask is None:
        return [FULL] * columns, None
    classes = block_mask.classes()
    which = (min(batch, classes.shape[0] - 1), min(head, classes.shape[1] - 1))
    kinds = [(EMPTY, PARTIAL, FULL)[int(c)] for c in classes[(*which, row)]]
    return kinds, block_mask.positions(batch, head)[here].cpu()


def _scores(
    query: torch.Tensor, key: torch.Tensor, here: slice, scale: float | None, score_mod: Callable | None,
    batch: int, head: int,
) -> torch.Tensor:  # fmt: skip
    """The scores [B_r, M] of the row of blocks, modified."""
    scores = (query[here] @ key.mT) * (query.shape[1] ** -0.5 if scale is None else scale)
    if score_mod is None:
        return scores
    b, h = torch.tensor(batch, dtype=torch.int32), torch.tensor(head, dtype=torch.int32)
    q = torch.arange(here.start, here.stop, dtype=torch.int32)
    kv = torch.arange(key.shape[0], dtype=torch.int32)
    found = score_mod(
        scores[None, None],
        b.reshape(1, 1, 1, 1),
        h.reshape(1, 1, 1, 1),
        q.reshape(1, 1, -1, 1),
        kv.reshape(1, 1, 1, -1),
    )
    return found.detach().to(torch.float64).expand(1, 1, *scores.shape)[0, 0]
