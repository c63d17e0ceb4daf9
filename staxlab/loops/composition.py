"""How the compute function of a buffer is composed (Property 6.1, Figure 6.1): boxes within boxes, and loader chains.

A value without memory is nothing but a compute function, and its user's compute function calls it. So the operators
that became one loop are nested calls: outermost the buffer, innermost loads. :func:`compose` runs a buffer's compute
function once more under the recording handler, followed by a handler that notes who reads what:

* an :class:`Applied` is a compute function at the subscript it was called with: the operator, the user's line, the
  statements that are its own, and what it reads;
* a :class:`Read` is the way from the subscript a reader asks for to the one its operand is computed or stored at, one
  :class:`Step` for each view operator (Proposition 6.2); what is stored ends in a :class:`Load`.

The statements are those of the loop body, under the same numbers as in the listing.

>>> import torch, staxlab
>>> compilation = staxlab.explain(lambda x: x.t().reshape(24)[3:] * 2, torch.zeros(4, 6))
>>> (read,) = compose(compilation.loops, "buf0").loads()
>>> print(read.source.address)
6*((i0 + 3) % 4) + ((i0 + 3) // 4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import OptionError
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from .body import LoopBody, Statement, record
from .expressions import Expr, Symbol
from .formatting import heading, statement_text
from .ir import ComputedBuffer, Index, Layout, LoopProgram
from .ops import Ops

# Fields of the nodes of the loop IR that hold compute functions, in the order in which they are recorded.
FUNCTIONS = ("compute", "left", "right", "epilogue")


def index_text(index: Index) -> str:
    """A subscript as Python writes it: ``(i0, i1 + 1)``, ``(i0,)``, ``()``."""
    parts = [str(position) for position in index]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


@dataclass(frozen=True)
class Step:
    """One view on the way of a read: after it, ``index`` is the subscript of what it is a view of. A view that no
    operator of the program made (broadcasting of operands) has the origins of the operator whose rule needed it."""

    operator: str
    index: Index
    origins: Origins = NO_ORIGINS
    location: SourceLocation | None = None


@dataclass(frozen=True)
class Load:
    """An element of a stored buffer: ``address`` is its storage subscript, ``result`` the number of the statement."""

    buffer: str
    address: Expr
    result: int
    layout: Layout | None = None
    origins: Origins = NO_ORIGINS

    def format(self) -> str:
        return f"tmp{self.result} = load {self.buffer}[{self.address}]"

    __str__ = format


@dataclass(frozen=True)
class Applied:
    """A compute function applied at the subscript ``index``.

    ``operator`` is the operator that made it (``relu``), ``name`` its node in the operator graph, ``statements`` what
    it computes itself, ``reads`` what it asks others for, ``result`` the number of the statement whose value it
    yields: one of its own, or what a read gave where it only passes that on.
    """

    operator: str
    name: str
    index: Index
    origins: Origins
    location: SourceLocation | None
    statements: tuple[Statement, ...]
    reads: tuple[Read, ...]
    result: int
    yielded: Statement | None = field(default=None, repr=False)

    def own_text(self) -> tuple[str, ...]:
        """What it computes itself, a statement a line. A box that computes nothing passes a value on (a copy in eager
        execution, a change of subscript here), or its statement was there already."""
        if self.statements:
            return tuple(statement_text(statement) for statement in self.statements)
        if self.reads or self.yielded is None:
            return (f"tmp{self.result}, passed on",)
        text = statement_text(self.yielded)
        return (text if self.yielded.operation == "merged" else f"{text}, made before",)


@dataclass(frozen=True)
class Read:
    """What a compute function asks for at ``index``, the views on the way, and where it gets it. ``again`` marks a
    value asked for a second time at the same subscript: it is there already, and its box is shown once."""

    index: Index
    steps: tuple[Step, ...]
    source: Load | Applied
    again: bool = False


@dataclass(frozen=True)
class Composition:
    """The nest of compute functions of one buffer. ``functions`` holds (what it is for, the outermost box): one without
    a name for most nodes, ``left``, ``right`` and ``epilogue`` for a template. ``body`` is what was recorded."""

    buffer: ComputedBuffer
    functions: tuple[tuple[str, Applied], ...]
    body: LoopBody = field(repr=False)

    @property
    def heading(self) -> str:
        """The loops, and what is merged over which of them."""
        return heading(self.buffer.data, self.body)

    @property
    def outcome(self) -> str:
        """What becomes of the outermost value where the heading does not say: the product that a template merges, the
        element a scatter writes to. "" for other nodes."""
        if self.body.target is not None:
            return f"tmp{self.body.result} goes to {self.buffer.name}[{self.body.target}]"
        if self.body.epilogue is not None:
            (product,) = (s for s in self.body.statements if s.id == self.body.result)
            return f"{statement_text(product)} is merged"
        return ""

    def applied(self) -> tuple[Applied, ...]:
        """Every box, outside in. A value read again at the same subscript is listed once."""
        return tuple(box for _, root in self.functions for box in _boxes(root))

    def loads(self) -> tuple[Read, ...]:
        """Every read that ends in memory, in order."""
        return tuple(read for box in self.applied() for read in box.reads if isinstance(read.source, Load))

    def format(self) -> str:
        """The boxes as a tree of text, each with the user's line; under each load its loader chain."""
        lines: list[tuple[str, SourceLocation | None]] = [
            (f"{self.buffer.name}: {self.buffer.layout}", None),
            (f"for {self.heading}", None),
        ]
        if self.outcome:
            lines.append((self.outcome, None))
        for name, root in self.functions:
            if name:
                lines.append((f"{name}:", None))
            lines += _tree(root, self.verb(name))
        width = min(max((len(text) for text, where in lines if where), default=0), 64)
        said: set[SourceLocation] = set()
        written = []
        for text, where in lines:
            if where is not None:  # the user's words once, then the number of the line
                words = f": {where.text}" if where.text and where not in said else ""
                text = f"{text:<{width}}  # line {where.line}{words}"
                said.add(where)
            written.append(text)
        return "\n".join(written)

    def verb(self, function: str) -> str:
        """What is done with the value of an outermost box."""
        return {"left": "gives", "right": "gives", "epilogue": "yields"}.get(
            function, "merges" if self.body.reduction_indices else "yields"
        )

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def computed_names(program: LoopProgram) -> list[str]:
    """The buffers that have compute functions."""
    return [buffer.name for buffer in program.buffers if isinstance(buffer, ComputedBuffer)]


