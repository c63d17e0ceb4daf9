"""Greedy fusion as a heatmap (Section 7.3, Algorithm 7.1): every pair of nodes, by what merging their kernels saves.

A row and a column for each node. A square says that two kernels share a buffer and may be merged: the more bytes that
saves, the larger and darker it is. A hatched cell with a letter is a pair that a rule forbids; the rule and its reason
are said on hover and in the table. A slider goes over the merges, the next one framed; filled cells are nodes that
share a kernel by then. Beside it stands each node's kernel at that moment, and the one it has in the optimum, by the
name of the kernel's first node. Without the script the last moment is drawn, and the tables tell the way there.

The second pane is the dependence graph with the kernels drawn round their nodes (:mod:`.dependences`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..measure.fusion_gap import FusionGap, FusionHistory, Step, Weighed
from ..measure.tables import bytes_text
from ..specialize.report import counted
from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, text_at
from .dependences import dependence_diagram
from .document import Pane, View, note
from .markup import Html, element, join, table
from .provenance import TabStop

CELL = 23
TOP = 64
STRIP = 58
MOST_NODES = 40  # drawn; of a larger program there are the tables
RULES = {
    "space": ("s", "no rows in common"),
    "path": ("p", "a third kernel stands between the two"),
    "index": ("i", "a row would read what another one writes"),
    "rows": ("r", "too few rows"),
    "cache": ("c", "a row does not fit the cache"),
    "size": ("z", "too much for one kernel"),
    "order": ("o", "an error would come too early"),
    "lanes": ("l", "neighbouring lanes would touch distant elements"),
    "registers": ("g", "a row is not held, and would be read again"),
    "gain": ("0", "nothing would be saved"),
}


def view(record: Any, full: bool = False) -> View:
    """A history: heatmap and dependence graph. A gap: its table."""
    if isinstance(record, FusionGap):
        content = record.table()
        parts = [table(content.caption, content.columns, content.rows), *(note(f"{said}.") for said in content.notes)]
        return View("fusion-gap", (Pane("fusion-gap", content.caption, join(parts), "", str(record)),))
    summary = f"{counted(len(record.nodes), 'node')}, {counted(len(record.groups), 'kernel')}"
    plain = record.format()
    heat = join([heatmap(record), merges_table(record), apart_table(record)])
    panes = [Pane("fusion", "Greedy fusion", heat, summary, plain)]
    nodes = list(record.nodes)
    drawn = [dependence_diagram(nodes, record.groups, record.edges, "Kernels of greedy fusion")]
    if record.best is not None and set(map(frozenset, record.best.partition)) != set(map(frozenset, record.groups)):
        drawn.append(dependence_diagram(nodes, record.best.partition, record.edges, "Kernels of the optimum"))
    panes.append(Pane("dependences", "Dependence graph", join(drawn), summary, plain))
    return View("fusion", tuple(panes), first=("fusion", "dependences"))


# -- tables -----------------------------------------------------------------------------------------------------------


def _both(pair: Weighed) -> str:
    return f"{' + '.join(pair.first)} with {' + '.join(pair.second)}"


def merges_table(record: FusionHistory) -> Html:
    """A row for each merge, in order."""
    merged = [step.merged for step in record.steps if step.merged is not None]
    if not merged:
        return note("No two kernels may be merged with a gain.")
    rows = [[str(k), _both(pair), pair.kind, bytes_text(pair.bytes_saved)] for k, pair in enumerate(merged, 1)]
    return table("Merges, each the best legal one by the score", ["step", "kernels", "kind", "bytes saved"], rows)


def apart_table(record: FusionHistory) -> Html:
    """The pairs that stayed apart, with the rule."""
    rows = [
        [_both(pair), element("strong", pair.rule or "score"), pair.reason, bytes_text(pair.bytes_saved)]
        for pair in record.steps[-1].pairs
    ]
    if not rows:
        return note("No two kernels that share a buffer stayed apart.")
    return table("Pairs that stayed apart", ["kernels", "rule", "because", "bytes merging would save"], rows)


# -- the heatmap ------------------------------------------------------------------------------------------------------


def heatmap(record: FusionHistory) -> Html:
    """The figure with its slider, or a sentence where it would be too large to help."""
    if len(record.nodes) > MOST_NODES:
        return note(f"A map of {len(record.nodes)} nodes would explain nothing; the tables have all pairs.")
    return _Heatmap(record).figure()


class _Heatmap:
    def __init__(self, record: FusionHistory):
        self.record = record
        self.names = [node.name for node in record.nodes]
        self.place = {name: k for k, name in enumerate(self.names)}
        self.last = len(record.steps) - 1
        self.labels = [f"{node.name} {node.kind} {node.reduction or ''}".strip() for node in record.nodes]
        self.left = round(max(len(label) for label in self.labels) * CHARACTER) + 16
        saved = [pair.bytes_saved for step in record.steps for pair in step.pairs if pair.is_legal]
        self.most = max(saved, default=1)

    def figure(self) -> Html:
        count = len(self.names)
        strips = 2 if self.record.best is not None else 1
        width = self.left + count * CELL + 20 + strips * STRIP
        height = TOP + count * CELL + 12
        title = f"Fusion in {self.record.name}: {counted(count, 'node')}, {counted(self.last, 'merge')}"
        stop = TabStop()
        drawn = [
            element("title", title),
            text_at(title, 8, 14, "sx-count", TEXT, font_weight="600"),
            *self._labels(stop),
            *self._cells(),
            *self._strips(),
        ]
        picture = element(
            "svg", drawn, class_="sx-diagram sx-heat", width=max(width, round(7.3 * len(title)) + 16), height=height,
            viewBox=f"0 0 {max(width, round(7.3 * len(title)) + 16)} {height}", role="group",
            aria_label=f"{title}. {self._spoken()}", data_group=True, **FONT,
        )  # fmt: skip
        words = json.dumps(list(map(self._words, range(self.last + 1))), ensure_ascii=False)
        parts = [
            element("div", picture, class_="sx-scroll sx-drawing"),
            element("figcaption", self._legend(), class_="sx-note"),
        ]
        return element("figure", parts, class_="sx-listing sx-steps", data_steps=self.last, data_words=words)

    def _words(self, number: int) -> str:
        step = self.record.steps[number]
        kernels = counted(len(step.groups), "kernel")
        if step.merged is None:
            return f"{kernels}: no pair is left that may be merged with a gain"
        pair = step.merged
        return f"{kernels}; next {_both(pair)}, {pair.kind}, saves {bytes_text(pair.bytes_saved)}"

    def _spoken(self) -> str:
        merged = [step.merged for step in self.record.steps if step.merged is not None]
        return "; ".join(f"merge {k}: {_both(p)}, {bytes_text(p.bytes_saved)}" for k, p in enumerate(merged, 1))

    def _legend(self) -> str:
        present = {pair.rule for step in self.record.steps for pair in step.pairs if pair.rule}
        rules = [f"{letter} {rule} ({words})" for rule, (letter, words) in RULES.items() if rule in present]
        said = (
            f"Squares: pairs that may be merged; the largest saves {bytes_text(self.most)}, and area is in proportion. "
            "Framed: the next merge. Filled: nodes of one kernel. "
        )
        return said + (f"Hatched: forbidden, by rule: {', '.join(rules)}." if rules else "")

    def _x(self, column: int) -> int:
        return self.left + column * CELL

    def _y(self, row: int) -> int:
        return TOP + row * CELL

    def _labels(self, stop: TabStop) -> Iterator[Html]:
        for k, (node, label) in enumerate(zip(self.record.nodes, self.labels, strict=True)):
            said = node.describe()
            yield element(
                "g", element("title", said), text_at(label, self.left - 8, self._y(k) + 16, "sx-label sx-heat-name",
                MUTED, text_anchor="end"), class_="sx-heat-label", role="button", aria_label=said,
                **stop.attributes(node.origins, node.name),
            )  # fmt: skip
            yield text_at(node.name, 0, 0, "sx-label", MUTED,
                          transform=f"translate({self._x(k) + 16} {TOP - 6}) rotate(-90)")  # fmt: skip
            yield element("rect", x=self._x(k), y=self._y(k), width=CELL, height=CELL, fill="none", stroke=RULE,
                          class_="sx-cell-apart")  # fmt: skip
            yield element("path", d=f"M{self._x(k) + 6} {self._y(k) + 18}l12 -12", stroke=RULE, class_="sx-cell-apart")

    # Cells that stay as they are for several steps are drawn once.
    def _cells(self) -> Iterator[Html]:
        runs: dict[tuple[int, int, Any], list[int]] = {}
        for number, step in enumerate(self.record.steps):
            for cell, state in self._states(step):
                runs.setdefault((*cell, state), []).append(number)
        for (row, column, state), steps in sorted(runs.items(), key=lambda entry: (entry[0][:2], entry[1])):
            yield self._cell(row, column, state, steps)
        for number, step in enumerate(self.record.steps):
            if step.merged is not None:
                for row, column in self._between(step.merged.first, step.merged.second):
                    yield self._shown(
                        element("rect", x=self._x(column) + 1, y=self._y(row) + 1, width=CELL - 2, height=CELL - 2,
                                fill="none", stroke=TEXT, stroke_width="2.6", class_="sx-heat-next"), [number],
                    )  # fmt: skip

    def _between(self, first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[int, int]]:
        for one in first:
            for other in second:
                column, row = sorted((self.place[one], self.place[other]))
                yield row, column

    def _states(self, step: Step) -> Iterator[tuple[tuple[int, int], Any]]:
        for group in step.groups:
            for k, one in enumerate(group):
                for other in group[k + 1 :]:
                    column, row = sorted((self.place[one], self.place[other]))
                    yield (row, column), group
        for pair in step.pairs:
            for cell in self._between(pair.first, pair.second):
                yield cell, pair

    def _cell(self, row: int, column: int, state: Any, steps: list[int]) -> Html:
        x, y = self._x(column), self._y(row)
        frame = {"x": x, "y": y, "width": CELL, "height": CELL, "stroke": RULE}
        if not isinstance(state, Weighed):
            said = f"{self.names[column]} and {self.names[row]} share the kernel {' + '.join(state)}"
            parts = [element("rect", class_="sx-cell sx-cell-written", fill="#e2f5e7", **frame),
                     text_at("●", x + CELL / 2, y + 16, "sx-label", MUTED, text_anchor="middle")]  # fmt: skip
        elif state.is_legal:
            said = str(state)
            side = round(max(18 * math.sqrt(state.bytes_saved / self.most), 4), 1)
            at = {"x": f"{x + (CELL - side) / 2:g}", "y": f"{y + (CELL - side) / 2:g}", "width": side, "height": side}
            shade = f"{0.35 + 0.65 * state.bytes_saved / self.most:.2f}"
            parts = [element("rect", class_="sx-cell-apart", fill="none", **frame),
                     element("rect", class_="sx-read", fill="#2f6fb5", fill_opacity=shade, **at)]  # fmt: skip
        else:
            said = str(state)
            letter = RULES.get(state.rule, (state.rule[:1], ""))[0]
            hatching = "".join(f"M{x + dx} {y + CELL - 1}l{min(8, CELL - dx)} -{CELL - 2}" for dx in (2, 8, 14))
            parts = [element("rect", class_="sx-cell-apart", fill="none", **frame),
                     element("path", d=hatching, stroke=RULE, stroke_width="0.9", fill="none", class_="sx-heat-hatch"),
                     text_at(letter, x + CELL / 2, y + 16, "sx-heat-rule", TEXT, text_anchor="middle",
                             font_weight="600")]  # fmt: skip
        return self._shown(element("g", element("title", said), parts), steps, said)

    def _shown(self, drawn: Html, steps: list[int], said: str | None = None) -> Html:
        """Something that is there at these steps only. What is not there in the end is not drawn without a script."""
        listed = " ".join(map(str, steps))
        hidden = None if self.last in steps else "hidden"
        return element("g", drawn, data_shown=listed, visibility=hidden, role="img" if said else None,
                       aria_label=said)  # fmt: skip

    # -- whose kernel -------------------------------------------------------------------------------------------------

    def _strips(self) -> Iterator[Html]:
        x = self._x(len(self.names)) + 18
        yield from self._strip_head(x, "kernel")
        for k, name in enumerate(self.names):
            texts: dict[str, str] = {}
            for number, step in enumerate(self.record.steps):
                first = next(group[0] for group in step.groups if name in group)
                if not texts or list(texts.values())[-1] != first:
                    texts[str(number)] = first
            final = list(texts.values())[-1]
            yield text_at(final, x, self._y(k) + 16, "sx-heat-home", TEXT,
                          data_texts=json.dumps(texts, ensure_ascii=False))  # fmt: skip
        if self.record.best is None:
            return
        yield from self._strip_head(x + STRIP, "optimum")
        for k, name in enumerate(self.names):
            home = next(part[0] for part in self.record.best.partition if name in part)
            now = next(group[0] for group in self.record.groups if name in group)
            differs = set(next(p for p in self.record.best.partition if name in p)) != set(
                next(g for g in self.record.groups if name in g)
            )
            said = f"{home} ≠" if differs else home
            about = f"{name}: kernel {now} by greedy fusion, kernel {home} in the optimum"
            yield element("g", element("title", about), text_at(said, x + STRIP, self._y(k) + 16, "sx-heat-home",
                          TEXT, font_weight="600" if differs else None))  # fmt: skip

    def _strip_head(self, x: float, words: str) -> Iterator[Html]:
        yield text_at(words, x, TOP - 8, "sx-count", TEXT, font_weight="600")
