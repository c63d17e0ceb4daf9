"""A chain of views as numbers (Proposition 6.2): matrices, the layout law, and where a reshape is not affine.

:func:`view_map` takes a shape (or a tensor, whose strides count) and a function that only looks at it in other ways.
The function is captured and recorded as always, and the lowering rules turn each view operator into a change of
subscript. For each the record holds ``A`` and ``c`` of ``pi(i) = A i + c``, the strides ``t' = A^T t`` and the offset
``o' = o + t^T c`` that follow, and for a reshape the conditions ``t_j = s_(j+1) t_(j+1)`` under which the dimensions it
merges lie seamlessly one after the other. Where one fails there are no strides: floor division and modulo stay in the
subscript, and eager execution copies.

>>> whole = view_map((6, 8), lambda x: x.t()[1:, ::2])
>>> whole.matrix, whole.vector
(((0, 2), (1, 0)), (0, 1))
>>> whole.stride, whole.offset
((1, 16), 1)

Operators that eager execution carries out by copying (``flip``, ``roll``, ``repeat``, ``clone``) are changes of
subscript too, and are followed like views: a flip has a stride no tensor of PyTorch may have, a negative one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..capture.graph import Node, map_nodes
from ..errors import OptionError
from ..options import Options, device_spec
from ..provenance import SourceLocation
from .composition import index_text
from .expressions import Expr, Symbol
from .ir import Index, Layout
from .layout import IndexMap, layout_through, matching_runs
from .ops import Ops

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MergeCondition:
    """Whether dimensions ``j`` and ``j + 1`` of what is reshaped may become one: ``t_j = s_(j+1) t_(j+1)``.
    ``dimension`` is j; ``next_dimension`` is the next one of more than one element."""

    dimension: int
    next_dimension: int
    stride: int
    next_extent: int
    next_stride: int

    @property
    def holds(self) -> bool:
        return self.stride == self.next_extent * self.next_stride

    def format(self) -> str:
        j, k = self.dimension, self.next_dimension
        said, sign = ("holds", "=") if self.holds else ("fails", "!=")
        return f"t{j} = s{k} t{k} {said}: {self.stride} {sign} {self.next_extent}*{self.next_stride}"

    __str__ = format

    def jump(self) -> str:
        """What the condition is about: the step of the address inside a run of dimension j + 1, and from its end to
        the next run, which a single stride would need to be the same."""
        at_the_end = self.stride - (self.next_extent - 1) * self.next_stride
        run = f"along i{self.next_dimension} the address moves by {self.next_stride}"
        return f"{run}, from its end to the next i{self.dimension} by {at_the_end}"


@dataclass(frozen=True)
class MappedView:
    """One step of a chain. ``viewed`` is the shape looked at, ``shape`` what it looks like.

    ``subscripts`` are those of what is viewed, in terms of the view's ``i0, i1, ...``; ``matrix`` (a row for each
    dimension of what is viewed) and ``vector`` say the same where it is affine, else None. ``before`` and ``layout``
    are the layouts of the storage seen before and after the step, None where no strides express it. ``merges`` are the
    conditions of a reshape. ``copies``: eager execution copies here.
    """

    operator: str
    viewed: tuple[int, ...]
    shape: tuple[int, ...]
    subscripts: Index
    matrix: Matrix | None
    vector: tuple[int, ...] | None
    before: Layout | None
    layout: Layout | None
    merges: tuple[MergeCondition, ...] = ()
    copies: bool = False
    location: SourceLocation | None = None

    @property
    def stride(self) -> tuple[int, ...] | None:
        return None if self.layout is None else self.layout.stride

    @property
    def offset(self) -> int | None:
        return None if self.layout is None else self.layout.offset

    @property
    def failing(self) -> tuple[MergeCondition, ...]:
        """The merge conditions that do not hold."""
        return tuple(condition for condition in self.merges if not condition.holds)

    def map_text(self) -> str:
        """``(i0, i1) -> (i1, i0 + 1)``."""
        own = tuple(Expr.of(Symbol(f"i{k}")) for k in range(len(self.shape)))
        return f"{index_text(own)} -> {index_text(self.subscripts)}"

    def law(self) -> tuple[str, ...]:
        """The layout law with the numbers filled in: a line for every stride and one for the offset. Empty where the
        step is not affine, or where there are no strides before it."""
        if self.matrix is None or self.vector is None or self.before is None:
            return ()
        t, o = self.before.stride, self.before.offset
        lines = []
        for k in range(len(self.shape)):
            terms = [f"{row[k]}*{step}" for row, step in zip(self.matrix, t, strict=True)]
            total = sum(row[k] * step for row, step in zip(self.matrix, t, strict=True))
            lines.append(f"t'{k} = {' + '.join(terms) or '0'} = {total}")
        shift = "".join(f" + {step}*{c}" for step, c in zip(t, self.vector, strict=True))
        lines.append(f"o' = {o}{shift} = {o + sum(step * c for step, c in zip(t, self.vector, strict=True))}")
        return tuple(lines)

    def verdict(self) -> str:
        """What became of the strides, in words."""
        if self.merges and not self.failing:
            conditions = "; ".join(f"{c}" for c in self.merges)
            return f"merges dimensions that lie seamlessly ({conditions}): strides {self.stride}, offset {self.offset}"
        if self.failing:
            broken = "; ".join(f"{condition} ({condition.jump()})" for condition in self.failing)
            return f"no strides: {broken}; // and % stay in the subscript"
        if self.layout is None:
            return "no strides: // and % stay in the subscript"
        if self.before is None:
            return f"affine again: strides {self.stride}, offset {self.offset}"
        return f"strides {self.stride}, offset {self.offset}"


@dataclass(frozen=True)
class ViewMap:
    """A tensor of layout ``source`` seen through ``steps``, in the order in which the program applies them.

    ``subscripts`` are those of the tensor in terms of the view's; ``matrix`` and ``vector`` are the composed ``A`` and
    ``c``, None where the whole is not affine in subscripts; ``layout`` is None where no strides express it;
    ``address`` is the storage subscript of an element. ``copied``: in eager execution the result has memory of its own.
    """

    name: str
    source: Layout
    steps: tuple[MappedView, ...]
    shape: tuple[int, ...]
    subscripts: Index
    matrix: Matrix | None
    vector: tuple[int, ...] | None
    layout: Layout | None
    address: Expr = field(repr=False)
    copied: bool = False

    @property
    def stride(self) -> tuple[int, ...] | None:
        return None if self.layout is None else self.layout.stride

    @property
    def offset(self) -> int | None:
        return None if self.layout is None else self.layout.offset

    @property
    def title(self) -> str:
        chain = ", ".join(step.operator for step in self.steps) or "nothing"
        return f"{self.name} of shape {self.source.shape} seen through {chain}"

    def addresses(self) -> torch.Tensor:
        """int64 of the view's shape: the number of the storage element that each index reads. O(elements)."""
        return evaluated(self.address, self.shape)

    def addresses_after(self, steps: int) -> torch.Tensor:
        """The same of the view that the first ``steps`` steps make."""
        shape, address = self.source.shape, self.source.address(symbols(self.source.shape))
        for step in self.steps[:steps]:
            own = [next(iter(position.symbols)) for position in symbols(shape)]
            address, shape = address.substitute(dict(zip(own, step.subscripts, strict=True))), step.shape
        return evaluated(address, shape)

    def format(self) -> str:
        """Every step with its matrix, the law in numbers, and the storage elements that the view reads."""
        lines = [self.title, f"storage: strides {self.source.stride}, offset {self.source.offset}", ""]
        said: set[SourceLocation] = set()
        for number, step in enumerate(self.steps, 1):
            where = f"  # line {step.location.line}" if step.location else ""
            if step.location and step.location not in said:  # the user's words once, then the number of the line
                where += f": {step.location.text}"
                said.add(step.location)
            copies = ", eager execution copies" if step.copies else ""
            lines.append(f"{number}. {step.operator}: {step.viewed} -> {step.shape}{copies}{where}")
            lines.append(f"   {step.map_text()}")
            lines += [f"   {line}" for line in affine_text(step.matrix, step.vector)]
            lines += [f"   {line}" for line in step.law()]
            lines += [f"   {step.verdict()}", ""]
        if len(self.steps) > 1:
            lines.append(f"composed: {index_text(symbols(self.shape))} -> {index_text(self.subscripts)}")
            lines += [f"   {line}" for line in affine_text(self.matrix, self.vector)]
        lines.append(f"address: {self.address}")
        found = "none" if self.layout is None else f"{self.stride}, offset {self.offset}"
        lines.append(f"strides: {found}" + (" (eager execution copies)" if self.copied else ""))
        lines += ["storage element read at each index:", *grid_text(self.addresses())]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def affine_text(matrix: Matrix | None, vector: tuple[int, ...] | None) -> list[str]:
    """``A`` and ``c`` beside each other, a row a line."""
    if matrix is None or vector is None:
        return ["not affine in the subscripts: no A, no c"]
    if not matrix:
        return ["A and c have no rows: one element is viewed"]
    columns = list(zip(*matrix, strict=True))
    widths = [max(len(str(value)) for value in column) for column in columns]
    wide = max(len(str(value)) for value in vector)
    lines = []
    for position, (row, shift) in enumerate(zip(matrix, vector, strict=True)):
        cells = " ".join(f"{value:>{width}}" for value, width in zip(row, widths, strict=True))
        left, right = ("A = ", "  c = ") if position == 0 else ("    ", "      ")
        lines.append(f"{left}[{cells}]{right}[{shift:>{wide}}]")
    return lines


