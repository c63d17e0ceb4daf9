"""How much memory traffic attention causes: operator by operator, in tiles, and at least (Section 9.10, Theorem 9.2).

Operator by operator, ``S = Q K^T`` is written, read by the softmax, ``P`` is written and read again: four matrices of
``N x M`` elements besides the operands, ``N d + M d + M dv + 4 N M + N dv`` elements for one head, the softmax being
one kernel already. In tiles a program instance keeps ``B_r`` rows of Q on the chip and walks along all keys; the
scores never leave it. What is read again are K and V, once for each of ``ceil(N / B_r)`` instances:

    ``N d + ceil(N / B_r) M (d + dv) + N dv + N``     (Q, K and V, O, LSE)

As ``B_r`` rows of Q and of the accumulator must fit into ``S`` elements of on-chip storage, ``B_r`` is of the order of
``S / d``, and the traffic of ``N^2 d^2 / S``: less than N^2 by a factor of ``S / d^2`` (Theorem 9.2; Dao et al., 2022,
who prove that no exact algorithm does asymptotically better for all S in [d, N d]). Theorems count orders of growth;
the constants are those above, and :class:`AttentionTraffic` keeps both: with tiles of 128 queries, which is what the
tensor cores are fed with, ``d = 128`` leaves a ratio of 2 where the orders promise 6. The chapter calls the storage M;
here it is S, the ``capacity``, since M is the number of keys.

A block mask removes the blocks that are empty, and nothing of the rest; grouped-query attention shares K and V among
query heads, which saves compulsory traffic, and traffic in tiles only where the heads of a group are rows of one tile
(``packed``). Counts are exact, ragged edges included: :func:`count_attention` runs the loops and counts, which is what
the tests hold the closed forms against. Caches are not modelled: what is read again may come from L2.

>>> traffic = attention_traffic(8192, 8192, 128, tile=(128, 64), capacity=100 * 1024)
>>> float(traffic.theorem_ratio), round(traffic.ratio, 2)
(6.25, 2.0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch

from ..attention.online_softmax import State
from ..errors import OptionError
from ..options import Decision
from .tables import Table, Tabular, bytes_text

LSE_BYTES = 4  # float32, whatever the operands
INDEX_BYTES = 4  # of the lists of a block mask
Tile = tuple[int, int]  # B_r queries, B_c keys


def _positive(**sizes: int) -> None:
    wrong = {name: size for name, size in sizes.items() if not isinstance(size, int) or size < 1}
    if wrong:
        name, size = next(iter(wrong.items()))
        raise OptionError(f"{name} = {size!r} is no size", remedy="sizes are whole numbers of 1 or more")


# --- Orders of growth -------------------------------------------------------------------------------------------------


def operator_order(length: int, head_size: int) -> int:
    """``N d + N^2``: the order of the traffic operator by operator, one head (Theorem 9.2)."""
    _positive(N=length, d=head_size)
    return length * head_size + length * length


def tiled_order(length: int, head_size: int, capacity: int) -> Fraction:
    """``N^2 d^2 / S``: that of the tiled algorithm, for d <= S <= N d (Theorem 9.2). OptionError for S outside."""
    _positive(N=length, d=head_size, S=capacity)
    if not head_size <= capacity <= length * head_size:
        raise OptionError(
            f"the theorem is about d <= S <= N d, and S = {capacity:,} is not between {head_size:,} and "
            f"{length * head_size:,}",
            remedy="with more storage than that, every element is moved once",
        )
    return Fraction((length * head_size) ** 2, capacity)


def order_ratio(head_size: int, capacity: int) -> Fraction:
    """``S / d^2``: how many times fewer elements the tiled algorithm moves, to leading order.

    >>> [round(float(order_ratio(d, 100_000)), 1) for d in (64, 128)]
    [24.4, 6.1]
    """
    _positive(d=head_size, S=capacity)
    return Fraction(capacity, head_size**2)


# --- Tiles ------------------------------------------------------------------------------------------------------------


def tile_elements(tile: Tile, head_size: int, value_size: int | None = None) -> int:
    """Elements on the chip: rows of Q and of the accumulator, of K and V, the scores, and (m, l).

    ``B_r (d + dv) + B_c (d + dv) + B_r B_c + 2 B_r``.
    """
    rows, columns = tile
    _positive(B_r=rows, B_c=columns, d=head_size)
    both = head_size + (head_size if value_size is None else value_size)
    return (rows + columns) * both + rows * columns + 2 * rows


def largest_rows(capacity: int, head_size: int, columns: int, value_size: int | None = None) -> Decision:
    """The largest ``B_r`` with which a tile fits beside ``B_c`` keys, as a Decision. OptionError where not one does.

    >>> largest_rows(100 * 1024, 128, 64).choice
    267
    """
    _positive(S=capacity, d=head_size, B_c=columns)
    both = head_size + (head_size if value_size is None else value_size)
    rows = (capacity - columns * both) // (both + columns + 2)
    if rows < 1:
        raise OptionError(
            f"no tile fits: one row beside {columns} keys takes {tile_elements((1, columns), head_size, value_size):,} "
            f"elements of {capacity:,}",
            remedy="take fewer keys at a time, or more room",
        )
    used, more = (tile_elements((r, columns), head_size, value_size) for r in (rows, rows + 1))
    reason = f"B_r = {rows} takes {used:,} elements, and one row more {more:,}"
    facts = (("capacity", capacity), ("d", head_size), ("B_c", columns))
    return Decision("tile", f"S = {capacity:,}", rows, reason, (rows, rows + 1), facts)


@dataclass(frozen=True)
class Flow:
    """Elements of one thing that are read and written: ``name``, and the bytes of an element."""

    name: str
    read: int
    written: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return (self.read + self.written) * self.itemsize


@dataclass(frozen=True)
class Walk:
    """A run of program instances that walk along the same keys: how many instances, how many keys and blocks each."""

    instances: int
    keys: int
    blocks: int


@dataclass(frozen=True, repr=False)
class AttentionTraffic(Tabular):
    """The traffic of one attention: ``batch`` x ``query_heads`` over ``key_heads`` heads, ``queries`` x ``keys``
    positions, rows of ``head_size`` and ``value_size`` elements of ``itemsize`` bytes.

    ``walks`` are the program instances of all batch elements and heads, ``tile`` is (B_r, B_c), ``capacity`` the
    elements of on-chip storage that Theorem 9.2 is asked about. With ``packed`` the query heads of a group are rows of
    one tile; with ``splits`` > 1 each walk is divided among so many instances, whose states are merged afterwards.
    Draws the traffic against the length, and against the storage.
    """

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    itemsize: int
    tile: Tile
    capacity: int
    walks: tuple[Walk, ...]
    visible: Fraction = Fraction(1)  # the share of blocks that is visited
    masked: bool = False
    packed: bool = False
    splits: int = 1

    # --- Operator by operator -----------------------------------------------------------------------------------------

    @cached_property
    def operators(self) -> tuple[Flow, ...]:
        """The three kernels: Q K^T, the softmax, P V. Heads of a group read K and V each."""
        heads, (n, m) = self.batch * self.query_heads, (self.queries, self.keys)
        scores = heads * n * m
        return (
            Flow("S = Q K^T", heads * (n + m) * self.head_size, scores, self.itemsize),
            Flow("P = softmax(S)", scores, scores, self.itemsize),
            Flow("O = P V", scores + heads * m * self.value_size, heads * n * self.value_size, self.itemsize),
        )

    @property
    def operator_elements(self) -> int:
        return sum(flow.read + flow.written for flow in self.operators)

    @property
    def operator_bytes(self) -> int:
        return sum(flow.nbytes for flow in self.operators)

    # --- In tiles -----------------------------------------------------------------------------------------------------

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What the template reads and writes: operands, result, LSE, and what a block mask and splits add."""
        heads = self.batch * self.query_heads
        keys = sum(walk.instances * walk.keys for walk in self.walks)
        rows = heads * self.queries
        found = [
            Flow("Q", rows * self.head_size * self.splits, 0, self.itemsize),
            Flow("K", keys * self.head_size, 0, self.itemsize),
            Flow("V", keys * self.value_size, 0, self.itemsize),
            Flow("O", 0, rows * self.value_size, self.itemsize),
            Flow("LSE", 0, rows, LSE_BYTES),
        ]
        if self.masked:
            listed = sum(walk.instances * (2 * self.splits + walk.blocks) for walk in self.walks)
            found.append(Flow("lists of blocks", listed, 0, INDEX_BYTES))
        if self.splits > 1:
            states = rows * self.splits * (self.value_size + 2)
            found.append(Flow("states (m, l, a) of splits", states, states, 4))
        return tuple(found)

    @property
    def elements(self) -> int:
        return sum(flow.read + flow.written for flow in self.flows)

    @property
    def nbytes(self) -> int:
        return sum(flow.nbytes for flow in self.flows)

    @property
    def compulsory_bytes(self) -> int:
        """Every element of Q, K, V and O once, and LSE."""
        heads, both = self.batch * self.query_heads, self.head_size + self.value_size
        elements = heads * self.queries * both + self.batch * self.key_heads * self.keys * both
        return elements * self.itemsize + heads * self.queries * LSE_BYTES

    @property
    def ratio(self) -> float:
        """Bytes operator by operator over bytes in tiles."""
        return self.operator_bytes / self.nbytes if self.nbytes else math.inf

    @property
    def theorem_ratio(self) -> Fraction:
        """``S / d^2``, the leading order of the same ratio (Theorem 9.2)."""
        return order_ratio(self.head_size, self.capacity)

    @property
    def fits(self) -> bool:
        return tile_elements(self.tile, self.head_size, self.value_size) <= self.capacity

    # --- Kept for the backward pass -----------------------------------------------------------------------------------

    @property
    def saved_bytes(self) -> tuple[int, int]:
        """Kept for the backward pass besides Q, K, V and O: P, in the operands' type, or LSE, in float32."""
        rows = self.batch * self.query_heads * self.queries
        return rows * self.keys * self.itemsize, rows * LSE_BYTES

    # --- Other sizes --------------------------------------------------------------------------------------------------

    def with_length(self, length: int) -> AttentionTraffic:
        """The same attention of ``length`` queries and keys, every block visited, in the same tiles."""
        _positive(length=length)
        bare = replace(self, queries=length, keys=length, masked=False, visible=Fraction(1), splits=1)
        return replace(bare, walks=_dense_walks(bare))

    def with_keys(self, keys: int) -> AttentionTraffic:
        """The same queries before ``keys`` keys, every block visited, in the same tiles and splits."""
        _positive(keys=keys)
        bare = replace(self, keys=keys, masked=False, visible=Fraction(1))
        return replace(bare, walks=_dense_walks(bare))

    def with_tile(self, tile: Tile) -> AttentionTraffic:
        """The same lengths, every block visited, in other tiles."""
        tile_elements(tile, self.head_size, self.value_size)
        bare = replace(self, tile=tile, masked=False, visible=Fraction(1), splits=1)
        return replace(bare, walks=_dense_walks(bare))

    def against_capacity(self) -> tuple[AttentionTraffic, ...]:
        """Tiles of as many rows as fit, with the same B_c, for powers of two of storage from where one row fits to
        where all queries do."""
        found = []
        columns = self.tile[1]
        for exponent in range(1, 64):
            try:
                rows = largest_rows(1 << exponent, self.head_size, columns, self.value_size).choice
            except OptionError:
                continue
            found.append(replace(self.with_tile((min(rows, self.queries), columns)), capacity=1 << exponent))
            if rows >= self.queries:
                break
        return tuple(found)

    # --- As text ------------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        return (
            f"{bytes_text(self.nbytes)} in tiles of {self.tile[0]} x {self.tile[1]}, {bytes_text(self.operator_bytes)} "
            f"operator by operator: {self.ratio:.3g} times less; at least {bytes_text(self.compulsory_bytes)}"
        )

    def description(self) -> str:
        heads = f"{self.query_heads} heads"
        if self.key_heads != self.query_heads:
            heads = f"{self.query_heads} query heads over {self.key_heads} key heads"
        visited = f", {float(self.visible):.1%} of the blocks visited" if self.masked else ""
        queries = "1 query" if self.queries == 1 else f"{self.queries:,} queries"
        return f"{self.batch} x {heads}, {queries} x {self.keys:,} keys of {self.head_size}{visited}"

    def table(self) -> Table:
        def row(way: str, flow: Flow) -> tuple[str, ...]:
            return way, flow.name, f"{flow.read:,}", f"{flow.written:,}", bytes_text(flow.nbytes)

        rows = [row("operators", flow) for flow in self.operators]
        rows += [row("tiles", flow) for flow in self.flows]
        p, lse = self.saved_bytes
        room = tile_elements(self.tile, self.head_size, self.value_size)
        notes = [
            self.summary(),
            f"Theorem 9.2, leading order: S / d^2 = {float(self.theorem_ratio):.4g} times less, "
            f"for S = {self.capacity:,} elements on the chip; a tile takes {room:,}{'' if self.fits else ', too many'}",
            f"kept for the backward pass: P takes {bytes_text(p)}, LSE {bytes_text(lse)}"
            + (f", {Fraction(p, lse)} times less" if lse else ""),
        ]
        head = ("way", "what", "read", "written", "bytes")
        return Table.build(f"Traffic of attention, {self.description()}", head, rows, notes, text_columns=2)


