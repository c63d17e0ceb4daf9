"""The pass that puts an operator in the place of attention written out by hand (Section 9.10).

For each product of a matrix of probabilities: is it attention (:mod:`.attention_patterns`), may it be replaced and by
what (:mod:`.attention_plans`), and is that worth it? Each answer is a ``Decision`` in the log. The new nodes are
ordinary ones, a call of ``scaled_dot_product_attention`` or of the attention operator between views that bring tensors
into the order (batch, head, query, key), so all that follows treats them as if the program had been written that way.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..capture.graph import Graph, Node, TensorMeta
from ..errors import OptionError
from ..options import Decision
from ..provenance import SourceLocation
from .attention_building import Builder
from .attention_patterns import Attention, Operand, candidates, recognise
from .attention_plans import (
    SMALLEST,
    GeneralPlan,
    LibraryPlan,
    general_plan,
    learns_a_matrix,
    library_plan,
    objection,
    traffic,
)
from .attention_products import Atom, Coordinates, count_products
from .effects import Effects
from .rewrite import Applied, Pass, describe

LIBRARY, GENERAL, WRITTEN = "scaled_dot_product_attention", "attention operator", "as written"
LAW = {
    LIBRARY: "softmax(scale * q @ k^T + mask) @ v -> scaled_dot_product_attention(q, k, v, mask, scale)",
    GENERAL: "softmax(f(q @ k^T, b, h, q, kv)) @ v -> attention(q, k, v, score_mod=f)",
}


@dataclass(frozen=True)
class GeneralCall:
    """What the attention operator is called with besides query, key and value: the operator, the name of its
    specification, the lists of its block mask, and for each tensor it reads the number among the plan's captured
    ones."""

    target: Any
    specification: str
    blocks: tuple[torch.Tensor, ...]
    order: tuple[int, ...]


#: Makes a :class:`GeneralCall` from a plan, the metadata of query, key and value, that of the captured tensors (as
#: read, [b, h, q, kv] without the axes along which they do not vary), and the user's line; or says why not.
General = Callable[[GeneralPlan, Sequence[TensorMeta], Sequence[TensorMeta], SourceLocation | None], GeneralCall | str]


def attention_pass(mode: str, decisions: dict[str, Decision], general: General | None = None) -> Pass:
    """The pass, for the option ``attention`` ("auto" or "require"). It notes in ``decisions``, by the name of the
    product with the values, what was decided. O(V) without a softmax; about a millisecond for each attention."""
    constants: dict[str, Any] = {}

    def run(graph: Graph) -> list[Applied]:
        applied: list[Applied] = []
        effects = Effects(graph)
        for weighted, probabilities, casts in list(candidates(graph)):
            found = recognise(weighted, probabilities, casts)
            root = weighted.node
            if found is None:
                _note(
                    decisions,
                    root,
                    WRITTEN,
                    "its scores are no product of two matrices with pointwise operations after it",
                )
                continue
            plan, decision = _decide(found, effects, mode, general)
            decisions[root.name] = decision
            if plan is None:
                continue
            done = _replace(graph, effects, found, plan, general, constants)
            if isinstance(done, str):
                _note(decisions, root, WRITTEN, done)
            else:
                applied.append(done)
        if mode == "require":
            _require(decisions, graph)
        return applied

    return Pass("ReplaceAttention", run, removes=count_products, constants=constants)


def _require(decisions: dict[str, Decision], graph: Graph) -> None:
    for node in graph:
        decision = decisions.get(node.name)
        if decision is not None and decision.choice == WRITTEN:
            raise OptionError(
                f"attention='require', but %{node.name} stays as it is written: {decision.reason}",
                where=node.location,
                remedy="rewrite it, call scaled_dot_product_attention or staxlab.omni_attention there, or use 'auto'",
            )


def _note(decisions: dict[str, Decision], root: Node, choice: str, reason: str, inputs: tuple = ()) -> None:
    decisions[root.name] = Decision("attention", root.name, choice, reason, (WRITTEN, LIBRARY, GENERAL), inputs)


# -- which ------------------------------------------------------------------------------------------------------------


def _decide(
    found: Attention, effects: Effects, mode: str, general: General | None
) -> tuple[LibraryPlan | GeneralPlan | None, Decision]:
    """The plan, if there is one and it is worth it, and the decision."""
    noted: dict[str, Decision] = {}
    root = found.root
    facts: tuple[tuple[str, Any], ...] = (("attention", str(found)),)
    problem = objection(found, effects)
    if problem is not None:
        _note(noted, root, WRITTEN, problem, facts)
        return None, noted[root.name]
    plan: LibraryPlan | GeneralPlan | str = library_plan(found)
    choice = LIBRARY
    if isinstance(plan, str):
        reason = plan
        other = general_plan(found) if general is not None else "the attention operator is not at hand"
        if isinstance(other, str):
            _note(noted, root, WRITTEN, f"{reason}; {other}" if other != reason else reason, facts)
            return None, noted[root.name]
        plan, choice = other, GENERAL
    moved = traffic(found, plan)
    facts += (("scores", moved.scores), ("written out", moved.written_out), ("rewritten", moved.rewritten))
    if mode != "require":
        if moved.scores < SMALLEST:
            _note(noted, root, WRITTEN, f"the scores are {moved.scores} bytes, and stay in the nearest cache", facts)
            return None, noted[root.name]
        if isinstance(plan, GeneralPlan) and root.val.device.type == "cpu" and learns_a_matrix(found, plan):
            words = "a gradient for every query and key is added up one by one on a CPU, and is as large as the scores"
            _note(noted, root, WRITTEN, words, facts)
            return None, noted[root.name]
        if moved.written_out <= moved.rewritten:
            words = f"the scores move {moved.written_out} bytes, and the operator would move {moved.rewritten} more"
            _note(noted, root, WRITTEN, words, facts)
            return None, noted[root.name]
    _note(
        noted,
        root,
        choice,
        f"{_what(plan)}; scores and probabilities of {moved.written_out} bytes never reach memory",
        facts,
    )
    return plan, noted[root.name]


def _what(plan: LibraryPlan | GeneralPlan) -> str:
    if isinstance(plan, GeneralPlan):
        hidden = f", visible where {plan.visible}" if plan.visible is not None else ""
        return f"the score becomes {plan.score}{hidden}"
    words = {"none": "a scale and nothing else", "causal": "a causal mask", "truth": "a mask of positions",
             "number": "a mask that is added"}[plan.mask]  # fmt: skip
    return words + (", NaN put back for rows without a key" if plan.guard else "")


# -- the replacement --------------------------------------------------------------------------------------------------


def _replace(
    graph: Graph,
    effects: Effects,
    found: Attention,
    plan: LibraryPlan | GeneralPlan,
    general: General | None,
    constants: dict[str, Any],
) -> Applied | str:
    root, inside = found.root, found.inside
    origins = frozenset().union(*(node.origins for node in inside))
    build = Builder(graph, root, found.path.coordinates, origins)  # type: ignore[arg-type]
    if isinstance(plan, LibraryPlan):
        result = _library(build, found, plan)
    else:
        assert general is not None
        result = _general(build, found, plan, general, constants)
    final = _laid_out(graph, build, found, result) if isinstance(result, Node) else result
    if not isinstance(final, Node):
        _erase(graph, build.created)
        return final or "an operand's axes do not go into the order (batch, head, query, key)"
    before = describe(inside)
    root.replace_all_uses_with(final)
    shapes = {user for node in inside for user in node.users if user not in inside}  # ones_like(scores) and its kind
    gone = [*shapes, *inside[::-1]]
    while dead := [node for node in gone if not node.users]:
        for node in dead:
            graph.erase(node)
            gone.remove(node)
    for node in build.created:
        effects.add(node)
    choice = LIBRARY if isinstance(plan, LibraryPlan) else GENERAL
    source = f"{__file__}:{_replace.__code__.co_firstlineno}"
    return Applied("recognise attention", LAW[choice], before, describe(build.created), origins, source)


def _erase(graph: Graph, created: list[Node]) -> None:
    for node in reversed(created):
        graph.erase(node)
    created.clear()


def _laid_out(graph: Graph, build: Builder, found: Attention, result: Node) -> Node | str:
    """The result with the root's axes, and in memory as the root's; or that it cannot be had."""
    expected = found.root.val
    kept = len(build.created)
    for first in (True, False):
        value = build.call("contiguous", result) if first and not result.val.is_contiguous else result
        value = build.restored(value, found.result_axes, expected.shape)
        if not first and expected.is_contiguous and not value.val.is_contiguous:
            value = build.call("contiguous", value)
        if _same_order(value.val, expected):
            return value
        _erase_from(graph, build, kept)
    return "its result lies in memory in an order that the operator's does not have"


def _erase_from(graph: Graph, build: Builder, kept: int) -> None:
    extra = build.created[kept:]
    _erase(graph, extra)
    del build.created[kept:]


def _same_order(a: TensorMeta, b: TensorMeta) -> bool:
    """Equal shapes, and equal strides wherever an axis has more than one element."""
    strides = zip(a.shape, a.stride, b.stride, strict=True)
    return a.shape == b.shape and all(x == y for extent, x, y in strides if extent > 1)


def _operands(build: Builder, found: Attention, shared: bool) -> list[Node | None]:
    key, value = (found.key, found.value) if shared else found.repeated
    return [_operand(build, found, x) for x in (found.query, key, value)]


def _operand(build: Builder, found: Attention, operand: Operand) -> Node | None:
    """An operand as [batch, head, row, feature], in the dtype that the product computes with."""
    node = operand.node
    if node.val.dtype != found.dtype:
        node = build.call("to", node, found.dtype)
    if operand.group == 1:
        return build.canonical(node, operand.axes, full=(0, 1))
    coordinates: Coordinates = found.path.coordinates  # type: ignore[assignment]
    (head,) = coordinates.groups[1]
    shared = (Atom(head.stride * operand.group, head.extent // operand.group),) if head.extent > operand.group else ()
    groups = (coordinates.groups[0], shared, *coordinates.groups[2:])
    return build.among(Coordinates(groups)).canonical(node, operand.axes, full=(0, 1))


def _library(build: Builder, found: Attention, plan: LibraryPlan) -> Node | None:
    operands = _operands(build, found, plan.shares_heads)
    if None in operands:
        return None
    rows = [x if x.val.stride[-1] == 1 or x.val.shape[-1] == 1 else build.call("contiguous", x) for x in operands]  # type: ignore[union-attr]
    keywords: dict[str, Any] = {"scale": plan.scale}
    if plan.shares_heads:
        keywords["enable_gqa"] = True
    mask = dead = None
    if plan.mask == "causal":
        keywords["is_causal"] = True
    elif plan.mask == "truth":
        mask = _visible(build, found, plan)
    elif plan.mask == "number":
        mask = _added(build, found, plan)
    if mask is None and plan.mask in ("truth", "number"):
        return None
    trains, kind = plan.guard.trains, plan.guard.kind
    if plan.guard and plan.mask == "truth":
        dead = build.call("logical_not", build.call("any", mask, -1, keepdim=True))
        if trains and kind == "fill":
            mask = build.call(operator.or_, mask, dead)
    elif plan.guard:
        finite = build.call(torch.isfinite, build.call("amax", mask, dim=-1, keepdim=True))
        dead = build.call("logical_not", finite)
        if trains and kind == "fill":
            mask = build.call("masked_fill", mask, dead, 0.0)
    if mask is not None:
        keywords["attn_mask"] = mask
    query = rows[0].val  # type: ignore[union-attr]
    shape = (*query.shape[:3], found.value_size)
    result = build.call(F.scaled_dot_product_attention, *rows, **keywords, val=_by_rows(shape, found.root.val))
    if dead is None:
        return result
    if trains and kind != "fill":
        factor = build.call("masked_fill", build.call(torch.ones_like, dead, dtype=found.dtype), dead, math.nan)
        return build.call(operator.mul, result, factor)
    result = build.call("masked_fill", result, dead, math.nan)
    return _poisoned(build, found, result, dead, ()) if trains else result


def _by_rows(shape: tuple[int, ...], root: TensorMeta) -> TensorMeta:
    """What the library delivers: [batch, head, query, feature] with the heads of a query next to each other."""
    batch, heads, queries, size = shape
    stride = (queries * heads * size, size, heads * size, 1)
    return TensorMeta(shape, stride, root.dtype, root.device, root.requires_grad)


def _poisoned(build: Builder, found: Attention, result: Node, dead: Node, others: Sequence[Node]) -> Node | None:
    """``result`` with a term that is 0, and NaN in dead rows, whose gradient makes NaN of all elements of the values
    (and of ``others``) where there is such a row: there eager's probabilities are NaN."""
    poison = build.call("masked_fill", build.call(torch.zeros_like, dead, dtype=found.dtype), dead, math.nan)
    value = _operand(build, found, found.repeated[1])
    if value is None:
        return None
    total = build.call("sum", value, -2, keepdim=True)
    for other in others:
        total = build.call(operator.add, total, other)
    if found.dtype.itemsize == 2:  # autocast sums in float32
        total = build.call("to", total, found.dtype)
    bounded = build.call("nan_to_num", total, nan=0.0, posinf=0.0, neginf=0.0)
    return build.call(operator.add, result, build.call(operator.mul, poison, bounded))