def grid_text(numbers: torch.Tensor) -> list[str]:
    """Numbers as a table, the last dimension across; grids of more dimensions below each other."""
    if numbers.numel() == 0:
        return ["   (no elements)"]
    width = len(str(int(numbers.max())))
    lines: list[str] = []
    for row in numbers.reshape(-1, numbers.shape[-1] if numbers.dim() else 1).tolist():
        if numbers.dim() > 2 and lines and len(lines) % (numbers.shape[-2] + 1) == numbers.shape[-2]:
            lines.append("")
        lines.append("   " + " ".join(f"{value:>{width}}" for value in row))
    return lines


def symbols(shape: Sequence[int]) -> Index:
    """The subscripts ``i0, i1, ...`` of a shape."""
    return tuple(Expr.of(Symbol(f"i{k}", 0, max(extent - 1, 0))) for k, extent in enumerate(shape))


def evaluated(expression: Expr, shape: Sequence[int]) -> torch.Tensor:
    """The values of an expression over all subscripts of a shape."""
    axes = [torch.arange(n).view([-1 if d == k else 1 for d in range(len(shape))]) for k, n in enumerate(shape)]
    value = expression.evaluate({f"i{k}": axis for k, axis in enumerate(axes)})
    return torch.as_tensor(value, dtype=torch.int64).expand(tuple(shape)).clone()


