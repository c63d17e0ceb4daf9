"""TVM: the same loops, scheduled by its own rules (Section 12.3).

staxlab's front end hands the function over as TVM's compute description (the ``tvm`` backend); what TVM makes of it is
shown before and after its schedule rules. That is the control for the two sources of schedules.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

name, title = "tvm", "TVM"
UNSCHEDULED, SCHEDULED = "as it is described", "after its rules"


def missing() -> str | None:
    return None if importlib.util.find_spec("tvm") else "apache-tvm is not installed"


def structure(rows: int, columns: int) -> dict[str, Any]:
    """The three functions in TVM's own text, before and after scheduling."""
    import staxlab
    from benchmarks.systems.timing import compared_cases
    from staxlab.backends.tvm import lowered_text

    found = {}
    for case in compared_cases():
        compilation = staxlab.explain(case.function, *case.make_inputs((rows, columns), torch.float32, "cpu"))
        loops = {UNSCHEDULED: lowered_text(compilation, schedule="none"), SCHEDULED: lowered_text(compilation)}
        found[case.name] = {"loops": loops}
    return found
