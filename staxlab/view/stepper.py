"""The stepper as a widget (ipywidgets): the same stages as the explorer, each drawn when it is asked for.

The HTML explorer is complete before it is shown; for a large model, or where making machine code takes seconds, that
is a lot to wait for. This one asks the kernel for a stage when its button is pressed, and keeps what it has drawn. It
needs a live kernel and a widget front end; a saved page shows the explorer instead.

The links are those of the explorer: the script is loaded once per page and listens at the document, so it finds the
elements of a pane however they came there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import MissingDependencyError
from .document import View, pane_markup, scripts, styles
from .explorer import FIRST, headline, parts, stage_title
from .markup import Html, element, join
from .provenance import names_attribute, node_names


class Stages:
    """What the stepper steps through, free of any widget: titles, and the markup of each stage, drawn once."""

    def __init__(self, compilation: Any):
        self.compilation = compilation
        self._parts: list[tuple[str, Callable[[], View]]] = list(parts(compilation, all_machine_code=True))
        self.titles = [title for title, _ in self._parts]
        self._drawn: dict[int, Html] = {}

    def markup(self, position: int) -> Html:
        """The panes of one stage, one below the other."""
        if position not in self._drawn:
            view = self._parts[position][1]()
            self._drawn[position] = join(pane_markup(pane, alone=True, is_open=True) for pane in view.panes)
        return self._drawn[position]

    def position_of(self, name: str) -> int | None:
        """The position of the stage called ``name`` in the pipeline, if it ran."""
        ran = [stage_title(self.compilation, stage) for stage, _ in self.compilation.stages() if stage.name == name]
        return self.titles.index(ran[0]) if ran and ran[0] in self.titles else None


def build(compilation: Any) -> Any:
    """The widget. Raises MissingDependencyError where ipywidgets is not installed."""
    try:
        import ipywidgets
    except ImportError as error:
        raise MissingDependencyError(
            "the stepper needs ipywidgets; the compilation itself displays without it",
            remedy="pip install 'staxlab[notebook]'",
        ) from error

    stages = Stages(compilation)
    state = {"left": 0, "right": stages.position_of(FIRST[1])}
    if state["right"] == state["left"]:
        state["right"] = None

    small = ipywidgets.Layout(width="auto", height="28px", margin="2px")
    buttons = [ipywidgets.Button(description=title, layout=small) for title in stages.titles]
    previous = ipywidgets.Button(description="‹", tooltip="Previous stage", layout=small)
    following = ipywidgets.Button(description="›", tooltip="Next stage", layout=small)
    beside = ipywidgets.Dropdown(
        options=[("nothing", None), *((title, k) for k, title in enumerate(stages.titles))],
        value=state["right"],
        description="beside it:",
        layout=ipywidgets.Layout(width="auto", margin="2px 2px 2px auto"),
    )
    left, right = ipywidgets.HTML(), ipywidgets.HTML()
    panes = ipywidgets.GridBox([left, right])

    def show() -> None:
        pair = state["right"] is not None and state["right"] != state["left"]
        panes.layout = ipywidgets.Layout(
            grid_template_columns="minmax(0, 1fr) minmax(0, 1fr)" if pair else "minmax(0, 1fr)"
        )
        left.value = stages.markup(state["left"])
        right.value = stages.markup(state["right"]) if pair else ""
        right.layout.display = "" if pair else "none"
        previous.disabled, following.disabled = state["left"] == 0, state["left"] == len(buttons) - 1
        for position, button in enumerate(buttons):
            button.button_style = "primary" if position == state["left"] else ""

    def go(position: int) -> None:
        state["left"] = position
        show()

    def choose(change: Any) -> None:
        state["right"] = change["new"]
        show()

    for position, button in enumerate(buttons):
        button.on_click(lambda _, position=position: go(position))
    previous.on_click(lambda _: go(max(state["left"] - 1, 0)))
    following.on_click(lambda _: go(min(state["left"] + 1, len(buttons) - 1)))
    beside.observe(choose, names="value")
    show()

    wrap = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
    root = ipywidgets.VBox(
        [
            _assets(ipywidgets),
            _head(ipywidgets, compilation),
            ipywidgets.Box([previous, following, *buttons, beside], layout=wrap),
            panes,
        ]
    )
    for name in ("staxlab", "sx-root", "sx-stepper"):
        root.add_class(name)
    panes.add_class("sx-stepper-panes")
    return root


def _assets(ipywidgets: Any) -> Any:
    """An output area that runs the script: the HTML widget shows markup but runs none."""
    area = ipywidgets.Output(layout=ipywidgets.Layout(display="none"))
    markup = str(scripts())
    area.outputs = ({"output_type": "display_data", "data": {"text/plain": "", "text/html": markup}, "metadata": {}},)
    return area


def _head(ipywidgets: Any, compilation: Any) -> Any:
    """Styles, the headline, the status line, and what the status line calls each captured node."""
    names = names_attribute(node_names(compilation.graph)) if compilation.graph is not None else None
    status = element("p", class_="sx-status", role="status", aria_live="polite", data_names=names)
    return ipywidgets.HTML(join([styles(), headline(compilation), status]))
