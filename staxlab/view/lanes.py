"""The lanes of a vectorised reduction (Section 8.1), drawn: how they fill, and the fixed order in which they merge.

Columns are lanes, rows are accumulators; a cell counts the elements that went into it. Step by step a vector of the row
goes into each accumulator, then what is left over, the last part under a mask. Then the accumulators are merged as a
tree, and the lanes halves onto halves. Without scripts the end is drawn, with every count and the whole tree; a reader
who asked the system for less motion is never shown anything that moves by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, text_at
from .document import Pane, View
from .listing import listing, plain_lines
from .markup import Html, element, join

LEFT, TOP, ROW = 78, 64, 26
WIDEST = 640  # pixels of the lanes together
BLOCKS = 2  # drawn one by one before the rest of a long row is one step


def view(record: Any, full: bool = False) -> View:
    """The drawing with its slider, and the order as text."""
    order = listing(plain_lines(record.format()), "text", name="order of the reduction", caption="the order as text")
    details = element("details", element("summary", "the order as text"), order, class_="sx-more")
    body = join([lanes_figure(record), details])
    pane = Pane("lanes", f"Lanes of {record.node} in {record.kernel}", body, record.summary(), record.format())
    return View("lanes", (pane,))


def lanes_figure(record: Any) -> Html:
    """The accumulators, the mask, and the tree below them, with what happens at each step."""
    drawing = _Drawing(record)
    picture = drawing.picture()
    words = ["nothing is read yet; every cell is the neutral element", *map(record.words, drawing.events)]
    words[-1] += f": the {'result' if record.pieces == 1 else 'result of this piece'}"
    last = len(drawing.events)
    return element(
        "figure", element("div", picture, class_="sx-scroll sx-drawing"), class_="sx-steps sx-lanes", data_steps=last,
        data_words=json.dumps(words), data_play=True,
    )  # fmt: skip


class _Drawing:
    def __init__(self, record: Any):
        self.record = record
        self.events = list(record.events(BLOCKS))
        self.cell = max(min(WIDEST // record.lanes, 40), 11)
        self.right = LEFT + self.cell * record.lanes
        self.counted = self.cell >= 20  # room for a number

    def picture(self) -> Html:
        record = self.record
        title = f"Lanes and accumulators: {record.summary()}"
        said = "; ".join(map(record.words, self.events)) + "."
        parts = [*self._reads(), *self._lane_numbers(), *self._accumulators(), *self._mask(), *self._tree()]
        width = max(self.right + 206, 16 + CHARACTER * len(title))
        height = self.bottom + 12
        heading = text_at(title, 8, 18, "sx-count", TEXT, font_weight="600")
        return element(
            "svg", element("title", title), element("desc", said), heading, parts, class_="sx-diagram",
            width=f"{width:g}", height=f"{height:g}", viewBox=f"0 0 {width:g} {height:g}", role="img", tabindex=0,
            aria_label=f"{title}. {said}", **FONT,
        )  # fmt: skip

    # -- what is read -------------------------------------------------------------------------------------------------

    def _reads(self) -> Iterator[Html]:
        """The row in memory, part by part."""
        x = float(LEFT)
        yield text_at("row", LEFT - 8, 44, "sx-label", MUTED, text_anchor="end")
        for step, event in enumerate(self.events, 1):
            if event.kind not in ("read", "skip"):
                continue
            last = event.first + event.elements - 1
            text = "…" if event.kind == "skip" else f"{event.first:,}–{last:,}" if event.elements > 1 else str(last)
            width = CHARACTER * len(text) + 12
            yield element(
                "rect", element("title", self.record.words(event)), x=f"{x:g}", y=30, width=f"{width:g}", height=20,
                rx=3, fill="#ffffff", stroke=RULE, class_="sx-cell sx-lane-cell", data_lit=str(step),
                data_elements=event.elements,
            )  # fmt: skip
            yield text_at(text, x + width / 2, 44, "sx-label", MUTED, text_anchor="middle")
            x += width + 4
        yield text_at("elements", x + 4, 44, "sx-label", MUTED)

    # -- where it goes ------------------------------------------------------------------------------------------------

    def _lane_numbers(self) -> Iterator[Html]:
        yield text_at("lane", LEFT - 8, TOP + 12, "sx-label", MUTED, text_anchor="end")
        for lane in range(self.record.lanes):
            if self.counted or lane % 8 == 0:
                at = LEFT + self.cell * (lane + 0.5)
                yield text_at(str(lane), at, TOP + 12, "sx-label", MUTED, text_anchor="middle")

    def _counts(self, accumulator: int, lane: int) -> dict[int, int]:
        """Step -> elements that went into a cell by then."""
        count, found = 0, {0: 0}
        for step, event in enumerate(self.events, 1):
            if event.kind == "skip":
                count += event.elements // self.record.width
            elif event.kind == "read" and accumulator in event.into:
                count += 1 if len(event.into) > 1 or lane < event.elements else 0
            else:
                continue
            found[step] = count
        return found

    def _accumulators(self) -> Iterator[Html]:
        record = self.record
        for accumulator in range(record.accumulators):
            y = TOP + 20 + ROW * accumulator
            name = "acc" if record.accumulators == 1 else f"acc{accumulator}"
            yield text_at(name, LEFT - 8, y + 16, "sx-label", MUTED, text_anchor="end")
            for lane in range(record.lanes):
                counts = self._counts(accumulator, lane)
                lit = [step for step, event in enumerate(self.events, 1) if self._takes_part(event, accumulator, lane)]
                yield self._cell(lane, y, lit, f"{name}, lane {lane}: {max(counts.values())} elements")
                if self.counted:
                    texts = {step: str(n) for step, n in counts.items()}
                    yield self._text(str(max(counts.values())), lane, y, data_texts=json.dumps(texts))
        y = TOP + 20 + ROW * record.accumulators
        yield (
            text_at("elements merged (count)", self.right + 8, TOP + 36, "sx-label", MUTED) if (self.counted) else ""
        )
        self.below = y

    def _takes_part(self, event: Any, accumulator: int, lane: int) -> bool:
        if event.kind in ("read", "skip"):
            return accumulator in event.into and (not event.masked or lane < event.elements)
        return event.kind == "merge" and accumulator in event.into

    def _cell(self, lane: int, y: float, lit: list[int], said: str, width: float | None = None) -> Html:
        return element(
            "rect", element("title", said), x=f"{LEFT + self.cell * lane:g}", y=f"{y:g}",
            width=f"{(width or self.cell) - 2:g}", height=ROW - 4, rx=2, fill="#ffffff", stroke=RULE,
            class_="sx-cell sx-lane-cell", data_lit=" ".join(map(str, lit)) or "-",
        )  # fmt: skip

    def _text(self, words: str, lane: int, y: float, **attributes: Any) -> Html:
        at = LEFT + self.cell * lane + (self.cell - 2) / 2
        return text_at(words, at, y + 15, "sx-count", TEXT, text_anchor="middle", font_size="10.5", **attributes)

    def _mask(self) -> Iterator[Html]:
        """The mask of the last, partial vector."""
        record = self.record
        self.bottom = self.below
        if not record.tail or not any(event.masked for event in self.events):
            return
        step = next(number for number, event in enumerate(self.events, 1) if event.masked)
        y = self.below + 8
        yield text_at("mask", LEFT - 8, y + 16, "sx-label", MUTED, text_anchor="end")
        for lane in range(record.lanes):
            on = lane < record.tail
            yield self._cell(lane, y, [step], f"mask of the tail, lane {lane}: {int(on)}")
            yield self._text(str(int(on)) if self.counted else "", lane, y, data_mask=int(on))
        yield text_at("0: the lane stays as it is", self.right + 8, y + 16, "sx-label", MUTED)
        self.bottom = y + ROW

    def _tree(self) -> Iterator[Html]:
        """A row for each merge, then ever fewer lanes."""
        record, y = self.record, self.bottom + 18
        holds = {k: f"{k}" for k in range(record.accumulators)}
        for step, event in enumerate(self.events, 1):
            if event.kind == "merge":
                one, other = event.into
                yield text_at(f"{holds[one]} ∘ {holds[other]}", LEFT - 8, y + 15, "sx-label", MUTED, text_anchor="end")
                holds[one] = f"{holds[one]}+{holds[other]}".replace("+", "")[:9]
                lanes, side = record.lanes, f"accumulator {other} into {one}"
            elif event.kind == "fold":
                lanes = event.lanes // 2
                side = f"{event.lanes} lanes become {lanes}"
                yield text_at(f"{event.lanes} → {lanes}", LEFT - 8, y + 15, "sx-label", MUTED, text_anchor="end")
            else:
                continue
            for lane in range(lanes):
                yield self._cell(lane, y, [step], f"{side}, lane {lane}")
            yield text_at(side, LEFT + self.cell * lanes + 8, y + 15, "sx-label", MUTED)
            y += ROW
        if record.pieces > 1:
            words = f"{record.pieces} pieces, each reduced so: merged from left to right, whatever thread made them"
            yield text_at(words, LEFT, y + 15, "sx-label", MUTED)
            y += ROW
        self.bottom = y