def view_map(tensor: torch.Tensor | Sequence[int], function: Callable[[torch.Tensor], torch.Tensor]) -> ViewMap:
    """The views ``function`` applies to a tensor (or to a row-major one of the shape given), as affine maps.

    The function must return one tensor that shows elements of its argument, unchanged; OptionError names the operator
    that does more. Only the geometry of the tensor is used. Time is that of tracing the function once.
    """
    geometry = tensor if isinstance(tensor, torch.Tensor) else torch.empty(tuple(tensor), device="meta")
    source = Layout(tuple(geometry.shape), geometry.stride(), torch.int64, "cpu", int(geometry.storage_offset()))
    # Every element is its own number, so that eager execution says which ones the view shows.
    storage = torch.arange(max(source.storage_elements, source.offset, 1))
    sample = storage.as_strided(source.shape, source.stride, source.offset)
    value, name = _lowered(function, sample)
    steps: list[MappedView] = []
    layout: Layout | None = source
    shape, whole = source.shape, None
    for operator, view, copies, where in _chain(value, source, name):
        before, whole = layout, view if whole is None else whole.after(view)
        # The law where it applies, else what the address of the whole comes to: a merge that holds has strides without
        # being affine in subscripts, and a part of what is not affine may be affine again.
        affine = _affine(view(symbols(view.shape)), view.shape)
        if affine is not None and before is not None:
            layout = _by_the_law(before, view.shape, *affine)
        else:
            layout = layout_through(source, whole)
        steps.append(_mapped(operator, shape, view, before, layout, copies, where))
        shape = view.shape
    subscripts = symbols(shape) if whole is None else whole(symbols(shape))
    affine = _affine(subscripts, shape) or (None, None)
    result = function(sample)
    copied = result.untyped_storage().data_ptr() != storage.untyped_storage().data_ptr()
    address = source.address(subscripts)
    return ViewMap(name, source, tuple(steps), shape, subscripts, *affine, layout, address, copied)


