"""Which tiles, warps and stages attention is computed with: the rule, and what a search may vary (Section 9.10).

A program instance holds BLOCK_M rows of values in float32 and a tile of BLOCK_M x BLOCK_N scores in registers, its
queries and ``num_stages`` tiles of keys and values in shared memory. Every key is read once for each BLOCK_M queries,
so BLOCK_M decides the traffic (Theorem 9.2). What decides the speed is whether the matrix units work while exponentials
are computed. Within one instance each step of a tile waits for the one before; so on compute capability 9 the rule aims
at *two* instances in a multiprocessor, four warps each and at most 255 registers a thread: one multiplies while the
other exponentiates. Fetching keys and values through the tensor memory accelerator makes that possible: addresses
computed by threads would not fit into registers beside the tiles.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....attention.problem import AttentionProblem
from ....errors import OptionError
from ..templates.configurations import SHARED_MEMORY, capability_of
from .pieces import SMALLEST, operands, padded, walked


@dataclass(frozen=True)
class AttentionConfiguration:
    """How a problem is computed. ``fetch`` reads keys and values through the tensor memory accelerator (compute
    capability 9, rows at multiples of 16 bytes), ``heaviest_first`` starts the rows with most blocks first, ``lazy``
    multiplies results only once a maximum has grown much, ``splits`` is the number of shares that the decoding template
    makes of the keys (0: no decoding)."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    fetch: bool = False
    heaviest_first: bool = True
    lazy: bool = False
    splits: int = 0

    def __str__(self) -> str:
        words = [f"BLOCK_M={self.block_m}", f"BLOCK_N={self.block_n}", f"num_warps={self.num_warps}",
                 f"num_stages={self.num_stages}"]  # fmt: skip
        words += ["tensor memory accelerator"] if self.fetch else []
        words += [] if self.heaviest_first else ["rows of blocks in order"]
        words += ["results multiplied lazily"] if self.lazy else []
        words += [f"SPLITS={self.splits}"] if self.splits else []
        return ", ".join(words)


#: Tiles by compute capability and padded head size: (BLOCK_M, BLOCK_N, warps, stages) of 2-byte and of float32 inputs.
#: Heads of 64 and 128 on compute capability 9: the fastest of what ``python -m benchmarks.attention --sweep`` measured
#: on an H200 (heads of 64 under a causal mask only).
HALF_TILES = {
    80: {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 32, 8, 2)},
    90: {64: (128, 64, 4, 3), 128: (128, 64, 4, 2), 256: (128, 64, 8, 2)},
}
FLOAT_TILES = {64: (64, 32, 8, 2), 128: (32, 32, 16, 2), 256: (32, 16, 8, 2)}
#: Without the accelerator, on compute capability 9: addresses take registers, so more threads share a tile.
THREADED_TILES = {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)}

#: What a search tries after the rule, the most promising first: with the accelerator, and where threads load.
FETCHED = ((128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 4, 2), (128, 32, 4, 3), (256, 64, 8, 2),
           (64, 32, 4, 3), (128, 128, 4, 2), (64, 64, 4, 2))  # fmt: skip
LOADED = ((128, 64, 8, 3), (128, 64, 4, 2), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 8, 4), (64, 64, 4, 2),
          (128, 64, 4, 3), (128, 32, 4, 3), (64, 128, 4, 2), (64, 32, 4, 4))  # fmt: skip
LOADED_FLOATS = ((64, 32, 8, 2), (32, 32, 8, 2), (32, 32, 16, 2), (32, 64, 8, 2), (64, 32, 16, 2), (32, 32, 4, 2),
                 (64, 32, 8, 3), (32, 16, 8, 2), (16, 32, 4, 2), (64, 64, 16, 2))  # fmt: skip
MOST_CANDIDATES = 14
MOST_REGISTERS = 224  # of the 255 of a thread, for scores and results; with 256 a kernel is three times slower

#: (BLOCK_N, warps, stages) of decoding; heads of 128 measured likewise.
DECODE_TILES = {64: (128, 4, 3), 128: (64, 4, 3), 256: (32, 4, 3)}
DECODE_CANDIDATES = ((64, 2, 4), (64, 2, 3), (32, 2, 4), (32, 4, 4), (64, 4, 4), (128, 4, 2), (128, 8, 3))
MOST_PACKED_ROWS = 64  # queries of a group of heads that the decoding template takes
SHORTEST_SHARE = 256  # keys; below it, merging costs more than parallel shares save
INSTANCES = 2  # program instances that a multiprocessor holds while decoding


def shared_bytes(problem: AttentionProblem, configuration: AttentionConfiguration) -> int:
    """Bytes of shared memory that an instance takes: its queries, and the stages of keys and values."""
    head, value = padded(problem.head_size), padded(problem.value_size)
    tile = configuration.block_n * (head + value) * max(configuration.num_stages, 1)
    return (configuration.block_m * head + tile) * problem.dtype.itemsize