def _dense_walks(sizes: AttentionTraffic) -> tuple[Walk, ...]:
    """Every instance walks along all keys."""
    heads, rows = _tile_rows(sizes)
    instances = heads * -(-rows // sizes.tile[0])
    return (Walk(instances, sizes.keys, 0),)


def _tile_rows(sizes: AttentionTraffic) -> tuple[int, int]:
    """(heads whose rows are tiled on their own, rows of each)."""
    if sizes.packed:
        return sizes.batch * sizes.key_heads, sizes.queries * (sizes.query_heads // sizes.key_heads)
    return sizes.batch * sizes.query_heads, sizes.queries


def _masked_walks(sizes: AttentionTraffic, block_mask: Any) -> Iterator[Walk]:
    """The instances of each row of blocks, one for each tile of queries that it has, walk along the keys of the blocks
    that it visits."""
    classes = block_mask.classes()
    height, width = block_mask.block_size
    visits = (classes > 0).cpu()
    extents = torch.full((visits.shape[3],), width, dtype=torch.int64)
    if extents.numel():
        extents[-1] = sizes.keys - width * (len(extents) - 1)
    keys, blocks = (visits.long() * extents).sum(-1), visits.sum(-1)  # [Bm, Hm, R]
    # A list that is the same for all batch elements or heads serves each of them.
    shared = (sizes.batch // visits.shape[0]) * (sizes.query_heads // visits.shape[1])
    for row in range(visits.shape[2]):
        tiles = -(-min(height, sizes.queries - row * height) // sizes.tile[0])
        for batch in range(visits.shape[0]):
            for head in range(visits.shape[1]):
                yield Walk(shared * tiles, int(keys[batch, head, row]), int(blocks[batch, head, row]))


def attention_traffic(
    queries: int,
    keys: int,
    head_size: int,
    *,
    value_size: int | None = None,
    batch: int = 1,
    query_heads: int = 1,
    key_heads: int | None = None,
    itemsize: int = 2,
    tile: Sequence[int] = (128, 64),
    capacity: int = 100 * 1024,
    block_mask: Any = None,
    packed: bool = False,
    splits: int = 1,
) -> AttentionTraffic:
    """The traffic of an attention in tiles ``(B_r, B_c)``, exactly, and operator by operator.

    ``block_mask`` (a :class:`staxlab.attention.block_mask.BlockMask`, or None) says which blocks are visited: its rows
    of blocks are cut into tiles of B_r queries, and an instance reads the keys of the blocks it visits. O(blocks).
    Raises OptionError for sizes below 1, heads that do not divide, lengths of a block mask that are others, a B_r that
    does not divide the block's rows, and for a block mask together with ``packed``, whose rows are not one row of
    blocks.
    """
    key_heads = query_heads if key_heads is None else key_heads
    value_size = head_size if value_size is None else value_size
    _positive(queries=queries, keys=keys, head_size=head_size, value_size=value_size, batch=batch, splits=splits,
              query_heads=query_heads, key_heads=key_heads, itemsize=itemsize, capacity=capacity)  # fmt: skip
    if len(tile) != 2:
        raise OptionError(f"a tile has two sizes, not {len(tile)}", remedy="give (B_r, B_c)")
    rows, columns = tile
    _positive(B_r=rows, B_c=columns)
    if query_heads % key_heads:
        raise OptionError(
            f"{query_heads} query heads cannot share {key_heads} key heads",
            remedy="let the number of query heads be a multiple of that of key heads",
        )
    sizes = AttentionTraffic(
        batch, query_heads, key_heads, queries, keys, head_size, value_size, itemsize, (rows, columns), capacity, (),
        packed=packed, splits=splits,
    )  # fmt: skip
    if block_mask is None:
        return replace(sizes, walks=_dense_walks(sizes))
    _check_mask(sizes, block_mask)
    walks = tuple(_masked_walks(sizes, block_mask))
    visited = Fraction(int((block_mask.classes() > 0).sum()), max(block_mask.classes().numel(), 1))
    return replace(sizes, walks=_merged(walks), masked=True, visible=visited)


def _check_mask(sizes: AttentionTraffic, block_mask: Any) -> None:
    if tuple(block_mask.seq_lengths) != (sizes.queries, sizes.keys):
        raise OptionError(
            f"the block mask is for {block_mask.seq_lengths[0]} queries and {block_mask.seq_lengths[1]} keys, "
            f"not {sizes.queries} and {sizes.keys}",
            remedy="make it with create_block_mask for these lengths",
        )
    if sizes.packed:
        raise OptionError(
            "the rows of a packed tile belong to several rows of blocks", remedy="leave out packed, or the block mask"
        )
    if block_mask.block_size[0] % sizes.tile[0]:
        raise OptionError(
            f"tiles of {sizes.tile[0]} queries do not divide blocks of {block_mask.block_size[0]}",
            remedy="choose B_r among the divisors of the block's rows",
        )
    extents = tuple(block_mask.kv_num_blocks.shape[:2])
    if extents[0] not in (1, sizes.batch) or extents[1] not in (1, sizes.query_heads):
        raise OptionError(
            f"the block mask is for {extents[0]} batch elements and {extents[1]} heads, not {sizes.batch} and "
            f"{sizes.query_heads}",
            remedy="make it with create_block_mask for these, or with B=None and H=None",
        )


def _merged(walks: Sequence[Walk]) -> tuple[Walk, ...]:
    """Walks of equal length counted together."""
    found: dict[tuple[int, int], int] = {}
    for walk in walks:
        found[walk.keys, walk.blocks] = found.get((walk.keys, walk.blocks), 0) + walk.instances
    return tuple(Walk(instances, *lengths) for lengths, instances in sorted(found.items()))


# --- Counting by running ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionCount:
    """What the loops of tiled attention did for one head: elements read of Q, K and V, elements written of O and LSE,
    blocks visited, the most elements on the chip at a time, and the result itself."""

    read_q: int
    read_k: int
    read_v: int
    written_o: int
    written_lse: int
    visits: int
    most_on_chip: int
    out: torch.Tensor
    lse: torch.Tensor


def count_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tile: Tile, visible: torch.Tensor | None = None
) -> AttentionCount:
    """Attention of one head in tiles, counting every element that passes between chip and memory. O(N M (d + dv)).

    Query [N, d], key [M, d], value [M, dv]; ``visible`` bool [N, M] or None: a tile without a visible position is not
    read. The loops and the state are those of a program instance (Figure 9.2).
    """
    (n, d), (m, dv) = query.shape, value.shape
    rows, columns = tile
    tile_elements(tile, d, dv)
    read = {"q": 0, "k": 0, "v": 0}
    visits, most = 0, 0
    outs, lses = [query.new_zeros(0, dv)], [query.new_zeros(0)]
    for i in range(0, n, rows):
        q = query[i : i + rows]
        read["q"] += q.numel()
        state = State.identity((len(q),), dv, query.dtype)
        for j in range(0, m, columns):
            seen = None if visible is None else visible[i : i + rows, j : j + columns]
            if seen is not None and not seen.any():
                continue
            k, v = key[j : j + columns], value[j : j + columns]
            read["k"] += k.numel()
            read["v"] += v.numel()
            visits += 1
            scores = q @ k.mT * d**-0.5
            kept = (q, k, v, scores, state.maximum, state.total, state.accumulated)
            most = max(most, sum(part.numel() for part in kept))
            state = state.merge(State.from_block(scores, v, seen))
        out, lse = state.finish()
        outs.append(out)
        lses.append(lse)
    out, lse = torch.cat(outs), torch.cat(lses)
    return AttentionCount(read["q"], read["k"], read["v"], out.numel(), lse.numel(), visits, most, out, lse)
