"""Which thread holds which element of a block: Triton's layouts, read from TTGIR (Section 9.1).

A Triton program says what happens to a block; which of the 32 lanes of which warp holds which element is the compiler's
choice, and TTGIR is where it stands. A *blocked* layout gives every thread a small rectangle (``sizePerThread``), lays
the 32 threads of a warp out over rectangles (``threadsPerWarp``) and the warps over those (``warpsPerCTA``); ``order``
says which dimension is counted first. Where that tile is smaller than the block it is repeated, and threads get more
registers; where it is larger, several threads hold the same element. A *slice* is a layout with one dimension gone, and
a *linear* layout names the element that each bit of register, lane and warp number leads to, combined by exclusive or
(Zhou et al., 2025).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import CodegenError

LANES = 32
_ALIAS = re.compile(r"^(#[\w.]+) = (#.*)$")
_NUMBERS = re.compile(r"(\w+) = \[([\d, ]*)\]")
_BASES = re.compile(r"(register|lane|warp|block) = \[((?:\[[\d, ]*\](?:, )?)*)\]")
_SLICE = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$")


@dataclass(frozen=True)
class Placement:
    """Where the elements of a block are. ``coordinates[warp, lane, register, dimension]`` is the place in the block of
    what that register holds. Registers stand in the order in which the compiler makes vectors of them."""

    coordinates: np.ndarray
    text: str

    @property
    def warps(self) -> int:
        return self.coordinates.shape[0]

    @property
    def registers(self) -> int:
        return self.coordinates.shape[2]

    def flat(self, shape: tuple[int, ...]) -> np.ndarray:
        """[warps, 32, registers]: positions of the elements in the block, counted row by row."""
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        return (self.coordinates * np.array(strides, dtype=np.int64)).sum(-1)


class Layouts:
    """The layouts that a TTGIR text names at its top, and placements made from them."""

    def __init__(self, text: str, warps: int):
        self.aliases = {m[1]: m[2] for m in map(_ALIAS.match, text.splitlines()) if m and not m[1].startswith("#loc")}
        self.warps = warps

    @cached_property
    def _placements(self) -> dict[tuple[str, tuple[int, ...]], Placement]:
        return {}

    def resolve(self, name: str) -> str:
        """The spelled-out layout behind an alias."""
        return self.aliases.get(name.strip(), name.strip())

    def placement(self, layout: str, shape: tuple[int, ...]) -> Placement:
        """Where the elements of a block of this shape are. CodegenError for a layout of another kind (shared memory,
        tensor cores)."""
        key = (layout, shape)
        if key not in self._placements:
            self._placements[key] = self._make(self.resolve(layout), shape)
        return self._placements[key]

    def _make(self, layout: str, shape: tuple[int, ...]) -> Placement:
        sliced = _SLICE.match(layout)
        if sliced:
            gone = int(sliced[1])
            whole = self.placement(sliced[2], (*shape[:gone], 1, *shape[gone:]))
            left = np.delete(whole.coordinates, gone, axis=3)
            return Placement(_without_copies(left), layout)
        if layout.startswith("#ttg.blocked<"):
            fields = {name: [int(n) for n in numbers.split(",") if n] for name, numbers in _NUMBERS.findall(layout)}
            return Placement(self._blocked(fields, shape), layout)
        if layout.startswith("#ttg.linear<"):
            return Placement(self._linear(layout, shape), layout)
        raise CodegenError(f"a layout of this kind is not read here: {layout}", remedy="blocked, slice and linear are")

    def _blocked(self, fields: dict[str, list[int]], shape: tuple[int, ...]) -> np.ndarray:
        size, threads, warps, order = (
            fields[name] for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
        )
        rank = len(shape)
        tile = [size[d] * threads[d] * warps[d] for d in range(rank)]
        repeats = [max(1, shape[d] // tile[d]) for d in range(rank)]
        register = _digits(math.prod(size), size, order)
        repeat = _digits(math.prod(repeats), repeats, order)
        lane, warp = _digits(LANES, threads, order), _digits(self.warps, warps, order)
        inside = (warp[:, None, None, :] * np.array(threads) + lane[None, :, None, :]) * np.array(size) + register[
            None, None, :, :
        ]
        every = inside[:, :, None, :, :] + (repeat * np.array(tile))[None, None, :, None, :]
        coordinates = every.reshape(self.warps, LANES, -1, rank) % np.array(shape)
        return _without_copies(coordinates)

    def _linear(self, layout: str, shape: tuple[int, ...]) -> np.ndarray:
        bases = {
            kind: [[int(n) for n in base.split(",") if n.strip()] for base in re.findall(r"\[([\d, ]*)\]", inner)]
            for kind, inner in _BASES.findall(layout)
        }
        rank = len(shape)
        parts = [
            _combined(bases.get(kind, []), rank, count)
            for kind, count in (
                ("warp", self.warps),
                ("lane", LANES),
                ("register", 2 ** len(bases.get("register", []))),
            )
        ]
        warp, lane, register = parts
        found = warp[:, None, None, :] ^ lane[None, :, None, :] ^ register[None, None, :, :]
        return _without_copies(found % np.array(shape))


def _digits(count: int, extents: list[int], order: list[int]) -> np.ndarray:
    """[count, rank]: the numbers 0, 1, ... as coordinates, the dimension ``order[0]`` counted first."""
    rest = np.arange(count, dtype=np.int64)
    found = np.zeros((count, len(extents)), dtype=np.int64)
    for dimension in order:
        found[:, dimension] = rest % extents[dimension]
        rest = rest // extents[dimension]
    return found


def _combined(bases: list[list[int]], rank: int, count: int) -> np.ndarray:
    found = np.zeros((count, rank), dtype=np.int64)
    for bit, base in enumerate(bases):
        has = (np.arange(count) >> bit) & 1
        found ^= has[:, None] * np.array(base, dtype=np.int64)[None, :]
    return found


def _without_copies(coordinates: np.ndarray) -> np.ndarray:
    """Leave out registers that hold what an earlier register of the same thread holds."""
    seen: dict[bytes, int] = {}
    for register in range(coordinates.shape[2]):
        seen.setdefault(coordinates[:, :, register].tobytes(), register)
    return coordinates[:, :, list(seen.values())]