def _visible(build: Builder, found: Attention, plan: LibraryPlan) -> Node | None:
    """The truth mask [batch, head, query, key]: which positions are visible."""
    mask = None
    for step in plan.steps:
        if step.kind != "fill":
            continue
        value = build.canonical(step.value, step.axes)
        if value is None:
            return None
        if value.val.dtype is not torch.bool:  # zeros and minus infinities that the program adds
            one = build.call(operator.eq, value, 0)
        else:
            one = value if step.negated else build.call(operator.invert, value)
        mask = one if mask is None else build.call(operator.and_, mask, one)
    return mask


def _added(build: Builder, found: Attention, plan: LibraryPlan) -> Node | None:
    """The mask that is added, [batch, head, query, key] in the dtype of the scores: what the steps make of a zero."""
    mask = None
    root = found.root.val
    for step in plan.steps:
        if step.kind == "multiply":
            if mask is not None and step.value != 1.0:
                mask = build.call(operator.mul, mask, step.value)
            continue
        if not step.is_of_tensor:
            continue
        value = build.canonical(step.value, step.axes)
        if value is None:
            return None
        if step.kind == "fill" and value.val.dtype is torch.bool:
            hidden = build.call(operator.invert, value) if step.negated else value
            base = mask if mask is not None else build.call(torch.zeros, (), dtype=root.dtype, device=root.device)
            mask = build.call("masked_fill", base, hidden, step.filling)
            continue
        if value.val.dtype != root.dtype:
            value = build.call("to", value, root.dtype)
        if step.kind == "add" and step.factor != 1.0:
            value = build.call(operator.mul, value, step.factor)
        mask = value if mask is None else build.call(operator.add, mask, value)
    if mask is None or mask.val.ndim == 4:
        return mask
    return build.call("reshape", mask, (1,) * (4 - mask.val.ndim) + mask.val.shape)


