"""All stages of one compilation beside each other: what a ``Compilation`` shows when a notebook displays it.

There is one stepper, and it is HTML: stage buttons, previous and next, a second stage beside the first, and links from
the user's line to the kernel's. The same elements are tabs where a script may run (a live notebook, a page saved by
nbconvert, a file of ours) and plain ``<details>`` where it may not. A bundle with both a widget and HTML would show the
widget only, and a blank where a page was saved without the widget's state; so the bundle carries the HTML, and
``compilation.stepper()`` gives the widget (module ``stepper``), whose point is that it draws a stage when asked for it.

A compilation that trains is shown whole: what both halves share (captured graph, joint graph, partition), the stages of
the forward half, then those of the backward half. Their origins are ids of the same captured graph, so a line of the
user's leads to the kernels of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..compilation import STAGES
from ..errors import StaxError
from ..measure.tables import seconds_text
from .assembly import KINDS, assembly_markup
from .decisions import decisions_table
from .document import Pane, View
from .markup import Html, element, join
from .provenance import node_names
from .registry import panes_of, plain_text
from .schedule import byte_text

GPU_LISTINGS = ("ttir", "ttgir", "llir", "ptx", "sass")  # from Triton's own representation to machine code
BACKWARD = "backward-"  # before the key of a stage of the backward half
FIRST = ("capture", "kernels")  # what stands beside each other at the start: where it begins and what became of it
# Making machine code takes time (a GPU kernel of a thousand lines takes half a minute to compile), and a notebook shows
# an object at once or it is no use. So an output includes as many kernels as fit these limits, counted in lines of
# source; a page, and the stepper on demand, have all.
MOST_DISASSEMBLED = {"cpu": (4, 500), "cuda": (2, 160)}  # kernels, lines of source
# Realization is tried in every combination (2**values lowerings) for so many values, in programs of so many kernels.
MOST_RELOWERED = (2, 8)


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
    others = list(others)
    for other in others:
        if not same_captured_graph(compilation, other):
            raise ValueError(f"{other.name} for {other.target} was captured as another graph")
    whole = view(compilation, full)
    panes = list(whole.panes)
    for prefix, half_of in (("", lambda one: one), (BACKWARD, lambda one: one.backward)):
        wanted = {f"{prefix}{key}" for key in ("schedule", "kernels", "asm", *GPU_LISTINGS)}
        last = max((k for k, pane in enumerate(panes) if pane.key in wanted), default=None)
        halves = [(other.target, half_of(other)) for other in others if half_of(other) is not None]
        for target, half in halves if last is not None else ():
            for pane in (*panes_of(half.kernels, full=full).panes, *assembly_panes(half, full)):
                last += 1
                key, title = f"{prefix}{pane.key}-{target}", f"{pane.title} ({target})"
                panes.insert(last, replace(pane, key=key, title=f"Backward: {title}" if prefix else title))
    return replace(whole, panes=tuple(panes))


def parts(
    compilation: Any, full: bool = False, all_machine_code: bool = False
) -> Iterator[tuple[str, Callable[[], View]]]:
    """(title, function that draws it) in order. The stepper calls the function when its stage is asked for, so it can
    afford ``all_machine_code``."""
    for title, make in _stages(compilation, full, all_machine_code):
        yield title, make
    for whose, prefix, half in _backward_halves(compilation):
        for title, make in _stages(half, full, all_machine_code):
            yield f"{whose}: {title}", lambda make=make, whose=whose, prefix=prefix: _renamed(make(), whose, prefix)
    for title, make in about(compilation):
        yield title, lambda make=make: View("about", tuple(make()))


def _stages(compilation: Any, full: bool, all_machine_code: bool) -> Iterator[tuple[str, Callable[[], View]]]:
    """The stages of a compilation without those of its backward half."""
    for stage, record in compilation.stages():
        if stage.name == "artifact":
            continue
        title = stage_title(compilation, stage)
        if stage.name == "transforms":
            yield title, lambda record=record: _one_pane(record, full)
            continue
        if stage.name == "partition":
            yield title, lambda record=record: _division(record, full, compilation.backward is not None)
            continue
        whose = title.removesuffix(stage.title).rstrip(": ")
        yield title, lambda record=record, whose=whose: _renamed(panes_of(record, full=full), whose)
        if stage.name == "kernels" and any(kernel.is_generated for kernel in record):
            yield (
                f"{whose}: Machine code" if whose else "Machine code",
                lambda whose=whose: _renamed(
                    View("machine code", tuple(assembly_panes(compilation, full or all_machine_code))), whose
                ),
            )


def _backward_halves(compilation: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, what its keys begin with, compilation) of what was compiled for the backward pass."""
    for number, (_, half) in enumerate(compilation.backward_halves(), 1):
        yield ("Backward", BACKWARD, half) if number == 1 else (f"Backward {number}", f"{BACKWARD}{number}-", half)


