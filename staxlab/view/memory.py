"""Memory over time (Sections 5.2 and 5.4), drawn: what is alive while each operator runs, by what is kept.

Operators run to the right, forward ones first; the dotted line is the turn. What a curve holds there is what is kept
for the backward pass. Curves differ in width and dashes, so that two that coincide are both seen; a mark stands where
each is highest. Inputs and constants, which every curve rests on, are a line of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .charts import FONT, MUTED, RULE, TEXT, text_at
from .document import Pane, View
from .figures import SERIES
from .listing import listing, plain_lines
from .markup import Html, element, join, table
from .provenance import TabStop, origins_text
from .reversal import round_ticks
from .schedule import byte_text

WIDTH, HEIGHT = 760, 300  # without the rows of the legend
LEFT, RIGHT, BOTTOM = 92, 20, 54  # margins
LEGEND, ABOVE = 18, 34  # a row of the legend, and what is above it
MOST_BANDS = 240  # operators that can be pointed at one by one
MOST_ALIVE = 8  # values named at a peak
#: Coinciding curves: the first drawn is the widest, and the gaps of the later ones show it.
STROKES = ((5.0, None), (3.6, "9 4"), (2.4, "3 3"), (1.8, "9 3 2 3"), (1.8, "2 5"), (1.8, "14 4"))

Scale = Callable[[float], float]


def view(record: Any, full: bool = False) -> View:
    """The chart, the curves as a table, what is alive at each peak, and the bytes operator by operator."""
    steps = listing(plain_lines(record.format()), "text", name="memory", caption="as text")
    details = element("details", element("summary", "the same as text"), steps, class_="sx-more")
    parts = [timeline_chart(record), element("p", _NOTE, class_="sx-note"), curves_table(record), peaks_table(record)]
    parts.append(details)
    pane = Pane("memory", "Memory over time", join(parts), _summary(record), record.format())
    return View("memory over time", (pane,))


_NOTE = (
    "Eager execution gives back what an operation kept once that operation has run backwards. A compiled region is one "
    "node of autograd's graph, and gives all it kept back together, after its backward; but what it fuses is never in "
    "memory."
)


def _summary(record: Any) -> str:
    return "; ".join(f"{curve.name} peaks at {byte_text(curve.peak)}" for curve in record.curves)


def curves_table(record: Any) -> Html:
    """A row for each curve."""
    rows = []
    for curve in record.curves:
        at = f"%{record.steps[curve.peak_step].name}" if record.steps else "–"
        rows.append([curve.name, curve.kept_bytes, curve.peak, at, curve.peak + record.primal_bytes])
    head = ["kept is", "kept at the turn (bytes)", "peak (bytes)", "at operator", "peak with inputs (bytes)"]
    return table("What is kept for the backward pass, and the most that is alive at once", head, rows)


def peaks_table(record: Any) -> Html:
    """What is in memory when each curve is highest."""
    rows = []
    for curve in record.curves:
        alive = [s for s in curve.alive(curve.peak_step) if s.nbytes]
        named = ", ".join(f"%{s.name} {byte_text(s.nbytes)}{' (kept)' if s.kept else ''}" for s in alive[:MOST_ALIVE])
        more = len(alive) - MOST_ALIVE
        rows.append([curve.name, named + (f" and {more} more" if more > 0 else "")])
    return table("In memory at the peak, largest first", ["kept is", "values"], rows)


def timeline_chart(record: Any) -> Html:
    """Bytes alive over the operators."""
    if not record.steps:
        return element("p", "No operator runs.", class_="sx-note")
    top = ABOVE + LEGEND * (len(record.curves) + 1) + 12
    height = top + HEIGHT - ABOVE
    base = height - BOTTOM
    highest = max([curve.peak for curve in record.curves] + [1])
    inside = 0 < record.primal_bytes <= 2 * highest
    tallest = max(highest, record.primal_bytes if inside else 0) * 1.06

    def x(step: float) -> float:
        return LEFT + step / len(record.steps) * (WIDTH - LEFT - RIGHT)

    def y(size: float) -> float:
        return base - size / tallest * (base - top)

    title = "Bytes alive while each operator runs"
    said = _spoken(record)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_legend(record),
        *_bands(record, x, top, base),
        *_axes(record, x, y, top, base, int(tallest), height),
        *_turn(record, x, top, base),
        *(_curve(curve, k, x, y) for k, curve in enumerate(record.curves)),
        *(_peak(record, curve, k, x, y) for k, curve in enumerate(record.curves)),
    ]
    if inside:
        at = y(record.primal_bytes)
        drawn.append(element("path", d=f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", data_line_of="inputs", **_PRIMALS))
    # A group and no image: the operators inside can be reached.
    picture = element(
        "svg", drawn, class_="sx-diagram sx-growth sx-memory", width=WIDTH, height=height,
        viewBox=f"0 0 {WIDTH} {height}", role="group", aria_label=f"{title}. {said}", data_group=True,
        **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")


_PRIMALS = {"class_": "sx-chart-limit", "fill": "none", "stroke": "#8a4600", "stroke_width": "1.6",
            "stroke_dasharray": "7 4"}  # fmt: skip


def _spoken(record: Any) -> str:
    forward, backward = record.turn, len(record.steps) - record.turn
    curves = [
        f"{curve.name}: {byte_text(curve.kept_bytes)} kept, at most {byte_text(curve.peak)}, "
        f"while %{record.steps[curve.peak_step].name} runs"
        for curve in record.curves
    ]
    over = f"{forward} forward and {backward} backward operators"
    return f"Over {over}: {'; '.join(curves)}. Inputs and constants: {byte_text(record.primal_bytes)}."


def _style(position: int) -> dict[str, Any]:
    width, dashes = STROKES[position % len(STROKES)]
    colour = SERIES[position % len(SERIES)]
    return {"fill": "none", "stroke": colour, "stroke_width": f"{width:g}", "stroke_dasharray": dashes}


def _legend(record: Any) -> Iterator[Html]:
    for position, curve in enumerate(record.curves):
        y = ABOVE + LEGEND * (position + 0.5)
        words = f"{curve.name}: {curve.kept_bytes:,} bytes kept, peak {curve.peak:,} bytes"
        yield element("path", d=f"M{LEFT} {y:g}h34", **_style(position))
        yield _mark(position, LEFT + 46, y)
        yield text_at(words, LEFT + 58, y + 4, "sx-label", MUTED)
    y = ABOVE + LEGEND * (len(record.curves) + 0.5)
    yield element("path", d=f"M{LEFT} {y:g}h34", **_PRIMALS)
    words = f"inputs and constants: {record.primal_bytes:,} bytes, in no curve"
    yield text_at(words, LEFT + 58, y + 4, "sx-label", MUTED)


def _mark(position: int, x: float, y: float, **attributes: Any) -> Html:
    """Another shape for each curve."""
    shapes = ("m-4 -4h8v8h-8z", "m0 -6l6 6l-6 6l-6 -6z", "m0 -5l5.5 9h-11z", "m0 5l5.5 -9h-11z",
              "m-2 -5h4v3h3v4h-3v3h-4v-3h-3v-4h3z", "m-5 -2h10v4h-10z")  # fmt: skip
    path = f"M{x:.1f} {y:.1f}{shapes[position % len(shapes)]}"
    said = attributes.pop("said", None)
    inner = element("title", said) if said else None
    return element("path", inner, d=path, fill=SERIES[position % len(SERIES)], **attributes)


def _bands(record: Any, x: Scale, top: float, base: float) -> Iterator[Html]:
    """A strip for each operator: it says what is alive, and is linked to where the operator comes from."""
    if len(record.steps) > MOST_BANDS:
        return
    stop = TabStop()
    for k, step in enumerate(record.steps):
        sizes = ", ".join(f"{curve.name} {curve.live[k]:,}" for curve in record.curves)
        said = f"%{step.name}, {'backward' if step.is_backward else 'forward'}: {sizes} bytes"
        strip = element(
            "rect", x=f"{x(k):.1f}", y=f"{top:g}", width=f"{x(k + 1) - x(k):.1f}", height=f"{base - top:g}",
            class_="sx-band", fill="#7b858f", fill_opacity="0",
        )  # fmt: skip
        yield element(
            "g", element("title", said), strip, class_="sx-lane", role="img", aria_label=said, data_step=k,
            **(stop.attributes(step.origins, f"%{step.name}") if origins_text(step.origins) else {}),
        )  # fmt: skip


def _axes(record: Any, x: Scale, y: Scale, top: float, base: float, tallest: int, height: float) -> Iterator[Html]:
    right = WIDTH - RIGHT
    yield element("path", d=f"M{LEFT} {top:g}V{base:g}H{right}", class_="sx-chart-axis", fill="none", stroke=RULE)
    for count in round_ticks(len(record.steps), 10)[1:]:
        at = x(count - 0.5)
        yield element("path", d=f"M{at:.1f} {base:g}V{base + 4:g}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{count:,}", at, base + 17, "sx-label", MUTED, text_anchor="middle")
    for size in round_ticks(tallest, 6):
        yield element("path", d=f"M{LEFT - 4} {y(size):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{size:,}", LEFT - 8, y(size) + 4, "sx-label", MUTED, text_anchor="end")
    yield text_at("operator (number, in the order they run)", (LEFT + right) / 2, height - 8, "sx-label", MUTED,
                  text_anchor="middle")  # fmt: skip
    yield text_at("alive (bytes)", 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(13 {(top + base) / 2:g}) rotate(-90)")  # fmt: skip


def _turn(record: Any, x: Scale, top: float, base: float) -> Iterator[Html]:
    at = x(record.turn)
    yield element("path", d=f"M{at:.1f} {top - 4:g}V{base:g}", class_="sx-chart-axis", stroke=RULE,
                  stroke_dasharray="1 4", data_turn=record.turn)  # fmt: skip
    if record.turn:
        yield text_at("forward", at - 6, top + 8, "sx-label", MUTED, text_anchor="end")
    if record.turn < len(record.steps):
        yield text_at("backward", at + 6, top + 8, "sx-label", MUTED)


def _curve(curve: Any, position: int, x: Scale, y: Scale) -> Html:
    path = f"M{x(0):.1f} {y(0):.1f}"
    for k, size in enumerate(curve.live):
        path += f"V{y(size):.1f}H{x(k + 1):.1f}"
    said = f"{curve.name}: at most {curve.peak:,} bytes"
    return element("path", element("title", said), d=path, data_curve=curve.name, pointer_events="none",
                   **_style(position))  # fmt: skip


def _peak(record: Any, curve: Any, position: int, x: Scale, y: Scale) -> Html:
    step = curve.peak_step
    said = f"{curve.name} peaks at {curve.peak:,} bytes while %{record.steps[step].name} runs"
    return _mark(position, x(step + 0.5), y(curve.peak), said=said, data_peak=curve.name)