def tile_registers(problem: AttentionProblem, configuration: AttentionConfiguration) -> int:
    """Registers of a thread that hold its scores and its part of the results."""
    tile = configuration.block_m * (configuration.block_n + padded(problem.value_size))
    return tile // (32 * configuration.num_warps)


def can_fetch(problem: AttentionProblem) -> bool:
    """Whether the device has a tensor memory accelerator and it can fetch keys and values where they lie."""
    _, key, value = operands(problem)
    return problem.device.compute_capability >= 90 and key.is_fetchable and value.is_fetchable


def default_configuration(problem: AttentionProblem, fetch: bool | None = None) -> AttentionConfiguration:
    """The rule for the general template; ``fetch``: with or without the accelerator (None: as the device has it)."""
    capability = capability_of(problem.device)
    head = min(max(64, padded(problem.head_size), padded(problem.value_size)), 256)
    if fetch is None:
        fetch = can_fetch(problem) and problem.dtype != torch.float32
    tables = FLOAT_TILES if problem.dtype == torch.float32 else HALF_TILES[capability]
    if capability == 90 and not fetch and problem.dtype != torch.float32:
        tables = THREADED_TILES
    block_m, block_n, warps, stages = tables[head]
    return fitted(problem, AttentionConfiguration(block_m, block_n, warps, stages, fetch))


