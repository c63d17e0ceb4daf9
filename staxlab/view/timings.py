"""Where the time of a compilation went (Section 11.6), as a table with bars: one row per stage, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .document import Pane
from .markup import Html, element, table


def duration_text(seconds: float) -> str:
    """Three significant digits with a unit: ``0.01234`` gives ``12.3 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0"


def _bar(part: float, whole: float) -> Html:
    width = 160.0
    filled = element(
        "rect",
        x=0,
        y=0,
        width=f"{width * part / whole if whole else 0:.1f}",
        height=10,
        class_="sx-read",
        fill="#2f6fb5",
    )
    share = f"{100 * part / whole:.0f}%" if whole else ""
    chart = element(
        "svg",
        filled,
        class_="sx-bar-chart",
        width=int(width),
        height=10,
        viewBox=f"0 0 {width:g} 10",
        role="img",
        aria_label=share,
    )
    return element("span", chart, element("span", share, class_="sx-bar-text"))


def timings_pane(timings: Mapping[str, float], stages: Iterable[Any]) -> Pane:
    """``timings`` maps stage names to seconds; ``stages`` give titles and sections, in order."""
    known = {stage.name: stage for stage in stages}
    total = sum(timings.values())
    rows = []
    for name, seconds in timings.items():
        stage = known.get(name)
        rows.append(
            [
                stage.title if stage else name,
                stage.section if stage else "–",
                duration_text(seconds),
                _bar(seconds, total),
            ]
        )
    rows.append(["all", "", duration_text(total), ""])
    body = table("Seconds per stage", ["stage", "explained in", "time", "share"], rows, class_="sx-table sx-timings")
    plain = "\n".join(f"{name}: {duration_text(seconds)}" for name, seconds in timings.items())
    return Pane("timings", "Timings", body, f"{duration_text(total)} in all", plain)
