"""Buffer lifetimes (Section 7.5), drawn: kernels run to the right, a bar for every buffer while it is alive.

Bars are coloured by the kind of memory a buffer has, and say it in a letter, since colour alone tells nobody. Above
them stands what the call has allocated while each kernel runs, with a mark where it is highest; below, the arena as a
picture of its addresses: two boxes never overlap. A comparison of orders draws the same for each, with buttons to
choose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from .charts import FONT, MUTED, RULE, TEXT, text_at
from .decisions import decisions_table
from .document import Pane, View, note
from .markup import Html, element, join, table
from .provenance import TabStop, origins_text
from .reversal import round_ticks
from .schedule import byte_text

WIDTH, LEFT, RIGHT = 760, 190, 24  # of a picture and its margins
CURVE, BAR, GAP = 110, 14, 4  # heights: of the curve of bytes, of a bar, between bars
ARENA = 170  # height of the picture of the arena
MOST_BARS = 120  # buffers that are drawn; the largest

#: kind: (letter, class of the page's colours, fill where there is no style sheet, dashes of the outline)
LOOKS: dict[str, tuple[str, str, str, str | None]] = {
    "result": ("R", "sx-part-0", "#dbe9fb", None),
    "arena": ("A", "sx-part-1", "#e2f5e7", "12 2"),
    "own": ("O", "sx-part-2", "#fff3c9", "6 3"),
    "in place": ("I", "sx-part-3", "#f3e3f7", "2 2"),
    "extern": ("P", "sx-part-4", "#fbe3da", "9 3 2 3"),
    "view of base": ("V", "sx-part-5", "#e3eef0", "1 3"),
}
MEANING = {
    "result": "leaves the call", "arena": "at an offset in the arena", "own": "memory of its own, freed early",
    "in place": "in memory that another had or will have", "extern": "made by one of PyTorch's operators",
    "view of base": "a scatter, in its base's memory",
}  # fmt: skip

Scale = Callable[[float], float]


def view(record: Any, full: bool = False) -> View:
    """One plan, or several with buttons to choose among them."""
    if type(record).__name__ == "OrderComparison":
        return View("orders", (Pane("orders", "Kernels in other orders", _comparison(record), "", record.format()),))
    body = join([*_charts(record), placements_table(record), _decisions(record)])
    return View("memory plan", (Pane("memory-plan", "Memory of a call", body, _summary(record), record.format()),))


def _summary(record: Any) -> str:
    return f"peak {byte_text(record.peak_bytes)}, arena {byte_text(record.arena_bytes)}"


def _charts(record: Any) -> Iterator[Html]:
    yield lifetime_chart(record)
    if record.arena_span is not None:
        yield arena_picture(record)
    if len(record.lifetimes) > MOST_BARS:
        yield note(f"The {MOST_BARS} largest of {len(record.lifetimes)} buffers are drawn; the table has all.")


def _decisions(record: Any) -> Html:
    return decisions_table(record.decisions, "What shares memory, and what does not") if record.decisions else Html("")


def placements_table(record: Any) -> Html:
    """A row for every buffer: its bytes, its kind, whose memory it is in, and when it is alive."""
    lives = {life.buffer: life for life in record.lifetimes}
    stop, rows, attributes = TabStop(), [], []
    for place in record.placements.values():
        life = lives.get(place.buffer)
        where = place.root if place.root != place.buffer else "–"
        if place.offset is not None:
            where = f"arena + {place.offset:,}"
        during = "–" if life is None else f"{record.steps[life.first]} to {record.steps[life.last]}"
        rows.append(
            [place.buffer, place.bytes, f"{LOOKS[place.kind][0]}  {place.kind}", where, place.reuses or "–", during]
        )
        attributes.append(stop.attributes(record.sources.get(place.buffer, ()), place.buffer))
    head = ["buffer", "bytes", "kind", "memory of", "takes over from", "alive while"]
    kinds = [kind for kind in LOOKS if kind in {place.kind for place in record.placements.values()}]
    meaning = "; ".join(f"{LOOKS[kind][0]} {kind}: {MEANING[kind]}" for kind in kinds)
    drawn = table("Where every buffer stands", head, rows, row_attributes=attributes, data_group=True)
    return join([drawn, note(f"{meaning}.") if kinds else ""])


# -- pictures ----------------------------------------------------------------------------------------------------------


def _drawn(record: Any) -> list[Any]:
    if len(record.lifetimes) <= MOST_BARS:
        return list(record.lifetimes)
    largest = sorted(record.lifetimes, key=lambda life: -life.bytes)[:MOST_BARS]
    return [life for life in record.lifetimes if life in largest]


def lifetime_chart(record: Any) -> Html:
    """Bytes allocated over the kernels, and a bar for every buffer."""
    if not record.steps:
        return element("p", "No kernel runs.", class_="sx-note")
    drawn = _drawn(record)
    top, base = 84, 84 + CURVE
    first_bar = base + 30
    height = first_bar + len(drawn) * (BAR + GAP) + 40
    count = len(record.steps)

    def x(step: float) -> float:
        return LEFT + step / count * (WIDTH - LEFT - RIGHT)

    title = "Buffers while the kernels of a call run"
    said = _spoken(record)
    parts = [
        element("title", title), element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_legend(record),
        *_curve(record, x, top, base),
        *_bars(record, drawn, x, first_bar),
        *_steps(record, x, top, height - 30),
    ]  # fmt: skip
    picture = element(
        "svg", parts, class_="sx-diagram sx-growth sx-lifetimes", width=WIDTH, height=height,
        viewBox=f"0 0 {WIDTH} {height}", role="group", aria_label=f"{title}. {said}", data_group=True, **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")


def _spoken(record: Any) -> str:
    kinds = [place.kind for place in record.placements.values()]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in LOOKS if kind in kinds)
    return (
        f"{len(record.steps)} kernels, {len(kinds)} buffers: {counts}. At most {record.peak_bytes:,} bytes are "
        f"allocated, while {record.steps[record.peak_step]} runs; the arena has {record.arena_bytes:,} bytes."
    )


def _legend(record: Any) -> Iterator[Html]:
    kinds = {place.kind for place in record.placements.values()}
    for number, kind in enumerate(kind for kind in LOOKS if kind in kinds):
        column, row = number % 3, number // 3
        x, y = 12 + column * 248, 32 + row * 18
        yield _box(kind, x, y, 16, 12, None)
        yield text_at(LOOKS[kind][0], x + 8, y + 10, "sx-count", TEXT, text_anchor="middle", font_size="9.5")
        yield text_at(f"{kind}", x + 22, y + 10, "sx-label", MUTED)


def _box(kind: str, x: float, y: float, width: float, height: float, said: str | None, **attributes: Any) -> Html:
    _, style, fill, dashes = LOOKS[kind]
    return element(
        "rect", element("title", said) if said else None, x=f"{x:.1f}", y=f"{y:.1f}", width=f"{max(width, 1):.1f}",
        height=f"{height:.1f}", class_=f"sx-cell {style}", fill=fill, stroke=RULE, stroke_dasharray=dashes,
        **attributes,
    )  # fmt: skip


def _curve(record: Any, x: Scale, top: float, base: float) -> Iterator[Html]:
    highest = max(record.peak_bytes, 1)

    def y(size: float) -> float:
        return base - size / (highest * 1.1) * (base - top)

    yield element("path", d=f"M{LEFT} {top}V{base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE)
    for size in round_ticks(highest, 4):
        yield element("path", d=f"M{LEFT - 4} {y(size):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{size:,}", LEFT - 8, y(size) + 4, "sx-label", MUTED, text_anchor="end")
    path = f"M{LEFT} {base}"
    for step, size in enumerate(record.live_bytes):
        path += f"V{y(size):.1f}H{x(step + 1):.1f}"
    yield element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2")
    at = record.peak_step
    words = f"peak {record.peak_bytes:,} bytes"
    anchor = "end" if at > len(record.steps) / 2 else "start"
    yield element("path", element("title", f"{words}, while {record.steps[at]} runs"), data_peak=at,
                  d=f"M{x(at + 0.5):.1f} {y(record.peak_bytes) - 2:.1f}l-5 -8h10z", class_="sx-chart-point",
                  fill="#0b57b0")  # fmt: skip
    shift = -9 if anchor == "end" else 9
    yield text_at(words, x(at + 0.5) + shift, y(record.peak_bytes) - 5, "sx-count", TEXT, text_anchor=anchor)
    yield text_at("allocated (bytes)", LEFT, top - 8, "sx-label", MUTED)


def _bars(record: Any, drawn: list[Any], x: Scale, top: float) -> Iterator[Html]:
    stop = TabStop()
    for row, life in enumerate(drawn):
        place = record.placements[life.buffer]
        y = top + row * (BAR + GAP)
        where = f"arena at {place.offset:,}" if place.offset is not None else place.kind
        if place.root != place.buffer:
            where += f" of {place.root}"
        said = f"{life.buffer}: {place.bytes:,} bytes, {where}; {record.steps[life.first]} to {record.steps[life.last]}"
        width = x(life.last + 1) - x(life.first)
        origins = record.sources.get(life.buffer, frozenset())
        yield text_at(f"{_short(life.buffer)}  {byte_text(place.bytes)}", LEFT - 8, y + 11, "sx-label", MUTED,
                      text_anchor="end")  # fmt: skip
        yield element(
            "g",
            _box(place.kind, x(life.first), y, width, BAR, said),
            text_at(LOOKS[place.kind][0], x(life.first) + min(width, 16) / 2, y + 11, "sx-count", TEXT,
                    text_anchor="middle", font_size="9.5"),
            class_="sx-lane", role="img", aria_label=said, data_buffer=life.buffer, data_kind=place.kind,
            **(stop.attributes(origins, life.buffer) if origins_text(origins) else {}),
        )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"


def _steps(record: Any, x: Scale, top: float, bottom: float) -> Iterator[Html]:
    """The kernels: a rule where each begins, and their numbers below."""
    count = len(record.steps)
    numbered = range(count) if count <= 24 else [k - 1 for k in round_ticks(count, 12)[1:] if k <= count]
    for k in numbered:
        yield element("path", element("title", record.steps[k]), d=f"M{x(k):.1f} {top}V{bottom - 14}",
                      class_="sx-chart-axis", stroke=RULE, stroke_dasharray="1 4")  # fmt: skip
        yield text_at(f"{k + 1}", x(k + 0.5), bottom, "sx-label", MUTED, text_anchor="middle")
    words = "kernel (number, in the order they run)"
    yield text_at(words, (LEFT + WIDTH - RIGHT) / 2, bottom + 18, "sx-label", MUTED, text_anchor="middle")


def arena_picture(record: Any) -> Html:
    """The arena: addresses upwards, kernels to the right, a box for whoever stands where and when."""
    first, last = record.arena_span
    top, base, count = 40, 40 + ARENA, last - first + 1
    spans: dict[str, list[int]] = {}
    for life in record.lifetimes:
        root = record.root(life.buffer)
        if root in record.placements and record.placements[root].kind == "arena":
            span = spans.setdefault(root, [life.first, life.last])
            span[:] = [min(span[0], life.first), max(span[1], life.last)]

    def x(step: float) -> float:
        return LEFT + (step - first) / count * (WIDTH - LEFT - RIGHT)

    def y(address: float) -> float:
        return base - address / max(record.arena_bytes, 1) * (base - top)

    title = f"The arena of {record.arena_bytes:,} bytes"
    parts = []
    for root, (begin, end) in spans.items():
        place = record.placements[root]
        said = f"{root}: bytes {place.offset:,} to {place.offset + place.bytes:,}, "
        said += f"{record.steps[begin]} to {record.steps[end]}"
        box = (
            x(begin),
            y(place.offset + place.bytes),
            x(end + 1) - x(begin),
            y(place.offset) - y(place.offset + place.bytes),
        )
        parts.append(_box("arena", *box, said, data_arena=root, data_offset=place.offset))
        if box[2] > 7.5 * len(root) and box[3] > 12:
            parts.append(text_at(root, box[0] + box[2] / 2, box[1] + box[3] / 2 + 4, "sx-label", MUTED,
                                 text_anchor="middle"))  # fmt: skip
    said = "; ".join(f"{root} at byte {record.placements[root].offset:,}" for root in spans)
    axes = [
        element("path", d=f"M{LEFT} {top}V{base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE)
    ]
    for address in round_ticks(record.arena_bytes, 4):
        axes.append(text_at(f"{address:,}", LEFT - 8, y(address) + 4, "sx-label", MUTED, text_anchor="end"))
        axes.append(element("path", d=f"M{LEFT - 4} {y(address):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE))
    for k in range(first, last + 1):
        if count <= 24:
            axes.append(text_at(f"{k + 1}", x(k + 0.5), base + 16, "sx-label", MUTED, text_anchor="middle"))
    words = "kernel (number, in the order they run)"
    axes.append(text_at(words, (LEFT + WIDTH - RIGHT) / 2, base + 34, "sx-label", MUTED, text_anchor="middle"))
    axes.append(text_at("offset (bytes)", LEFT, top - 8, "sx-label", MUTED))
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
    ]
    picture = element(
        "svg", drawn, parts, axes, class_="sx-diagram sx-growth sx-arena", width=WIDTH, height=base + 44,
        viewBox=f"0 0 {WIDTH} {base + 44}", role="img", tabindex=0, aria_label=f"{title}. {said}", **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")


# -- orders ------------------------------------------------------------------------------------------------------------


def _comparison(record: Any) -> Html:
    """A button for each order; without scripts all are there, one below the other."""
    names = list(record.plans)
    words = [_words(record, name) for name in names]
    rows = [
        [name, plan.peak_bytes, plan.least_bytes, plan.arena_bytes, "the schedule" if name == record.chosen else ""]
        for name, plan in record.plans.items()
    ]
    head = ["order", "peak (bytes)", "alive at most (bytes)", "arena (bytes)", ""]
    attributes = [{"data_states": str(k)} for k in range(len(names))]
    caption = "The same kernels in other orders"
    switch = element("div", element("span", names[0], data_switch=0, data_value="order of the kernels"))
    drawn = [
        element("div", element("h4", name), *_charts(plan), data_states=str(k))
        for k, (name, plan) in enumerate(record.plans.items())
    ]
    proved = note(f"In no order are fewer than {record.proved:,} bytes alive at most (Definition 7.5).") if (
        record.proved is not None) else Html("")  # fmt: skip
    said = element("output", words[0], class_="sx-switches-words", aria_live="polite")
    return element(
        "div", switch, said, table(caption, head, rows, row_attributes=attributes), proved, drawn, class_="sx-switches",
        data_choices=json.dumps(names), data_combinations=json.dumps([str(k) for k in range(len(names))]),
        data_words=json.dumps(words),
    )  # fmt: skip


def _words(record: Any, name: str) -> str:
    plan = record.plans[name]
    order = " ".join(plan.steps) if len(plan.steps) <= 40 else f"{len(plan.steps)} kernels"
    return f"{name}: at most {plan.peak_bytes:,} bytes are allocated. {order}"