def compose(program: LoopProgram, name: str | None = None) -> Composition:
    """The composition of the buffer called ``name`` (default: the last that generated loops fill).

    OptionError for a buffer that has no compute function. Time is that of recording the body once more.
    """
    names = computed_names(program)
    if not names:
        raise OptionError("no buffer of this program has a compute function: PyTorch computes all of it")
    name = names[-1] if name is None else name
    if name not in names:
        raise OptionError(f"{name!r} has no compute function", remedy=f"choose one of {', '.join(names)}")
    buffer = program.buffer(name)
    layouts = {b.name: b.layout for b in (*program.inputs, *program.buffers)}
    notes = _Notes(layouts)
    roots: dict[str, _Frame] = {}

    def followed(function: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        def run(ops: Ops, index: Index, *more: Any) -> Any:
            frame = roots[function] = _Frame((*index, *more[0]) if more and isinstance(more[0], tuple) else index)
            result = compute(_Follower(ops, frame, notes), index, *more)
            frame.result = result[-1] if isinstance(result, tuple) else result  # a scatter yields (where, what)
            return result

        return run

    present = {f: getattr(buffer.data, f) for f in FUNCTIONS if getattr(buffer.data, f, None) is not None}
    data = replace(buffer.data, **{f: followed(f, compute) for f, compute in present.items()})
    body = record(replace(buffer, data=data), {name: layout.dtype for name, layout in layouts.items()})
    found: list[tuple[str, Applied]] = []
    for function, frame in roots.items():
        recorded = body.epilogue if function == "epilogue" and body.epilogue is not None else body
        root = _settled(frame, _by_key(recorded))
        if frame.node is None and hasattr(data, "kind"):  # the second level of a reduction that was split
            root = replace(root, operator=data.kind)
        found.append(("" if function == "compute" else function, root))
    return Composition(buffer, tuple(found), body)


# -- following a compute function -------------------------------------------------------------------------------------


class _Frame:
    """A compute function that is running: what it made and read so far."""

    def __init__(self, index: Index):
        self.index = index
        self.node: Any = None
        self.origins: Origins | None = None
        self.made: list[int | Symbol] = []
        self.reads: list[tuple[Index, tuple[Step, ...], _Frame | Load, bool]] = []
        self.result: Any = None
        self.key: Any = None
        self.entered = False


class _Notes:
    """What all frames of a composition share."""

    def __init__(self, layouts: dict[str, Layout]):
        self.layouts = layouts
        self.frames: dict[Any, _Frame] = {}
        self.known: set[int | Symbol] = set()


class _Follower(Ops):
    """Another interpreter (the recorder), followed: whatever is made belongs to the frame at work. With a ``slot`` a
    stored value is being read, and the load belongs to the read."""

    def __init__(self, ops: Ops, frame: _Frame, notes: _Notes, slot: list | None = None):
        self.ops, self.frame, self.notes, self.slot = ops, frame, notes, slot
        self.origins, self.dtypes = ops.origins, getattr(ops, "dtypes", None)

    def _same(self, ops: Ops) -> _Follower:
        return _Follower(ops, self.frame, self.notes, self.slot)

    def _made(self, key: int | Symbol) -> None:
        if key not in self.notes.known:  # a statement that was there already belongs to who made it first
            self.notes.known.add(key)
            self.frame.made.append(key)

    def _noted(self, value: Any) -> Any:
        self._made(value.id)
        return value

    def tagged(self, origins: Origins) -> _Follower:
        if self.frame.origins is None:
            self.frame.origins = origins
        return self._same(self.ops.tagged(origins))

    def made_by(self, node: Any) -> _Follower:
        if self.frame.node is None:
            self.frame.node, self.frame.origins = node, node.origins
        return self

    def read(self, value: Any, index: Index, evaluate: Callable[[Ops], Any]) -> Any:
        steps, position = [], index
        for step in reversed(value.steps):
            before, position = position, step.map.function(position)
            own = self.frame.origins or NO_ORIGINS
            node = step.node
            if node is None and position == before:
                continue  # operands that need no broadcasting
            steps.append(
                Step(step.operator, position, own, None) if node is None
                else Step(step.operator, position, node.origins, node.location)
            )  # fmt: skip
        if value.box.is_stored:
            slot: list[Load] = []
            result = evaluate(_Follower(self.ops, self.frame, self.notes, slot))
            load = replace(slot[0], layout=value.box.layout)
            self.frame.reads.append((index, tuple(steps), load, False))
            return result
        inner = _Frame(position)
        result = inner.result = evaluate(_Follower(self.ops, inner, self.notes))
        source = inner if inner.entered else self.notes.frames[inner.key]
        self.frame.reads.append((index, tuple(steps), source, not inner.entered))
        return result

    def once(self, key: Any, compute: Callable[[Ops], Any]) -> Any:
        self.frame.key = key

        def entered(handler: Ops) -> Any:
            self.frame.entered = True
            self.notes.frames[key] = self.frame
            return compute(self._same(handler))

        return self.ops.once(key, entered)

    def load(self, buffer: str, index: Expr) -> Any:
        value = self.ops.load(buffer, index)
        load = Load(buffer, Expr.of(index), value.id, self.notes.layouts.get(buffer), self.ops.origins)
        if self.slot is not None:
            self.slot.append(load)
        else:  # a compute function that speaks of storage itself
            self.frame.reads.append(((), (), load, False))
        self.notes.known.add(value.id)
        return value

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        return self._noted(self.ops.constant(value, dtype))

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        return self._noted(self.ops.index_value(expression, dtype))

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        return self._noted(self.ops.to_dtype(value, dtype))

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: Any) -> Any:
        return self._noted(self.ops.masked(condition, lambda handler: body(self._same(handler)), other))

    def indirect(self, value: Any, size: Expr, *, check: bool = True) -> Expr:
        subscript = self.ops.indirect(value, size, check=check)
        for symbol in subscript.symbols:
            self._made(symbol)
        return subscript

    def proved(self, subscript: Expr, size: int) -> Expr:
        return self.ops.proved(subscript, size)

    def apply(self, operation: str, *operands: Any) -> Any:
        return self._noted(self.ops.apply(operation, *operands))

    def dtype_of(self, value: Any) -> torch.dtype:
        return self.ops.dtype_of(value)


