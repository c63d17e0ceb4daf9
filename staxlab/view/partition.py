"""A partition (Sections 5.4 and 5.5), drawn: what is saved, where the cut runs, and the flow that found it.

Four panes: the values with their fate, prices and reasons below the joint graph in two columns; the flow network with a
slider over the augmenting paths; and the two graphs that come out.
"""

from __future__ import annotations

from typing import Any

from ..autodiff.network import capacity_text
from .document import Pane, View
from .flow import flow_markup
from .graph import graph_markup, summary_of
from .joint import joint_markup
from .markup import Html, element, join, table
from .provenance import TabStop, node_names
from .schedule import byte_text


def view(record: Any, full: bool = False) -> View:
    """The partition, the flow, the forward graph and the backward graph."""
    panes = [
        Pane("partition", "Partition", partition_markup(record), _summary(record), record.format()),
        Pane("flow", "Minimum cut", _flow(record), _flow_summary(record), record.flow.format()),
    ]
    for key, graph in (("forward", record.forward), ("backward", record.backward)):
        body = graph_markup(graph.graph, f"{key} graph", full=full)
        panes.append(Pane(key, f"{key.capitalize()} graph", body, summary_of(graph.graph), graph.format()))
    return View("partition", tuple(panes), names=node_names(record.joint.graph), first=("partition", "flow"))


def _summary(record: Any) -> str:
    saved = len(record.saved)
    return f"by {record.plan}: {saved} value{'' if saved == 1 else 's'} saved, {record.saved_bytes:,} bytes"


def partition_markup(record: Any) -> Html:
    """Sizes, the joint graph with the cut, and the table of values."""
    reason = element("p", f"{record.plan.capitalize()}: {record.reason}.", class_="sx-note") if record.reason else None
    fates = {value.node: decision.choice for value, decision in zip(record.values, record.decisions, strict=True)}

    def fate_of(node: Any) -> str:
        fate = fates.get(node, "")
        return "" if fate == "not needed" else fate

    parts = (sizes_table(record), reason, joint_markup(record.joint, fate_of), values_table(record))
    return join(part for part in parts if part)


def sizes_table(record: Any) -> Html:
    """Bytes kept between forward and backward pass, beside those of the two alternatives."""
    sizes = [
        ("this partition", record.saved_bytes),
        ("eager execution", record.eager_bytes),
        ("saving all that is read", record.save_all_bytes),
    ]
    most = max(size for _, size in sizes) or 1
    rows = [[name, size, _bar(name, size, most)] for name, size in sizes]
    return table("Kept for the backward pass, inputs not counted", ["by", "bytes", "share of the largest"], rows)


def _bar(name: str, size: int, most: int) -> Html:
    label = f"{name}: {byte_text(size)}, {size / most:.0%} of the largest"
    block = element("rect", x=0, y=0, width=f"{120 * size / most:.1f}", height=12, class_="sx-write", fill="#b3541e")
    drawn = element(
        "svg", element("title", label), block, class_="sx-bar-chart", width=120, height=12, viewBox="0 0 120 12",
        role="img", aria_label=label,
    )  # fmt: skip
    return element("span", drawn, element("span", byte_text(size), class_="sx-bar-text"))


def values_table(record: Any) -> Html:
    """A row for each forward value."""
    stop = TabStop()
    rows, attributes = [], []
    for value, decision in zip(record.values, record.decisions, strict=True):
        choice = element("strong", decision.choice) if decision.choice != "not needed" else decision.choice
        rows.append(
            [
                f"%{value.name}", value.kind, choice, value.nbytes, value.beta, value.distance,
                capacity_text(value.capacity), "U" if value.source else "–", "B" if value.is_read else "–",
                decision.reason, value.source or value.unsavable or "–", value.materialized or "–",
            ]
        )  # fmt: skip
        attributes.append(stop.attributes(value.node.origins, f"%{value.name}"))
    head = [
        "value", "operation", "fate", "b (bytes)", "β", "d (steps)", "capacity bβ1.1^d", "not again", "read",
        "because", "not computed again, or not saved, because", "in memory anyway, because",
    ]  # fmt: skip
    caption = "Forward values: U is what must not be computed again, B what the backward pass reads"
    return table(caption, head, rows, row_attributes=attributes, data_group=True)


def _flow(record: Any) -> Html:
    nodes = [value.node for value in record.values]

    def origins_of(vertex: int) -> frozenset[int]:
        return nodes[vertex // 2].origins if vertex < 2 * len(nodes) else frozenset()

    said = "Every value is an edge from its in to its out vertex; cutting it means saving the value (Definition 5.2)."
    return join([element("p", said, class_="sx-note"), flow_markup(record.flow, origins_of)])


def _flow_summary(record: Any) -> str:
    paths = len(record.flow.paths)
    return f"{capacity_text(record.flow.value)} by {paths} augmenting path{'' if paths == 1 else 's'}"
