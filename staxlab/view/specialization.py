"""The specialization key and its guards (Section 2), drawn: for which inputs a compiled version holds.

A key is a tree: its four parts (Definition 2.2), below them arguments and free variables as deep as they are nested,
and at the ends the components with their paths and values. A guard is a projection of the key (Definition 2.3), so the
table of guards says the same as a list of conditions, grouped by what they are about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .diagram import shortened
from .document import Pane
from .markup import Html, element, join, table
from .registry import plain_text

_ABOUT = {
    "ambient": "surroundings",
    "aliasing": "memory overlap",
    "gate": "data gates",
    "length": "containers",
    "keys": "containers",
}


def _subject(guard: Any) -> str:
    """What a guard is about: ``x`` for ``x.shape[0]`` and for ``type(x)``."""
    root = re.match(r"(?:\w+\()?([A-Za-z_][\w]*)", guard.path)
    about = _ABOUT.get(guard.kind)
    if about and not (guard.kind in ("length", "keys") and root and "(" in guard.path and root.group(1) != "args"):
        return about
    return root.group(1) if root else guard.path


def guards_table(guards: Iterable[Any]) -> Html:
    """A row per subject with everything that is asked of it."""
    groups: dict[str, list[Any]] = {}
    for guard in guards:
        groups.setdefault(_subject(guard) if hasattr(guard, "path") else "guards", []).append(guard)
    rows = []
    for subject, members in groups.items():
        conditions = [element("li", element("code", _text(guard))) for guard in members]
        rows.append([subject, element("ul", conditions, class_="sx-plain sx-wrapped")])
    return table("A later call shares this version exactly if all of this holds", ["about", "guards"], rows)


def _text(guard: Any) -> str:
    return getattr(guard, "condition", None) or str(guard)


def specialization_pane(key: Any, guards: Iterable[Any] = ()) -> Pane:
    """The pane "key". Without given guards, they are projected from the key."""
    guards = list(guards)
    if not guards and key is not None and hasattr(key, "sigma"):
        from ..specialize.guards import guards as project

        guards = list(project(key))
    if not guards:
        body = element("p", "Nothing is asked: one version serves all calls.", class_="sx-note")
    elif key is not None and hasattr(key, "sigma"):
        summary = element("summary", "as a list of guards, by what they are about")
        body = join([key_tree(key), element("details", summary, guards_table(guards), class_="sx-more")])
    else:
        body = guards_table(guards)
    summary = f"{len(guards)} guard{'' if len(guards) == 1 else 's'}"
    return Pane("key", "Key", body, summary, plain_text(key) if key is not None else "\n".join(map(str, guards)))


def panes(record: Any) -> list[Pane]:
    """A key, or a single guard."""
    return [specialization_pane(record)] if hasattr(record, "sigma") else [specialization_pane(None, [record])]


# -- the tree ------------------------------------------------------------------------------------------------------

_WRAPPER = re.compile(r"(?:type|len|list|fields|vars)\((.+)\)")
_TOKEN = re.compile(r"""\.\w+(?:\(\d*\))?|\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]'"]*)\]""")
_ROOT = re.compile(r"[A-Za-z_]\w*|<[^<>]*>")
_METADATA = frozenset((".ndim", ".shape", ".dtype", ".device", ".requires_grad", ".stride"))
# Kinds of components that are about the place itself: ``config.shape`` may be an attribute of the user's own.
_OF_OBJECTS = frozenset(("type", "value", "identity", "length", "keys"))
OPEN_BELOW = 8  # a part with at most this many components starts open


@dataclass
class Branch:
    """A place in the tree: its path, the components that belong to it, and the places below it by their last step."""

    path: str
    leaves: list[Any] = field(default_factory=list)
    below: dict[str, Branch] = field(default_factory=dict)

    def guards(self) -> Iterator[Any]:
        yield from self.leaves
        for branch in self.below.values():
            yield from branch.guards()

    def add(self, steps: list[str], guard: Any) -> None:
        here = self
        for step in steps:
            here = here.below.setdefault(step, Branch(here.path + step))
        here.leaves.append(guard)


def steps_to(guard: Any) -> list[str]:
    """The way to the object a component is about: ``["self", ".layers", "[3]", ".weight"]`` for the dtype of a weight.
    Empty for a component that is about no object of the user's (gradient mode, the memory overlap)."""
    path = guard.path
    while wrapped := _WRAPPER.fullmatch(path):
        path = wrapped.group(1)
    root = _ROOT.match(path)
    if root is None or guard.kind in ("ambient", "aliasing", "gate") or path in ("args", "keywords"):
        return []
    steps, at = [root.group()], root.end()
    while at < len(path):
        token = _TOKEN.match(path, at)
        if token is None:
            return []
        steps.append(token.group())
        at = token.end()
    if guard.kind not in _OF_OBJECTS:
        ends = [k for k, step in enumerate(steps) if k and step.partition("(")[0] in _METADATA]
        return steps[: ends[-1]] if ends else steps
    return steps


def key_tree(key: Any) -> Html:
    """A key as a tree that folds: the parts of Definition 2.2, then objects, then components with their values."""
    from ..specialize.guards import guards as project
    from ..specialize.report import PARTS, counted, parts_of

    part_of = parts_of(key)
    drawn = []
    for part, title in PARTS.items():
        members = [guard for guard in project(key) if part_of[guard.path] == part]
        root = Branch("")
        for guard in members:
            root.add(steps_to(guard), guard)
        count = element("span", f" {counted(len(members), 'component') if members else 'empty'}", class_="sx-muted")
        summary = element("summary", element("strong", title), count)
        inside = element("ul", _inside(root)) if members else None
        is_open = part == "sigma" or 0 < len(members) <= OPEN_BELOW
        drawn.append(element("details", summary, inside, open=is_open, data_part=part))
    return element("div", drawn, class_="sx-tree", role="group", aria_label="The specialization key as a tree")


def _inside(branch: Branch) -> list[Html]:
    leaves = [element("li", element("code", f"{g.path} = "), element("code", _value(g))) for g in branch.leaves]
    return leaves + [element("li", _branch(below)) for below in branch.below.values()]


def _branch(branch: Branch) -> Html:
    while not branch.leaves and len(branch.below) == 1:  # self.encoder.layers, where nothing else hangs on the way
        (branch,) = branch.below.values()
    about = element("span", " ", _about_object(branch), class_="sx-muted")
    summary = element("summary", element("code", branch.path), about)
    return element("details", summary, element("ul", _inside(branch)))


def _about_object(branch: Branch) -> str:
    """What hangs at a place, in short: ``float32[4, 8]``, ``int 3``, ``12 components``."""
    values = {(guard.kind, guard.path.removeprefix(branch.path)): _value(guard) for guard in branch.leaves}
    dtype = values.get(("dtype", ".dtype"))
    if dtype is not None:
        extents = [value for (_, rest), value in values.items() if rest.startswith(".shape[")]
        return f"{dtype}[{', '.join(extents)}]"
    plain = values.get(("value", ""))
    if plain is not None and not branch.below:
        kind = next((value for (kind, _), value in values.items() if kind == "type"), "")
        return shortened(f"{kind} {plain}".strip(), 60)
    identity = values.get(("identity", ""))
    if identity is not None and not branch.below:
        return shortened(identity, 60)
    count = sum(1 for _ in branch.guards())
    return f"{count:,} component{'' if count == 1 else 's'}"


def _value(guard: Any) -> str:
    from ..specialize.report import value_text

    return value_text(guard.expected)
