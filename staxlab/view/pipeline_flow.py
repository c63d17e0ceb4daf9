"""The path of one compilation, drawn (Figure 11.1): stages downwards, kernels by type, rules of failure below.

A row for each stage: its box, a bar for the time it took with the share of the whole, what it delivered, and on the
right a numbered line for every fallback rule (Section 11.3) that stands behind it. Where kernels are written, the row
opens into a box for each way a node can become one, with how many did; where they are built, into a row for each
kernel with what the cache on disk had. A stage that a stored plan made unnecessary is dashed, one that was not reached
dotted. The rule that applied is a thick line with a cross, and says so in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..measure.compilation_flow import NOT_REACHED, RESTORED, RULES, WAYS
from ..measure.tables import seconds_text
from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, text_at
from .diagram import shortened
from .document import Pane
from .markup import Html, element, join
from .measures import table_markup
from .provenance import TabStop

WIDTH, LEFT, BOX, ROW, HEIGHT = 900, 12, 196, 44, 30  # of the picture, its margin, a box, a row; height of a box
BAR_LEFT, BAR, SAID, LANES, LANE = 222, 120, 446, 764, 24  # where bars, words and the lines of the rules begin
TOP = 58
KERNEL_ROW, MOST_KERNELS = 20, 16
_FORM = {RESTORED: "7 4", NOT_REACHED: "2 4"}
_APPLIED = "#a8201a"


def panes(record: Any) -> list[Pane]:
    """One pane: a picture and a table for the compilation, and for each half of a backward pass."""
    forward = [element("p", element("strong", "Forward half"))] if record.halves else []
    body = [*forward, flow_chart(record), table_markup(record.table()), _rules_table(record)]
    for name, half in record.halves:
        body += [element("p", element("strong", name)), flow_chart(half), table_markup(half.table())]
    whole = record.summary() + "".join(f"; {name.lower()}: {half.summary()}" for name, half in record.halves)
    return [Pane("timings", "Path and timings", join(body), whole, record.format())]


def _rules_table(record: Any) -> Html:
    rows = [
        element(
            "tr", element("th", f"{place + 1}. {rule.name}", scope="row"), element("td", rule.happens),
            element("td", rule.strict), element("td", "applied" if place in record.applied else "–"),
        )
        for place, rule in enumerate(RULES)
    ]  # fmt: skip
    heads = ("rule", "what happens", "with strict_native=True", "here")
    head = element("tr", [element("th", name, scope="col") for name in heads])
    caption = element("caption", "What happens where a stage cannot go on (Section 11.3)")
    drawn = element("table", caption, element("thead", head), element("tbody", rows), class_="sx-table")
    reasons = [element("p", f"Why: {reason}", class_="sx-note sx-warning") for reason in record.reasons]
    return join([element("div", drawn, class_="sx-scroll"), *reasons])


def flow_chart(record: Any) -> Html:
    """The picture of one flow, without its halves."""
    return _Drawing(record).figure()


class _Drawing:
    def __init__(self, record: Any) -> None:
        self.record = record
        self.stop = TabStop()
        self.longest = max((step.seconds for step in record.steps), default=0.0) or 1.0
        self.y = float(TOP)
        self.rows: dict[str, float] = {}  # the middle of each stage's box

    def figure(self) -> Html:
        record = self.record
        title = f"The path of {record.name} for {record.target}"
        drawn = [*self._steps()]
        base = self.y + 8
        drawn += [*self._lanes(base), *self._rules(base)]
        height = self.y + 10
        said = self._said()
        words = record.summary() + ("" if record.plan else "; no stored plan used")
        picture = element(
            "svg",
            element("title", title),
            element("desc", said),
            text_at(title, LEFT, 18, "sx-count", TEXT, font_weight="600"),
            text_at(words, LEFT, 34, "sx-label", MUTED),
            text_at("time (share of all)", BAR_LEFT, TOP - 8, "sx-label", MUTED),
            text_at("what the stage delivered", SAID, TOP - 8, "sx-label", MUTED),
            text_at("rules on failure", LANES - 18, TOP - 8, "sx-label", MUTED),
            drawn,
            class_="sx-diagram", width=WIDTH, height=f"{height:g}", viewBox=f"0 0 {WIDTH} {height:g}", role="img",
            tabindex=0, aria_label=f"{title}. {said}", data_group=True, **FONT,
        )  # fmt: skip
        return element("div", picture, class_="sx-scroll sx-drawing")

    def _said(self) -> str:
        record = self.record
        ran = [step for step in record.steps if step.seconds]
        parts = [record.summary()]
        if ran:
            slowest = max(ran, key=lambda step: step.seconds)
            parts.append(f"most of it ({record.share(slowest):.0%}) in {slowest.title}")
        if record.kernels:
            parts.append("kernels: " + ", ".join(f"{count} {way}" for way, count in record.ways().items()))
        parts.append(
            "; ".join(f"rule {place + 1} applied: {record.outcome(place)}" for place in record.applied)
            or "no fallback rule applied"
        )
        return "; ".join(parts)

    # -- stages -------------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Html]:
        steps = self.record.steps
        for number, step in enumerate(steps):
            if number:
                yield _arrow(LEFT + BOX / 2, self.y - (ROW - HEIGHT), self.y)
            yield self._box(step)
            yield from self._time(step)
            words = step.delivered or step.state
            yield text_at(shortened(words, int((LANES - SAID - 24) / CHARACTER)), SAID, self.y + 19, "sx-label", TEXT)
            self.rows[step.name] = self.y + HEIGHT / 2
            self.y += ROW
            if step.name == "kernels":
                yield from self._ways()
            if step.name == "artifact":
                yield from self._builds()

    def _box(self, step: Any) -> Html:
        spoken = f"{step.title} ({step.section}): {step.delivered or step.state}"
        frame = element(
            "rect", x=LEFT, y=f"{self.y:g}", width=BOX, height=HEIGHT, rx=5, class_="sx-frame", fill="#ffffff",
            stroke=RULE, stroke_dasharray=_FORM.get(step.state),
        )  # fmt: skip
        name = text_at(step.title, LEFT + 10, self.y + 19, "sx-node-name", TEXT)
        linked = self.stop.attributes(step.origins, step.title)
        return element("g", element("title", spoken), frame, name, class_="sx-node", data_step=step.name,
                       data_state=step.state, **linked)  # fmt: skip

    def _time(self, step: Any) -> Iterator[Html]:
        if not step.seconds:
            return
        width = max(BAR * step.seconds / self.longest, 1.0)
        yield element(
            "rect", x=BAR_LEFT, y=f"{self.y + 9:g}", width=f"{width:.1f}", height=12, class_="sx-read", fill="#2f6fb5",
            data_seconds=f"{step.seconds:g}",
        )  # fmt: skip
        words = f"{seconds_text(step.seconds)} {self.record.share(step):.0%}"
        yield text_at(words, BAR_LEFT + width + 6, self.y + 19, "sx-label", TEXT)

    # -- below a stage ------------------------------------------------------------------------------------------------

    def _ways(self) -> Iterator[Html]:
        """Dispatch by the type of the node: a box for each way, with how many kernels went it."""
        counts = self.record.ways()
        if not counts:
            return
        top, width, gap = self.y - 4, 86, 3
        yield text_at("by type", LEFT + 10, top + 16, "sx-label", MUTED)
        middle, below = LEFT + BOX / 2, top + 24
        yield element("path", d=f"M{middle:g} {self.y - ROW + HEIGHT:g}V{below:g}", class_="sx-edge", stroke=RULE,
                      fill="none")  # fmt: skip
        for number, way in enumerate(WAYS):
            x, count = BAR_LEFT + number * (width + gap), counts.get(way, 0)
            style = "sx-node sx-node-output" if count else "sx-node"
            origins = frozenset().union(*(kernel.origins for kernel in self.record.kernels if kernel.way == way))
            yield element(
                "g",
                element("title", f"{count} of {len(self.record.kernels)} kernels: {way}"),
                element("rect", x=x, y=f"{top:g}", width=width, height=24, rx=12, class_="sx-frame", fill="#ffffff",
                        stroke=RULE, stroke_dasharray=None if count else "2 4"),
                text_at(f"{way}: {count}", x + width / 2, top + 16, "sx-node-name", TEXT, text_anchor="middle"),
                class_=style, data_way=way, data_count=count, **self.stop.attributes(origins, way),
            )  # fmt: skip
        self.y = below + (ROW - HEIGHT)

    def _builds(self) -> Iterator[Html]:
        """A row for each kernel with a library: what the cache had, and who compiled it."""
        record = self.record
        built = [kernel for kernel in record.kernels if kernel.hit is not None]
        if record.workers:
            pool = f"build pool: {record.workers} worker{'' if record.workers == 1 else 's'}, "
            yield text_at(pool + seconds_text(record.build_seconds), BAR_LEFT, self.y + 8, "sx-label", MUTED)
            self.y += KERNEL_ROW
        for kernel in built[:MOST_KERNELS]:
            mark = "✓" if kernel.hit else "+"
            name = shortened(kernel.name, int((SAID - BAR_LEFT - 30) / CHARACTER))
            yield element(
                "g",
                element("title", f"{kernel.name} ({kernel.way}): {kernel.fate}"),
                element("rect", x=BAR_LEFT - 4, y=f"{self.y - 5:g}", width=LANES - BAR_LEFT - 20, height=KERNEL_ROW - 2,
                        rx=3, class_="sx-frame", fill="#ffffff", stroke=RULE,
                        stroke_dasharray=None if kernel.hit else "5 3"),
                text_at(f"{mark} {name}", BAR_LEFT + 4, self.y + 8, "sx-node-name", TEXT),
                text_at(kernel.fate, SAID, self.y + 8, "sx-label", MUTED),
                class_="sx-node", data_kernel=kernel.name, data_hit="yes" if kernel.hit else "no",
                **self.stop.attributes(kernel.origins, kernel.name),
            )  # fmt: skip
            self.y += KERNEL_ROW
        if len(built) > MOST_KERNELS:
            yield text_at(f"and {len(built) - MOST_KERNELS} more", BAR_LEFT, self.y + 8, "sx-label", MUTED)
            self.y += KERNEL_ROW

    # -- what happens on failure --------------------------------------------------------------------------------------

    def _lanes(self, base: float) -> Iterator[Html]:
        """On the right, a line for each rule along the stages it stands behind, down to its words."""
        for place, rule in enumerate(RULES):
            behind = [self.rows[name] for name in rule.stages if name in self.rows]
            if not behind:
                continue
            x, applied = LANES + place * LANE, place in self.record.applied
            style = {"class_": "sx-cut" if applied else "sx-edge", "stroke": _APPLIED if applied else RULE}
            yield element("path", d=f"M{x} {min(behind):g}V{base:g}", fill="none", stroke_width=3 if applied else 1,
                          data_rule=place + 1, data_applied="yes" if applied else None, **style)  # fmt: skip
            for y in behind:
                yield element("circle", element("title", f"rule {place + 1}: {rule.name}"), cx=x, cy=f"{y:g}", r=4,
                              class_="sx-chart-point", fill=MUTED)  # fmt: skip
            yield text_at(str(place + 1), x, TOP + 4, "sx-count", TEXT, text_anchor="middle", font_weight="600")

    def _rules(self, base: float) -> Iterator[Html]:
        self.y = base + 4
        for place in range(len(RULES)):
            applied = place in self.record.applied
            words = f"{'✗ APPLIED ' if applied else ''}{place + 1}. {RULES[place].name}: {self.record.outcome(place)}"
            self.y += 17
            style = ("sx-count", TEXT) if applied else ("sx-label", MUTED)
            yield text_at(shortened(words, int((WIDTH - 2 * LEFT) / CHARACTER)), LEFT, self.y, *style)


def _arrow(x: float, top: float, bottom: float) -> Html:
    line = element("path", d=f"M{x:g} {top:g}V{bottom - 5:g}", class_="sx-edge", stroke=RULE, fill="none")
    tip = f"M{x - 4:g} {bottom - 6:g}L{x:g} {bottom:g}L{x + 4:g} {bottom - 6:g}Z"
    return join([line, element("path", d=tip, class_="sx-arrow", fill=RULE)])
