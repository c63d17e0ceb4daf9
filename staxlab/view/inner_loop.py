"""The inner loop of a kernel (Section 8.1), drawn: its instructions by kind, the ports they keep busy, its bounds.

Kinds have numbers, which stand in the segments of the ports: shades only repeat them. Below the charts is the loop
itself, every instruction linked to the operations it serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..measure.instruction_mix import KINDS, VECTOR_KINDS
from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .listing import listing
from .markup import Html, element, join, table

LABEL, BARS, VALUE = 216, 230, 104  # widths of the three columns of a bar chart
ROW, TOP = 21, 32
COLUMN, PORTS_HEIGHT = 52, 190
SHADES = 6
FILLS = ("#fbe9d3", "#dcecfb", "#e3f3dc", "#f1e2f6", "#dff3f1", "#f6e3e3")  # of the light theme, as in theme.py
LONGEST = 400  # instructions in a notebook output

Row = tuple[str, float, str, int]  # label, length, text behind the bar, number of the shade (-1: none)


def view(record: Any, full: bool = False) -> View:
    """The charts side by side, the facts, and the listing."""
    charts = [mix_chart(record)]
    if record.bounds:
        charts += [bounds_chart(record), ports_chart(record)]
    if record.accumulators_table():
        charts.append(accumulators_chart(record))
    notes = element("ul", [element("li", fact) for fact in record.facts()], class_="sx-note")
    caption = f"{record.function or record.kernel}, {len(record.instructions)} instructions"
    instructions = listing(
        record.lines, "asm", name="inner loop", caption=caption, noun="instruction", limit=None if full else LONGEST
    )
    tables = [_mix_table(record), *([_bounds_table(record)] if record.bounds else [])]
    numbers = element("details", element("summary", "the same as tables"), tables, class_="sx-more")
    body = join([element("div", charts, class_="sx-columns"), notes, numbers, instructions])
    pane = Pane("inner-loop", f"Inner loop of {record.kernel}", body, record.summary(), record.format())
    return View("inner loop", (pane,))


def width_text(kind: str, width: int) -> str:
    return f"{width} bits" if width else "scalar" if kind in VECTOR_KINDS and kind != "mask" else ""


def shade(kind: str) -> int:
    """The number of a kind, which the charts share."""
    return KINDS.index(kind) + 1


def bar_chart(title: str, said: str, axis: str, rows: Sequence[Row], *, mark: int | None = None) -> Html:
    """Horizontal bars with their values; the row ``mark`` is set off by a frame and a pointer."""
    longest = max((length for _, length, _, _ in rows), default=0.0) or 1.0
    height = TOP + ROW * len(rows) + 26
    width = LABEL + BARS + VALUE
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
    ]
    for number, (label, length, text, kind) in enumerate(rows):
        y = TOP + ROW * number
        marked = number == mark
        fill = FILLS[kind % SHADES] if kind >= 0 else "#e4f0fb"
        style = f"sx-part-{kind % SHADES}" if kind >= 0 else "sx-cell-covered"
        size = max(length / longest * BARS, 1.5)
        drawn += [
            text_at(f"{'▸ ' if marked else ''}{label}", LABEL - 8, y + 14, "sx-count" if marked else "sx-label",
                    TEXT if marked else MUTED, text_anchor="end"),
            element("rect", element("title", f"{label}: {text}"), x=LABEL, y=y + 2, width=f"{size:.1f}", height=ROW - 5,
                    rx=2, fill=fill, stroke=RULE, stroke_width="2.2" if marked else None, class_=f"sx-cell {style}",
                    data_value=f"{length:g}"),
            text_at(text, LABEL + size + 7, y + 14, "sx-count" if marked else "sx-label", TEXT if marked else MUTED),
        ]  # fmt: skip
    drawn.append(text_at(axis, LABEL, height - 8, "sx-label", MUTED))
    drawn.append(element("path", d=f"M{LABEL} {TOP - 2}V{height - 22}", class_="sx-chart-axis", stroke=RULE))
    return chart(drawn, title, said, width, height)


def mix_chart(record: Any) -> Html:
    """A bar for each kind and width."""
    rows = []
    for (kind, width), count in record.mix.items():
        words = " · ".join(part for part in (f"{shade(kind)}: {kind}", width_text(kind, width)) if part)
        rows.append((words, float(count), str(count), shade(kind)))
    said = "; ".join(
        f"{count} {kind} {width_text(kind, width)}".rstrip() for (kind, width), count in record.mix.items()
    )
    return bar_chart("Instructions of one iteration", f"{said}.", "instructions (count)", rows)


def bounds_chart(record: Any) -> Html:
    """The four limits; the largest is marked."""
    rows = [(bound.name, bound.cycles, f"{bound.cycles:.2f}", -1) for bound in record.bounds]
    mark = record.bounds.index(record.limit)
    said = (
        "; ".join(f"{bound.name} {bound.cycles:.2f}" for bound in record.bounds) + f"; the limit: {record.limit.name}."
    )
    return bar_chart("What one iteration takes at least", said, "cycles", rows, mark=mark)


def accumulators_chart(record: Any) -> Html:
    """Cycles per vector over the number of accumulators, as the model has it; the number in the kernel is marked."""
    found = record.accumulators_table()
    here = len(record.chain.accumulators)
    if here not in [count for count, _, _ in found]:
        found = record.accumulators_table(sorted({*(count for count, _, _ in found), here}))
    rows = [
        (f"{count} accumulator{'' if count == 1 else 's'}", cycles, f"{cycles:.2f}  {_short(name)}", -1)
        for count, cycles, name in found
    ]
    said = "; ".join(f"{label}: {text}" for label, _, text, _ in rows) + f". The kernel has {here}."
    mark = [count for count, _, _ in found].index(here)
    return bar_chart("Why several accumulators", said, "cycles for each vector that is merged", rows, mark=mark)


def _short(name: str) -> str:
    return {"dependence chain": "chain", "execution ports": "ports", "loads and stores": "memory"}.get(name, name)


def ports_chart(record: Any) -> Html:
    """A column for each port, its segments with the numbers of the kinds that keep it busy."""
    model = record.model
    ports = (*model.ports, *model.memory_ports)
    loads = {key: record.pressure.get(key, {}) for key, _ in ports}
    most = max((sum(kinds.values()) for kinds in loads.values()), default=0.0) or 1.0
    used = sorted({kind for kinds in loads.values() for kind in kinds}, key=shade)
    lines = list(_legend_lines(used, len(ports) * COLUMN + 60))
    left, top = 46, 34 + 15 * len(lines)
    base = top + PORTS_HEIGHT
    width, height = max(left + COLUMN * len(ports) + 12, 480), base + 58
    said = "; ".join(f"{label} {sum(loads[key].values()):.2f}" for key, label in ports) + " cycles per iteration."
    title = f"Ports of {model.title}"
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        *(text_at(line, 8, 38 + 15 * k, "sx-label", MUTED) for k, line in enumerate(lines)),
        element("path", d=f"M{left} {top}V{base}H{width - 8}", class_="sx-chart-axis", fill="none", stroke=RULE),
    ]
    for cycles in _ticks(most):
        y = base - cycles / most * (PORTS_HEIGHT - 16)
        drawn.append(text_at(f"{cycles:g}", left - 7, y + 4, "sx-label", MUTED, text_anchor="end"))
        drawn.append(element("path", d=f"M{left - 4} {y:.1f}H{left}", class_="sx-chart-axis", stroke=RULE))
    for number, (key, label) in enumerate(ports):
        x = left + COLUMN * number + 6
        drawn += _column(loads[key], label, x, base, most)
    split = left + COLUMN * len(model.ports) + 2
    drawn.append(element("path", d=f"M{split} {top}V{base + 24}", class_="sx-chart-round", stroke=RULE,
                         stroke_dasharray="3 3", fill="none"))  # fmt: skip
    drawn.append(text_at("execution", left + 4, base + 36, "sx-label", MUTED))
    drawn.append(text_at("loads and stores", split + 6, base + 36, "sx-label", MUTED))
    drawn.append(text_at("cycles per iteration", left + 4, base + 52, "sx-label", MUTED))
    return chart(drawn, title, said, width, height)


def _column(kinds: dict[str, float], label: str, x: float, base: float, most: float) -> Iterator[Html]:
    bottom, total = base, sum(kinds.values())
    for kind in sorted(kinds, key=shade):
        size = kinds[kind] / most * (PORTS_HEIGHT - 16)
        if size < 0.05:
            continue
        bottom -= size
        said = f"{label}, {kind}: {kinds[kind]:.2f} cycles"
        yield element(
            "rect", element("title", said), x=f"{x:g}", y=f"{bottom:.1f}", width=COLUMN - 12, height=f"{size:.1f}",
            fill=FILLS[shade(kind) % SHADES], stroke=RULE, class_=f"sx-cell sx-part-{shade(kind) % SHADES}",
            data_port=label, data_kind=kind,
        )  # fmt: skip
        if size >= 12:
            yield text_at(str(shade(kind)), x + (COLUMN - 12) / 2, bottom + size / 2 + 4, "sx-count", TEXT,
                          text_anchor="middle")  # fmt: skip
    if total:
        yield text_at(f"{total:.3g}", x + (COLUMN - 12) / 2, bottom - 4, "sx-label", MUTED, text_anchor="middle")
    yield text_at(label, x + (COLUMN - 12) / 2, base + 15, "sx-label", MUTED, text_anchor="middle")


def _legend_lines(kinds: Sequence[str], width: float) -> Iterator[str]:
    line = ""
    for kind in kinds:
        part = f"{shade(kind)}: {kind}"
        if line and (len(line) + len(part) + 3) * CHARACTER > width:
            yield line
            line = ""
        line = f"{line} · {part}" if line else part
    if line:
        yield line


def _ticks(most: float) -> list[float]:
    step = next(s * 10.0**e for e in range(-2, 9) for s in (1, 2, 5) if s * 10.0**e * 5 >= most)
    return [round(k * step, 6) for k in range(int(most / step + 1e-9) + 1)]


def _mix_table(record: Any) -> Html:
    rows = [[f"{shade(kind)}: {kind}", width_text(kind, width) or "–", n] for (kind, width), n in record.mix.items()]
    return table("Instructions of one iteration", ["kind", "width", "instructions"], rows)


def _bounds_table(record: Any) -> Html:
    rows = [[bound.name, f"{bound.cycles:.2f}", bound.reason] for bound in record.bounds]
    return table("Cycles of one iteration, at least", ["limit", "cycles", "why"], rows)
