"""Decomposition (Section 4.8), drawn: the tree of an operator, and the table of rules by depth (Proposition 4.3).

A tree folds; every inner node says its depth, every leaf why it is one: in the basis, or without a rule, so that
PyTorch runs it. The table is drawn as one row per depth, with a bar for the number of operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .diagram import Box, diagram
from .document import Pane
from .markup import Html, element, join, table
from .provenance import origins_text

MOST_DRAWN = 60  # operators of a tree that is drawn as a diagram as well
MOST_NAMED = 400  # operators of one depth that are listed


def panes(record: Any) -> list[Pane]:
    """An expansion, or a table of rules."""
    if hasattr(record, "rules"):
        return [_table_pane(record)]
    said = f"depth {record.depth}, {len(record.leaves)} different operators at its leaves"
    return [Pane("expansion", f"Decomposition of {record.operator}", expansion_markup(record), said, record.format())]


def expansion_markup(tree: Any) -> Html:
    """The tree as a diagram, where it is small, and as an outline that folds."""
    outline = element(
        "div", _branch(tree, True), class_="sx-tree", role="group", aria_label=f"{tree.operator} as a tree"
    )
    boxes: list[Box] = []
    edges: list[tuple[int, int]] = []
    _boxes(tree, boxes, edges)
    if not edges or len(boxes) > MOST_DRAWN:
        return outline
    return element("div", diagram(boxes, edges, f"Decomposition of {tree.operator}"), outline, class_="sx-columns")


def _words(tree: Any) -> str:
    if tree.kind == "rule":
        return f"depth {tree.depth}"
    return {"basis": "in the basis", "no rule": "no rule: run by PyTorch"}[tree.kind]


def _short(name: str) -> str:
    return name.removeprefix("aten.").removesuffix(".default")


def _boxes(tree: Any, boxes: list[Box], edges: list[tuple[int, int]]) -> int:
    """Append the boxes of a tree; the position of its root."""
    here = len(boxes)
    kind = {"rule": "call", "basis": "output", "no rule": "constant"}[tree.kind]
    made = tuple(f"%{name}" for name in tree.nodes[:1]) if tree.kind != "rule" else ()
    spoken = f"{tree.operator}: {_words(tree)}" + (f", recorded as {', '.join(made)}" if made else "")
    boxes.append(Box((_short(tree.operator), _words(tree), *made), kind, spoken, tree.origins, tree.operator))
    for part in tree.parts:
        edges.append((here, _boxes(part, boxes, edges)))
    return here


def _branch(tree: Any, is_open: bool) -> Html:
    about = element("span", f" {_words(tree)}", class_="sx-muted")
    name = element("code", tree.operator)
    if tree.kind != "rule":
        made = [element("code", f" %{node}") for node in tree.nodes]
        linked = origins_text(tree.origins)
        return element("span", name, made, about, data_origins=linked, class_="sx-inline" if linked else None)
    inside = element("ul", [element("li", _branch(part, tree.depth < 4)) for part in tree.parts])
    return element("details", element("summary", name, about), inside, open=is_open)


def expansions_markup(trees: Iterable[Any]) -> Html | None:
    """The trees of what was taken apart in a recording; None if nothing was."""
    drawn = [_branch(tree, position == 0) for position, tree in enumerate(trees)]
    if not drawn:
        return None
    label = "What was taken apart, as trees"
    return element("div", [element("div", each) for each in drawn], class_="sx-tree", role="group", aria_label=label)


def _table_pane(record: Any) -> Pane:
    by_depth = record.by_depth
    most = max(map(len, by_depth.values()), default=1)
    rows = []
    for depth, names in by_depth.items():
        kinds = Counter(record.kinds[name] for name in names)
        made = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        rows.append([str(depth), len(names), _bar(len(names), most), made])
    head = ["depth", "operators", "share", "where the rules come from"]
    parts: list[Any] = [table(f"{len(record.rules):,} rules by depth", head, rows)]
    for depth, names in by_depth.items():
        said = element("summary", f"depth {depth}: {len(names):,} operator{'' if len(names) == 1 else 's'}")
        shown = element("ul", [element("li", element("code", _short(name))) for name in names[:MOST_NAMED]],
                        class_="sx-plain sx-wrapped")  # fmt: skip
        more = (
            element("p", f"… {len(names) - MOST_NAMED:,} more", class_="sx-note") if len(names) > MOST_NAMED else None
        )
        parts.append(element("details", said, shown, more, class_="sx-more"))
    parts.append(_names("rules end in and only PyTorch runs", record.fallbacks))
    parts.append(_names("ran on no sample: their depth is not known", record.unobserved))
    said = f"{len(record.rules):,} rules, {len(record.reachable):,} of them end in the basis"
    said += f", depth at most {max(by_depth, default=0)}"
    return Pane("decompositions", "Decomposition rules", join(parts), said, record.format())


def _names(said: str, names: tuple[str, ...]) -> Html | None:
    if not names:
        return None
    listed = element(
        "ul", [element("li", element("code", _short(name))) for name in names], class_="sx-plain sx-wrapped"
    )
    return element("details", element("summary", f"{len(names):,} operators that {said}"), listed, class_="sx-more")


def _bar(count: int, most: int) -> Html:
    width = max(round(160 * count / most), 2)
    bar = element("rect", x=0, y=1, width=width, height=10, class_="sx-read", fill="#2f6fb5")
    return element("svg", bar, class_="sx-bar-chart", width=160, height=12, viewBox="0 0 160 12", aria_hidden="true")
