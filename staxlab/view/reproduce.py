"""Figure 13.1 drawn for this machine: measured speedup against the byte ratio, both axes in times, round by round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..measure.rounds import round_name
from .charts import CHARACTER, MUTED, RULE, TEXT, Box, chart, free_spot, text_at
from .document import Pane
from .markup import Html, element, join
from .measures import table_markup
from .plots import BOTTOM, LEFT, RIGHT, TOP, Place, axes_drawn, round_ticks

WIDTH, HEIGHT = 640, 400
RADIUS = 5
#: Points at rho = 1 stand a little to the left by turns, or they would cover each other.
STEP = 0.05
TEXT_WIDTH, TEXT_HEIGHT = 64, 18


def panes(record: Any) -> list[Pane]:
    """The figure, then one table for each of the text's, then what each case says of itself."""
    drawn = [figure(record)] if record.timed else []
    for number, content in (("13.1", record.table_13_1()), ("13.2", record.table_13_2())):
        if any(case.table_number == number for case in record.timed):
            drawn += [element("h4", content.caption), table_markup(content)]
    for case in record.cases:
        content = case.table()
        drawn.append(element("details", element("summary", content.caption), table_markup(content)))
    if not record.complete:
        drawn.append(element("p", "interrupted: what was measured until then", class_="sx-note"))
    drawn += [element("p", note, class_="sx-note") for note in (*record.notes, *record.problems)]
    title = f"Figure 13.1 and its tables, {record.where}"
    return [Pane("reproduction", title, join(drawn), f"{len(record.timed)} cases", str(record))]


def points(record: Any) -> list[tuple[Any, int, float, float]]:
    """(case, round, place across, S) of every point. Single operators and others at rho = 1 are moved to the left."""
    found, moved = [], 0
    for case in record.timed:
        x = case.rho()
        if abs(x - 1) < 0.02:
            x -= STEP * moved
            moved += 1
        found += [(case, number, x, ratio.median) for number, ratio in enumerate(case.speedups())]
    return found