def _mapped(
    operator: str,
    viewed: tuple[int, ...],
    view: IndexMap,
    before: Layout | None,
    layout: Layout | None,
    copies: bool,
    where: SourceLocation | None,
) -> MappedView:
    subscripts = view(symbols(view.shape))
    matrix, vector = _affine(subscripts, view.shape) or (None, None)
    merges = () if before is None or view.name != "reshape" else _merges(before, view.shape)
    return MappedView(operator, viewed, view.shape, subscripts, matrix, vector, before, layout, merges, copies, where)


def _by_the_law(before: Layout, shape: tuple[int, ...], matrix: Matrix, vector: tuple[int, ...]) -> Layout:
    """``t' = A^T t``, ``o' = o + t^T c``."""
    t = before.stride
    stride = tuple(sum(row[k] * step for row, step in zip(matrix, t, strict=True)) for k in range(len(shape)))
    offset = before.offset + sum(step * c for step, c in zip(t, vector, strict=True))
    return Layout(shape, stride, before.dtype, before.device, offset)


def _affine(subscripts: Index, shape: Sequence[int]) -> tuple[Matrix, tuple[int, ...]] | None:
    return IndexMap(tuple(shape), lambda _: subscripts).affine()


def _merges(layout: Layout, target: Sequence[int]) -> tuple[MergeCondition, ...]:
    """The conditions of a reshape to ``target``: one for each pair of neighbours that it merges."""
    found = []
    if layout.numel == 0:
        return ()
    for (start, stop), _ in matching_runs(layout.shape, target):
        merged = [d for d in range(start, stop) if layout.shape[d] != 1]
        for j, k in zip(merged, merged[1:], strict=False):
            found.append(MergeCondition(j, k, layout.stride[j], layout.shape[k], layout.stride[k]))
    return tuple(found)


# -- from the function to a chain of maps -----------------------------------------------------------------------------

Link = tuple[str, IndexMap, bool, SourceLocation | None]


