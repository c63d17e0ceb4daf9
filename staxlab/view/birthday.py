"""The birthday bound (Proposition 11.1), drawn: how likely two of q keys meet, what was seen, and the bound above."""

from __future__ import annotations

from typing import Any

from .document import Pane
from .log_plots import log_plot
from .markup import Html, join
from .measures import table_markup
from .plots import Curve, Level


def panes(record: Any) -> list[Pane]:
    """One pane: the plot and its numbers."""
    body = join([curves(record), table_markup(record.table())])
    return [Pane("birthday", "The birthday bound", body, record.summary(), str(record))]


def curves(record: Any) -> Html:
    """Three lines over the number of keys, both axes logarithmic. Where no collision was seen there is no point."""
    lines = [
        Curve("bound", tuple((c.keys, c.bound) for c in record.counts)),
        Curve("probability", tuple((c.keys, c.probability) for c in record.counts)),
        Curve(f"seen in {record.trials:,} drawings", tuple((c.keys, c.seen) for c in record.counts if c.seen)),
    ]
    said = record.summary() + ". " + " ".join(
        f"{c.keys} keys: seen {c.seen:.3g}, probability {c.probability:.3g}, bound {c.bound:.3g}."
        for c in record.counts
    )
    title = f"Two of q keys meet in a hash of {record.bits} bits"
    axes = ("keys q in the cache", "probability that two meet")
    shown = [line for line in lines if line.points]
    return log_plot(title, said, axes, shown, levels=[Level("certain", y=1.0)], base=2)