def figure(record: Any) -> Html:
    """The figure as SVG: squares for single operators, hollow markers for round A, filled ones for the rounds after."""
    placed = points(record)
    most_x = 1.12 * max(x for _, _, x, _ in placed)
    most_y = 1.12 * max([y for *_, y in placed] + [min(most_x, 1.0)])
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / most_x * across, HEIGHT - BOTTOM - y / most_y * up

    title, said = f"Figure 13.1: speedup against byte ratio, {record.where}", record.description()
    end = min(most_x, most_y)
    (x0, y0), (x1, y1) = at(0, 0), at(end, end)
    drawn = [
        element("title", title), element("desc", said), text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at("hollow: round A · filled: later rounds · square: single operator · line: S = rho", 8, 34, "sx-label",
                MUTED),
        *axes_drawn(("model byte ratio rho (times)", "measured speedup S (times)"),
                    (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
                    ((at(v, 0)[0], f"{v:g}") for v in round_ticks(most_x)),
                    ((at(0, v)[1], f"{v:g}") for v in round_ticks(most_y, 6))),
        element("path", element("title", "S = rho"), d=f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", class_="sx-chart-limit",
                fill="none", stroke="#8a4600", stroke_width="1.6", data_line="S = rho"),
    ]  # fmt: skip
    taken: list[Box] = []
    for case, number, x, y in placed:
        drawn.append(_marker(case, number, at(x, y)))
        left, top = at(x, y)
        taken.append((left - RADIUS, top - RADIUS, left + RADIUS, top + RADIUS))
    drawn += _names(record, placed, at, taken)
    return chart(drawn, title, said, WIDTH, HEIGHT)


def _marker(case: Any, number: int, place: tuple[float, float]) -> Html:
    ratio = case.speedups()[number]
    interval = ratio.interval
    said = f"{case.title}, round {round_name(number)}: rho {case.rho():.3g}, S {ratio.median:.3g}"
    said += f" [{interval.low:.3g}, {interval.high:.3g}]" if interval else ""
    x, y = place
    look = {
        "class_": "sx-chart-line" if number == 0 else "sx-chart-point", "stroke": "#0b57b0", "stroke_width": "1.8",
        "fill": "none" if number == 0 else "#0b57b0", "data_case": case.name, "data_round": round_name(number),
        "data_rho": f"{case.rho():.6g}", "data_speedup": f"{ratio.median:.6g}",
    }  # fmt: skip
    if case.table_number == "13.2":
        corner = (x - RADIUS + 0.5, y - RADIUS + 0.5)
        size = 2 * RADIUS - 1
        return element("rect", element("title", said), x=f"{corner[0]:.1f}", y=f"{corner[1]:.1f}", width=size,
                       height=size, **look)  # fmt: skip
    return element("circle", element("title", said), cx=f"{x:.1f}", cy=f"{y:.1f}", r=RADIUS, **look)


def _names(record: Any, placed: Any, at: Place, taken: list[Box]) -> Iterator[Html]:
    """The cases of Table 13.1 by name, beside their last point, with a rule to it; single operators name themselves
    when pointed at, and in the table."""
    last = {case.name: (case, x, y) for case, _, x, y in placed if case.table_number != "13.2"}
    for case, x, y in last.values():
        name = case.title.split(":")[0]
        left, top = at(x, y)
        room = CHARACTER * len(name)
        spots = [(left + 10, top + 4), (left - room - 10, top + 4), (left + 8, top - 12), (left + 8, top + 20),
                 (left - room, top - 14), (left - room, top + 24)]  # fmt: skip
        inside = [s for s in spots if LEFT <= s[0] <= WIDTH - 4 - room and TOP < s[1] < HEIGHT - BOTTOM]
        words = free_spot(inside or spots, name, taken)
        near = min(max(left, words[0] - 2), words[0] + room + 2)  # the end of the name that is nearer
        yield element("path", d=f"M{left:.1f} {top:.1f}L{near:.1f} {words[1] - 4:.1f}", stroke=RULE, stroke_width="0.4")
        yield text_at(name, *words, "sx-label", TEXT)


def text_figure(record: Any) -> str:
    """The figure in characters: letters are cases, small in round A and large after, dots the line S = rho."""
    placed = points(record)
    if not placed:
        return "Figure 13.1: nothing was timed"
    most_x = 1.05 * max(x for _, _, x, _ in placed)
    most_y = 1.05 * max([y for *_, y in placed] + [1.0])
    grid = [[" "] * TEXT_WIDTH for _ in range(TEXT_HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        column, row = int(x / most_x * (TEXT_WIDTH - 1)), TEXT_HEIGHT - 1 - int(y / most_y * (TEXT_HEIGHT - 1))
        if 0 <= row < TEXT_HEIGHT and 0 <= column < TEXT_WIDTH:
            grid[row][column] = mark

    for step in range(2 * TEXT_WIDTH):
        value = most_x * step / (2 * TEXT_WIDTH)
        put(value, value, ".")
    letters = {case.name: chr(97 + place) for place, case in enumerate(record.timed)}
    for case, number, x, y in placed:
        put(x, y, letters[case.name] if number == 0 else letters[case.name].upper())
    lines = [f"Figure 13.1: S (upwards, 0 to {most_y:.3g} times) against rho (0 to {most_x:.3g} times); dots: S = rho"]
    lines += ["|" + "".join(row).rstrip() for row in grid] + ["+" + "-" * TEXT_WIDTH]
    lines += [f"{letters[case.name]}/{letters[case.name].upper()} {case.title}, rho {case.rho():.3g}"
              for case in record.timed]  # fmt: skip
    return "\n".join([*lines, "small letter: round A; capital: later rounds"])


def svg_text(record: Any) -> str:
    """The figure alone, as the text of an SVG file."""
    return standing_alone(str(figure(record)))


def standing_alone(drawn: str) -> str:
    """The SVG of a drawing with what a file of its own needs: a name space, a background, a font."""
    picture = drawn[drawn.index("<svg") : drawn.rindex("</svg>") + len("</svg>")]
    if "xmlns=" not in picture[: picture.index(">")]:
        picture = picture.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    opening = picture.index(">") + 1
    ours = "<style>text{font:12px sans-serif}</style><rect width='100%' height='100%' fill='#ffffff'/>"
    return picture[:opening] + ours + picture[opening:]
