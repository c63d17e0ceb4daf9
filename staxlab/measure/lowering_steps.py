"""What each step of Triton's compiler did to a kernel, in counts, and which lines became which (Sections 9.1 and 9.2).

==========  ============================================================================================================
TTIR        the kernel's text as operations on blocks; no threads yet
TTGIR       every block has a layout: which lane of which warp holds which element; conversions between layouts appear
LLVM IR     the program of one thread; a conversion has become stores, a barrier and loads of shared memory
PTX         the same for a virtual machine with as many registers as are asked for
SASS        what one architecture executes: registers are assigned, instructions put into an order that hides latency
==========  ============================================================================================================

Every listing is kept with the line of the kernel that each of its lines belongs to. Counts of loads and stores before
LLVM IR are of blocks, from there on of instructions of one thread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..codegen.kernel import Kernel
from ..codegen.triton.listings import COPY, LISTINGS, numbered_listing
from ..codegen.triton.resources import Resources, resource_usage
from ..provenance import Line
from .loads_in_flight import bytes_of, memory_instruction

TITLES = {"ttir": "TTIR", "ttgir": "TTGIR", "llir": "LLVM IR", "ptx": "PTX", "sass": "SASS"}

_MLIR = re.compile(r"^\s*(?:%[\w.$:]+ = )?\"?((?:tt|ttg|ttng|arith|scf|math|cf|llvm|nvvm|gpu|ub)\.[a-z_0-9.]+)")
_LOADS = ("tt.load", "tt.descriptor_load", "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")
_STORES = ("tt.store", "tt.descriptor_store", "ttng.async_tma_copy_local_to_global", "tt.atomic_rmw")
_TILE = re.compile(r"tt\.tensordesc<(?:tensor<)?([\dx]+)x(\w+)[,>]")
_BLOCK = re.compile(r"tensor<([\dx]+)x!tt\.ptr<(\w+)>")
_PTX = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)\s.*;|^\s*(ret|trap|exit);")
_GLOBAL = re.compile(r"(?<![A-Za-z_.])(ld|st|atom|red)\.global\S*?(?:\.v(\d))?\.[bsuf](\d+)(?=\s)")
_TENSOR_COPY = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.(shared|global)")
_SASS = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*);")


@dataclass(frozen=True)
class Step:
    """One representation. ``lines`` are numbered by the kernel's line they belong to (None: none in particular);
    ``loads`` and ``stores`` of global memory are (what of, how many); ``shared``: accesses of shared memory."""

    name: str
    lines: tuple[tuple[str, int | None], ...]
    operations: int
    loads: tuple[tuple[str, int], ...]
    stores: tuple[tuple[str, int], ...]
    conversions: int
    shared: int
    shuffles: int
    barriers: int

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def linked(self) -> int:
        """Lines that belong to a line of the kernel."""
        return sum(number is not None for _, number in self.lines)

    def cells(self) -> list[str]:
        """The counts as text, a dash for nothing."""
        counts = [self.conversions, self.shared, self.shuffles, self.barriers]
        return [
            str(self.operations), _counted(self.loads), _counted(self.stores), *(str(n) if n else "–" for n in counts)
        ]  # fmt: skip


def _counted(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} × {what}" for what, count in parts) or "–"


@dataclass(frozen=True)
class LoweringSteps:
    """The steps of one kernel, its own text, and what the machine code takes of a multiprocessor."""

    kernel: str
    source: tuple[Line, ...]
    steps: tuple[Step, ...]
    resources: Resources

    def __getitem__(self, name: str) -> Step:
        """The step of this name ("ttir"...). KeyError for another."""
        found = {step.name: step for step in self.steps}
        return found[name]

    def lines_of(self, number: int) -> dict[str, tuple[str, ...]]:
        """What became of the kernel's line ``number``: the lines of every step that belong to it."""
        return {step.name: tuple(text.strip() for text, place in step.lines if place == number) for step in self.steps}

    def rows(self) -> list[list[str]]:
        """A row for each step, in the order of :data:`HEAD`."""
        return [[step.title, *step.cells()] for step in self.steps]

    def summary(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return (
            f"{first.operations} operations on blocks became {last.operations} instructions of a thread; {self.takes()}"
        )

    def takes(self) -> str:
        """Registers, shared memory and spilled bytes, in words."""
        found = self.resources
        spilled = f"{found.spills} bytes spilled" if found.spills else "nothing spilled"
        return f"{found.registers} registers, {found.shared:,} bytes of shared memory, {spilled}"

    def format(self) -> str:
        """The table as text."""
        table = [HEAD, *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(HEAD))]
        lines = [f"{self.kernel}, step by step (sm_{self.resources.capability})"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([*lines, self.takes()])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


HEAD = ["step", "operations", "loads", "stores", "layout conversions", "shared memory", "shuffles", "barriers"]


def lowering_steps(kernel: Kernel, capability: int | None = None) -> LoweringSteps:
    """Every step of a Triton kernel, for ``capability`` (90 for sm_90; default: the kernel's own).

    Compiles if need be. Raises CodegenError for a kernel that is not Triton's, BuildError and MissingDependencyError as
    compiling and disassembling do.
    """
    steps = []
    for name in LISTINGS:
        numbered = tuple(numbered_listing(kernel, name, capability))
        count = {"ttir": _mlir_step, "ttgir": _mlir_step, "llir": _llvm_step, "ptx": _ptx_step, "sass": _sass_step}[
            name
        ]
        steps.append(Step(name, numbered, **count([text for text, _ in numbered])))
    return LoweringSteps(kernel.name, kernel.lines, tuple(steps), resource_usage(kernel, capability))


def _mlir_step(texts: list[str]) -> dict[str, Any]:
    names: Counter[str] = Counter()
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    for text in texts:
        found = _MLIR.match(text)
        if found is None or found[1] == "tt.func":
            continue
        names[found[1]] += 1
        moved = loads if found[1] in _LOADS else stores if found[1] in _STORES else None
        if moved is not None:
            block, tile = _BLOCK.search(text), _TILE.search(text)
            moved[f"{block[1]} {block[2]}" if block else f"tile {tile[1]} {tile[2]}" if tile else "one element"] += 1
    return {
        "operations": names.total(), "loads": tuple(loads.items()), "stores": tuple(stores.items()),
        "conversions": names["ttg.convert_layout"], "shared": names["ttg.local_load"] + names["ttg.local_store"],
        "shuffles": 0, "barriers": names["ttg.barrier"] + names["gpu.barrier"],
    }  # fmt: skip


def _llvm_step(texts: list[str]) -> dict[str, Any]:
    body = [text for text in texts if re.match(r"^ +(?:%\S+ = )?[a-z]", text)]
    return {
        "operations": len(body), **_global_memory(body), "conversions": 0,
        "shared": sum(bool(re.search(r"\b(load|store)\b.*addrspace\(3\)|\b(ld|st)\.shared", text)) for text in body),
        "shuffles": sum("shfl.sync" in text for text in body),
        "barriers": sum(bool(re.search(r"nvvm\.barrier|bar\.sync|barrier0", text)) for text in body),
    }  # fmt: skip


def _ptx_step(texts: list[str]) -> dict[str, Any]:
    names = [found[1] or found[2] for found in map(_PTX.match, texts) if found]
    return {
        "operations": len(names), **_global_memory(texts), "conversions": 0,
        "shared": sum(name.startswith(("ld.shared", "st.shared", "stmatrix", "ldmatrix")) for name in names),
        "shuffles": sum(name.startswith("shfl") for name in names),
        "barriers": sum(name.startswith(("bar.", "barrier")) for name in names),
    }  # fmt: skip


def _global_memory(texts: list[str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Loads and stores of global memory by width, as PTX spells them (LLVM IR has them as inline assembly)."""
    counts: dict[str, Counter[str]] = {"loads": Counter(), "stores": Counter()}
    for text in texts:
        for kind, vector, bits in _GLOBAL.findall(text):
            counts["loads" if kind == "ld" else "stores"][f"{int(vector or 1) * int(bits) // 8} B"] += 1
        for size in COPY.findall(text):
            counts["loads"][f"{int(size, 0)} B"] += 1
        for there in _TENSOR_COPY.findall(text):
            counts["stores" if there == "global" else "loads"]["tile"] += 1
    return {name: tuple(count.items()) for name, count in counts.items()}


def _sass_step(texts: list[str]) -> dict[str, Any]:
    found = [(m[1], m[2]) for m in map(_SASS.search, texts) if m]
    counts: dict[str, Counter[str]] = {"loads": Counter(), "stores": Counter()}
    for position, (name, operands) in enumerate(found):
        memory = memory_instruction(name, operands, position)
        if memory is not None:
            size = bytes_of(name)
            counts["loads" if memory.is_load else "stores"][f"{size} B"] += 1
        elif name.startswith(("UTMALDG", "UTMASTG")):
            counts["loads" if "LDG" in name else "stores"]["tile"] += 1
        elif name.startswith(("RED", "ATOMG")):
            counts["stores"][f"{bytes_of(name)} B"] += 1
    kinds = Counter(name.split(".")[0] for name, _ in found)
    return {
        "operations": len(found), **{name: tuple(count.items()) for name, count in counts.items()}, "conversions": 0,
        "shared": sum(kinds[name] for name in ("LDS", "STS", "LDSM", "STSM")), "shuffles": kinds["SHFL"],
        "barriers": kinds["BAR"],
    }  # fmt: skip
