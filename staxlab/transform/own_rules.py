"""Rules from outside: what ``transform(..., rules=[...])`` runs beside the rewrites of the package (Section 4.1).

A rule written with :class:`~staxlab.transform.patterns.Rule` says what may replace what. Everything else that a rewrite
has to look after is looked after here, so that a rule stays one line:

* types: all tensors that the variables stand for have the dtype and device of the result, and where a variable alone
  is left, its shape and strides as well (Section 4.2, conditions 1 and 2);
* memory: nothing that was matched is written, random or a view, and no output becomes an input or another output
  (condition 3);
* truth: the replacement is tried out on the sample (:mod:`.trial`). One that changes dtype, shape, strides, aliasing or
  values is refused with an error that names the rule, the node and the user's line: the rule is wrong, or lacks a
  condition;
* what the pattern leaves behind: operations that only it used are removed at once, so the measure of Proposition 4.1
  sees what the rule did. Where something in the middle is read elsewhere and has to stay, new operations would be
  added and none saved; there the rule is not applied. A rule that does not lower the measure is refused by the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..capture.graph import Graph, Node, TensorMeta
from ..errors import TransformError
from .effects import Effects
from .patterns import Apply, Bindings, Expr, Rule, Var, build, same_metadata, same_strides
from .rewrite import Applied, Pass, describe
from .trial import Trial


def own_pass(
    rules: Sequence[Rule],
    name: str = "OwnRules",
    *,
    samples: Sequence[Any] | None = None,
    constants: dict[str, Any] | None = None,
) -> Pass:
    """A pass that applies each rule wherever it may be applied, in one walk over the graph. O(V + E) matches for each
    rule, and at most one run of the graph on ``samples`` (a tensor for each placeholder) to try the rules out."""
    rules = tuple(rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TransformError(f"{rule!r} is no rule", remedy='write Rule("name", pattern, replacement)')
        if not isinstance(rule.pattern, Apply):
            raise TransformError(
                f"rule {rule.name!r} has no operation to look for: its pattern is {rule.pattern}",
                remedy="write an operation over variables, such as x + 0",
            )
        if isinstance(rule.replace, Expr) and (unknown := _variables(rule.replace) - _variables(rule.pattern)):
            raise TransformError(
                f"rule {rule.name!r} replaces by {rule.replace}, but nothing stands for {', '.join(sorted(unknown))}",
                remedy="use the variables of the pattern",
            )

    def run(graph: Graph) -> list[Applied]:
        applied: list[Applied] = []
        effects = Effects(graph)
        trial = Trial(graph, effects, constants or {}, samples)
        gone: set[Node] = set()
        for node in graph:
            for rule in rules if node not in gone else ():
                bindings = rule.match(node)
                if bindings is None:
                    continue
                done = _replace(graph, effects, trial, node, rule, bindings, gone)
                if done is not None:
                    applied.append(done)
                    break
        return applied

    return Pass(name, run)


def _variables(part: Any) -> set[str]:
    if isinstance(part, Var):
        return {part.name}
    if not isinstance(part, Apply):
        return set()
    return set().union(*map(_variables, (*part.args, *(value for _, value in part.kwargs))))


def _replace(
    graph: Graph, effects: Effects, trial: Trial, node: Node, rule: Rule, bindings: Bindings, gone: set[Node]
) -> Applied | None:
    covered = _covered(rule.pattern, node)
    if not _may_touch(effects, node, covered, bindings):
        return None
    replacement = rule.replacement(node, bindings)
    refuse = partial(_refuse, rule, node, replacement)
    before = describe(covered[::-1])
    origins = frozenset().union(*(part.origins for part in covered))
    if isinstance(replacement, Var):
        other, created = bindings[replacement.name], []
        if not same_metadata(node, other) or not same_strides(node, other):
            return None
        if not effects.may_replace(node, other):
            return None
        refuse(trial.different_value(node, other))
    elif isinstance(replacement, Apply):
        if any(user not in covered for part in covered[1:] for user in part.users):
            return None
        other, created = build(graph, replacement, bindings, node)
        for new in created:
            effects.add(new)
            new.origins |= origins
        bound = {name: value for name, value in bindings.items() if isinstance(value, Node)}
        refuse(trial.objection(node, created, bound))
    else:
        raise TransformError(
            f"rule {rule.name!r} replaces a tensor by {replacement!r}",
            remedy="let the replacement be a variable of the pattern or an operation",
        )
    trial.learn(node, other)
    node.replace_all_uses_with(other)
    effects.merge(node, other)
    other.origins |= origins
    for part in covered:  # the root first: what it read may have no reader left
        if not part.users and part is not other:
            graph.erase(part)
            gone.add(part)
    return Applied(rule.name, rule.law, before, describe(created or [other]), origins, rule.source)


def _refuse(rule: Rule, node: Node, replacement: Any, objection: str | None) -> None:
    if objection is not None:
        raise TransformError(
            f"rule {rule.name!r}, {rule.law}, is refused at %{node.name}: its replacement {replacement} {objection}\n"
            f"  the rule is written at {rule.source}",
            where=node.location,
            remedy="correct the rule, or give it a condition that leaves this node alone: Rule(..., where=condition)",
        )


def _covered(pattern: Any, value: Any) -> list[Node]:
    """The nodes an expression was matched with, from the root down, each once."""
    found: dict[Node, None] = {}

    def visit(part: Any, node: Any) -> None:
        if isinstance(part, Apply):
            found[node] = None
            for inner, argument in zip(part.args, node.args, strict=True):
                visit(inner, argument)
            for name, inner in part.kwargs:
                visit(inner, node.kwargs[name])

    visit(pattern, value)
    return list(found)


def _may_touch(effects: Effects, root: Node, covered: list[Node], bindings: Bindings) -> bool:
    tensors = [value for value in bindings.values() if isinstance(value, Node)]
    if not isinstance(root.val, TensorMeta) or any(not isinstance(node.val, TensorMeta) for node in tensors):
        return False
    if any((node.val.dtype, node.val.device) != (root.val.dtype, root.val.device) for node in tensors):
        return False
    facts = ("mutates", "random", "aliases", "may_fail", "foreign")
    if any(node.meta.get(fact) for node in covered for fact in facts):
        return False
    return not any(effects.is_written(node) for node in (*covered, *tensors))
