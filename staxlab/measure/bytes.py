"""The byte model (Section 1.1, Section 13.2): how much memory traffic a program causes, before anything is timed.

For computations limited by memory, time follows traffic, and traffic can be counted:

* *eager* execution runs one operator at a time; each reads its tensor arguments from main memory and writes its result
  back (``operator_cost``). Example 1.1 on ``N`` elements and ``n`` rows: ``3N`` for the addition, ``2N`` each for relu
  and multiplication, ``N + n`` for the sum, ``8N + n`` elements in all;
* *compiled* execution reads and writes what its schedule says, each distinct element once per kernel: ``2N + n``;
* no implementation needs less than the inputs it depends on plus its outputs (Proposition 1.1, ``dependence``).

The ratio of the first two, ``rho`` (Definition 13.2), is what fusion promises. A measured speedup then splits exactly
into ``S = rho * (beta_c / beta_e)`` (Proposition 13.3): the bytes saved, known before compiling, times how much closer
the compiled kernels come to the machine's bandwidth, about which the model says nothing.

What the model leaves out, and in which direction it errs: on a CPU, an ordinary store first reads the line it writes
(``bytes_with_write_allocate`` adds that), and data that stays in cache between operators costs less than counted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..capture.graph import Graph
from ..codegen.kernel import Kernel, KernelSet
from ..provenance import NO_ORIGINS, Origins
from ..schedule.records import Schedule, ScheduleNode
from . import operator_cost as cost
from .dependence import LowerBound, lower_bound
from .eager import eager_operators
from .speedup import Seconds, SpeedupDecomposition, decompose
from .tables import Table, Tabular, bytes_text, quantity_text

__all__ = [
    "LowerBound",
    "SpeedupDecomposition",
    "Traffic",
    "TrafficModel",
    "TrafficRow",
    "compiled_traffic",
    "decompose",
    "eager_traffic",
    "in_units",
    "lower_bound",
    "traffic_model",
]


@dataclass(frozen=True)
class TrafficRow:
    """One operator or kernel: elements and bytes it reads and writes, and its scalar operations.

    ``read`` and ``written`` hold the elements of each tensor: ``(N, N)`` for a sum of two.
    """

    name: str
    read: tuple[int, ...]
    written: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    operations: int = 0
    origins: Origins = NO_ORIGINS

    @property
    def elements_read(self) -> int:
        return sum(self.read)

    @property
    def elements_written(self) -> int:
        return sum(self.written)

    @property
    def elements(self) -> int:
        return self.elements_read + self.elements_written

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements of each tensor, those read before those written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Operations per byte; NaN when nothing is moved."""
        return self.operations / self.nbytes if self.nbytes else math.nan

    @property
    def nbytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, repr=False)