def _lowered(function: Callable[[torch.Tensor], torch.Tensor], sample: torch.Tensor) -> tuple[Any, str]:
    """The function's result as a value of the lowering walk, nothing realized; and what its argument is called."""
    from ..capture.tracer import trace
    from ..operators.record import record
    from .lowering import basis
    from .lowering.call import Call
    from .lowering.graph import GraphLowering
    from .lowering.registry import RULES, Decline
    from .lowering.values import Box, TensorValue

    capture = trace(function, (sample,))
    operators = record(capture.module, [sample], basis=basis())
    lowering = GraphLowering(operators, device_spec("cpu"), Options())
    values: dict[Node, Any] = {}
    name = "x"
    for node in operators.graph:
        if node.op in ("placeholder", "get_attr"):
            layout = Layout(node.val.shape, node.val.stride, node.val.dtype, "cpu")
            values[node] = TensorValue(Box.stored(node.name, layout, node.origins, is_input=True))
            name = node.name if node.op == "placeholder" else name
        elif node.op == "output":
            result = node.args[0]
            leaves = result if isinstance(result, (tuple, list)) else (result,)
            if len(leaves) != 1 or not isinstance(values.get(leaves[0]), TensorValue):
                raise OptionError("a view map needs a function that returns one tensor, a view of its argument")
            return values[leaves[0]], name
        elif getattr(node.target, "__name__", "") == "getitem":
            values[node] = values[node.args[0]][node.args[1]]
        else:
            args, kwargs = (map_nodes(a, values.get) for a in (node.args, node.kwargs))
            rule = RULES.get(node.target)
            if rule is None:
                raise _refusal(node)
            try:
                values[node] = rule.function(Call(lowering, node), *args, **kwargs)
            except Decline as reason:
                raise _refusal(node, str(reason)) from None
            if lowering.pending:  # a reduction or a scan, which would have to be in memory
                raise _refusal(node)
    raise OptionError("a view map needs a function that returns a tensor")


def _refusal(node: Node, reason: str = "it does more than change subscripts") -> OptionError:
    return OptionError(
        f"{node.target_name()} is no view: {reason}", where=node.location,
        remedy="leave operators that compute out of the function",
    )  # fmt: skip


def _chain(value: Any, source: Layout, name: str) -> list[Link]:
    """The maps from the storage outwards. What a copying operator's rule made of maps is one link, under its name."""
    links: list[Link] = []
    while True:
        for step in reversed(value.steps):
            where = None if step.node is None else step.node.location
            links.append((step.operator, step.map, False, where))
        box = value.box
        if box.is_stored:
            if box.name != name:
                raise OptionError("the function's result is no view of its argument")
            if (box.layout.shape, box.layout.stride) != (source.shape, source.stride):
                raise OptionError("as_strided speaks of storage, not of the elements of a tensor: it is no map")
            return links[::-1]
        passing = _Passing()
        seen = passing.follow(box, symbols(box.shape))
        value, own = seen.value, []
        while value.steps and value.steps[-1].node is None:
            own.append(value.steps[-1].map)
            value = replace(value, steps=value.steps[:-1])
        whole = IndexMap(box.shape, lambda i, box=box: _Passing().follow(box, i).index)
        for inner in own:
            whole = inner.after(whole)
        links.append((passing.node.target._opname, whole, True, passing.node.location))


@dataclass(frozen=True)
class _Seen:
    """An element of ``value`` at ``index``, with nothing done to it."""

    value: Any
    index: Index
    dtype: torch.dtype


class _Passing(Ops):
    """The interpretation of a compute function that passes an element on. Everything else is refused."""

    node: Node | None = None

    def follow(self, box: Any, index: Index) -> _Seen:
        found = box.data.compute(self, index)
        if not isinstance(found, _Seen):
            raise self._refused()
        return found

    def _refused(self) -> OptionError:
        return _refusal(self.node) if self.node is not None else OptionError("a constant is no view of the argument")

    def made_by(self, node: Any) -> _Passing:
        self.node = self.node or node
        return self

    def read(self, value: Any, index: Index, evaluate: Callable[[Ops], Any]) -> _Seen:
        return _Seen(value, index, value.compute_dtype)

    def load(self, buffer: str, index: Expr) -> Any:
        raise self._refused()

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        raise self._refused()

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        raise self._refused()

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        raise self._refused()

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: Any) -> Any:
        raise self._refused()

    def indirect(self, value: Any, size: Expr, *, check: bool = True) -> Expr:
        raise self._refused()

    def apply(self, operation: str, *operands: Any) -> Any:
        raise self._refused()
