"""Which elements a region really needs, hence the least traffic any implementation can have (Proposition 1.1).

Whatever the implementation, an input element that some output depends on must be read at least once, and every output
element must be written at least once. The bound is therefore a count of *elements depended upon*: a function that uses
only the first row of a matrix need not read the others.

The count walks the operator graph backwards and carries, per block of storage, the set of elements demanded so far: all
of them (the usual case, which costs nothing to represent) or a mask. A pointwise operator demands of its arguments what
is demanded of its result, a reduction whole lines of its argument, a scan lines up to the last element demanded, a view
nothing of its own, and any operator without a rule everything. Inputs that are handed out again (or views of them) move
nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta, nodes_in
from . import operator_cost as cost
from .tables import Table, Tabular, bytes_text

#: Above this many elements of storage a partial demand is not tracked (its mask would take that many bytes).
LARGEST_MASK = 1 << 26

REDUCING = {"sum", "mean", "amax", "amin", "prod", "any", "all", "argmax", "argmin", "var", "std", "logsumexp"}
SCANNING = {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"}
ALONG_A_LINE = {"_softmax", "_log_softmax", "softmax", "log_softmax"}


@dataclass(frozen=True)
class BoundRow:
    """One input or output of the region and the elements of it that count; ``whole`` if they are all it has."""

    name: str
    role: str
    elements: int
    nbytes: int
    whole: bool = True


@dataclass(frozen=True, repr=False)
class LowerBound(Tabular):
    """The least main-memory traffic of a region: inputs depended upon plus outputs (Proposition 1.1).

    ``exact`` is False when some dependence could only be estimated (a gather, or a partial demand on an operator
    without a rule); ``reasons`` says which.
    """

    rows: tuple[BoundRow, ...]
    exact: bool = True
    reasons: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        return sum(row.elements for row in self.rows)

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    @property
    def bytes_read(self) -> int:
        """Bytes of the inputs depended upon: whatever the implementation, each is read at least once."""
        return sum(row.nbytes for row in self.of("input"))

    @property
    def bytes_written(self) -> int:
        """Bytes of the outputs: each is written at least once."""
        return sum(row.nbytes for row in self.of("output"))

    @property
    def parts(self) -> tuple[int, ...]:
        """Elements of each tensor that counts, inputs before outputs."""
        return tuple(row.elements for row in self.rows)

    def of(self, role: str) -> tuple[BoundRow, ...]:
        """The rows of the "input"s or of the "output"s."""
        return tuple(row for row in self.rows if row.role == role)

    def table(self) -> Table:
        rows = [(r.role, r.name, f"{r.elements:,}", bytes_text(r.nbytes)) for r in self.rows]
        rows.append(("total", "", f"{self.elements:,}", bytes_text(self.nbytes)))
        caption = "Least traffic of the region (Proposition 1.1)"
        return Table.build(caption, ("role", "tensor", "elements", "bytes"), rows, self.reasons, text_columns=2)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [[r.role, r.name, r.elements, r.nbytes] for r in self.rows],
            "elements": self.elements,
            "bytes": self.nbytes,
            "exact": self.exact,
            "reasons": list(self.reasons),
        }


class _Demand:
    """Elements of storage demanded so far, per root: everything its own tensor has, or a mask over the storage."""

    def __init__(self, spans: dict[tuple[Node, int], int]):
        self.spans = spans
        self.everything: set[tuple[Node, int]] = set()
        self.masks: dict[tuple[Node, int], torch.Tensor] = {}
        self.reasons: list[str] = []

    def add(self, operand: cost.Operand, mask: torch.Tensor | None) -> None:
        """Demand the elements of a tensor that ``mask`` (its shape, bool) selects; None: all of them."""
        root, meta = operand.root, operand.meta
        if root in self.everything or meta.numel == 0:
            return
        own = root[0].val[root[1]] if isinstance(root[0].val, (tuple, list)) else root[0].val
        whole = cost.distinct_elements(own)
        if mask is None and cost.distinct_elements(meta) == whole:
            self.everything.add(root)
            return
        span = self.spans[root]
        if span > LARGEST_MASK:
            self.everything.add(root)
            self.reasons.append(f"all of %{root[0].name} is counted: too large to track which part is used")
            return
        marks = self.masks.setdefault(root, torch.zeros(span, dtype=torch.bool))
        if mask is None:
            cost.window(marks, meta).fill_(True)
        else:
            # Through flat positions: an expanded tensor may not be written element by element.
            positions = torch.arange(span, dtype=torch.int32).as_strided(meta.shape, meta.stride, meta.storage_offset)
            marks[positions[mask]] = True
        if int(marks.sum()) == whole:
            self.everything.add(root)
            del self.masks[root]

    def of(self, operand: cost.Operand) -> torch.Tensor | None | bool:
        """What is demanded of a tensor: None (all), False (nothing), or a mask of its shape."""
        if operand.root in self.everything:
            return None
        marks = self.masks.get(operand.root)
        if marks is None:
            return False
        meta = operand.meta
        mask = marks.as_strided(meta.shape, meta.stride, meta.storage_offset)
        if bool(mask.all()):
            return None
        return mask if bool(mask.any()) else False

    def count(self, root: tuple[Node, int], own: TensorMeta) -> int:
        if root in self.everything:
            return cost.distinct_elements(own)
        return int(self.masks[root].sum()) if root in self.masks else 0


def lower_bound(graph: Graph) -> LowerBound:
    """The bound of Proposition 1.1 for an operator graph. O(nodes) when every element is used, else O(elements).

    Raises TypeError for a graph whose calls are not operator overloads.
    """
    roots, spans = cost.Roots(), {}
    for node in graph:
        if node.op != "output":
            roots.define(node)
            for operand in roots.operands(node):
                spans[operand.root] = max(spans.get(operand.root, 0), cost.storage_span(operand.meta))
    demand = _Demand(spans)
    outputs = {}
    for node in dict.fromkeys(nodes_in(graph.output.args)):
        for operand in roots.operands(node):
            if operand.root[0].op not in ("placeholder", "get_attr"):  # handing an input out again moves nothing
                outputs.setdefault(operand.root, []).append((node, operand.meta))
                demand.add(operand, None)
    for node in reversed(graph.calls):
        if node.target is operator.getitem or cost.is_view(node.target):
            continue
        _demand_inputs(node, roots, demand)

    rows, reasons = [], list(demand.reasons)
    for node in graph:
        if node.op in ("placeholder", "get_attr") and isinstance(node.val, TensorMeta):
            elements = demand.count((node, 0), node.val)
            whole = elements == cost.distinct_elements(node.val)
            rows.append(BoundRow(node.name, "input", elements, elements * node.val.dtype.itemsize, whole))
    for members in outputs.values():
        elements = cost.union_elements(meta for _, meta in members)
        rows.append(BoundRow(members[0][0].name, "output", elements, elements * members[0][1].dtype.itemsize))
    return LowerBound(tuple(rows), not reasons, tuple(dict.fromkeys(reasons)))


def _demand_inputs(node: Node, roots: cost.Roots, demand: _Demand) -> None:
    """Pass on what is demanded of a node's results to its arguments."""
    results = roots.operands(node)
    asked = [demand.of(r) for r in results]
    if not any(a is None or a is not False for a in asked):
        return  # nobody needs it
    name = cost.operator_name(node.target)
    mask = asked[0] if len(asked) == 1 else None
    operands = cost.reads(node, roots)
    if cost.is_gather(node.target) and operands:
        table, selected = operands[0], results[0].meta.numel
        if selected < cost.distinct_elements(table.meta):
            # Which elements depends on the data: count as many as are selected, the first ones standing for them.
            demand.reasons.append(f"%{node.name}: which elements are read depends on data; counted as all different")
            standing = torch.zeros(table.meta.numel, dtype=torch.bool)
            standing[:selected] = True
            demand.add(table, standing.reshape(table.meta.shape))
        else:
            demand.add(table, None)
        operands = operands[1:]
        mask = None
    for operand in operands:
        demand.add(operand, _through(node, name, mask, operand.meta, results[0].meta, demand))