def stage_title(compilation: Any, stage: Any) -> str:
    """What a stage is called: from the operator graph on, a region that is differentiated has every stage twice."""
    names = [known.name for known in STAGES]
    is_half = names.index(stage.name) >= names.index("operators")
    return f"Forward: {stage.title}" if compilation.partition is not None and is_half else stage.title


def _renamed(view: View, whose: str, prefix: str = "") -> View:
    """The view with panes that say which half they belong to."""
    if not whose:
        return view
    panes = (replace(pane, key=f"{prefix}{pane.key}", title=f"{whose}: {pane.title}") for pane in view.panes)
    return replace(view, panes=tuple(panes))


def _one_pane(log: Any, full: bool) -> View:
    """The passes as one stage; alone they are a stepper of their own."""
    from .transforms import pane

    return View("graph transformation", (pane(log, full),), names=node_names(log.initial.graph))


def _division(partition: Any, full: bool, has_backward: bool) -> View:
    """The partition without the graphs that the following stages show."""
    whole = panes_of(partition, full=full)
    shown = {"forward", "backward"} if has_backward else {"forward"}
    return replace(whole, panes=tuple(pane for pane in whole.panes if pane.key not in shown))


def headline(compilation: Any) -> Html:
    """Name, target, and what is worth knowing before any stage is opened."""
    facts = [f"for {compilation.target}"]
    if compilation.device.kind == "cpu":
        facts[0] += f" ({compilation.device.instruction_set}, {compilation.device.threads} threads)"
    halves = [compilation, *(half for _, half in compilation.backward_halves())]
    counts = [str(len(half.kernels)) for half in halves if half.kernels is not None]
    if counts:
        facts.append(f"{counts[0]} kernel{'' if counts[0] == '1' else 's'}")
    if len(counts) > 1:
        facts[-1] += f" forward, {' or '.join(counts[1:])} backward"
    if compilation.partition is not None:
        partition = compilation.partition
        facts.append(f"{byte_text(partition.saved_bytes)} kept for the backward pass ({partition.plan})")
        if compilation.backward is None and not compilation.fallback:
            facts.append("the backward half is compiled when it is first needed")
    seconds = sum(sum(half.timings.values()) for half in halves)
    if seconds:
        facts.append(f"compiled in {seconds_text(seconds)}")
    name = element("strong", compilation.name, class_="sx-title")
    parts = [element("div", name, " ", element("span", " · ".join(facts), class_="sx-muted"), class_="sx-headline")]
    for number, (missing, _) in enumerate(compilation.backward_halves(), 1):
        if missing:
            said = f"Backward{'' if number == 1 else f' {number}'} runs where a gradient is missing: {missing}."
            parts.append(element("p", said, class_="sx-note"))
    for half in halves:
        if half.restored:
            said = half.restored_text if half is compilation else f"backward half {half.restored_text}"
            parts.append(element("p", f"{said[0].upper()}{said[1:]}.", class_="sx-note"))
        if half.fallback_reason:
            whose = "Runs" if half is compilation else "The backward half runs"
            said = [f"{whose} operator by operator, without kernels: {half.fallback_reason}"]
            if half.fallback_remedy:
                said += [element("br"), element("strong", "Remedy:"), f" {half.fallback_remedy}"]
            parts.append(element("p", *said, class_="sx-note sx-warning"))
    return join(parts)