def fitted(problem: AttentionProblem, configuration: AttentionConfiguration) -> AttentionConfiguration:
    """A configuration cut down to the problem: blocks no larger than what there is and divisors of the mask's blocks,
    as many stages as shared memory holds, and no more warps than the tile has rows for."""
    block_m = max(SMALLEST, min(configuration.block_m, padded(problem.queries)))
    block_n = max(SMALLEST, min(configuration.block_n, padded(problem.keys)))
    blocks = walked(problem).blocks
    if blocks is not None:
        while blocks.rows % block_m and block_m > SMALLEST:
            block_m //= 2
        while blocks.columns % block_n and block_n > SMALLEST:
            block_n //= 2
    warps = configuration.num_warps
    if block_m < 64 and problem.dtype != torch.float32:  # an instruction of a warp takes 16 rows
        warps = min(warps, max(block_m // 16, 1))
    found = replace(configuration, block_m=block_m, block_n=block_n, num_warps=warps)
    room = SHARED_MEMORY[capability_of(problem.device)] - (4 << 10)
    while found.num_stages > 1 and shared_bytes(problem, found) > room:
        found = replace(found, num_stages=found.num_stages - 1)
    return found


def why_not_divided(problem: AttentionProblem, configuration: AttentionConfiguration) -> str:
    """Why tiles of these sizes cannot walk the blocks of the mask; "" if they can."""
    blocks = walked(problem).blocks
    if blocks is None or not (blocks.rows % configuration.block_m or blocks.columns % configuration.block_n):
        return ""
    tile = f"{configuration.block_m} x {configuration.block_n}"
    return f"blocks of {blocks.rows} x {blocks.columns} do not divide into tiles of {tile}"


def why_not_decoding(problem: AttentionProblem) -> str:
    """Why the decoding template cannot run a problem; "" if it can."""
    rows = problem.queries * (problem.group if is_packed(problem) else 1)
    if rows > MOST_PACKED_ROWS:
        return f"{rows} queries read the same keys, and decoding takes {MOST_PACKED_ROWS}"
    if problem.blocks is not None and problem.queries > problem.blocks.rows:
        return f"the queries lie in several rows of blocks of {problem.blocks.rows}"
    return ""


def is_packed(problem: AttentionProblem) -> bool:
    """Whether decoding takes the queries of all heads that share keys together: not where their blocks differ."""
    blocks = problem.blocks
    return blocks is None or not blocks.head_varies or blocks.heads_alike


def decoding_configuration(problem: AttentionProblem, splits: int = 0) -> AttentionConfiguration:
    """The rule for the decoding template: as many shares of the keys (``splits``, if not 0) as fill the device, each
    long enough to be worth merging."""
    head = min(max(64, padded(problem.head_size), padded(problem.value_size)), 256)
    block_n, warps, stages = DECODE_TILES[head]
    if problem.dtype == torch.float32:
        block_n //= 2
    packed = is_packed(problem)
    rows = padded(problem.queries * (problem.group if packed else 1))
    units = problem.batch * (problem.key_heads if packed else problem.query_heads)
    found = fitted(problem, AttentionConfiguration(rows, block_n, warps, stages))
    slots = INSTANCES * max(problem.device.multiprocessors, 1)
    most = max(problem.keys // max(SHORTEST_SHARE, found.block_n), 1)
    chosen = splits or min(_best_splits(max(units, 1), slots), most)
    return replace(found, block_m=rows, num_warps=warps, splits=max(chosen, 1))


def _best_splits(units: int, slots: int) -> int:
    """The number of shares that leaves the least of the device idle in the last wave of instances, few before many."""

    def idle(splits: int) -> float:
        waves = units * splits / slots
        return -(-units * splits // slots) / waves - 1.0

    most = max(2 * slots // units, 1)
    least = min(map(idle, range(1, most + 1)))
    return next(s for s in range(1, most + 1) if idle(s) <= least + 0.02)


def candidates(problem: AttentionProblem) -> tuple[AttentionConfiguration, ...]:
    """What a search tries, the rule first: :data:`MOST_CANDIDATES` at most, the most promising first, of those that
    shared memory and registers hold."""
    rule = default_configuration(problem)
    half = problem.dtype != torch.float32
    found = [rule, replace(rule, lazy=True)] if half else [rule]
    if problem.blocks is not None:
        found.append(replace(rule, heaviest_first=False))
    if half and can_fetch(problem):
        found += [fitted(problem, AttentionConfiguration(*tile, fetch=True)) for tile in FETCHED]
    found += [fitted(problem, AttentionConfiguration(*tile)) for tile in (LOADED if half else LOADED_FLOATS)]
    room = SHARED_MEMORY[capability_of(problem.device)]
    fits = [
        c for c in dict.fromkeys(found)
        if shared_bytes(problem, c) <= room and tile_registers(problem, c) <= MOST_REGISTERS
        and not why_not_divided(problem, c)
    ]  # fmt: skip
    return tuple(fits[:MOST_CANDIDATES])


def decoding_candidates(problem: AttentionProblem) -> tuple[AttentionConfiguration, ...]:
    """What a search tries for decoding, the rule first: other tiles, then fewer and more shares, at most
    :data:`MOST_CANDIDATES`."""
    rule = decoding_configuration(problem)
    found = [rule]
    for n, warps, stages in DECODE_CANDIDATES:
        made = fitted(problem, replace(rule, block_n=n, num_stages=stages))
        found.append(replace(made, block_m=rule.block_m, num_warps=warps))
    found += [replace(rule, splits=max(rule.splits * quarters // 4, 1)) for quarters in (2, 8, 3, 6, 1, 16)]
    room = SHARED_MEMORY[capability_of(problem.device)]
    return tuple(c for c in dict.fromkeys(found) if shared_bytes(problem, c) <= room)[:MOST_CANDIDATES]


# --- Options of the user's --------------------------------------------------------------------------------------------

FIELDS = {
    "BLOCK_M": "block_m", "BLOCK_N": "block_n", "num_warps": "num_warps", "num_stages": "num_stages",
    "SPLITS": "splits", "FETCH": "fetch",
}  # fmt: skip


def configured(problem: AttentionProblem, options: Mapping[str, Any], decoding: bool = False) -> AttentionConfiguration:
    """The rule's configuration with what ``kernel_options`` say in its place: BLOCK_M, BLOCK_N, num_warps, num_stages,
    SPLITS (of decoding) and FETCH. Other keys but BACKEND are refused with the nearest name, and so are
    values that the templates cannot have. OptionError."""
    chosen = decoding_configuration(problem, 0) if decoding else default_configuration(problem)
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name == "BACKEND":
            continue
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1, 0.5)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(FIELDS)}"
            raise OptionError(f"unknown kernel option {name!r}", remedy=remedy)
        _require(name, value, decoding)
        changes[FIELDS[name]] = value
    found = replace(chosen, **changes)
    if found.fetch and not can_fetch(problem):
        raise OptionError(
            f"FETCH: the tensor memory accelerator cannot read the keys and values of {problem}",
            remedy="it needs compute capability 9, contiguous rows and strides of multiples of 16 bytes",
        )
    if decoding and "block_m" in changes:
        raise OptionError("BLOCK_M of decoding is what the queries need", remedy="leave it out")
    reason = why_not_divided(problem, found) if not decoding else ""
    if reason:
        raise OptionError(reason, remedy="choose BLOCK_M and BLOCK_N that divide the block mask's BLOCK_SIZE")
    return found


def _require(name: str, value: Any, decoding: bool) -> None:
    """OptionError if a kernel option cannot have a value."""
    if name == "FETCH":
        if not isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}", remedy="give True or False")
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in ("BLOCK_M", "BLOCK_N"):
        if not whole or value < SMALLEST or value & (value - 1):
            raise OptionError(f"{name} is {value!r}", remedy=f"give a power of two, {SMALLEST} at least")
    elif name == "num_warps":
        if value not in (1, 2, 4, 8, 16):
            raise OptionError(f"num_warps is {value!r}", remedy="give 1, 2, 4, 8 or 16")
    elif not whole or value < 1:
        raise OptionError(f"{name} is {value!r}", remedy="give a whole number, 1 at least")
    elif name == "SPLITS" and not decoding:
        raise OptionError("SPLITS is an option of decoding", remedy='add "BACKEND": "decode", or leave it out')
