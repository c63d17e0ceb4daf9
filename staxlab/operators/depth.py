"""Does taking operators apart come to an end? The depth of a decomposition rule (Section 4.8, Proposition 4.3).

A table of rules ``o => {o1, o2, ...}`` and a basis. An operator has depth 0 if it is in the basis or has no rule, else
one more than the deepest operator on the right-hand side of its rule. If every operator has a depth, that is, if no
rule leads back to its own operator, recursive decomposition ends: it is a measure like that of Proposition 4.1, with
depth in the place of the triple. If one has none, the operators between are a cycle and decomposition would go round in
it for ever; :class:`CyclicRulesError` names it. An operator of the basis is never taken apart, so putting any operator
of a cycle into the basis breaks it (Exercise 7).

Operators are any hashable values here: overloads of PyTorch, or the letters of an exercise.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import TransformError
from .graph import OperatorGraph

Rules = Mapping[Hashable, Iterable[Hashable]]


class CyclicRulesError(TransformError):
    """Decomposition rules lead from an operator back to itself. ``cycle`` names the operators on the way, the first
    one again at the end."""

    def __init__(self, cycle: tuple[Hashable, ...]):
        self.cycle = cycle
        super().__init__(
            f"the rules lead from {cycle[0]} back to itself: {' => '.join(map(str, cycle))}; no depth exists, and "
            "taking it apart would never end (Proposition 4.3)",
            remedy=f"put one of {', '.join(map(str, dict.fromkeys(cycle)))} into the basis, or change its rule",
        )


def depths(rules: Rules, basis: Collection[Hashable] = ()) -> dict[Hashable, int]:
    """The depth of every operator that occurs, by depth-first search: O(operators + right-hand sides), without
    recursion.

    >>> depths({"loss": ["sub", "mul", "mean"], "mean": ["sum", "div"]}, {"sub", "mul"})["loss"]
    2

    Raises CyclicRulesError, naming the operators of the cycle that the search meets first.
    """
    basis = frozenset(basis)
    known: dict[Hashable, int] = {}
    for start in rules:
        open_: list[tuple[Hashable, list[Hashable]]] = [(start, _parts(rules, basis, start))]
        path = {start: 0}  # operators being worked on, and where they stand on the way down
        while open_:
            current, left = open_[-1]
            while left and left[-1] in known:
                left.pop()
            if left:
                part = left[-1]
                if part in path:
                    raise CyclicRulesError((*list(path)[path[part] :], part))
                path[part] = len(open_)
                open_.append((part, _parts(rules, basis, part)))
                continue
            parts = _parts(rules, basis, current)
            # A rule that needs no operator at all still is one step.
            taken_apart = current in rules and current not in basis
            known[current] = 1 + max(map(known.__getitem__, parts), default=0) if taken_apart else 0
            open_.pop()
            del path[current]
    return known


def _parts(rules: Rules, basis: frozenset, one: Hashable) -> list[Hashable]:
    return [] if one in basis else list(reversed(list(rules.get(one, ()))))


def find_cycle(rules: Rules, basis: Collection[Hashable] = ()) -> tuple[Hashable, ...] | None:
    """The operators of a cycle among the rules that apply, or None if every operator has a depth."""
    try:
        depths(rules, basis)
    except CyclicRulesError as error:
        return error.cycle
    return None


BASIS, NO_RULE, RULE = "basis", "no rule", "rule"


@dataclass(frozen=True)
class Expansion:
    """An operator as the tree of what it is taken apart into. ``kind`` is "rule", or says why a leaf is one: "basis",
    or "no rule" (run by PyTorch itself). ``nodes`` are the names of the recorded nodes it stands for, where it was
    really recorded."""

    operator: str
    kind: str
    parts: tuple[Expansion, ...] = ()
    nodes: tuple[str, ...] = ()
    origins: frozenset[int] = field(default=frozenset())

    @property
    def depth(self) -> int:
        """The height of the tree, which for a rule that was recorded is the depth on these arguments."""
        if self.kind != RULE:
            return 0
        return 1 + max((part.depth for part in self.parts), default=0)

    @property
    def leaves(self) -> tuple[str, ...]:
        """The operators it ends in, each once, in order."""
        if self.kind != RULE:
            return (self.operator,)
        return tuple(dict.fromkeys(leaf for part in self.parts for leaf in part.leaves))

    def format(self) -> str:
        """An indented tree, a line for each operator.

        >>> print(expansion({"loss": ["sub", "mean"], "mean": ["sum"]}, {"sub", "sum"}, "loss"))
        loss: depth 2
        ├── sub (basis)
        └── mean: depth 1
            └── sum (basis)
        """
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        if self.kind == RULE:
            lines = [f"{self.operator}: depth {self.depth}"]
        else:
            lines = [f"{self.operator}{''.join(f' %{name}' for name in self.nodes)} ({self.kind})"]
        for position, part in enumerate(self.parts):
            is_last = position == len(self.parts) - 1
            head, rest = ("└── ", "    ") if is_last else ("├── ", "│   ")
            first, *others = part._lines()
            lines += [head + first, *(rest + line for line in others)]
        return lines

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def expansion(rules: Rules, basis: Collection[Hashable], root: Hashable) -> Expansion:
    """The tree of an operator according to a table. Raises CyclicRulesError if it has none."""
    reached, pending = {}, [root]
    while pending:
        one = pending.pop()
        if one not in reached and one in rules:
            reached[one] = tuple(rules[one])
            pending += reached[one] if one not in basis else ()
    depths(reached, basis)
    return _expand(rules, frozenset(basis), root)


def _expand(rules: Rules, basis: frozenset, one: Hashable) -> Expansion:
    if one in basis or one not in rules:
        return Expansion(str(one), BASIS if one in basis else NO_RULE)
    return Expansion(str(one), RULE, tuple(_expand(rules, basis, part) for part in rules[one]))


def expansions(record: OperatorGraph, basis: Collection[Any] = ()) -> tuple[Expansion, ...]:
    """What was taken apart while ``record`` was recorded: a tree for each operator that a rule replaced, its leaves the
    nodes that were recorded. ``basis`` tells leaves of the basis from those without a rule (empty: all are taken for
    members)."""
    made = {node.name: node for node in record.graph}
    done: list[tuple[frozenset[str], Expansion]] = []
    for entry in record.decomposed:  # an operator inside a rule is logged before the rule it belongs to
        mine = frozenset(entry.into)
        inner = [tree for names, tree in done if names and names <= mine]
        done = [(names, tree) for names, tree in done if not (names and names <= mine)]
        covered = {name for tree in inner for name in tree.nodes}
        leaves = [
            Expansion(made[name].target_name(), _kind(made[name].target, basis), nodes=(name,), origins=entry.origins)
            for name in entry.into
            if name in made and name not in covered and made[name].target is not operator.getitem
        ]
        place = {name: k for k, name in enumerate(entry.into)}
        parts = sorted([*inner, *leaves], key=lambda tree: min((place.get(n, 0) for n in tree.nodes), default=0))
        done.append((mine, Expansion(entry.operator, RULE, tuple(parts), entry.into, entry.origins)))
    return tuple(tree for _, tree in done)


def _kind(target: Any, basis: Collection[Any]) -> str:
    return BASIS if not basis or target in basis or not hasattr(target, "_schema") else NO_RULE