class Traffic(Tabular):
    """The traffic of one way of executing: "eager", a row per operator, or "compiled", a row per kernel."""

    side: str
    rows: tuple[TrafficRow, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return sum(row.elements for row in self.rows)

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements of each tensor that each row reads or writes."""
        return tuple(part for row in self.rows for part in row.parts)

    @property
    def bytes_read(self) -> int:
        return sum(row.bytes_read for row in self.rows)

    @property
    def bytes_written(self) -> int:
        return sum(row.bytes_written for row in self.rows)

    @property
    def nbytes(self) -> int:
        """Main-memory traffic in bytes, reads plus writes: the ``b`` of Definition 13.2."""
        return self.bytes_read + self.bytes_written

    @property
    def bytes_with_write_allocate(self) -> int:
        """Traffic on a CPU whose ordinary stores fetch the line they are about to overwrite: writes count twice."""
        return self.bytes_read + 2 * self.bytes_written

    @property
    def operations(self) -> int:
        return sum(row.operations for row in self.rows)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in operations per byte (Definition 1.1); NaN when nothing is moved."""
        return self.operations / self.nbytes if self.nbytes else math.nan

    def table(self) -> Table:
        rows = [
            (r.name, in_units(r.read, self.symbols), in_units(r.written, self.symbols), bytes_text(r.nbytes),
             quantity_text(r.operations, "op"), per_byte(r))
            for r in self.rows
        ]  # fmt: skip
        total = in_units(self.parts, self.symbols)
        operations = quantity_text(self.operations, "op")
        rows.append(("total", "", total, bytes_text(self.nbytes), operations, per_byte(self)))
        notes = [f"{name} = {value:,} elements" for name, value in self.symbols.items()]
        notes += operation_notes(self)
        columns = (
            "operator" if self.side == "eager" else "kernel",
            "elements read",
            "elements written",
            "bytes",
            "operations",
            "op/byte",
        )
        return Table.build(f"Memory traffic, {self.side} execution", columns, rows, notes)

    def to_json(self) -> dict[str, Any]:
        keys = ("name", "elements_read", "elements_written", "bytes_read", "bytes_written", "operations")
        return {
            "side": self.side,
            "rows": [{key: getattr(r, key) for key in keys} for r in self.rows],
            "elements": self.elements,
            "bytes": self.nbytes,
            "operations": self.operations,
        }


#: What a scalar operation is here; printed under the tables that count them.
OPERATIONS_NOTE = (
    "op: an addition, multiplication, comparison or maximum counts 1, an exponential 10, a conversion or move nothing"
)
SOFTMAX_NOTE = "softmax: 14 op per element (maximum, subtraction, exponential, sum, division)"


def operation_notes(traffic: Traffic) -> list[str]:
    """How operations were counted, for the operators there are."""
    notes = [OPERATIONS_NOTE] if traffic.operations else []
    return notes + ([SOFTMAX_NOTE] if any("softmax" in row.name for row in traffic.rows) else [])


def per_byte(row: Any) -> str:
    """Arithmetic intensity as a cell (Definition 1.1)."""
    return f"{row.intensity:.3g}" if row.nbytes else "–"


def in_units(parts: Iterable[int], symbols: Mapping[str, int]) -> str:
    """The elements of several tensors as the chapter writes them: ``8N + n``.

    ``symbols`` maps names to sizes. A name stands for a tensor of exactly that size; the elements of all others are
    added up as a number: ``N + n + 6,669``. The plain total when no tensor has a name, or all are tiny.
    """
    parts = list(parts)
    counts = dict.fromkeys(symbols, 0)
    rest = 0
    for part in parts:
        name = next((name for name, size in symbols.items() if size == part and size > 1), None)
        if name is None:
            rest += part
        else:
            counts[name] += 1
    terms = [name if count == 1 else f"{count}{name}" for name, count in counts.items() if count]
    if not terms or max(symbols.values(), default=0) <= 64:
        return f"{sum(parts):,}"
    return " + ".join([*terms, f"{rest:,}"] if rest else terms)


# --- Counting ---------------------------------------------------------------------------------------------------------


def eager_traffic(graph: Graph, symbols: Mapping[str, int] | None = None) -> Traffic:
    """Traffic of running an operator graph one operator at a time (Table 1.1).

    ``graph`` is an operator graph (``aten`` overloads, ``meta["val"]`` set). Views and unused factories cost nothing
    and get no row. Raises TypeError for a captured graph.
    """
    roots, rows = cost.Roots(), []
    for node in graph:
        if node.op == "output":
            continue
        roots.define(node)
        if node.op in ("placeholder", "get_attr") or node.target is operator.getitem:
            continue
        cost.operator_name(node.target)  # refuses a captured graph
        written = cost.counted(cost.writes(node, roots))
        operands = cost.reads(node, roots)
        if cost.is_gather(node.target):
            read = cost.gathered(operands, sum(elements for elements, _ in written.values()))
        else:
            read = cost.counted(operands)
        row = _row(f"%{node.name} {node.target}", read, written, operations=cost.operations(node), origins=node.origins)
        if row.elements:
            rows.append(row)
    return Traffic("eager", tuple(rows), dict(symbols or {}))


Counts = Mapping[Any, tuple[int, int]]  # per storage or buffer: distinct elements, bytes


def _row(name: str, read: Counts, written: Counts, **more: Any) -> TrafficRow:
    def split(counts: Counts) -> tuple[tuple[int, ...], int]:
        return tuple(n for n, _ in counts.values() if n), sum(size for _, size in counts.values())

    (parts_read, bytes_read), (parts_written, bytes_written) = split(read), split(written)
    return TrafficRow(name, parts_read, parts_written, bytes_read, bytes_written, **more)


def compiled_traffic(
    schedule: Schedule, kernels: KernelSet | Iterable[Kernel] = (), symbols: Mapping[str, int] | None = None
) -> Traffic:
    """Traffic of a scheduled region: a row per kernel (or per schedule node, if ``kernels`` is empty).

    A kernel reads every external buffer once however many of its nodes use it; what passes between its nodes without
    being an argument costs nothing.
    """
    kernels = tuple(kernels)
    if kernels:
        rows = [_kernel_row(schedule, kernel) for kernel in kernels]
    else:
        rows = [_node_row(schedule, node) for node in schedule.nodes]
    return Traffic("compiled", tuple(rows), dict(symbols or {}))


def _node_counts(schedule: Schedule, node: ScheduleNode) -> tuple[dict[str, int], dict[str, int]]:
    """Distinct elements a node reads and writes, per buffer."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    if node.extern is not None:
        written = {name: _layout_elements(schedule.layouts[name]) for name in node.buffers}
        operands = cost.extern_operands(node.extern)
        if cost.is_gather(node.extern.operator):
            counts = cost.gathered(operands, sum(written.values()))
        else:
            counts = cost.counted(operands)
        return {name: elements for name, (elements, _) in counts.items()}, written
    if node.is_empty:
        return read, written
    for counts, accesses in ((read, node.loads), (written, node.writes)):
        for access in accesses:
            whole = schedule.layouts[access.buffer].storage_elements
            counts[access.buffer] = min(whole, counts.get(access.buffer, 0) + access.unique_elements)
    if node.kind == "reduction" and node.reduction_numel == 0:
        read = {}
    return read, written


def node_operations(schedule: Schedule, node: ScheduleNode) -> int:
    """Scalar operations of a schedule node: of its loops, or of the operator PyTorch runs, counted as for eager."""
    if node.extern is None:
        return node.operations
    return cost.extern_operations(node.extern, [schedule.layouts[name] for name in node.buffers])


def _sized(schedule: Schedule, counts: Mapping[str, int]) -> Counts:
    return {buffer: (n, n * schedule.layouts[buffer].dtype.itemsize) for buffer, n in counts.items()}


def _node_row(schedule: Schedule, node: ScheduleNode) -> TrafficRow:
    read, written = (_sized(schedule, counts) for counts in _node_counts(schedule, node))
    return _row(node.name, read, written, operations=node_operations(schedule, node), origins=node.origins)


def _kernel_row(schedule: Schedule, kernel: Kernel) -> TrafficRow:
    inputs = {a.buffer for a in kernel.arguments if a.role in ("input", "inout")}
    outputs = {a.buffer for a in kernel.arguments if a.role in ("output", "inout")}
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    operations = kernel.operations
    for name in kernel.nodes:
        node = schedule.node(name)
        if node.extern is not None:
            operations += node_operations(schedule, node)
        node_read, node_written = _node_counts(schedule, node)
        for buffer, count in node_read.items():
            if buffer in inputs or buffer == node.base or not inputs | outputs:
                whole = schedule.layouts[buffer].storage_elements
                read[buffer] = min(whole, read.get(buffer, 0) + count)
        for buffer, count in node_written.items():
            if buffer in outputs or not inputs | outputs:
                written[buffer] = max(written.get(buffer, 0), count)
    counts = _sized(schedule, read), _sized(schedule, written)
    return _row(kernel.name, *counts, operations=operations, origins=kernel.origins)


def _layout_elements(layout: Any) -> int:
    repeated = math.prod(n for n, s in zip(layout.shape, layout.stride, strict=True) if s == 0) if layout.numel else 1
    return min(layout.numel // max(repeated, 1), layout.storage_elements)


# --- The model of a region --------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TrafficModel(Tabular):
    """The byte model of one region: eager, compiled (None before scheduling) and the lower bound."""

    eager: Traffic
    bound: LowerBound
    compiled: Traffic | None = None
    remark: str | None = None

    @property
    def rho(self) -> float:
        """Model byte ratio ``b_e / b_c`` (Definition 13.2); NaN without a compiled side or without traffic."""
        return self.eager.nbytes / self.compiled.nbytes if self.compiled and self.compiled.nbytes else math.nan

    @property
    def best_rho(self) -> float:
        """The largest ratio any compiler could reach on this region: eager traffic over the lower bound."""
        return self.eager.nbytes / self.bound.nbytes if self.bound.nbytes else math.nan

    @property
    def attains_bound(self) -> bool:
        """Whether the compiled traffic equals the bound of Proposition 1.1."""
        return self.compiled is not None and self.compiled.nbytes <= self.bound.nbytes

    def decompose(self, eager: Seconds, compiled: Seconds) -> SpeedupDecomposition:
        """Proposition 13.3 for what was measured: two ``Timing`` of one comparison (the speedup is then the median of
        pairwise ratios, as the comparison prints it), or two durations in seconds.

        ValueError without a compiled side.
        """
        if self.compiled is None:
            raise ValueError("nothing was compiled: there is no compiled traffic to decompose against")
        return decompose(self.eager.nbytes, self.compiled.nbytes, eager, compiled)

    @property
    def legend(self) -> str:
        """What the symbols stand for: ``N = 16,777,216 (elements of x, w), n = 8,192 (elements of sum)``."""
        found = []
        for symbol, size in self.eager.symbols.items():
            role = "output" if symbol == "n" else "input"
            names = list(dict.fromkeys(row.name for row in self.bound.of(role) if row.whole and row.elements == size))
            more = ", ..." if len(names) > 4 else ""
            found.append(f"{symbol} = {size:,} (elements of {role} {', '.join(names[:4])}{more})")
        return ", ".join(found)

    def table(self) -> Table:
        symbols = self.eager.symbols

        def cells(side: str, name: str, row: Any) -> tuple[str, ...]:
            moved = in_units(row.parts, symbols)
            return (side, name, moved, bytes_text(row.nbytes), quantity_text(row.operations, "op"), per_byte(row))

        rows: list[tuple[str, ...]] = []
        for side in (self.eager, self.compiled):
            if side is not None:
                rows += [cells(side.side, row.name, row) for row in side.rows]
                rows.append(cells(side.side, "total", side))
        least = in_units(self.bound.parts, symbols)
        rows.append(("lower bound", "inputs + outputs", least, bytes_text(self.bound.nbytes), "", ""))
        notes = [self.legend]
        if self.compiled is not None:
            attained = "which is the lower bound" if self.attains_bound else f"lower bound allows {self.best_rho:.3g}"
            notes.append(f"model byte ratio rho = {self.rho:.3g}, {attained}")
        notes += [*self.bound.reasons, self.remark or "", *operation_notes(self.eager)]
        columns = ("side", "operator or kernel", "elements moved", "bytes", "operations", "op/byte")
        return Table.build("Byte model", columns, rows, notes, text_columns=2)

    def to_json(self) -> dict[str, Any]:
        return {
            "eager": self.eager.to_json(),
            "compiled": self.compiled.to_json() if self.compiled else None,
            "lower_bound": self.bound.to_json(),
            "rho": None if math.isnan(self.rho) else self.rho,
        }


def traffic_model(compilation: Any) -> TrafficModel:
    """The byte model of a ``Compilation``, or of an operator graph alone (then without a compiled side).

    Eager is counted on the program as written (:mod:`.eager`), the bound on the operators the compiler kept. ``N``
    stands for a tensor as large as the largest input depended upon, ``n`` for one as large as the largest output.
    """
    operators = getattr(compilation, "operators", compilation)
    graph = operators if isinstance(operators, Graph) else getattr(operators, "graph", None)
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a compilation or an operator graph, not {type(compilation).__name__}")
    bound = lower_bound(graph)
    largest = max((row.elements for row in bound.of("input") if row.whole), default=0)
    produced = max((row.elements for row in bound.of("output")), default=0)
    symbols = {"N": largest} if produced == largest else {"N": largest, "n": produced}
    symbols = {name: size for name, size in sorted(symbols.items(), key=lambda item: -item[1]) if size}
    schedule = getattr(compilation, "schedule", None)
    compiled, written, remark = None, graph, None
    if getattr(compilation, "capture", None) is not None:
        written, remark = eager_operators(compilation)
    if isinstance(schedule, Schedule):
        compiled = compiled_traffic(schedule, getattr(compilation, "kernels", None) or (), symbols)
    return TrafficModel(eager_traffic(written, symbols), bound, compiled, remark)
