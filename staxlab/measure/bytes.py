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
from .tables import Table, Tabular, bytes_text, quantity_text, seconds_text

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
    """One operator or kernel: elements and bytes it reads and writes, and its scalar operations."""

    name: str
    elements_read: int
    elements_written: int
    bytes_read: int
    bytes_written: int
    operations: int = 0
    origins: Origins = NO_ORIGINS

    @property
    def elements(self) -> int:
        return self.elements_read + self.elements_written

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
            (r.name, in_units(r.elements_read, self.symbols), in_units(r.elements_written, self.symbols),
             bytes_text(r.nbytes), quantity_text(r.operations, "op"))
            for r in self.rows
        ]  # fmt: skip
        total = in_units(self.elements, self.symbols)
        rows.append(("total", "", total, bytes_text(self.nbytes), quantity_text(self.operations, "op")))
        notes = [f"{name} = {value:,} elements" for name, value in self.symbols.items()]
        notes.append(f"arithmetic intensity {self.intensity:.3g} op/byte" if self.nbytes else "")
        columns = (
            "operator" if self.side == "eager" else "kernel",
            "elements read",
            "elements written",
            "bytes",
            "operations",
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


def in_units(elements: int, symbols: Mapping[str, int]) -> str:
    """A number of elements as the chapter writes it: ``8N + n``. The plain number when it is no such combination.

    ``symbols`` maps names to sizes, largest first.
    """
    rest, terms = elements, []
    for name, size in symbols.items():
        if size > 1 and rest >= size:
            count, rest = divmod(rest, size)
            terms.append(name if count == 1 else f"{count}{name}")
    small = max(symbols.values(), default=0) <= 64
    if rest or not terms or small:
        return f"{elements:,}"
    return " + ".join(terms)


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
        read = _count(cost.reads(node, roots))
        written = _count(cost.writes(node, roots))
        if cost.is_gather(node):
            read = _gathered(cost.reads(node, roots), written)
        if any(read) or any(written):
            label = f"%{node.name} {node.target}"
            rows.append(
                TrafficRow(label, read[0], written[0], read[1], written[1], cost.operations(node), node.origins)
            )
    return Traffic("eager", tuple(rows), dict(symbols or {}))


def _count(operands: Iterable[cost.Operand]) -> tuple[int, int]:
    """Distinct (elements, bytes) of several tensors, those that share a storage counted together."""
    by_root: dict[Any, list[Any]] = {}
    for operand in operands:
        by_root.setdefault(operand.root, []).append(operand.meta)
    counts = [(cost.union_elements(metas), metas[0].dtype.itemsize) for metas in by_root.values()]
    return sum(n for n, _ in counts), sum(n * size for n, size in counts)


def _gathered(operands: list[cost.Operand], written: tuple[int, int]) -> tuple[int, int]:
    """A gather reads as many elements of its table as it selects, and its indices."""
    table, indices = _count(operands[:1]), _count(operands[1:])
    selected = min(table[0], written[0])
    size = operands[0].meta.dtype.itemsize if operands else 0
    return selected + indices[0], selected * size + indices[1]


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
        for argument in _buffer_arguments((node.extern.args, node.extern.kwargs)):
            read[argument.name] = max(read.get(argument.name, 0), _layout_elements(argument.layout))
        written = {name: _layout_elements(schedule.layouts[name]) for name in node.buffers}
        return read, written
    if node.is_empty:
        return read, written
    for counts, accesses in ((read, node.reads), (written, node.writes)):
        for access in accesses:
            whole = schedule.layouts[access.buffer].storage_elements
            counts[access.buffer] = min(whole, counts.get(access.buffer, 0) + access.unique_elements)
    if node.kind == "reduction" and node.reduction_numel == 0:
        read = {}
    return read, written


def _row(schedule: Schedule, name: str, read: Mapping[str, int], written: Mapping[str, int], **more: Any) -> TrafficRow:
    def size(counts: Mapping[str, int]) -> int:
        return sum(n * schedule.layouts[buffer].dtype.itemsize for buffer, n in counts.items())

    return TrafficRow(name, sum(read.values()), sum(written.values()), size(read), size(written), **more)


def _node_row(schedule: Schedule, node: ScheduleNode) -> TrafficRow:
    read, written = _node_counts(schedule, node)
    return _row(schedule, node.name, read, written, operations=node.operations, origins=node.origins)


def _kernel_row(schedule: Schedule, kernel: Kernel) -> TrafficRow:
    inputs = {a.buffer for a in kernel.arguments if a.role in ("input", "inout")}
    outputs = {a.buffer for a in kernel.arguments if a.role in ("output", "inout")}
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for name in kernel.nodes:
        node_read, node_written = _node_counts(schedule, schedule.node(name))
        for buffer, count in node_read.items():
            if buffer in inputs or not inputs | outputs:
                whole = schedule.layouts[buffer].storage_elements
                read[buffer] = min(whole, read.get(buffer, 0) + count)
        for buffer, count in node_written.items():
            if buffer in outputs or not inputs | outputs:
                written[buffer] = max(written.get(buffer, 0), count)
    return _row(schedule, kernel.name, read, written, operations=kernel.operations, origins=kernel.origins)


def _buffer_arguments(value: Any) -> list[Any]:
    """The buffer arguments inside nested containers of an extern call."""
    if hasattr(value, "layout") and hasattr(value, "name"):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [a for part in value for a in _buffer_arguments(part)] if isinstance(value, (tuple, list)) else []


def _layout_elements(layout: Any) -> int:
    repeated = math.prod(n for n, s in zip(layout.shape, layout.stride, strict=True) if s == 0) if layout.numel else 1
    return min(layout.numel // max(repeated, 1), layout.storage_elements)


# --- Definition 13.2 and Proposition 13.3 -----------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SpeedupDecomposition(Tabular):
    """Proposition 13.3: ``speedup == rho * quality``. Bandwidths in bytes per second."""

    eager_bytes: int
    compiled_bytes: int
    eager_seconds: float
    compiled_seconds: float

    @property
    def speedup(self) -> float:
        """``S = T_e / T_c``."""
        return self.eager_seconds / self.compiled_seconds

    @property
    def rho(self) -> float:
        """``b_e / b_c``: what the structure of the graph gives, known before compiling."""
        return self.eager_bytes / self.compiled_bytes

    @property
    def eager_bandwidth(self) -> float:
        return self.eager_bytes / self.eager_seconds

    @property
    def compiled_bandwidth(self) -> float:
        return self.compiled_bytes / self.compiled_seconds

    @property
    def quality(self) -> float:
        """``beta_c / beta_e``: how much closer to the bandwidth ceiling the compiled kernels run."""
        return self.compiled_bandwidth / self.eager_bandwidth

    def table(self) -> Table:
        rows = (
            ("eager", bytes_text(self.eager_bytes), seconds_text(self.eager_seconds),
             quantity_text(self.eager_bandwidth, "B/s")),
            ("compiled", bytes_text(self.compiled_bytes), seconds_text(self.compiled_seconds),
             quantity_text(self.compiled_bandwidth, "B/s")),
        )  # fmt: skip
        note = f"speedup {self.speedup:.3g} = {self.rho:.3g} (bytes saved) x {self.quality:.3g} (kernel quality)"
        return Table.build(
            "Where the speedup comes from (Proposition 13.3)",
            ("side", "model bytes", "time", "bandwidth"),
            rows,
            [note],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "speedup": self.speedup,
            "rho": self.rho,
            "quality": self.quality,
            "eager_bandwidth": self.eager_bandwidth,
            "compiled_bandwidth": self.compiled_bandwidth,
        }


def decompose(
    eager_bytes: int, compiled_bytes: int, eager_seconds: float, compiled_seconds: float
) -> SpeedupDecomposition:
    """Split a measured speedup (Proposition 13.3). ValueError unless all four are positive."""
    if min(eager_bytes, compiled_bytes) <= 0 or not min(eager_seconds, compiled_seconds) > 0:
        raise ValueError("bytes and times must be positive")
    return SpeedupDecomposition(eager_bytes, compiled_bytes, eager_seconds, compiled_seconds)


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

    def decompose(self, eager_seconds: float, compiled_seconds: float) -> SpeedupDecomposition:
        """Proposition 13.3 for measured durations. ValueError without a compiled side."""
        if self.compiled is None:
            raise ValueError("nothing was compiled: there is no compiled traffic to decompose against")
        return decompose(self.eager.nbytes, self.compiled.nbytes, eager_seconds, compiled_seconds)

    def table(self) -> Table:
        symbols = self.eager.symbols
        rows = []
        for side in (self.eager, self.compiled):
            if side is None:
                continue
            rows += [
                (
                    side.side,
                    r.name,
                    in_units(r.elements, symbols),
                    bytes_text(r.nbytes),
                    quantity_text(r.operations, "op"),
                )
                for r in side.rows
            ]
            rows.append(
                (side.side, "total", in_units(side.elements, symbols), bytes_text(side.nbytes),
                 f"{side.intensity:.3g} op/B")
            )  # fmt: skip
        rows.append(
            (
                "lower bound",
                "inputs + outputs",
                in_units(self.bound.elements, symbols),
                bytes_text(self.bound.nbytes),
                "",
            )
        )
        notes = [", ".join(f"{name} = {value:,}" for name, value in symbols.items())]
        if self.compiled is not None:
            attained = "which is the lower bound" if self.attains_bound else f"lower bound allows {self.best_rho:.3g}"
            notes.append(f"model byte ratio rho = {self.rho:.3g}, {attained}")
        notes += [*self.bound.reasons, self.remark or ""]
        columns = ("side", "operator or kernel", "elements moved", "bytes", "operations")
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
    stands for the elements of the largest input depended upon, ``n`` for all output elements.
    """
    operators = getattr(compilation, "operators", compilation)
    graph = operators if isinstance(operators, Graph) else getattr(operators, "graph", None)
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a compilation or an operator graph, not {type(compilation).__name__}")
    bound = lower_bound(graph)
    largest = max((row.elements for row in bound.of("input")), default=0)
    produced = sum(row.elements for row in bound.of("output"))
    symbols = {"N": largest} if produced in (0, largest) else {"N": largest, "n": produced}
    symbols = dict(sorted(symbols.items(), key=lambda item: -item[1]))
    schedule = getattr(compilation, "schedule", None)
    compiled, written, remark = None, graph, None
    if getattr(compilation, "capture", None) is not None:
        written, remark = eager_operators(compilation)
    if isinstance(schedule, Schedule):
        compiled = compiled_traffic(schedule, getattr(compilation, "kernels", None) or (), symbols)
    return TrafficModel(eager_traffic(written, symbols), bound, compiled, remark)
