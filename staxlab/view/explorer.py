"""All stages of one compilation beside each other: what a :class:`Compilation` shows when a notebook displays it.

There is one stepper, and it is HTML: stage buttons, previous and next, a second stage beside the first, and links from
the user's line to the kernel's. The same elements are tabs where a script may run (a live notebook, a page saved by
nbconvert, a file of ours) and plain ``<details>`` where it may not. A bundle with both a widget and HTML would show the
widget only, and a blank where a page was saved without the widget's state; so the bundle carries the HTML, and
``compilation.stepper()`` gives the widget (``stepper``), whose point is that it draws a stage when it is asked for.
"""

from __future__ import annotations

from typing import Any

from .document import Pane, View
from .registry import panes_of


def view(compilation: Any, full: bool = False) -> View:
    """Every stage that ran, in order, as panes with stable keys: the names of the stages."""
    panes: list[Pane] = []
    for stage, record in compilation.stages():
        if stage.name == "artifact":
            continue
        inner = panes_of(record, full=full)
        for position, pane in enumerate(inner.panes):
            key = stage.name if position == 0 else f"{stage.name}-{pane.key}"
            panes.append(Pane(key, pane.title, pane.body, pane.summary, pane.plain))
    return View(
        f"{compilation.name} for {compilation.target}",
        tuple(panes),
        hint="compilation.write_html(path) writes it whole",
    )


def stepper(compilation: Any) -> Any:
    """The interactive stepper as an ipywidgets widget. MissingDependencyError without ipywidgets."""
    from .stepper import Stepper

    return Stepper(compilation)