def _by_key(body: LoopBody) -> dict[int | Symbol, Statement]:
    """Statements by number, and those that define a subscript read at run time by its symbol too."""
    found: dict[int | Symbol, Statement] = {}
    for statement in body.all_statements():
        found[statement.id] = statement
        if statement.operation == "indirect":
            found[statement.args[3]] = statement
    return found


def _settled(frame: _Frame, statements: dict[int | Symbol, Statement]) -> Applied:
    reads = []
    for index, steps, source, again in frame.reads:
        if isinstance(source, Load):
            reads.append(Read(index, steps, source))
        else:
            inner = _settled(source, statements)
            reads.append(Read(index, steps, replace(inner, reads=(), statements=()) if again else inner, again))
    own = tuple(statements[key] for key in frame.made if key in statements)
    node = frame.node
    operator = "" if node is None else getattr(node.target, "_opname", None) or node.target_name()
    if not operator:
        operator = "constant" if own and not reads else "copy" if not own else "compute function"
    return Applied(
        operator,
        "" if node is None else node.name,
        frame.index,
        frame.origins or NO_ORIGINS,
        None if node is None else node.location,
        own,
        tuple(reads),
        frame.result.id,
        statements.get(frame.result.id),
    )


def _boxes(root: Applied) -> Iterator[Applied]:
    yield root
    for read in root.reads:
        if isinstance(read.source, Applied) and not read.again:
            yield from _boxes(read.source)


