"""How a recognised attention may be computed without its matrix of scores, and what speaks against it.

Two forms are at hand. ``scaled_dot_product_attention`` takes a scale and a mask, which is added: scores that are
``scale * q k^T`` with additions and maskings behind it fit. The attention operator of Section 9.10 takes any pointwise
function.

*What must not change.* A softmax over a row of minus infinities is NaN, and both forms say 0 there. So a rewrite needs
a proof that every query sees a key, and there are two: a condition on the position alone that some key of every row
fulfils (:func:`.attention_scores.every_query_sees_a_key`), or maskings with finite numbers, after which such a row is
uniform. Otherwise the rows are found from the mask or from the sum of exponentials, and NaN is put back
(:class:`Guard`). In training NaN has to go back into the gradients as well: of a row that ``masked_fill`` hid, the
values'; of one to which minus infinity was added, all. Where a program does both, all of them get it: eager's may be
finite at keys that were hidden in such a row.

*What may.* Results round differently, within the error bound of both. Scores that overflow where the program rounds
them to half precision do not overflow here. Elements of keys and values that are not finite and belong to masked
positions reach eager's results as ``0 * inf``; whether they reach these is not specified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta
from .attention_expressions import (
    Call,
    Captured,
    Expression,
    Number,
    Score,
    call,
    is_causal,
    is_of_position,
    is_truth,
    parts_of,
)
from .attention_patterns import Attention
from .attention_scores import Step, every_query_sees_a_key, finite_where, visible
from .effects import Effects
from .operations import operation

#: Scores of fewer bytes stay in the nearest caches, whose traffic costs nothing that a library call would save.
SMALLEST = 1 << 16
#: What is filled in with a number below this hides a position as minus infinity does: no score is within rounding of
#: it.
HIDES = -1e30
LARGE = 1e6
#: The backward pass has one number of a row, the logarithm of its sum of exponentials. Where all scores of a row are
#: about -1e9, adding the logarithm of the sum to that changes no digit, and every probability would be made anew as 1.
#: From this magnitude on a number that is filled in must leave every row a score of another kind (Section 9.10).
LOSES_THE_SUM = 1e3
LARGEST_HEAD = 256
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Guard:
    """NaN for rows without a key. ``kind`` is "fill" where positions were hidden by ``masked_fill`` or ``where``,
    "add" where minus infinity may have been added, "any" where both or neither is known to be the reason; "none" if
    every row is proved to see a key."""

    kind: str
    trains: bool

    def __bool__(self) -> bool:
        return self.kind != "none"


@dataclass(frozen=True)
class LibraryPlan:
    """Arguments of ``scaled_dot_product_attention``. ``mask`` is "none", "causal", "truth" (what is visible) or
    "number" (what is added)."""

    scale: float
    mask: str
    steps: tuple[Step, ...]
    guard: Guard
    shares_heads: bool


@dataclass(frozen=True)
class GeneralPlan:
    """A ``score_mod`` for the attention operator, and what of it is a condition of visibility: ``whole`` is ``score``
    where ``visible`` holds and minus infinity elsewhere. ``captured`` are the tensors they read."""

    scale: float
    whole: Expression
    score: Expression
    visible: Expression | None
    captured: tuple[tuple[Node, tuple], ...]
    guard: Guard


# -- legality ---------------------------------------------------------------------------------------------------------


def objection(found: Attention, effects: Effects) -> str | None:
    """Why an attention must stay as it is written, in words; None if nothing speaks against replacing it."""
    inside = set(found.inside)
    for node in found.inside[:-1]:
        for user in node.users:
            if user not in inside and not _reads_shape_only(user, inside):
                return f"%{node.name} is read by %{user.name} as well"
    for node in found.inside:
        for fact, words in (("random", "draws random numbers"), ("mutates", "writes into its argument"),
                            ("foreign", "is no operation of PyTorch's")):  # fmt: skip
            if node.meta.get(fact):
                return f"%{node.name} {words}"
        if effects.is_written(node):
            return f"%{node.name} is written to"
    operands = [x.node for x in (found.query, found.key, found.value, *found.repeated)]
    terms = [x for node in found.inside for x in node.inputs if x not in inside]
    found.path.expression  # noqa: B018  (what it is read from counts as read)
    for node in (*operands, *terms, *found.path.reader.seen):
        if effects.is_written(node):
            return f"%{node.name}, which is read, is written to"
    if found.path.expression is not None and turns_infinity(found.path.expression):
        return "a position is hidden with minus infinity, and that is turned into something else"
    if any(operation(node) == "logsumexp" for node in found.softmax.inside) and not _is_moderate(found):
        return "exp(x - logsumexp(x)) does not sum to one where scores are large, and what is added here may be"
    return _type_objection(found, operands)


def turns_infinity(expression: Expression) -> bool:
    """Whether an infinity that the program writes may reach anything but a sum or a choice: ``-masked`` is infinity
    where ``masked`` hides, and its softmax is NaN for reasons that no mask shows."""
    for part in parts_of(expression):
        if isinstance(part, Number) and part.value == math.inf:
            return True
        if not isinstance(part, Call) or is_truth(part) or part.name in ("where", "to", "add"):
            continue
        infinite = [_may_be_infinite(argument) for argument in part.args]
        if not any(infinite):
            continue
        if part.name == "sub" and infinite == [True, False]:
            continue
        others = [argument for argument, own in zip(part.args, infinite, strict=True) if not own]
        by = others[0].value if len(others) == 1 and isinstance(others[0], Number) else None
        positive = isinstance(by, (int, float)) and 0 < by < math.inf
        if not (positive and (part.name == "mul" or (part.name == "div" and infinite[0]))):
            return True
    return False


def _may_be_infinite(expression: Any) -> bool:
    """Whether the program itself writes an infinity into it. Data may always be infinite."""
    if isinstance(expression, Number):
        return isinstance(expression.value, float) and math.isinf(expression.value)
    if not isinstance(expression, Call) or is_truth(expression):
        return False
    parts = expression.args[1:] if expression.name == "where" else expression.args
    return any(_may_be_infinite(part) for part in parts)


def _is_moderate(found: Attention) -> bool:
    """Whether nothing but the scores themselves can be large: no data is added, and no number beyond a million. The
    rounding error of the logarithm is a factor of exp(x - logsumexp(x)): harmless at 10, but as large as the number of
    keys where a whole row is -1e9."""
    if found.path.expression is None:
        return False
    parts = parts_of(found.path.expression)
    numbers = [part.value for part in parts if isinstance(part, Number) and not isinstance(part.value, bool)]
    captured = [found.path.reader.captured[part.number][0] for part in parts if isinstance(part, Captured)]
    small = all(abs(value) < LARGE or value == -math.inf for value in numbers)
    return small and not any(node.val.dtype.is_floating_point for node in captured)


def _reads_shape_only(node: Node, inside: set[Node]) -> bool:
    """``torch.ones_like(scores)`` for a mask: goes with what it is for."""
    name = operation(node) or ""
    return (
        name.endswith("_like")
        and not node.meta.get("random")
        and all(user in inside or _reads_shape_only_through(user, inside) for user in node.users)
    )


def _reads_shape_only_through(node: Node, inside: set[Node]) -> bool:
    return bool(node.users) and all(user in inside for user in node.users)


def _type_objection(found: Attention, operands: list[Node]) -> str | None:
    """The dtypes: products are in that of the operands, and nothing between rounds to fewer digits."""
    root = found.root.val
    if root.dtype not in FLOATING:
        return f"the dtype is {root.dtype}"
    if root.device.type not in ("cpu", "cuda"):
        return f"the device is {root.device}"
    for node in operands:  # under autocast a product takes what is finer, and rounds it first
        if node.val.device != root.device or node.val.dtype.itemsize < root.dtype.itemsize:
            return f"%{node.name} is {node.val} on {node.val.device}, the result {root} on {root.device}"
    finer = {torch.float64: (torch.float64,), torch.float32: (torch.float32,)}.get(
        root.dtype, (root.dtype, torch.float32)
    )
    for node in found.inside:
        for value in node.val if isinstance(node.val, tuple) else (node.val,):
            inexact = isinstance(value, TensorMeta) and value.dtype.is_floating_point and value.dtype not in finer
            if inexact:
                return f"%{node.name} is {value.dtype}, in an attention of {root.dtype}"
    if found.path.scores.node.val.dtype != root.dtype:
        return f"the scores are {found.path.scores.node.val.dtype}, the result {root.dtype}"
    return None


# -- rows without a key -----------------------------------------------------------------------------------------------


def guard(found: Attention) -> Guard:
    """Whether NaN has to be put back, and in which way."""
    trains = found.root.val.requires_grad
    path = found.path
    if path.expression is not None:
        condition = finite_where(path.expression, [node for node, _ in path.reader.captured])
        if condition is not None and every_query_sees_a_key(condition, found.sizes):
            return Guard("none", trains)
    if path.expression is not None:
        kinds = hiding(path.expression, [node for node, _ in path.reader.captured])
    elif path.steps is not None:
        kinds = {"add" if step.kind == "add" else "fill" for step in path.steps if _may_hide(step)}
    else:
        kinds = {"fill", "add"}
    return Guard("none" if not kinds else kinds.pop() if len(kinds) == 1 else "any", trains)


def hiding(expression: Any, captured: Sequence[Node]) -> set[str]:
    """How a modified score may become minus infinity: "fill", by a choice between that and a score, through which no
    gradient goes, and "add", by a term."""
    if isinstance(expression, Captured):
        return {"add"} if captured[expression.number].val.dtype.is_floating_point else set()
    if isinstance(expression, Number):
        return set() if isinstance(expression.value, (bool, int)) or math.isfinite(expression.value) else {"add"}
    if not isinstance(expression, Call) or is_truth(expression):
        return set()
    parts = [*expression.args, *(value for _, value in expression.keywords)]
    if expression.name == "where":
        _, yes, no = expression.args
        parts = [yes, no]
        for filled, other in ((yes, no), (no, yes)):
            if filled == Number(-math.inf) and any(isinstance(part, Score) for part in parts_of(other)):
                return {"fill"} | hiding(other, captured)
    return set().union(*(hiding(part, captured) for part in parts))


def _may_hide(step: Step) -> bool:
    if step.kind == "fill":
        return step.filling == -math.inf
    value = step.value.val if isinstance(step.value, Node) else None
    return step.kind == "add" and isinstance(value, TensorMeta) and value.dtype.is_floating_point


# -- plans ------------------------------------------------------------------------------------------------------------


def library_plan(found: Attention) -> LibraryPlan | str:
    """The arguments for ``scaled_dot_product_attention``, or why it cannot be."""
    steps, root = found.path.steps, found.root.val
    if steps is None:
        return "what stands between the product and the softmax is no scale and no mask"
    if found.value_size != found.head_size:
        return f"values have {found.value_size} features, queries {found.head_size}"
    if root.device.type == "cuda" and (found.head_size > LARGEST_HEAD or root.dtype == torch.float64):
        return "the library has no kernel for it that forms no matrix of scores"
    if root.device.type == "cuda" and root.requires_grad and torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for, and the library's gradients add in any order"
    scale = float(math.prod(step.value for step in steps if step.kind == "multiply"))
    if not scale > 0 or not math.isfinite(scale):
        return f"the scale is {scale:g}"
    others = tuple(step for step in steps if step.kind != "multiply" and step.is_of_tensor)
    after: float = 1.0
    for step in reversed(steps):  # what is filled in, and multiplied afterwards
        after *= step.value if step.kind == "multiply" else 1.0
        if step.kind == "fill" and after != 1.0 and (after <= 0 or step.filling != -math.inf):
            return f"positions are hidden with {step.filling:g}, and the scores multiplied by {after:g} afterwards"
    found_guard = guard(found)
    condition = visible(others)
    captured = [node for node, _ in found.path.reader.captured]
    added = [step.term for step in others if step.kind == "add"]
    finite = all(term is not None and finite_where(term, captured) == Number(True) for term in added)
    sees = finite and condition is not None and every_query_sees_a_key(condition, found.sizes)
    for step in others:
        problem = _step_problem(step, root, sees)
        if problem is not None:
            return problem
    fills = [step for step in others if step.kind == "fill"]
    hidden = all(step.filling == -math.inf or (sees and step.filling <= _lowest(root.dtype)) for step in fills)
    mask = "none" if not others else "truth" if len(fills) == len(others) and hidden else "number"
    if mask == "truth":
        if condition is not None and is_causal(condition) and found.sizes[2] == found.sizes[3]:
            mask = "causal"
    shares = found.key.group > 1 and (
        root.device.type == "cpu" or (root.dtype.itemsize == 2 and mask in ("none", "causal"))
    )
    return LibraryPlan(scale, mask, steps, found_guard, shares)


def _lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


def _step_problem(step: Step, root: TensorMeta, sees: bool) -> str | None:
    """Why a step is no mask of ``scaled_dot_product_attention``. ``sees``: every query is proved to see a key."""
    value = step.value
    if step.kind == "fill":
        if step.filling == -math.inf:
            return None
        if step.filling < _lowest(root.dtype):
            return f"hidden positions get {step.filling:g}, which {root.dtype} does not hold"
        if sees and step.filling <= max(HIDES, _lowest(root.dtype)):
            return None
        # Hidden throughout, a row is uniform, and so it is with the number added; only gradients go through an
        # addition.
        if step.filling <= HIDES and root.dtype is not torch.float16 and not root.requires_grad:
            return None
        return f"hidden positions get {step.filling:g}, which added to a score is not the same"
    if value.val.requires_grad:
        return f"%{value.name} is added, and the library forms the matrix of scores for its gradient"
    dtype = value.val.dtype
    narrower = dtype == root.dtype or (root.dtype == torch.float64 and not dtype.is_complex)
    narrower = narrower or (root.dtype == torch.float32 and dtype in (torch.float16, torch.bfloat16, torch.bool))
    return None if narrower else f"%{value.name} is {dtype}, which a mask of {root.dtype} does not hold"


def general_plan(found: Attention) -> GeneralPlan | str:
    """The modification for the attention operator, or why it cannot be."""
    expression, root = found.path.expression, found.root.val
    if expression is None:
        return "what stands between the product and the softmax is no pointwise function of score and position"
    if root.device.type == "cuda" and root.dtype == torch.float64:
        return "float64 is for CPUs"
    if max(found.head_size, found.value_size) > LARGEST_HEAD:
        return f"rows of more than {LARGEST_HEAD} elements do not stay on the chip"
    found_guard = guard(found)
    scale, expression = _without_scale(expression)
    captured = [node for node, _ in found.path.reader.captured]
    whole = expression
    expression, seen = _parted(whole, HIDES)
    if seen is not None:  # a low number hides where every query sees another key, counting all that hides
        inner = finite_where(expression, captured)
        if inner is None or not every_query_sees_a_key(_both(seen, inner), found.sizes):
            expression, seen = _parted(whole, -math.inf)
    if root.requires_grad and _loses_the_sum(found, whole, captured):
        return "a row whose scores were all a large number would get other gradients: its sum is lost beside the number"
    return GeneralPlan(scale, whole, expression, seen, tuple(found.path.reader.captured), found_guard)


def _loses_the_sum(found: Attention, whole: Expression, captured: Sequence[Node]) -> bool:
    """Whether all scores of a row may be replaced by, or sums with, numbers that drown the logarithm of their sum."""

    def large(expression: Expression) -> bool:
        numbers = [part.value for part in parts_of(expression) if isinstance(part, Number)]
        return any(isinstance(n, (int, float)) and math.isfinite(n) and abs(n) >= LOSES_THE_SUM for n in numbers)

    if not large(whole):
        return False
    rest, seen = _parted(whole, -LOSES_THE_SUM)
    if seen is None or large(rest):
        return True
    inner = finite_where(rest, captured)
    return inner is None or not every_query_sees_a_key(_both(seen, inner), found.sizes)


def _parted(expression: Expression, highest: float) -> tuple[Expression, Expression | None]:
    """An expression without the choices around it that hide positions, and the condition under which they do not: those
    between a score and a number that is at most ``highest``, by the position alone."""
    seen: Expression | None = None
    while isinstance(expression, Call) and expression.name == "where":
        condition, yes, no = expression.args
        if not is_of_position(condition):
            break
        if _is_at_most(yes, highest):
            one, expression = call("bitwise_not", condition), no
        elif _is_at_most(no, highest):
            one, expression = condition, yes
        else:
            break
        seen = one if seen is None else _both(seen, one)
    return expression, seen


def _is_at_most(value: Any, highest: float) -> bool:
    return isinstance(value, Number) and isinstance(value.value, float) and value.value <= highest


def _both(left: Expression, right: Expression) -> Expression:
    if Number(True) in (left, right):
        return right if left == Number(True) else left
    return call("bitwise_and", left, right)


def _without_scale(expression: Expression) -> tuple[float, Expression]:
    """The number by which the score is multiplied before anything else, and the expression in the scaled score."""
    scale = 1.0
    while True:
        users = _users_of_score(expression)
        if len(users) != 1:
            return scale, expression
        (user,) = users
        number = user.args[1] if len(user.args) == 2 and isinstance(user.args[1], Number) else None
        if user.keywords or number is None or not isinstance(number.value, (int, float)) or number.value == 0:
            return scale, expression
        if user.name not in ("mul", "div") or not isinstance(user.args[0], Score) or not math.isfinite(number.value):
            return scale, expression
        scale = scale * number.value if user.name == "mul" else scale / number.value
        expression = _replaced(expression, user)


def _users_of_score(expression: Expression) -> set[Call]:
    found: set[Call] = set()
    pending, seen = [expression], set()
    while pending:
        part = pending.pop()
        if not isinstance(part, Call) or id(part) in seen:
            continue
        seen.add(id(part))
        values = [*part.args, *(value for _, value in part.keywords)]
        if any(isinstance(x, Score) for x in values):
            found.add(part)
        pending += values
    return found


def _replaced(expression: Any, old: Expression) -> Any:
    if expression == old:
        return Score()
    if not isinstance(expression, Call):
        return expression
    return Call(expression.name, tuple(_replaced(x, old) for x in expression.args),
                tuple((key, _replaced(x, old)) for key, x in expression.keywords))  # fmt: skip


# -- is it worth it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Bytes that main memory moves for what differs between the two forms: ``written_out`` is the scores and the
    probabilities, written and read once each, ``rewritten`` the mask that is put together and the copy into eager's
    layout, ``scores`` the matrix itself."""

    scores: int
    written_out: int
    rewritten: int


