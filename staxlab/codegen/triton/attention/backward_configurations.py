"""Which tiles, warps and stages the backward kernels of attention run with, by rule.

The kernel over keys holds two accumulators of ``BLOCK_N`` rows beside two tiles of scores; the kernel over queries one
of ``BLOCK_M`` rows beside two tiles of scores. All of them are float32 in registers, of which a thread has 255, so

    (BLOCK_N (d + dv) + 2 BLOCK_M BLOCK_N) / (32 warps)     and     (BLOCK_M d + 2 BLOCK_M BLOCK_N) / (32 warps)

should stay well below that; what stays on chip and ``num_stages`` tiles of what is walked along fill shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ....attention.problem import AttentionProblem
from ....errors import CodegenError
from ....options import Decision
from ..templates.configurations import SHARED_MEMORY, capability_of
from .pieces import SMALLEST, padded

ROWS_BLOCK = 64  # rows of the result that an instance of the first kernel adds up


@dataclass(frozen=True)
class Tiles:
    """The launch configuration of one kernel: a tile has ``block_m`` queries and ``block_n`` keys. ``fetch``: what the
    loop walks along comes through the tensor memory accelerator (compute capability 9), where it can; threads then keep
    no addresses in registers."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    fetch: bool = False

    def __str__(self) -> str:
        words = [f"BLOCK_M={self.block_m}", f"BLOCK_N={self.block_n}", f"num_warps={self.num_warps}",
                 f"num_stages={self.num_stages}"]  # fmt: skip
        return ", ".join([*words, *(["tensor memory accelerator"] if self.fetch else [])])


@dataclass(frozen=True)
class BackwardConfiguration:
    """The configurations of the kernel over keys (gradients of keys and values) and of the one over queries."""

    keys: Tiles
    queries: Tiles


#: By compute capability, then by the longer of the two padded head sizes: (over keys, over queries). For 2-byte
#: elements. That of heads of 128 on 90 over keys is the best of eight on an H200: two instances on a multiprocessor, of
#: which one multiplies while the other's exponentials are made (``python -m benchmarks.attention --sweep``).
HALF: dict[int, dict[int, tuple[Tiles, Tiles]]] = {
    80: {
        64: (Tiles(64, 128, 8, 3), Tiles(128, 64, 8, 3)),
        128: (Tiles(32, 64, 4, 3), Tiles(128, 32, 8, 2)),
        256: (Tiles(32, 64, 8, 1), Tiles(64, 32, 8, 1)),
    },
    90: {
        64: (Tiles(64, 128, 8, 3, fetch=True), Tiles(128, 64, 8, 3, fetch=True)),
        128: (Tiles(64, 64, 4, 2, fetch=True), Tiles(128, 64, 8, 3, fetch=True)),
        256: (Tiles(32, 64, 8, 2, fetch=True), Tiles(64, 64, 8, 2, fetch=True)),
    },
}
#: Of float32, which threads multiply and add by themselves.
SINGLE: dict[int, tuple[Tiles, Tiles]] = {
    64: (Tiles(32, 32, 8, 2), Tiles(64, 32, 8, 2)),
    128: (Tiles(16, 32, 8, 2), Tiles(64, 16, 8, 2)),
    256: (Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
}

#: What a search may try beside the rule's choice, for head sizes up to 128: (BLOCK_M, BLOCK_N, warps, stages).
CANDIDATES: dict[int, tuple[tuple[tuple[int, int, int, int], ...], tuple[tuple[int, int, int, int], ...]]] = {
    80: (
        ((32, 128, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 2), (32, 64, 4, 3), (32, 128, 8, 3)),
        ((64, 64, 4, 2), (64, 64, 8, 2), (128, 32, 8, 2), (128, 64, 8, 2), (64, 32, 4, 3), (64, 64, 4, 3)),
    ),
    90: (
        ((64, 128, 8, 2), (64, 128, 8, 3), (64, 128, 8, 4), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 3),
         (32, 128, 8, 3), (32, 64, 4, 3), (128, 64, 8, 2)),
        ((128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3),
         (64, 128, 4, 2), (128, 32, 8, 3), (128, 32, 4, 3), (64, 32, 4, 3)),
    ),
}  # fmt: skip


def learnable(problem: AttentionProblem) -> tuple[int, ...]:
    """Numbers of the tensors captured by ``score_mod`` that a gradient is made for. (A mask has no derivative.)"""
    captured = problem.score.captured if problem.score is not None else ()
    return tuple(number for number, tensor in enumerate(captured) if tensor.requires_grad)


def padded_head(problem: AttentionProblem) -> int:
    return max(padded(problem.head_size), padded(problem.value_size))


def shared_bytes(problem: AttentionProblem, tiles: Tiles, over: str) -> int:
    """What a kernel ("keys" or "queries" is what it makes gradients of) keeps in shared memory, about: what stays, and
    ``num_stages`` tiles of what is walked along."""
    row = (padded(problem.head_size) + padded(problem.value_size)) * problem.dtype.itemsize
    stays, walked = (tiles.block_n, tiles.block_m) if over == "keys" else (tiles.block_m, tiles.block_n)
    return row * (stays + tiles.num_stages * walked)


