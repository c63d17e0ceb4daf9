"""How a buffer's compute functions are composed (Figure 6.1), drawn: box within box, each of which folds.

Outermost is the buffer with its loops, then one box for each operator whose compute function was inlined, innermost
the loads. A box says the operator, the subscript it is called at, what it computes, and the user's line; between a
reader and what it reads stands the loader chain, a step for each view operator. The boxes are ``<details>``, so they
unfold without a script, and without styles they are nested lists of the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..loops.composition import Applied, Composition, Load, compose, computed_names, index_text, storage_text
from .document import Pane, View
from .markup import Html, element, join
from .provenance import TabStop

MOST_BOXES = 60  # of one buffer; beyond this, deeper boxes start folded
OPEN_LEVELS = 8
MOST_SHOWN = 60  # boxes of all buffers together, in the stage of the loop IR: an output has to stay small


def view(record: Composition, full: bool = False) -> View:
    """The nest, with a sentence on how to read it."""
    title = f"Composition of {record.buffer.name} (Figure 6.1)"
    said = (
        "A value without memory is only a compute function that its user calls: the innermost box is computed first, "
        "and nothing but the outermost is stored. An arrow is a change of subscript by a view."
    )
    body = join([composition_markup(record), element("p", said, class_="sx-note")])
    pane = Pane("composition", title, body, summary(record), record.format())
    return View("composition", (pane,), names=_names(record))


def _names(record: Composition) -> dict[int, str]:
    """What the status line calls the captured nodes: operators with their lines, inputs by name."""
    names: dict[int, str] = {}
    for read in record.loads():
        own = read.source.origins - {k for box in record.applied() for k in box.origins}
        names |= dict.fromkeys(own - {k for step in read.steps for k in step.origins}, read.source.buffer)
    for box in record.applied():
        for step in (step for read in box.reads for step in read.steps if step.location):
            names |= dict.fromkeys(step.origins, f"{step.operator} (line {step.location.line})")
    for box in record.applied():
        line = f" (line {box.location.line})" if box.location else ""
        names |= dict.fromkeys(box.origins, f"{box.operator}{line}")
    return names


def summary(record: Composition) -> str:
    """``4 compute functions, 2 loads``."""
    boxes, loads = len(record.applied()), len(record.loads())
    return f"{_count(boxes, 'compute function')}, {_count(loads, 'load')}"


def folded(program: Any) -> Html | None:
    """All compositions of a program, folded, for the stage of the loop IR. None where nothing is composed."""
    names = computed_names(program)
    if not names:
        return None
    shown: list[Html] = []
    left = MOST_SHOWN
    for position, name in enumerate(names):
        record = compose(program, name)
        left -= len(record.applied())
        if left < 0:
            said = f"{len(names) - position} more buffers: compilation.loops.composition({name!r}) shows the next one."
            shown.append(element("p", said, class_="sx-note"))
            break
        head = [element("code", name), f": {summary(record)}"]
        shown.append(element("details", element("summary", head), composition_markup(record), class_="sx-more"))
    words = "how the compute functions are composed (Figure 6.1)"
    return element("details", element("summary", words), shown, class_="sx-more", data_part="composition")


def composition_markup(record: Composition) -> Html:
    """The nest of boxes of one buffer."""
    few = len(record.applied()) <= MOST_BOXES
    stop = TabStop()
    head = [
        _linked(stop, record.buffer.name, record.buffer.origins, record.buffer.name),
        element("span", f" {record.buffer.layout}", class_="sx-muted"),
        element("span", f"for {record.heading}", class_="sx-box-loops"),
        element("span", record.outcome, class_="sx-box-loops") if record.outcome else None,
    ]
    inner: list[Any] = []
    for name, root in record.functions:
        if name:
            inner.append(element("div", f"{name}:", class_="sx-muted"))
        inner.append(_box(root, f"{record.verb(name)} ", 0, few, stop))
    outermost = element(
        "details", element("summary", head, class_="sx-box-head"), inner, class_="sx-box sx-box-buffer", open=True
    )
    label = f"Compute functions of {record.buffer.name} as nested boxes: {summary(record)}"
    return element("div", outermost, class_="sx-boxes", role="group", aria_label=label, data_group=True)


def _box(box: Applied, verb: str, depth: int, few: bool, stop: TabStop) -> Html:
    name = _linked(stop, box.operator, box.origins, f"{box.operator} at {index_text(box.index)}")
    where = box.location
    head = [
        name,
        element("code", f" {index_text(box.index)}", class_="sx-box-index"),
        element("span", f" {verb}", element("code", f"tmp{box.result}"), class_="sx-muted"),
        element("span", f"line {where.line}: ", element("code", where.text), class_="sx-box-line") if where else None,
    ]
    own = [element("div", element("code", line), class_="sx-box-own") for line in box.own_text()]
    inner = [part for read in box.reads for part in _read(read, depth + 1, few, stop)]
    is_open = few or depth < OPEN_LEVELS
    return element(
        "details", element("summary", head, class_="sx-box-head"), own, inner, class_="sx-box", open=is_open,
        data_operator=box.operator,
    )  # fmt: skip


def _read(read: Any, depth: int, few: bool, stop: TabStop) -> Iterator[Html]:
    source = read.source
    if isinstance(source, Load):
        text = _linked(stop, source.format(), source.origins, f"load of {source.buffer}")
        chain = _chain(read, source, stop) if source.layout is not None else None
        yield element("div", text, chain, class_="sx-box sx-box-load", data_buffer=source.buffer)
        return
    if read.steps:
        yield _chain(read, None, stop)
    if read.again:
        said = f"{source.operator} {index_text(source.index)}: tmp{source.result}, as above"
        yield element("div", _linked(stop, said, source.origins), class_="sx-box sx-box-again sx-muted")
        return
    yield _box(source, "gives ", depth, few, stop)


def _chain(read: Any, load: Load | None, stop: TabStop) -> Html:
    """The loader chain: subscripts, with the view that turns each into the next between them."""
    parts: list[Any] = [element("span", "asked for at ", class_="sx-muted"), element("code", index_text(read.index))]
    for step in read.steps:
        where = f", line {step.location.line}" if step.location else ""
        name = _linked(stop, step.operator, step.origins, f"{step.operator}{where}")
        parts += [_arrow(name), element("code", index_text(step.index))]
    if load is not None and load.layout is not None:
        parts += [_arrow(storage_text(load.layout)), element("code", str(load.address))]
    return element("div", parts, class_="sx-chain")


def _linked(stop: TabStop, text: str, origins: Any, label: str | None = None) -> Html:
    """Words that take part in the links, reached by arrow keys from the nest's one tab stop."""
    return element("span", text, class_="sx-inline", **stop.attributes(origins, label))


def _arrow(name: Any) -> Html:
    """What leads from one subscript to the next."""
    return element("span", " ─ ", name, " → ", class_="sx-chain-step")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
