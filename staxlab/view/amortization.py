"""When compiling pays, drawn (Section 13.4): seconds in all against calls, with a line for each state of the cache."""

from __future__ import annotations

import math
from typing import Any

from ..measure.amortization import STATES
from .document import Pane
from .markup import Html, join
from .measures import table_markup
from .plots import Curve, Level, plot

#: States of the cache as the lines of compiled calls are called; longer names leave the picture.
SHORT = {"cold": "cold", "kernels": "kernels kept", "warm": "warm"}


def panes(record: Any) -> list[Pane]:
    content = record.table()
    drawn = [picture] if (picture := figure(record)) is not None else []
    return [Pane("amortization", content.caption, join([*drawn, table_markup(content)]), "", str(record))]


def figure(record: Any) -> Html | None:
    """The lines of the first round, as far as twice the largest finite break-even; None where nothing pays or nothing
    was measured."""
    found = {state: evens[0] for state in STATES if (evens := record.break_evens(state))}
    finite = {state: even for state, even in found.items() if math.isfinite(even.calls)}
    if not finite:
        return None
    most = 2 * max(even.calls for even in finite.values())
    some = next(iter(finite.values()))
    curves = [Curve("eager", ((0.0, 0.0), (most, most * some.eager_time)))]
    curves += [
        Curve(SHORT[state],
              ((0.0, even.compile_time), (most, even.compile_time + most * even.compiled_time)))
        for state, even in finite.items()
    ]  # fmt: skip
    levels = [Level(f"m* {even.first_winning_call}", x=even.calls) for even in finite.values()]
    said = f"Seconds in all against calls of {record.example.title}; an eager call takes {some.eager_time:.3g} s."
    for state, even in finite.items():
        said += (
            f" Compiled with {STATES[state][0]}: {even.compile_time:.3g} s first, even after {even.calls:.0f} calls."
        )
    return plot("When compiling has paid for itself", said, ("calls", "time in all (s)"), curves, (), levels)
