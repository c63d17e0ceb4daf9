"""Views as maps (Proposition 6.2), drawn: a grid for the tensor and for every view of it, over the strip of storage.

A cell stands for a subscript and holds the number of the storage element it reads, so equal numbers are equal memory;
pointing at one lights it up wherever it appears. The shades tell the rows of the tensor apart and only repeat what the
numbers say. A cell without a frame is one that the last view does not reach. Below each grid stand the matrix ``A``
and the vector ``c`` of its step, and the layout law with the numbers filled in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..loops.composition import index_text
from ..loops.viewmap import MappedView, ViewMap, affine_text, symbols
from .charts import CHARACTER, FONT, MUTED, TEXT, text_at
from .diagram import shortened
from .document import Pane, View
from .markup import Html, element, join
from .provenance import TabStop
from .theme import COLOURS

MOST_CELLS = 200  # of one grid; more explain nothing
ACROSS = 24  # cells of a row of the storage strip
CELL, GAP = 22, 14
REGIONS = 6


def view(record: ViewMap, full: bool = False) -> View:
    """The grids, each with what its step does, and the whole in one formula."""
    names = {f"e{n}": f"element {n}" for n in range(record.source.storage_elements)}
    body = join([_drawing(record), _whole(record)])
    pane = Pane("view-map", record.title, body, _layout_text(record.layout), record.format())
    return View("view-map", (pane,), names=names)


def _layout_text(layout: Any) -> str:
    return "no strides" if layout is None else f"strides {layout.stride}, offset {layout.offset}"


def _drawing(record: ViewMap) -> Html:
    elements = record.source.storage_elements
    largest = max([elements, *(_numel(step.shape) for step in record.steps)])
    if largest > MOST_CELLS:
        said = f"A grid of {largest:,} cells would explain nothing; choose a smaller shape. The steps in numbers:"
        return element("p", said, class_="sx-note")
    reached = set(record.addresses().flatten().tolist())
    rows = _rows_of(record)
    parts = [_figure("storage: one number for each element", _strip(record, reached, rows))]
    shapes = [record.source.shape, *(step.shape for step in record.steps)]
    said_lines: set[Any] = set()
    for number, shape in enumerate(shapes):
        step = record.steps[number - 1] if number else None
        numbers = record.addresses_after(number).flatten().tolist()
        name = record.name if step is None else f"after {number}. {step.operator}"
        caption = (
            f"{record.name}: shape {shape}, {_layout_text(record.source)}" if step is None
            else f"{number}. {step.operator}: {step.viewed} → {step.shape}"
        )  # fmt: skip
        said = f"{caption}, reads elements {', '.join(map(str, numbers[:12]))}{' …' if len(numbers) > 12 else ''}"
        where = step.location if step is not None and step.location not in said_lines else None
        said_lines.add(where)
        parts.append(_figure(caption, _grid(shape, numbers, name, said, reached, rows), step, where))
    legend = (
        "A number is the storage element that a subscript reads; point at one to find it in all grids. "
        f"Shades are the rows of {record.name}; a cell without a frame is not reached by the last view."
    )
    return join([element("div", parts, class_="sx-maps"), element("p", legend, class_="sx-note")])


def _figure(caption: str, drawn: Html, step: MappedView | None = None, where: Any = None) -> Html:
    below = [] if step is None else [_formula(step)]
    if where is not None:
        text = element("code", shortened(where.text, 60), title=where.text)
        below.append(element("p", f"line {where.line}: ", text, class_="sx-note"))
    return element("figure", element("figcaption", caption), drawn, below, class_="sx-map")


def _formula(step: MappedView) -> Html:
    lines = [step.map_text(), *affine_text(step.matrix, step.vector), *step.law()]
    broken = step.layout is None
    return join(
        [
            element("pre", "\n".join(lines), class_="sx-code", aria_label=f"{step.operator} in numbers"),
            element("p", step.verdict(), class_="sx-note" + (" sx-warning" if broken else "")),
            element("p", "Eager execution copies here.", class_="sx-note") if step.copies else "",
        ]
    )


def _whole(record: ViewMap) -> Html:
    """The composition, which is again a map of the same kind or is not."""
    lines = [f"{index_text(symbols(record.shape))} -> {index_text(record.subscripts)}"]
    lines += affine_text(record.matrix, record.vector)
    lines += [f"address = {record.address}", _layout_text(record.layout)]
    said = "All of it as one map" if len(record.steps) > 1 else "The address"
    if record.copied:
        said += "; eager execution copies the elements, a loop reads them where they are"
    parts = [element("p", f"{said}:"), element("pre", "\n".join(lines), class_="sx-code", aria_label="composed map")]
    return element("div", parts, class_="sx-map-whole")


# -- cells ------------------------------------------------------------------------------------------------------------


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _rows_of(record: ViewMap) -> dict[int, int]:
    """Which shade an element has: that of its row, the first one that holds it."""
    shape = record.source.shape
    length = shape[-1] if len(shape) > 1 else max(-(-_numel(shape) // REGIONS), 1)
    found: dict[int, int] = {}
    for position, number in enumerate(record.addresses_after(0).flatten().tolist()):
        found.setdefault(number, position // length % REGIONS)
    return found


def _strip(record: ViewMap, reached: set[int], rows: dict[int, int]) -> Html:
    elements = record.source.storage_elements
    width = _cell_width(elements)
    stop = TabStop()
    cells = [
        _cell(n, n % ACROSS * width + 1, n // ACROSS * (CELL + 4) + 1, width, "storage", str(n), reached, rows, stop)
        for n in range(elements)
    ]
    across, down = min(elements, ACROSS) * width + 2, -(-elements // ACROSS) * (CELL + 4)
    return _svg(cells, f"storage of {record.name}: {elements} elements, {len(reached)} of them read", across, down)


def _grid(
    shape: tuple[int, ...], numbers: list[int], name: str, said: str, reached: set[int], rows: dict[int, int]
) -> Html:
    """The cells of a shape: the last dimension across, the one before it down, blocks for the others side by side."""
    if not numbers:
        return element("p", "no elements", class_="sx-note")
    height, length = ([1, 1, *shape])[-2:]
    blocks = len(numbers) // (height * length)
    width = _cell_width(max(numbers) + 1)
    left, top = (36 if len(shape) > 1 else 4), (34 if len(shape) > 2 else 20) if shape else 4
    stop = TabStop()
    drawn: list[Html] = []
    for position, number in enumerate(numbers):
        block, inside = divmod(position, height * length)
        row, column = divmod(inside, length)
        x, y = left + block * (length * width + left + GAP) + column * width, top + row * CELL
        index = _unravel(position, shape)
        drawn.append(_cell(number, x, y, width, name, index_text(index), reached, rows, stop))
    drawn += _axes(shape, blocks, height, length, width, left, top)
    across = blocks * (length * width + left + GAP) - GAP + 4
    return _svg(drawn, said, across, top + height * CELL + 4)


def _axes(shape: tuple[int, ...], blocks: int, height: int, length: int, width: float, left: int, top: int) -> Iterator:
    """Subscripts along the edges, and what they are called."""
    last = len(shape) - 1
    for block in range(blocks if shape else 0):
        x = left + block * (length * width + left + GAP)
        for column in range(length):
            words = f"i{last}=0" if column == 0 else str(column)
            yield text_at(words, x + (column + 0.5) * width, top - 6, "sx-label", MUTED, text_anchor="middle")
        for row in range(height if last > 0 else 0):
            words = f"i{last - 1}=0" if row == 0 else str(row)
            yield text_at(words, x - 4, top + row * CELL + 15, "sx-label", MUTED, text_anchor="end")
        if last > 1:
            outer = _unravel(block * height * length, shape)[:-2]
            words = ", ".join(f"i{k}={position}" for k, position in enumerate(outer))
            yield text_at(words, x, top - 22, "sx-count", TEXT)


def _cell(
    number: int, x: float, y: float, width: float, where: str, index: str, reached: set[int], rows: dict[int, int],
    stop: TabStop,
) -> Html:  # fmt: skip
    shade = rows.get(number)
    used = number in reached
    words = f"{where} {index} reads element {number}" if where != "storage" else f"storage element {number}"
    words += "" if used else ", not reached by the last view"
    fill = COLOURS[f"region-{shade}"][0] if used and shade is not None else "none"
    style = f"sx-region-{shade}" if used and shade is not None else "sx-map-apart"
    return element(
        "g",
        element("title", words),
        element(
            "rect", x=f"{x + 1:g}", y=f"{y + 1:g}", width=f"{width - 2:g}", height=CELL - 2, rx=2, fill=fill,
            stroke="#7b858f" if used else "none", class_="sx-frame",
        ),
        element(
            "text", str(number), x=f"{x + width / 2:g}", y=f"{y + 15:g}", text_anchor="middle",
            class_="sx-node-name" if used else "sx-node-detail", fill=TEXT if used else MUTED,
        ),
        class_=f"sx-node {style}", role="img", aria_label=words, data_element=number,
        **stop.attributes([f"e{number}"], f"{where} {index}"),
    )  # fmt: skip


def _cell_width(elements: int) -> float:
    return max(30.0, CHARACTER * len(str(max(elements - 1, 0))) + 10)


def _svg(drawn: Any, said: str, width: float, height: float) -> Html:
    picture = element(
        "svg", element("title", said), drawn, class_="sx-diagram", width=f"{width:g}", height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}", role="group", aria_label=said, data_group=True, **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")


def _unravel(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for extent in reversed(shape):
        position, place = divmod(position, extent)
        index.append(place)
    return tuple(reversed(index))
