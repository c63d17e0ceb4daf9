"""The levels of different compilers beside each other: HLO, Halide's loops, MLIR's dialects (Sections 12.3 and 12.4).

XLA's unit is the *fusion*: a group of HLO instructions that becomes one kernel, of one of a few kinds.
:func:`hlo_stages` reads the texts of one function and counts what each step left. MLIR is no compiler but a way to
build them: operations belong to *dialects*, each one level of abstraction, and compiling is going from dialect to
dialect. Triton is built that way, so every GPU kernel of this package goes through MLIR: :func:`dialects` counts which
dialects its operations belong to at each step. :func:`layers` sets the package's own records beside them, with how many
objects each holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..provenance import Line
from .lowering_steps import LoweringSteps
from .tables import Table, Tabular

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\([^=]*?\)|\S+) ([\w\-]+)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*)?\s*\{\s*$")
_FUSION = re.compile(r"kind=(\w+), calls=%?([\w.\-]+)")
_OPERATION = re.compile(r"^\s*(?:%[\w:#, %]+ = )?\"?([a-z_]+)\.([a-z_0-9.]+)")
#: Instructions that stand for no work: arguments, constants, and names for parts of results.
NO_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota"})
#: What the dialects of Triton's compiler are for.
DIALECTS = {
    "tt": "Triton's operations on blocks: loads, stores, reductions, products",
    "ttg": "the same with layouts: which thread holds which element",
    "ttng": "what NVIDIA's hardware adds: tensor cores' descriptors, asynchronous copies",
    "arith": "arithmetic on numbers and blocks",
    "math": "functions such as exp",
    "scf": "structured control flow: for, if",
    "cf": "branches between basic blocks",
    "gpu": "threads, blocks and barriers, whoever made the card",
    "nvvm": "NVIDIA's intrinsics of LLVM",
    "llvm": "LLVM's instructions as operations of MLIR",
    "ub": "undefined values",
    "stablehlo": "operations on tensors as JAX writes them",
    "func": "functions and calls",
}


# --- XLA --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fusion:
    """One fusion of an optimised module: its name, its kind (kLoop, kInput, kOutput) and the instructions inside."""

    name: str
    kind: str
    operations: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class HloStages(Tabular):
    """What one function is in JAX and XLA: ``texts`` by the name of the step, how many operations each has, the
    ``fusions`` of the last, and the instructions that stand alone beside them."""

    function: str
    texts: Mapping[str, str]
    operations: Mapping[str, int]
    fusions: tuple[Fusion, ...]
    alone: tuple[str, ...]
    source: str

    @property
    def kernels(self) -> int:
        """Pieces of the program that run one after the other: fusions, and instructions of their own."""
        return len(self.fusions) + len(self.alone)

    def table(self) -> Table:
        rows = [[step, str(count), ""] for step, count in self.operations.items()]
        rows += [[f"fusion {f.name}", str(len(f.operations)), f"{f.kind}: {', '.join(f.operations)}"]
                 for f in self.fusions]  # fmt: skip
        rows += [["instruction of its own", "1", name] for name in self.alone]
        notes = [f"{self.kernels} run one after the other" if self.kernels > 1 else "one kernel", self.source]
        return Table.build(f"{self.function} in JAX and XLA", ("step", "operations", "which"), rows, notes, 3)


def hlo_stages(function: str, texts: Mapping[str, str], source: str = "") -> HloStages:
    """The steps of a function from their texts: "jaxpr", "stablehlo", "hlo" and "optimized". OptionError where one is
    missing or is no text of its kind."""
    missing = {"jaxpr", "stablehlo", "hlo", "optimized"} - set(texts)
    if missing:
        raise OptionError(f"{function}: no text of {', '.join(sorted(missing))}", remedy="observe the function again")
    before, after = computations(texts["hlo"]), computations(texts["optimized"])
    operations = {
        "jaxpr": texts["jaxpr"].count(" = "),
        "StableHLO": sum(_dialects_of(texts["stablehlo"].splitlines()).values()),
        "HLO": sum(name not in NO_WORK for body in before.values() for name, _ in body),
        "optimised HLO": sum(name not in NO_WORK for body in after.values() for name, _ in body),
    }
    entry = after["ENTRY"]
    fusions = []
    for name, line in entry:
        found = _FUSION.search(line)
        if name == "fusion" and found:
            inside = tuple(inner for inner, _ in after.get(found[2], ()) if inner not in NO_WORK)
            fusions.append(Fusion(line.split(" = ")[0].replace("ROOT ", "").strip().lstrip("%"), found[1], inside))
    alone = tuple(name for name, _ in entry if name not in NO_WORK and name != "fusion")
    titled = {"jaxpr": "jaxpr", "stablehlo": "StableHLO", "hlo": "HLO", "optimized": "optimised HLO"}
    shown = {titled[step]: texts[step] for step in titled}
    return HloStages(function, shown, operations, tuple(fusions), alone, source)


def computations(text: str) -> dict[str, list[tuple[str, str]]]:
    """The computations of an HLO module, "ENTRY" and the others by name: for each instruction its operation and its
    line. OptionError where there is no entry."""
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] | None = None
    for line in text.splitlines():
        head, instruction = _COMPUTATION.match(line), _INSTRUCTION.match(line)
        if head and not line.startswith(" "):
            current = found.setdefault("ENTRY" if head[1] else head[2], [])
        elif instruction and current is not None:
            current.append((instruction[2], line))
    if "ENTRY" not in found:
        raise OptionError("this text is no HLO module: it has no ENTRY")
    return found


# --- Loops of different compilers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """One text of a comparison: where it comes from, what language it is in, its lines (ours with their origins)."""

    title: str
    language: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, repr=False)
class LoopsBeside(Tabular):
    """The loops that several compilers, or schedules, made of one function. Nothing is aligned but the function."""

    function: str
    listings: tuple[Listing, ...]
    source: str

    def __getitem__(self, title: str) -> str:
        """The text of that title. KeyError for another."""
        return {found.title: "\n".join(line.text for line in found.lines) for found in self.listings}[title]

    def table(self) -> Table:
        rows = [
            (
                listing.title,
                len(listing.lines),
                sum(_loops_in(line.text) for line in listing.lines),
                sum("parallel" in line.text or "omp for" in line.text for line in listing.lines),
            )
            for listing in self.listings
        ]
        columns = ("whose", "lines", "loops", "lines that say parallel")
        return Table.build(f"The loops of {self.function}", columns, rows, [self.source])


def _loops_in(text: str) -> int:
    """How many loops a line begins: TVM's grids are several."""
    if re.match(r"\s*(for|parallel|vectorized|unrolled)\b", text) is None:
        return 0
    grid = re.match(r"\s*for ([\w, ]+) in T\.grid\(", text)
    return grid[1].count(",") + 1 if grid else 1