def assembly_panes(compilation: Any, full: bool = False) -> list[Pane]:
    """Machine code of the kernels: one pane for a processor, one for each step of Triton's compiler for a GPU. Where no
    compiler is at hand, the pane says so: the other stages are no worse for it."""
    kernels = [k for k in compilation.kernels or () if k.is_generated]
    if not kernels:
        return []
    shown = kernels if full else _within_limits(kernels, compilation.device.kind)
    panes = []
    for kind in GPU_LISTINGS if compilation.device.is_gpu else ("asm",):
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
    halves = {"": compilation}
    if compilation.backward is not None:
        halves = {"Forward": compilation} | {whose: half for whose, _, half in _backward_halves(compilation)}
    if compilation.key is not None or compilation.guards:
        from .specialization import specialization_pane

        yield "Key", lambda: [specialization_pane(compilation.key, compilation.guards)]
    decided = {whose: half.decisions for whose, half in halves.items() if half.decisions}
    if decided:
        yield "Why?", lambda: [_together({whose: _decisions_pane(taken) for whose, taken in decided.items()})]
    recorded = {whose: half.graphs for whose, half in halves.items() if half.graphs is not None}
    if recorded:
        yield "CUDA Graphs", lambda: [_together({w: panes_of(report).panes[0] for w, report in recorded.items()})]
    asked = {whose: half for whose, half in halves.items() if _is_worth_asking(half)}
    if asked:
        yield "What if?", lambda: [_together({whose: _what_if_pane(half) for whose, half in asked.items()})]
    if compilation.partition is not None and not compilation.fallback:
        yield "Memory over time", lambda: list(panes_of(compilation.memory()).panes)
    counted = {w: half for w, half in halves.items() if half.operators is not None and half.schedule is not None}
    if counted:
        from .traffic import panes

        yield "Traffic", lambda: [_together({whose: panes(half.traffic)[0] for whose, half in counted.items()})]
    built = {whose: half for whose, half in halves.items() if half.artifact is not None and half.artifact.build}
    if any(half.artifact.build.tasks for half in built.values()):
        from ..runtime.build_report import of_compilation

        yield "Build", lambda: [_together({w: panes_of(of_compilation(half)).panes[0] for w, half in built.items()})]
    if any(half.timings for half in halves.values()):
        yield "Path and timings", lambda: list(panes_of(compilation.flow).panes)


def _is_worth_asking(compilation: Any) -> bool:
    """Whether some values could be inlined or realized, and so few that all combinations are soon worked out."""
    if compilation.loops is None or compilation.kernels is None or len(compilation.kernels) > MOST_RELOWERED[1]:
        return False
    decisions = compilation.loops.decisions
    count = sum(d.topic == "realize" and len(d.candidates) > 1 for d in decisions)
    return 0 < count <= MOST_RELOWERED[0]


def _what_if_pane(compilation: Any) -> Pane:
    from ..measure.what_if import realization_table

    return replace(panes_of(realization_table(compilation)).panes[0], title="What if?")


def _decisions_pane(decisions: Any) -> Pane:
    table = decisions_table(decisions, "Every decision, in the order it was taken")
    count = f"{len(decisions)} decision{'' if len(decisions) == 1 else 's'}"
    return Pane("decisions", "Why?", table, count, plain_text(decisions))


def _together(panes: dict[str, Pane]) -> Pane:
    """The same pane of both halves as one, each below its heading; the only one as it is."""
    first = next(iter(panes.values()))
    if len(panes) == 1:
        return first
    body = join(part for whose, pane in panes.items() for part in (element("p", element("strong", whose)), pane.body))
    summary = "; ".join(f"{whose.lower()}: {pane.summary}" for whose, pane in panes.items())
    plain = "\n\n".join(f"{whose}\n{pane.plain}" for whose, pane in panes.items())
    return replace(first, body=body, summary=summary, plain=plain)


def stepper(compilation: Any) -> Any:
    """The interactive stepper as an ipywidgets widget. MissingDependencyError without ipywidgets."""
    from .stepper import build

    return build(compilation)