def traffic(found: Attention, plan: LibraryPlan | GeneralPlan) -> Traffic:
    """The bytes by count of elements: each matrix of scores once out and once in."""
    batch, heads, queries, keys = found.sizes
    elements, size = batch * heads * queries * keys, found.dtype.itemsize
    scores = elements * size
    result = batch * heads * queries * found.value_size * size
    if isinstance(plan, LibraryPlan):
        terms = [step.value for step in plan.steps if isinstance(step.value, Node)]
        mask = 2 * max((node.val.numel for node in terms), default=0) * size if plan.mask in ("truth", "number") else 0
        again = 2 * result + mask
    else:
        again = sum(_read(node, axes, found) for node, axes in plan.captured)
        again += 2 * 4 * elements if learns_a_matrix(found, plan) else 0  # added to in float32, tile by tile
    again += 2 * result if plan.guard else 0
    return Traffic(scores, 4 * scores, again)


def learns_a_matrix(found: Attention, plan: GeneralPlan) -> bool:
    """Whether a tensor that the modification reads gets a gradient of its own for every query and key."""
    groups = found.path.coordinates.groups  # type: ignore[union-attr]
    return plan.guard.trains and any(
        node.val.requires_grad and all(any(atom in part for part in axes for atom in groups[axis]) for axis in (2, 3))
        for node, axes in plan.captured
    )


def _read(node: Node, axes: tuple, found: Attention) -> int:
    """Bytes of a captured tensor that tiles read: all of it for each batch and head that it does not vary along."""
    groups = found.path.coordinates.groups  # type: ignore[union-attr]
    varies = [any(atom in part for part in axes for atom in group) for group in groups]
    again = math.prod(size for size, own in zip(found.sizes[:2], varies[:2], strict=True) if not own)
    return node.val.nbytes * (again if all(varies[2:]) else 1)