def _general(
    build: Builder, found: Attention, plan: GeneralPlan, general: General, constants: dict[str, Any]
) -> Node | str | None:
    operands = _operands(build, found, shared=True)
    if None in operands:
        return None
    query, key, value = operands
    terms: list[Node] = []
    for node, axes in plan.captured:
        term = build.canonical(node, axes)
        if term is None:
            return None
        groups = build.coordinates.groups
        varies = [any(atom in part for part in axes for atom in group) for group in groups]
        shape = tuple(size for size, own in zip(term.val.shape, varies, strict=True) if own)
        terms.append(build.shaped(term, shape))
    location = found.softmax.argument.location
    made = general(plan, [x.val for x in operands], [term.val for term in terms], location)  # type: ignore[union-attr]
    if isinstance(made, str):
        return made
    blocks = [
        _constant(build, constants, f"attention_{found.root.name}_blocks_{k}", x) for k, x in enumerate(made.blocks)
    ]
    captured = [terms[number] for number in made.order]
    args = (query, key, value, blocks, captured, made.specification)
    result, lse = build.results(made.target, args, found.root.val.requires_grad)
    if not plan.guard:
        return result
    dead = build.call("logical_not", build.call(torch.isfinite, build.call("unsqueeze", lse, -1)))
    result = build.call("masked_fill", result, dead, math.nan)
    if not plan.guard.trains:
        return result
    others: list[Node] = []
    if plan.guard.kind != "fill":
        repeated = _operand(build, found, found.repeated[0])
        if repeated is None:
            return None
        others = [build.call("sum", query, -1, keepdim=True), build.call("sum", repeated, (-2, -1), keepdim=True)]
        for node, axes in plan.captured:
            if node.val.requires_grad:
                others.append(build.call("sum", build.canonical(node, axes), -1, keepdim=True))
    return _poisoned(build, found, result, dead, others)


def _constant(build: Builder, constants: dict[str, Any], name: str, value: torch.Tensor) -> Node:
    constants[name] = value
    return build.constant(name, TensorMeta.of(value))


__all__ = ["GENERAL", "LIBRARY", "WRITTEN", "GeneralCall", "attention_pass"]