def default_configuration(problem: AttentionProblem) -> tuple[BackwardConfiguration, tuple[Decision, ...]]:
    """The table's entry for the head size, cut down to the problem: tiles no larger than the sequences, that divide the
    blocks of the mask, and as many stages as shared memory holds."""
    capability = capability_of(problem.device)
    table = SINGLE if problem.dtype == torch.float32 else HALF[capability]
    longest = min(padded_head(problem), max(table))
    keys, queries = table[min(size for size in table if size >= longest)]
    if learnable(problem):
        # What captured tensors get is one tile more in registers, so tiles have half as many queries.
        keys = replace(keys, block_m=max(keys.block_m // 2, SMALLEST))
    fitted = BackwardConfiguration(fit(problem, keys, "keys"), fit(problem, queries, "queries"))
    return fitted, tuple(_decision(problem, over, getattr(fitted, over)) for over in ("keys", "queries"))


def candidates(problem: AttentionProblem) -> tuple[BackwardConfiguration, ...]:
    """What a search may measure: the rule's choice first, then each kernel's alternatives with the other one's kept,
    since the two kernels run one after the other and do not know of each other."""
    rule, _ = default_configuration(problem)
    found = [rule]
    if problem.dtype != torch.float32 and padded_head(problem) <= 128:
        capability = capability_of(problem.device)
        for over, table in zip(("keys", "queries"), CANDIDATES[capability], strict=True):
            for sizes in table:
                for fetch in (False, True) if capability >= 90 else (False,):
                    found.append(replace(rule, **{over: fit(problem, Tiles(*sizes, fetch), over)}))
    return tuple(dict.fromkeys(found))


def combined(problem: AttentionProblem, seconds: Mapping[BackwardConfiguration, float]) -> BackwardConfiguration:
    """The best of each kernel, of what was measured of :func:`candidates`: times of whole passes, in which one kernel
    differs from the rule's. The rule's tiles where nothing was."""
    rule, _ = default_configuration(problem)
    best = {
        over: min(
            (c for c in seconds if getattr(c, other) == getattr(rule, other)), key=seconds.__getitem__, default=rule
        )
        for over, other in (("keys", "queries"), ("queries", "keys"))
    }
    return BackwardConfiguration(best["keys"].keys, best["queries"].queries)


def fit(problem: AttentionProblem, tiles: Tiles, over: str) -> Tiles:
    """A configuration cut down to what the problem and the device allow."""
    blocks = problem.blocks
    block_m = _fitted(tiles.block_m, problem.queries, blocks.rows if blocks else 0)
    block_n = _fitted(tiles.block_n, problem.keys, blocks.columns if blocks else 0)
    # A warp of the matrix units makes 16 x 16 results at least, of scores or of the gradients it keeps.
    kept = (block_n if over == "keys" else block_m) * padded(problem.head_size)
    warps = max(1, min(tiles.num_warps, max(block_m * block_n, kept) // 256))
    fitted = replace(tiles, block_m=block_m, block_n=block_n, num_warps=warps)
    room = SHARED_MEMORY[capability_of(problem.device)] - (16 << 10)
    while fitted.num_stages > 1 and shared_bytes(problem, fitted, over) > room:
        fitted = replace(fitted, num_stages=fitted.num_stages - 1)
    return fitted


def _fitted(block: int, extent: int, of_mask: int) -> int:
    """A side of a tile: no longer than what there is, and a divisor of the mask's block (0: there is none)."""
    size = min(block, padded(max(extent, 1)))
    return min(size, of_mask & -of_mask) if of_mask else size  # the largest power of two that divides


def require_fitting(problem: AttentionProblem, configuration: BackwardConfiguration) -> None:
    """CodegenError for tiles that do not divide the blocks of the mask: a block is walked along in whole tiles."""
    blocks = problem.blocks
    for over, tiles in (("keys", configuration.keys), ("queries", configuration.queries)):
        if blocks is not None and (blocks.rows % tiles.block_m or blocks.columns % tiles.block_n):
            raise CodegenError(
                f"gradients of {over}: tiles of {tiles.block_m} x {tiles.block_n} do not divide blocks of "
                f"{blocks.rows} x {blocks.columns}",
                remedy="leave the configuration to the rule, or choose tiles that divide the mask's BLOCK_SIZE",
            )


def _decision(problem: AttentionProblem, over: str, tiles: Tiles) -> Decision:
    d, dv, tile = padded(problem.head_size), padded(problem.value_size), tiles.block_m * tiles.block_n
    kept = tiles.block_n * (d + dv) if over == "keys" else tiles.block_m * d
    registers = (kept + 2 * tile) // (32 * tiles.num_warps)
    shared = shared_bytes(problem, tiles, over)
    reason = f"{registers} registers of a thread hold accumulators and scores; tiles take {shared:,} bytes on chip"
    inputs = (("registers for tiles", registers), ("shared bytes", shared))
    return Decision("attention-backward", f"gradients of {over}", str(tiles), reason, (), inputs)