def _through(
    node: Node, name: str, mask: Any, argument: TensorMeta, result: TensorMeta, demand: _Demand
) -> torch.Tensor | None:
    """The part of an argument that the demanded part (``mask``; None: all) of a result depends on."""
    if mask is None or mask is False:
        return None
    if torch.Tag.pointwise in node.target.tags or name in ("clone", "_to_copy"):
        lead = mask.ndim - len(argument.shape)
        for _ in range(lead):
            mask = mask.any(0)
        for dim, extent in enumerate(argument.shape):
            if extent == 1 and mask.shape[dim] != 1:
                mask = mask.any(dim, keepdim=True)
        return mask
    if name in REDUCING:
        dims = _reduced_dimensions(node, len(argument.shape))
        if len(result.shape) != len(argument.shape):
            for dim in dims:
                mask = mask.unsqueeze(dim)
        return mask.expand(argument.shape)
    if name in SCANNING:
        dim = node.args[1]
        return mask.flip(dim).cumsum(dim).flip(dim) > 0 if mask.ndim else mask
    if name in ALONG_A_LINE:
        return mask.any(node.args[1], keepdim=True).expand(argument.shape)
    demand.reasons.append(f"%{node.name}: only part of its result is used; all of its arguments are counted")
    return None


def _reduced_dimensions(node: Node, ndim: int) -> list[int]:
    """The dimensions a reduction removes, ascending."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if given is None or given == []:
        return list(range(ndim))
    return sorted(d % ndim for d in ([given] if isinstance(given, int) else given)) if ndim else []
