"""Which sizes of a range satisfy a decision (Section 10.2), drawn on a number line.

The line is logarithmic, so that the small sizes, where branches tend to lie, have room. A band that is true is filled,
one that is false is empty, and one where nothing is said is hatched by a dashed frame; each has its word above it. The
sample stands on the line as a dot, and the range that may be declared instead is marked below it.
"""

from __future__ import annotations

import math
from typing import Any

from ..shapes.range_answers import Band, RangeAnswers, range_words
from .charts import CHARACTER, MUTED, RULE, TEXT, chart, free_spot, text_at
from .document import Pane, note
from .markup import Html, element, join, table

WIDTH, LEFT, RIGHT = 640, 24, 24
TOP, BAND = 74, 26  # of the bands: where they begin and how high they are, in pixels
FILLS = {True: "#c9ecd3", False: "#ffffff", None: "#efeaf9"}


def panes(record: RangeAnswers) -> list[Pane]:
    """One pane: the number line, and its bands as a table."""
    rows = [[str(band), band.answer, _remark(record, band)] for band in record.bands]
    said = f"{record.relation}: {record.outcome}."
    if record.suggestion:
        said += f" {record.suggestion.capitalize()}."
    body = join([number_line(record), note(said),
                 table("Which sizes satisfy it", ["sizes", str(record.relation), ""], rows)])  # fmt: skip
    summary = f"{record.relation}: {'undetermined' if record.decided is None else str(record.decided).lower()}"
    return [Pane("range", "A decision over a range", body, summary, str(record))]


def _remark(record: RangeAnswers, band: Band) -> str:
    if not band.lower <= record.sample <= band.upper:
        return ""
    return f"the sample, {record.sample}"


def number_line(record: RangeAnswers) -> Html:
    """The bands over the sizes; an open range ends in ∞."""
    low, high = record.symbol.lower, record.symbol.upper
    is_open = math.isinf(high)
    edges = [band.lower for band in record.bands] + [record.sample]
    last = max(4 * max(edges), 8 * (low + 1)) if is_open else high
    scale = (WIDTH - LEFT - RIGHT) / (math.log(last + 2) - math.log(low + 1) or 1.0)

    def at(size: float) -> float:
        """Where the cell of a size begins, in pixels."""
        return LEFT + (math.log(min(size, last + 1) + 1) - math.log(low + 1)) * scale

    title = f"{record.relation} for {record.symbol.name} in {range_words(low, high)}"
    words = "; ".join(f"{band.answer} on {band}" for band in record.bands)
    said = f"{words}. The sample is {record.sample}. {record.outcome.capitalize()}."
    drawn = [element("title", title), element("desc", said), text_at(title, 8, 18, "sx-count", TEXT, font_weight="600")]
    base = TOP + BAND
    taken: list[Any] = []
    for band in record.bands:
        left, right = at(band.lower), at(band.upper + 1)
        drawn.append(element(
            "rect", element("title", f"{band.answer} on {band}"), x=f"{left:.1f}", y=TOP, width=f"{right - left:.1f}",
            height=BAND, fill=FILLS[band.holds], stroke=RULE, stroke_dasharray="4 3" if band.holds is None else None,
            class_=f"sx-range-band sx-range-{band.answer}", data_lower=band.lower, data_answer=band.answer,
        ))  # fmt: skip
        if right - left > CHARACTER * len(band.answer):
            drawn.append(text_at(band.answer, (left + right) / 2, TOP - 8, "sx-label", MUTED, text_anchor="middle"))
    for edge in dict.fromkeys([*(band.lower for band in record.bands), *([] if is_open else [high])]):
        words = str(edge)
        x = min(max(at(edge) - CHARACTER * len(words) / 2, 2), WIDTH - CHARACTER * len(words) - 2)
        taken_before = len(taken)
        spot = free_spot([(x, base + 17), (x, base + 31)], words, taken)
        if any(_overlap(taken[-1], other) for other in taken[:taken_before]):
            taken.pop()  # many narrow bands: the table has the number
            continue
        drawn.append(element("path", d=f"M{at(edge):.1f} {base}V{base + 5}", class_="sx-chart-axis", stroke=RULE))
        drawn.append(text_at(words, *spot, "sx-label", MUTED))
    if is_open:
        drawn.append(text_at("∞", WIDTH - RIGHT + 6, TOP + BAND / 2 + 4, "sx-label", MUTED))
    middle = (at(record.sample) + at(record.sample + 1)) / 2
    drawn.append(element("circle", element("title", f"the sample: {record.sample}"), cx=f"{middle:.1f}",
                         cy=TOP + BAND / 2, r=5, class_="sx-chart-point", fill="#0b57b0"))  # fmt: skip
    named = f"sample {record.sample}"
    x = min(max(middle - CHARACTER * len(named) / 2, 2), WIDTH - CHARACTER * len(named) - 2)
    drawn.append(text_at(named, x, TOP - 24, "sx-count", TEXT))
    height = base + 44
    if record.suggestion and record.narrower is not None:
        lower, upper = record.narrower
        y = base + 48
        drawn.append(element("path", d=f"M{at(lower):.1f} {y}H{at(upper + 1):.1f}", class_="sx-chart-line",
                             stroke="#0b57b0", stroke_width="2.2", fill="none"))  # fmt: skip
        words = f"{'holds' if record.relation.holds({record.symbol.name: record.sample}) else 'fails'} on all of "
        words += range_words(lower, upper)
        drawn.append(text_at(words, max(2, min(at(lower), WIDTH - CHARACTER * len(words) - 2)), y + 17, "sx-count",
                             TEXT))  # fmt: skip
        height = y + 26
    axis = f"size {record.symbol.name} (elements, logarithmic)"
    drawn.append(text_at(axis, WIDTH / 2, height + 12, "sx-label", MUTED, text_anchor="middle"))
    return chart(drawn, title, said, WIDTH, height + 22)


def _overlap(a: Any, b: Any) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
