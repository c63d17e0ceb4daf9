"""A reversal order (Section 5.8, Definition 5.3), drawn as a space-time diagram.

Time runs to the right, in steps; states are stacked with the input at the bottom. A forward step goes up by one state
(solid), a backward step down by one (dashed), a state in a slot is a horizontal bar from the moment it is stored to the
moment it is given up. What a vertical line meets is what is in memory at that time; the panel below counts it. The more
often the solid line climbs over the same states, the more is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..specialize.report import counted
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .listing import listing, plain_lines
from .markup import Html, element, join

WIDTH = 760
LEFT, RIGHT, TOP = 66, 16, 66  # margins
SLOTS, BETWEEN, BELOW = 78, 44, 40  # height of the panel of slots, the gap above it, the axis below
MOST_MOVES = 6000  # beyond this a drawing is a smear, and too large
MOST_SINGLE = 400  # moves that are drawn, and speak, one by one


def view(record: Any, full: bool = False) -> View:
    """The diagram, and the moves one by one."""
    plain = record.format()
    moves = listing(plain_lines(plain.split("\n\n")[-1]), "text", name="moves", caption="the moves")
    body = join(
        [space_time_diagram(record), element("details", element("summary", "the moves"), moves, class_="sx-more")]
    )
    return View("reversal", (Pane("reversal", f"Reversal order: {record.name}", body, record.summary(), plain),))


def space_time_diagram(record: Any) -> Html:
    """States over time, and the slots in use over time, as SVG."""
    if len(record.moves) > MOST_MOVES:
        said = f"A drawing of {len(record.moves):,} moves would show nothing; {record.summary()}."
        return element("p", said, class_="sx-note")
    duration = max(record.duration, 1)
    space = min(max(15 * (record.length + 1), 90), 330)
    base = TOP + space
    slots_top, slots_base = base + BETWEEN, base + BETWEEN + SLOTS
    height = slots_base + BELOW
    row = space / (record.length + 1)
    most = max(record.slots, record.peak_slots)

    def x(time: float) -> float:
        return LEFT + time / duration * (WIDTH - LEFT - RIGHT)

    def y(state: float) -> float:
        return base - (state + 0.5) * row

    def level(count: float) -> float:
        return slots_base - count / most * (SLOTS - 12)

    title = f"{record.name}: a chain of {record.length:,} steps"
    said = _spoken(record)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_legend(),
        *_axes(x, y, base, record.length, duration),
        *(_bar(stay, x, y, row) for stay in record.residences),
        *_moves(record, x, y),
        *_slots(record, x, level, slots_top, slots_base, most, duration),
        text_at("time (forward and backward steps)", (LEFT + WIDTH - RIGHT) / 2, height - 6, "sx-label", MUTED,
                text_anchor="middle"),
    ]  # fmt: skip
    return chart(drawn, title, said, WIDTH, height)


def _spoken(record: Any) -> str:
    stays = [f"z_{stay.state} from {stay.start} to {stay.stop}" for stay in record.residences[:12]]
    more = f", and {len(record.residences) - 12:,} more" if len(record.residences) > 12 else ""
    return f"{record.summary()}. Stored, in steps of time: {', '.join(stays)}{more}."


def round_ticks(most: int, wanted: int = 8) -> list[int]:
    """Round whole numbers from 0 up to ``most``, about as many as wanted."""
    step = next(s * 10**e for e in range(12) for s in (1, 2, 5) if s * 10**e * wanted >= most)
    return list(range(0, most + 1, step))


def _axes(x: Any, y: Any, base: float, length: int, duration: int) -> Iterator[Html]:
    yield element(
        "path", d=f"M{LEFT} {TOP}V{base:g}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE
    )
    for state in round_ticks(length):
        yield element("path", d=f"M{LEFT - 4} {y(state):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"z_{state}", LEFT - 8, y(state) + 4, "sx-label", MUTED, text_anchor="end")
    for time in round_ticks(duration):
        yield element("path", d=f"M{x(time):.1f} {base:g}V{base + 4:g}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{time:,}", x(time), base + 16, "sx-label", MUTED, text_anchor="middle")
    middle = (TOP + base) / 2
    yield text_at("state", 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(14 {middle:g}) rotate(-90)")  # fmt: skip


def _bar(stay: Any, x: Any, y: Any, row: float) -> Html:
    thick = max(min(row * 0.62, 9.0), 0.6)
    said = f"z_{stay.state} in slot {stay.slot + 1} from time {stay.start} to {stay.stop}"
    wide = max(x(stay.stop) - x(stay.start), 1.0)
    return element(
        "rect", element("title", said), x=f"{x(stay.start):.1f}", y=f"{y(stay.state) - thick / 2:.1f}",
        width=f"{wide:.1f}", height=f"{thick:.1f}", fill="#e4f0fb", stroke=RULE, class_="sx-cell sx-cell-covered",
        data_state=stay.state,
    )  # fmt: skip


_FORWARD = {"class_": "sx-chart-line", "fill": "none", "stroke": "#0b57b0", "stroke_width": "2.2"}
_BACKWARD = {"class_": "sx-chart-limit", "fill": "none", "stroke": "#8a4600", "stroke_width": "1.6",
             "stroke_dasharray": "5 3"}  # fmt: skip


def _moves(record: Any, x: Any, y: Any) -> Iterator[Html]:
    """A path for each move that takes time; where there are many, one for all of a kind."""
    time, paths = 0, []
    for move, after in zip(record.moves, record.times, strict=True):
        if after == time:
            continue
        is_forward = hasattr(move, "stop")
        start, stop = (move.start, move.stop) if is_forward else (move.step, move.step - 1)
        said = f"{'forward' if is_forward else 'backward'}: {move}, time {time} to {after}"
        paths.append((is_forward, f"M{x(time):.1f} {y(start):.1f}L{x(after):.1f} {y(stop):.1f}", said))
        time = after
    if len(paths) > MOST_SINGLE:
        kinds = ((True, "all forward steps"), (False, "all backward steps"))
        paths = [(kind, "".join(path for k, path, _ in paths if k is kind), said) for kind, said in kinds]
    for is_forward, path, said in paths:
        style = _FORWARD if is_forward else _BACKWARD
        kind = "forward" if is_forward else "backward"
        yield element("path", element("title", said), d=path, data_move=kind, **style)


def _slots(record: Any, x: Any, level: Any, top: float, base: float, most: int, duration: int) -> Iterator[Html]:
    yield element(
        "path", d=f"M{LEFT} {top:g}V{base:g}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE
    )
    for count in round_ticks(most, 4):
        yield element("path", d=f"M{LEFT - 4} {level(count):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{count:,}", LEFT - 8, level(count) + 4, "sx-label", MUTED, text_anchor="end")
    for time in round_ticks(duration):
        yield element("path", d=f"M{x(time):.1f} {base:g}V{base + 4:g}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{time:,}", x(time), base + 16, "sx-label", MUTED, text_anchor="middle")
    yield text_at("slots (count)", 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(14 {(top + base) / 2:g}) rotate(-90)")  # fmt: skip
    path, last = f"M{x(0):.1f} {level(1):.1f}", 1
    for time, used in _levels(record):
        path += f"H{x(time):.1f}" + (f"V{level(used):.1f}" if used != last else "")
        last = used
    path += f"H{x(record.duration):.1f}"
    yield element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2")
    said = f"{counted(record.slots, 'slot')}; at most {record.peak_slots:,} in use"
    yield text_at(said, WIDTH - RIGHT, top - 6, "sx-count", TEXT, text_anchor="end")


def _levels(record: Any) -> Iterator[tuple[int, int]]:
    """(time, occupied slots) wherever that changes."""
    last = 1
    for time, used in zip(record.times, record.used, strict=True):
        if used != last:
            yield time, used
            last = used


def _legend() -> Iterator[Html]:
    y = 42
    yield element("path", d=f"M{LEFT} {y}h26", **_FORWARD)
    yield text_at("forward step", LEFT + 32, y + 4, "sx-label", MUTED)
    yield element("path", d=f"M{LEFT + 146} {y}h26", **_BACKWARD)
    yield text_at("backward step", LEFT + 178, y + 4, "sx-label", MUTED)
    yield element("rect", x=LEFT + 300, y=y - 4, width=26, height=8, fill="#e4f0fb", stroke=RULE,
                  class_="sx-cell sx-cell-covered")  # fmt: skip
    yield text_at("state in a slot", LEFT + 332, y + 4, "sx-label", MUTED)