def loops_beside(function: str, texts: Mapping[str, str], kernels: Sequence[Any] = (), source: str = "") -> LoopsBeside:
    """Texts by their titles, and generated kernels of this package, whose lines keep their origins."""
    own = [Listing(f"staxlab, {kernel.name}", kernel.language, tuple(kernel.lines)) for kernel in kernels]
    others = [
        Listing(title, "text", tuple(Line(line) for line in text.rstrip("\n").split("\n")))
        for title, text in texts.items()
    ]
    return LoopsBeside(function, (*own, *others), source)


# --- MLIR -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class DialectCounts(Tabular):
    """How many operations of each dialect every step has. Steps that are no MLIR have instructions of one kind."""

    kernel: str
    steps: tuple[tuple[str, Mapping[str, int]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, counts in self.steps for name in counts))

    def of(self, step: str) -> Mapping[str, int]:
        """The counts of a step by its title ("TTIR"). KeyError for another."""
        return dict(self.steps)[step]

    def table(self) -> Table:
        rows = [
            [name, *(str(counts[name]) if name in counts else "–" for _, counts in self.steps), DIALECTS.get(name, "")]
            for name in self.names
        ]
        columns = ["dialect", *(title for title, _ in self.steps), "what it is for"]
        note = "LLVM IR, PTX and SASS are no MLIR: their instructions are counted in one row each"
        table = Table.build(f"The dialects of {self.kernel}", columns, rows, [note])
        return Table(table.caption, table.columns, table.rows, table.notes, table.numeric - {len(columns) - 1})


def dialects(steps: LoweringSteps) -> DialectCounts:
    """The operations of every step of a kernel, by dialect (:meth:`staxlab.codegen.kernel.Kernel.lowering_steps`)."""
    counted = []
    for step in steps.steps:
        if step.name in ("ttir", "ttgir"):
            counts = _dialects_of([text for text, _ in step.lines])
        else:
            counts = Counter({f"({step.title})": step.operations})
        counted.append((step.title, dict(counts)))
    return DialectCounts(steps.kernel, tuple(counted))


def _dialects_of(lines: Sequence[str]) -> Counter[str]:
    """Operations by dialect, without the heads of functions."""
    found: Counter[str] = Counter()
    for line in lines:
        operation = _OPERATION.match(line)
        if operation is not None and operation[1] in DIALECTS and operation[2] != "func":
            found[operation[1]] += 1
    return found


@dataclass(frozen=True, repr=False)
class Layers(Tabular):
    """The levels of one compilation, what each holds, and the levels of MLIR that stand beside it."""

    function: str
    rows: tuple[tuple[str, str, int, str, str], ...]

    def table(self) -> Table:
        columns = ("level", "record", "objects", "of what", "beside it in MLIR")
        table = Table.build(f"The levels of {self.function}", columns, self.rows, (), text_columns=5)
        return Table(table.caption, table.columns, table.rows, table.notes, frozenset({2}))


def layers(compilation: Any, counts: DialectCounts | None = None) -> Layers:
    """The levels of a compilation (Table 1.2) with the number of objects of each, counted. ``counts`` of one of its
    kernels name the dialects below."""
    loops, schedule = compilation.loops, compilation.schedule
    captured = compilation.capture.graph
    below = ", ".join(name for name in counts.names if not name.startswith("(")) if counts is not None else ""
    rows = (
        ("captured graph", type(captured).__name__, len(captured.calls), "calls", "a graph dialect, such as stablehlo"),
        ("basic operators", type(compilation.operators).__name__, len(compilation.operators.graph.calls), "operators",
         "a graph dialect with fewer operations"),
        ("loop level", type(loops).__name__, len(loops.buffers), "values in memory",
         "linalg: functions from subscripts to numbers"),
        ("schedule", type(schedule).__name__, len(schedule.nodes), "nodes, each one kernel",
         "affine and scf: loops, fused"),
        ("kernels", type(compilation.kernels).__name__, sum(len(k.lines) for k in compilation.kernels), "lines",
         below or "gpu, llvm: code of one device"),
    )  # fmt: skip
    return Layers(compilation.name, rows)
