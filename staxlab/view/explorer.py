"""All stages of one compilation beside each other: what a ``Compilation`` shows when a notebook displays it.

There is one stepper, and it is HTML: stage buttons, previous and next, a second stage beside the first, and links from
the user's line to the kernel's. The same elements are tabs where a script may run (a live notebook, a page saved by
nbconvert, a file of ours) and plain ``<details>`` where it may not. A bundle with both a widget and HTML would show the
widget only, and a blank where a page was saved without the widget's state; so the bundle carries the HTML, and
``compilation.stepper()`` gives the widget (module ``stepper``), whose point is that it draws a stage when asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import StaxError
from .assembly import KINDS, assembly_markup
from .decisions import decisions_table
from .document import Pane, View
from .markup import Html, element, join
from .provenance import node_names
from .registry import panes_of, plain_text
from .timings import duration_text, timings_pane

FIRST = ("capture", "kernels")  # what stands beside each other at the start: where it begins and what became of it
# Making machine code takes time (a GPU kernel of a thousand lines takes half a minute to compile), and a notebook shows
# an object at once or it is no use. So an output includes as many kernels as fit these limits, counted in lines of
# source; a page, and the stepper on demand, have all.
MOST_DISASSEMBLED = {"cpu": (4, 500), "cuda": (2, 160)}  # kernels, lines of source


def view(compilation: Any, full: bool = False) -> View:
    """Every stage that ran, in order, followed by what concerns all of them: key, decisions, traffic, timings."""
    panes: list[Pane] = []
    names: dict[int, str] = {}
    for _, make in parts(compilation, full):
        inner = make()
        panes += inner.panes
        names = names or inner.names
    return View(
        f"{compilation.name} for {compilation.target}",
        tuple(panes),
        lead=headline(compilation),
        names=names,
        first=tuple(key for key in FIRST if any(pane.key == key for pane in panes)),
        hint="compilation.write_html(path) writes it whole",
    )


def same_captured_graph(one: Any, other: Any) -> bool:
    """Whether two compilations start from equal graphs with equal ids, so that their stages can be linked."""
    if one.graph is None or other.graph is None:
        return False
    first, second = ([(node.id, node.format()) for node in graph] for graph in (one.graph, other.graph))
    return first == second


def with_other_targets(compilation: Any, others: Iterable[Any], full: bool = False) -> View:
    """The explorer of a compilation with the kernels and machine code that other targets got for the same graph.

    One loop program becomes C++ for one machine and Triton for another; here both hang on the same source lines.
    Raises ValueError where the captured graphs differ.
    """
    whole = view(compilation, full)
    panes = list(whole.panes)
    last = max(k for k, pane in enumerate(panes) if pane.key in ("schedule", "kernels", "asm", "ptx", "sass"))
    for other in others:
        if not same_captured_graph(compilation, other):
            raise ValueError(f"{other.name} for {other.target} was captured as another graph")
        inner = [*panes_of(other.kernels, full=full).panes, *assembly_panes(other, full)]
        for pane in inner:
            last += 1
            title = f"{pane.title} ({other.target})"
            panes.insert(last, replace(pane, key=f"{pane.key}-{other.target}", title=title))
    return replace(whole, panes=tuple(panes))


def parts(
    compilation: Any, full: bool = False, all_machine_code: bool = False
) -> Iterator[tuple[str, Callable[[], View]]]:
    """(title, function that draws it) in order. The stepper calls the function when its stage is asked for, so it can
    afford ``all_machine_code``."""
    for stage, record in compilation.stages():
        if stage.name == "artifact":
            continue
        if stage.name == "transforms":
            yield stage.title, lambda record=record: _one_pane(record, full)
            continue
        if stage.name == "partition":
            yield stage.title, lambda record=record: _without_forward(record, full)
            continue
        yield stage.title, lambda record=record: panes_of(record, full=full)
        if stage.name == "kernels" and any(kernel.language != "extern" for kernel in record):
            yield (
                "Machine code",
                lambda: View("machine code", tuple(assembly_panes(compilation, full or all_machine_code))),
            )
    for title, make in about(compilation):
        yield title, lambda make=make: View("about", tuple(make()))


def _one_pane(log: Any, full: bool) -> View:
    """The passes as one stage; alone they are a stepper of their own."""
    from .transforms import pane

    return View("graph transformation", (pane(log, full),), names=node_names(log.initial.graph))


def _without_forward(partition: Any, full: bool) -> View:
    """The partition without the graph that the following stages show."""
    whole = panes_of(partition, full=full)
    return replace(whole, panes=tuple(pane for pane in whole.panes if pane.key != "forward"))


def headline(compilation: Any) -> Html:
    """Name, target, and what is worth knowing before any stage is opened."""
    facts = [f"for {compilation.target}"]
    if compilation.device.kind == "cpu":
        facts[0] += f" ({compilation.device.instruction_set}, {compilation.device.threads} threads)"
    kernels = compilation.kernels
    if kernels is not None:
        facts.append(f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}")
    if compilation.timings:
        facts.append(f"compiled in {duration_text(sum(compilation.timings.values()))}")
    name = element("strong", compilation.name, class_="sx-title")
    parts = [element("div", name, " ", element("span", " · ".join(facts), class_="sx-muted"), class_="sx-headline")]
    if compilation.fallback_reason:
        said = [f"Runs operator by operator, without kernels: {compilation.fallback_reason}"]
        if compilation.fallback_remedy:
            said += [element("br"), element("strong", "Remedy:"), f" {compilation.fallback_remedy}"]
        parts.append(element("p", *said, class_="sx-note sx-warning"))
    return join(parts)


def assembly_panes(compilation: Any, full: bool = False) -> list[Pane]:
    """Machine code of the kernels: one pane for a processor, PTX and SASS for a GPU. Where no compiler is at hand, the
    pane says so: the other stages are no worse for it."""
    kernels = [k for k in compilation.kernels or () if k.language != "extern"]
    if not kernels:
        return []
    shown = kernels if full else _within_limits(kernels, compilation.device.kind)
    panes = []
    for kind in ("ptx", "sass") if compilation.device.is_gpu else ("asm",):
        drawn, plain, lines, linked = [], [], 0, 0
        for kernel in shown:
            try:
                record = kernel.assembly(kind)
            except (StaxError, ImportError) as error:
                drawn.append(element("p", f"{kernel.name}: {error}", class_="sx-note sx-warning"))
                continue
            drawn.append(assembly_markup(record, None if full else 2000))
            plain.append(record.text)
            lines += len(record.lines)
            linked += sum(bool(line.origins) for line in record.lines)
        if len(shown) < len(kernels):
            said = f"{len(kernels) - len(shown)} of {len(kernels)} kernels are left out here, to be quick:"
            position = list(compilation.kernels).index(kernels[len(shown)])
            how = f"kernels[{position}].assembly() makes the next one, compilation.write_html(path) writes all."
            drawn.append(element("p", f"{said} {how}", class_="sx-note"))
        title = {"asm": "Assembly"}.get(kind, KINDS[kind])
        panes.append(Pane(kind, title, join(drawn), f"{lines} lines, {linked} with a known origin", "\n".join(plain)))
    return panes


def _within_limits(kernels: list[Any], kind: str) -> list[Any]:
    most, left = MOST_DISASSEMBLED.get(kind, (0, 0))
    taken = []
    for kernel in kernels[:most]:
        left -= len(kernel.lines)
        if left < 0:
            break
        taken.append(kernel)
    return taken


def about(compilation: Any) -> Iterator[tuple[str, Callable[[], list[Pane]]]]:
    """What concerns the compilation as a whole: (title, function that draws it)."""
    from ..pipeline import STAGES

    if compilation.key is not None or compilation.guards:
        from .specialization import specialization_pane

        yield "Key", lambda: [specialization_pane(compilation.key, compilation.guards)]
    decisions = compilation.decisions
    if decisions:
        table = decisions_table(decisions, "Every decision, in the order it was taken")
        count = f"{len(decisions)} decision{'' if len(decisions) == 1 else 's'}"
        yield "Why?", lambda: [Pane("decisions", "Why?", table, count, plain_text(decisions))]
    if compilation.operators is not None and compilation.schedule is not None:
        from .traffic import panes

        yield "Traffic", lambda: panes(compilation.traffic)
    if compilation.timings:
        yield "Timings", lambda: [timings_pane(compilation.timings, STAGES)]


def stepper(compilation: Any) -> Any:
    """The interactive stepper as an ipywidgets widget. MissingDependencyError without ipywidgets."""
    from .stepper import build

    return build(compilation)