# -- text -------------------------------------------------------------------------------------------------------------


def _tree(root: Applied, verb: str) -> list[tuple[str, SourceLocation | None]]:
    lines: list[tuple[str, SourceLocation | None]] = []

    def show(box: Applied, head: str, rest: str, text: str) -> None:
        lines.append((head + text, box.location))
        bar = rest + ("│ " if box.reads else "  ")
        lines.extend((bar + statement, None) for statement in box.own_text())
        for position, read in enumerate(box.reads):
            last = position == len(box.reads) - 1
            into, below = rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
            if isinstance(read.source, Load):
                lines.append((into + read.source.format(), None))
                lines.extend(_chain(read, below + "  "))
                continue
            lines.extend((below[: len(rest)] + "│ " + text, where) for text, where in _views(read))
            called = f"{read.source.operator} at {index_text(read.source.index)}"
            if read.again:
                lines.append((f"{into}{called}: tmp{read.source.result}, as above", None))
            else:
                show(read.source, into, below, called)

    show(root, "", "", f"{root.operator} at {index_text(root.index)}, {verb} tmp{root.result}")
    return lines


def _views(read: Read) -> list[tuple[str, SourceLocation | None]]:
    return [(f"through {step.operator}: {index_text(step.index)}", step.location) for step in read.steps]


def _chain(read: Read, indent: str) -> list[tuple[str, SourceLocation | None]]:
    """The loader chain of a load, from the subscript asked for to the address."""
    load = read.source
    if load.layout is None:
        return []
    lines = [(f"{indent}asked for at {index_text(read.index)}", None)] if read.steps else []
    lines += [(f"{indent}{text}", where) for text, where in _views(read)]
    start = "" if read.steps else f"asked for at {index_text(read.index)}, "
    return [*lines, (f"{indent}{start}{storage_text(load.layout)}: {load.address}", None)]


def storage_text(layout: Layout) -> str:
    """``storage strides (6, 1), offset 3``."""
    offset = f", offset {layout.offset}" if layout.offset else ""
    return f"storage strides ({', '.join(map(str, layout.stride))}){offset}"
