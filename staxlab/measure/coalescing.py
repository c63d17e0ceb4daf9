"""Which sectors of memory each load and store of a warp touches (Sections 9.1 and 9.3, Example 6.1).

The 32 lanes of a warp execute a load together, and what the memory system sees is the set of 32-byte *sectors* that
their addresses lie in; four sectors are a cache line. Lanes that ask for neighbouring elements share sectors; lanes
that are a row apart need one each, of which they use four bytes. The model is exact for the kernel as compiled: the
layout of threads and the arithmetic of addresses are those of its TTGIR (:mod:`staxlab.codegen.triton.addresses`), the
width of an instruction that of its PTX.

The counts add up several program instances: the first, second and last along each axis of the grid, so that rows which
begin in the middle of a sector and blocks that hang over the edge are among them. Tensors are taken to begin at a cache
line, as PyTorch's allocations do. A sector that two instructions touch is counted twice; whether a warp's own
instructions share sectors, so that the first-level cache may help, is counted besides.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..codegen.kernel import Kernel
from ..codegen.triton.addresses import Access, accesses
from ..codegen.triton.compile import aot_compile
from ..codegen.triton.generate import triton_kernel
from ..codegen.triton.kernel_text import KernelWriter
from ..codegen.triton.launch import Work, choose_launch
from ..codegen.triton.layouts import Layouts, Placement
from ..codegen.triton.listings import COPY, honest_positions
from ..codegen.triton.space import BlockSpace, group
from ..codegen.triton.tiling import choose_form
from ..errors import CodegenError, OptionError
from ..provenance import NO_ORIGINS, Origins
from ..schedule.records import Schedule, ScheduleNode

SECTOR, LINE = 32, 128  # bytes
WIDEST = 16  # bytes of one instruction of a thread

_MEMORY = re.compile(r"\b(ld|st|atom|red)\.global\S*?(?:\.v(\d))?\.[bsuf](\d+)(?=\s)")
_POSITION = re.compile(r"\.loc\s+\d+\s+(\d+)\s")


@dataclass(frozen=True)
class Instruction:
    """One instruction of one warp. ``addresses``: where each of the 32 lanes begins, in bytes from the start of the
    tensor, None for a lane that touches nothing; every lane touches ``width`` bytes from there."""

    addresses: tuple[int | None, ...]
    width: int

    @property
    def sectors(self) -> tuple[int, ...]:
        """Numbers of the sectors touched, in ascending order."""
        return _units(self, SECTOR)

    @property
    def lines(self) -> tuple[int, ...]:
        """Numbers of the cache lines touched."""
        return _units(self, LINE)

    @property
    def bytes(self) -> int:
        """Different bytes that the lanes ask for."""
        return len({byte for a in self.addresses if a is not None for byte in range(a, a + self.width)})

    @property
    def least_sectors(self) -> int:
        """So many sectors hold these bytes if they lie one behind the other from the beginning of one."""
        return -(-self.bytes // SECTOR)


def _units(instruction: Instruction, size: int) -> tuple[int, ...]:
    found = set()
    for address in instruction.addresses:
        if address is not None:
            found |= set(range(address // size, (address + instruction.width - 1) // size + 1))
    return tuple(sorted(found))


@dataclass(frozen=True)
class AccessPattern:
    """A load, store or atomic operation of the kernel.

    ``width`` is what the compiler made of it, in bytes of one lane; ``possible`` the widest that the addresses allow.
    ``first`` are the instructions of the first warp of the first instance; the counts are of all instructions of the
    sampled instances. ``warp_sectors``: sectors that the instructions of a warp touch together, each counted once.
    ``line`` is that of the kernel's text.
    """

    buffer: str
    role: str
    text: str
    line: int | None
    origins: Origins
    itemsize: int
    width: int
    possible: int
    layout: str
    first: tuple[Instruction, ...]
    instructions: int
    sectors: int
    least_sectors: int
    lines: int
    bytes: int
    warp_sectors: int

    @property
    def shares(self) -> bool:
        """Whether what an instruction leaves of a sector is used by other instructions of the same warp."""
        return self.warp_sectors < 1.15 * self.bytes / SECTOR + 1 and self.warp_sectors < 0.8 * self.sectors

    @property
    def efficiency(self) -> float:
        """The least number of sectors over the number touched: 1 for a coalesced access. 1 if nothing is touched."""
        return self.least_sectors / self.sectors if self.sectors else 1.0

    @property
    def sectors_each(self) -> float:
        """Sectors that an instruction touches on average."""
        return self.sectors / self.instructions if self.instructions else 0.0

    def verdict(self) -> str:
        """In words, how the lanes lie."""
        if not self.sectors:
            return "nothing is touched"
        if self.bytes <= self.instructions * self.itemsize:
            several = any(sum(address is not None for address in one.addresses) > 1 for one in self.first)
            return "all lanes ask for the same element" if several else "one lane, one element"
        if self.efficiency > 0.99:
            return (
                "coalesced: every sector is used whole" if self.bytes >= SECTOR * self.sectors * 0.99 else "coalesced"
            )
        if self.efficiency > 0.8:
            return "nearly coalesced: rows begin inside a sector"
        words = f"{self.sectors / self.least_sectors:.3g} times the sectors that these bytes need"
        return f"{words}; the warp's other instructions use the rest" if self.shares else words


@dataclass(frozen=True)
class Coalescing:
    """The accesses of a kernel. ``programs`` are the program instances that were sampled, of a grid of ``grid``;
    ``left_out`` names accesses whose addresses depend on data, or that no lane makes."""

    kernel: str
    title: str
    capability: int
    grid: tuple[int, int, int]
    programs: tuple[tuple[int, int, int], ...]
    accesses: tuple[AccessPattern, ...]
    left_out: tuple[str, ...] = ()

    @property
    def sectors(self) -> int:
        return sum(access.sectors for access in self.accesses)

    @property
    def least_sectors(self) -> int:
        return sum(access.least_sectors for access in self.accesses)

    @property
    def efficiency(self) -> float:
        """The least number of sectors over the number touched, all accesses together."""
        return self.least_sectors / self.sectors if self.sectors else 1.0

    def summary(self) -> str:
        worst = min(self.accesses, key=lambda access: access.efficiency, default=None)
        words = f"{100 * self.efficiency:.3g}% of the sectors touched are needed"
        if worst is not None and worst.efficiency < 0.99:
            words += f"; worst: {worst.role} of {worst.buffer}, {worst.verdict()}"
        return words

    def rows(self) -> list[list[str]]:
        """A row for each access: what, bytes per lane (and possible), sectors per instruction, least, efficiency,
        verdict."""
        return [
            [f"{a.role} {a.buffer}", a.text, f"{a.width} B" + (f" (of {a.possible})" if a.width < a.possible else ""),
             f"{a.sectors_each:.3g}", f"{a.least_sectors / max(a.instructions, 1):.3g}",
             f"{100 * a.efficiency:.3g}%", a.verdict()]
            for a in self.accesses
        ]  # fmt: skip

    def format(self) -> str:
        """The table as text."""
        head = ["access", "in the kernel", "per lane", "sectors", "least", "efficiency", "the lanes"]
        table = [head, *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(head))]
        lines = [f"sectors of {SECTOR} bytes that an instruction of a warp touches: {self.title}"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        lines += [f"not known beforehand: {text}" for text in self.left_out]
        return "\n".join([*lines, self.summary()])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def sampled_programs(grid: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
    """The first, second and last instance along each axis, and their combinations."""
    axes = [sorted({place for place in (0, 1, extent - 1) if 0 <= place < extent}) for extent in grid]
    return tuple((x, y, z) for z, y, x in itertools.product(axes[2], axes[1], axes[0]))


def instruction_widths(kernel: Kernel, ptx: str) -> dict[tuple[int, str], int]:
    """(line of the kernel, role) -> bytes that one lane moves by one instruction, as the PTX has it; the widest where
    a line became several."""
    found: dict[tuple[int, str], int] = {}
    line = 0
    for text in honest_positions(ptx, kernel).splitlines():
        place = _POSITION.search(text)
        if place:
            line = int(place[1])
        memory = _MEMORY.search(text)
        copy = COPY.search(text)
        if copy:
            found[line, "read"] = max(found.get((line, "read"), 0), int(copy[1], 0))
        if memory:
            role = {"ld": "read", "st": "write"}.get(memory[1], "atomic")
            width = int(memory[2] or 1) * int(memory[3]) // 8
            found[line, role] = max(found.get((line, role), 0), width)
    return found


def coalescing(kernel: Kernel, capability: int | None = None, title: str = "") -> Coalescing:
    """The sectors that every access of a Triton kernel touches, for compute capability ``capability`` (default: the
    kernel's own). Compiles if need be, and raises as that does; CodegenError for a kernel that is not Triton's, or
    whose grid is empty. Work proportional to the elements of a block times the sampled instances."""
    grid = tuple(kernel.launch.get("grid", ()))
    if 0 in grid:
        raise CodegenError(f"{kernel.name} has an empty grid: it touches nothing")
    steps = aot_compile(kernel, capability)
    layouts = Layouts(steps["ttgir"], kernel.launch["num_warps"])
    widths = instruction_widths(kernel, steps["ptx"])
    programs = sampled_programs(grid)
    executed: dict[tuple, list[Access]] = {}
    for program in programs:
        for access in accesses(kernel, steps["ttgir"], program):
            # A pipelined load stands in the text several times: before its loop, and inside.
            place = access.number if access.line is None else access.line
            executed.setdefault((place, access.role, access.argument), []).append(access)
    arguments = {argument.name: argument for argument in kernel.arguments}
    found, left_out = [], []
    for runs in executed.values():
        access = runs[0]
        argument = arguments.get(access.argument or "")
        text = kernel.lines[access.line - 1].text.strip() if access.line else f"{access.role} {access.argument}"
        if access.role == "tile":
            left_out.append(f"{text}: the tensor memory accelerator moves whole tiles")
            continue
        if argument is None or any(run.offsets is None for run in runs):
            left_out.append(text)
            continue
        try:
            placement = layouts.placement(access.layout, access.shape) if access.shape else _everywhere(kernel)
        except CodegenError as error:
            left_out.append(f"{text}: {error.what}")
            continue
        if not all(run.mask_known for run in runs):
            left_out.append(f"{text}: which lanes take part is data; all are counted")
        width = widths.get((access.line or 0, access.role), argument.dtype.itemsize)
        origins = kernel.lines[access.line - 1].origins if access.line else NO_ORIGINS
        found.append(_pattern(runs, placement, argument.buffer, argument.dtype.itemsize, width, text, origins))
    used = capability or kernel.device.compute_capability
    return Coalescing(
        kernel.name, title or f"{kernel.name} on sm_{used}", used, grid, programs, tuple(found), tuple(left_out)
    )


def _everywhere(kernel: Kernel) -> Placement:
    """One element that all threads ask for."""
    return Placement(np.zeros((kernel.launch["num_warps"], 32, 1, 1), dtype=np.int64), "one element")


def _pattern(
    runs: list[Access], placement: Placement, buffer: str, itemsize: int, width: int, text: str, origins: Origins
) -> AccessPattern:
    access = runs[0]
    shape = access.shape or (1,)
    positions = placement.flat(shape)
    possible = min((_widest(run, positions, itemsize) for run in runs), default=itemsize)
    group = max(width // itemsize, 1)
    every: list[Instruction] = []
    first: list[Instruction] = []
    of_warps = 0
    for number, run in enumerate(runs):
        made = _instructions(run, positions, itemsize, group, once=access.role != "read")
        if not number:
            first = made[0]
        every += [instruction for warp in made for instruction in warp]
        of_warps += sum(len({sector for one in warp for sector in one.sectors}) for warp in made)
    return AccessPattern(
        buffer=buffer, role=access.role, text=text, line=access.line, origins=origins, itemsize=itemsize,
        width=group * itemsize, possible=possible, layout=placement.text, first=tuple(first),
        instructions=len(every), sectors=sum(len(one.sectors) for one in every),
        least_sectors=sum(one.least_sectors for one in every), lines=sum(len(one.lines) for one in every),
        bytes=sum(one.bytes for one in every), warp_sectors=of_warps,
    )  # fmt: skip


def _gathered(run: Access, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and masks of every thread's registers: [warps, 32, registers] each."""
    assert run.offsets is not None
    offsets = np.asarray(run.offsets).reshape(-1)[positions]
    mask = np.ones_like(offsets, dtype=bool) if run.mask is None else np.asarray(run.mask).reshape(-1)[positions]
    return offsets, mask.astype(bool)


def _widest(run: Access, positions: np.ndarray, itemsize: int) -> int:
    """Bytes of the widest vector that this access could be made of: neighbouring registers with neighbouring aligned
    addresses, touched together or not at all, in every thread."""
    offsets, mask = _gathered(run, positions)
    registers, best = offsets.shape[2], 1
    while best * 2 <= min(registers, WIDEST // itemsize) and registers % (best * 2) == 0:
        size = best * 2
        vectors = offsets.reshape(*offsets.shape[:2], -1, size)
        masks = mask.reshape(vectors.shape)
        together = (masks == masks[..., :1]).all()
        consecutive = (vectors == vectors[..., :1] + np.arange(size)).all()
        aligned = (vectors[..., 0] % size == 0).all()
        if not (together and consecutive and aligned):
            break
        best = size
    return best * itemsize


def _instructions(run: Access, positions: np.ndarray, itemsize: int, group: int, once: bool) -> list[list[Instruction]]:
    """The instructions of every warp. ``once``: where several threads hold the same elements, the first one writes."""
    offsets, mask = _gathered(run, positions)
    if once:
        mask = mask & _first_holders(positions)[:, :, None]
    found = []
    for warp in range(offsets.shape[0]):
        made = []
        for start in range(0, offsets.shape[2], group):
            starts = [
                int(offsets[warp, lane, start]) * itemsize if mask[warp, lane, start] else None for lane in range(32)
            ]
            if any(address is not None for address in starts):
                made.append(Instruction(tuple(starts), group * itemsize))
        found.append(made)
    return found


def _first_holders(positions: np.ndarray) -> np.ndarray:
    """[warps, 32]: whether no earlier thread holds the same elements."""
    seen: set[bytes] = set()
    found = np.zeros(positions.shape[:2], dtype=bool)
    for warp, lane in np.ndindex(*positions.shape[:2]):
        key = positions[warp, lane].tobytes()
        found[warp, lane] = key not in seen
        seen.add(key)
    return found


@dataclass(frozen=True)
class TilingComparison:
    """A pointwise node as one dimension and as the compiler tiled it (Section 9.3)."""

    flat: Coalescing
    chosen: Coalescing

    def rows(self) -> list[list[str]]:
        """A row for each access: what, sectors per instruction and efficiency in one dimension, and as tiled."""
        other = {(a.role, a.buffer): a for a in self.chosen.accesses}
        found = []
        for access in self.flat.accesses:
            tiled = other.get((access.role, access.buffer))
            pair = (access, tiled) if tiled is not None else (access,)
            cells = [text for a in pair for text in (f"{a.sectors_each:.3g}", f"{100 * a.efficiency:.3g}%")]
            found.append([f"{access.role} {access.buffer}", *cells])
        return found

    def summary(self) -> str:
        flat, tiled = 100 * self.flat.efficiency, 100 * self.chosen.efficiency
        return f"{flat:.3g}% of the sectors touched are needed in one dimension, {tiled:.3g}% as tiled"

    def format(self) -> str:
        """Both tables as text."""
        return "\n\n".join([self.flat.format(), self.chosen.format(), self.summary()])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def one_dimensional(schedule: Schedule, node: ScheduleNode) -> Kernel:
    """The kernel of a pointwise node with all its loops along one dimension. CodegenError for another kind of node."""
    if node.kind != "pointwise" or node.members:
        raise CodegenError(f"{node.name} is no pointwise node of its own", remedy="name one whose kernel is pointwise")
    tiled = choose_form(schedule, node)
    extents = {s: extent for dim in tiled.space.dims for s, extent in zip(dim.symbols, dim.extents, strict=True)}
    form = replace(tiled, space=BlockSpace((group("x", node.body.indices, extents, 0, 1),)))
    device = schedule.device
    usual = triton_kernel(schedule, node, f"_{node.name}_flat", device)
    launch = choose_launch(form, node.name, Work(4), device)
    text = KernelWriter(schedule, node, form, launch, usual.name).write()
    given = {
        "grid": launch.grid, "constants": dict(launch.blocks), "num_warps": launch.num_warps,
        "sizes": {dim.size_name: dim.numel for dim in form.space.dims},
    }  # fmt: skip
    return replace(usual, lines=text.lines, arguments=text.arguments, launch=usual.launch | given)


def compare_tilings(schedule: Schedule, name: str | None = None, capability: int | None = None) -> TilingComparison:
    """The sectors of a pointwise node (``name``; default: the first there is) in one dimension and as it is tiled.

    OptionError where there is no such node, CodegenError where it is not pointwise; raises as compiling does.
    """
    nodes = [node for node in schedule.nodes if (node.name == name if name else node.kind == "pointwise")]
    if not nodes:
        raise OptionError(f"no {'pointwise node' if name is None else f'node {name!r}'} in this schedule")
    node = nodes[0]
    flat = coalescing(one_dimensional(schedule, node), capability, f"{node.name} in one dimension")
    usual = triton_kernel(schedule, node, f"_{node.name}_tiled", schedule.device)
    dimensions = len(usual.launch["sizes"])
    return TilingComparison(flat, coalescing(usual, capability, f"{node.name} as tiled, {dimensions}-D"))
