"""What Exercise 15 runs: merging on floats, on segments without keys and on symbols; gradients beside autograd's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ...attention.lse_backward import probabilities, score_gradient
from ...attention.online_softmax import State
from ...measure.online_softmax import equal_parts, load_sympy, symbolic_parts
from ..algebra import to_sympy
from ..answers import Callee, Quantity
from ..claims import integers
from ..feedback import Verdict, nearly, right, wrong
from ..judges import Judge, Slip, call_failed, same_quantity, unexpected_result
from ..variants import generator
from . import ex15_answers

if TYPE_CHECKING:
    from .ex15 import Variant

Triple = tuple[Any, Any, Any]
TOLERANCE = 1e-9
NOTHING: Triple = (-math.inf, 0.0, 0.0)


# --- Merging ----------------------------------------------------------------------------------------------------------


def merged_triple(x: Sequence[float], y: Sequence[float]) -> Triple:
    """The package's own merge of two states of one value each."""
    one, other = (State(*(torch.tensor([v], dtype=torch.float64) for v in t[:2]),
                        torch.tensor([[t[2]]], dtype=torch.float64)) for t in (x, y))  # fmt: skip
    found = one.merge(other)
    return found.maximum.item(), found.total.item(), found.accumulated.item()


#: name of a mistake: the function that makes it, and what to say.
MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "added": (ex15_answers.added, "The sums are relative to different maxima: they cannot be added as they are."),
    "values-not-rescaled": (
        ex15_answers.values_not_rescaled,
        "a is relative to the maximum as well: it needs the same factor as l.",
    ),
    "inverse-factor": (
        ex15_answers.inverse_factor,
        "The factor is upside down: what was gathered before a larger maximum becomes smaller.",
    ),
    "first-maximum": (
        ex15_answers.first_maximum,
        "The first maximum is not always the larger one; and exponentials of positive differences overflow.",
    ),
    "normalized": (
        ex15_answers.normalized,
        "The division by l comes at the end: merged twice, it would be done twice.",
    ),
}


def merged_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other triples that one may arrive at with the variant's states."""
    truth, found = merged_triple(variant.first, variant.second), []
    for name in ("added", "values-not-rescaled", "inverse-factor"):
        function, message = MISTAKES[name]
        value = function(variant.first, variant.second, math.exp, max)
        if any(abs(a - b) > TOLERANCE for a, b in zip(value, truth, strict=True)):
            found.append(Slip(name, value, message))
    return tuple(found)


@lru_cache(maxsize=8)
def cases(seed: int | None) -> tuple[tuple[Triple, Triple], ...]:
    """Pairs of states, simple ones first; the larger maximum stands on either side, and sometimes on both."""
    rng: random.Random = generator(seed, "states")
    found: list[tuple[Triple, Triple]] = [
        ((0.0, 1.0, 1.0), (0.0, 1.0, 2.0)),
        ((1.0, 1.0, 1.0), (0.0, 2.0, 3.0)),
        ((0.0, 2.0, 3.0), (1.0, 1.0, -1.0)),
        ((-800.0, 1.5, 1.0), (-1.0, 1.0, 4.0)),
    ]
    for _ in range(20):
        found.append(tuple((rng.uniform(-6, 6), rng.uniform(1, 5), rng.uniform(-5, 5)) for _ in range(2)))  # type: ignore[arg-type]
    return tuple(found)


def _triple(callee: Callee, x: Triple, y: Triple) -> Triple | Verdict:
    """The student's merge of two states of floats, or the verdict that a failure deserves."""
    arguments = (x, y, math.exp, max)
    outcome = callee.call(*arguments)
    if outcome.failed:
        if isinstance(outcome.error, OverflowError):
            return wrong("An exponential overflows: of what difference?", ("x", x), ("y", y), mistake="overflow")
        return call_failed(callee, arguments, outcome)
    value = outcome.value
    if not isinstance(value, list | tuple) or len(value) != 3:
        return unexpected_result(callee, arguments, "it is no triple")
    if not all(isinstance(v, int | float) for v in value):
        return unexpected_result(callee, arguments, "its entries are no numbers")
    return tuple(value)


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(x == y or abs(x - y) <= TOLERANCE * max(1.0, abs(y)) for x, y in zip(a, b, strict=True))


def judge_merge(callee: Callee, seed: int | None) -> Verdict:
    """On floats; on segments without keys; and on symbols, where the laws are proved."""
    given: list[Triple] = []
    failed: tuple[Triple, Triple] | None = None
    overflow: Verdict | None = None
    for x, y in cases(seed):
        found = _triple(callee, x, y)
        if isinstance(found, Verdict):
            if found.mistake != "overflow":
                return found
            overflow, found = overflow or found, (math.nan,) * 3
        given.append(found)
        if failed is None and not _same(found, merged_triple(x, y)):
            failed = (x, y)
    if failed is not None:
        facts = (("x", failed[0]), ("y", failed[1]), ("yours", given[cases(seed).index(failed)]))
        for name, (function, message) in MISTAKES.items():
            if all(_like(one, function, *pair) for one, pair in zip(given, cases(seed), strict=True)):
                return wrong(message, *facts, mistake=name)
        return overflow or wrong("Not the state of both segments.", *facts)
    for x, y in ((NOTHING, (2.0, 1.5, -1.0)), ((-3.0, 2.0, 1.0), NOTHING), (NOTHING, NOTHING)):
        found = _triple(callee, x, y)
        if isinstance(found, Verdict):
            return found
        if not _same(found, merged_triple(x, y)):
            message = "Right while keys are visible; a segment without any must leave the other as it is."
            return nearly(message, ("x", x), ("y", y), ("yours", found), credit=Fraction(2, 3), mistake="nothing-seen")
    return _on_symbols(callee)


def _like(given: Triple, function: Callable[..., Any], x: Triple, y: Triple) -> bool:
    try:
        value = function(x, y, math.exp, max)
    except OverflowError:
        value = (math.nan,) * 3
    return all(a == b or (a != a and b != b) or abs(a - b) <= TOLERANCE * max(1.0, abs(b))
               for a, b in zip(given, value, strict=True))  # fmt: skip


def _on_symbols(callee: Callee) -> Verdict:
    """Associativity and commutativity of the student's own function, proved for all numbers."""
    sympy = load_sympy()
    x, y, z = symbolic_parts()

    def run(first: Any, second: Any) -> Any:
        outcome = callee.call(first, second, sympy.exp, sympy.Max)
        if outcome.failed or len(outcome.value) != 3:
            raise ValueError(outcome.reason())
        return tuple(map(sympy.sympify, outcome.value))

    try:
        commutes = equal_parts(run(x, y), run(y, x))
        associates = equal_parts(run(run(x, y), z), run(x, run(y, z)))
    except ValueError as error:
        message = "It cannot be run on symbols: use the exponential and the maximum that are given, and nothing else."
        return nearly(message, ("reason", str(error)), credit=Fraction(2, 3), mistake="own-functions")
    if not (commutes and associates):
        lacking = " and ".join(n for n, ok in (("associative", associates), ("commutative", commutes)) if not ok)
        return nearly(f"Right wherever tried, but SymPy does not see that it is {lacking}.", credit=Fraction(2, 3),
                      mistake="not-proved")  # fmt: skip
    return right(
        "Right, and SymPy proves that your function is associative and commutative.", ("tried", "24 pairs, and symbols")
    )


# --- What to keep -----------------------------------------------------------------------------------------------------


def lse_of(m: Any, l: Any) -> float:
    """``m + log(l)`` as the package finishes a state."""
    state = State(*(torch.tensor([float(v)], dtype=torch.float64) for v in (m, l)), torch.zeros(1, 1).double())
    return state.finish()[1].item()


def probability(S: Any, LSE: Any) -> float:
    """``exp(S - LSE)`` as the backward pass has it."""
    score, lse = torch.tensor([[float(S)]], dtype=torch.float64), torch.tensor([float(LSE)], dtype=torch.float64)
    return probabilities(score, lse).item()


def judge_same(kept: str, rows: Sequence[Sequence[Any]]) -> Verdict:
    """Two rows with the same m or l and the same first score, but another probability of it."""
    scores = [torch.tensor([float(s) for s in row], dtype=torch.float64) for row in rows]
    if any(row.numel() == 0 for row in scores):
        return wrong("A row without scores has no probabilities.", mistake="no-scores")
    states = [State.from_block(row[None], torch.zeros(len(row), 1).double()) for row in scores]
    numbers = [(s.maximum if kept == "m" else s.total).item() for s in states]
    first = [torch.softmax(row, -1)[0].item() for row in scores]
    facts = ((f"{kept} of your rows", f"{numbers[0]:.6g} and {numbers[1]:.6g}"),
             ("first probabilities", f"{first[0]:.6g} and {first[1]:.6g}"))  # fmt: skip
    if abs(numbers[0] - numbers[1]) > TOLERANCE * max(1.0, abs(numbers[0])):
        return wrong(f"The two rows do not have the same {kept}.", *facts, mistake="not-the-same")
    if abs(scores[0][0] - scores[1][0]) > TOLERANCE:
        return wrong("The first scores differ: then other probabilities prove nothing.", *facts, mistake="other-score")
    if abs(first[0] - first[1]) < 1e-6:
        return wrong("The first probabilities are equal.", *facts, mistake="equal-probabilities")
    return right(f"The same score and the same {kept}, and another probability: {kept} alone does not tell.", *facts)


# --- Going back -------------------------------------------------------------------------------------------------------


def _gradient(P: Any, dP: Any, D: Any, L: Any = 0) -> float:
    """The package's ``dS`` of one element; numbers that are no probabilities do no harm."""
    values = (torch.tensor([[float(P)]]).double(), torch.tensor([[float(dP)]]).double())
    return score_gradient(*values, *(torch.tensor([float(v)]).double() for v in (D, L))).item()


def judge_score_gradient(*, with_lse: bool, seed: int | None) -> Judge:
    """The formula has the package's values, and is SymPy's derivative of a softmax of three scores."""
    domain = {name: integers(1, 50) for name in (("P", "dP", "D", "L") if with_lse else ("P", "dP", "D"))}
    sign = "The signs are the other way round."
    if with_lse:
        slips = (
            Slip("lse-forgotten", lambda P, dP, D, L: _gradient(P, dP, D), "LSE has a gradient of its own."),
            Slip("lse-not-weighted", lambda P, dP, D, L: _gradient(P, dP, D) + L,
                 "The derivative of LSE by a score is not 1: it is shared among the scores of the row."),
            Slip("lse-subtracted", lambda P, dP, D, L: _gradient(P, dP, D, -L), "A larger score makes LSE larger."),
        )  # fmt: skip
    else:
        slips = (
            Slip("row-term-forgotten", lambda P, dP, D: P * dP,
                 "The probabilities of a row add up to one: raising a score lowers the others, which D accounts for."),
            Slip("sign", lambda P, dP, D: -_gradient(P, dP, D), sign),
            Slip("not-weighted", lambda P, dP, D: dP - D, "A score whose probability is 0 has no influence."),
            Slip("diagonal-only", lambda P, dP, D: P * (1 - P) * dP,
                 "That is the derivative of P_ij alone; the score changes every probability of its row."),
        )  # fmt: skip
    compare = same_quantity(_gradient, domain, seed=seed, slips=slips)

    def judge(answer: Quantity) -> Verdict:
        verdict = compare(answer)
        if verdict.credit < 1 or answer.formula is None:
            return verdict
        proved = is_derivative(answer, with_lse)
        return right("Right, and SymPy's derivative of a softmax is the same.") if proved else verdict

    return judge


def is_derivative(answer: Quantity, with_lse: bool) -> bool:
    """Whether a formula is the derivative of ``sum_j P_j c_j + L log(sum_j exp(s_j))`` by the first of three scores."""
    sympy = load_sympy()
    s, c = sympy.symbols("s1:4", real=True), sympy.symbols("c1:4", real=True)
    gradient = sympy.Symbol("L", real=True) if with_lse else sympy.Integer(0)
    total = sum(sympy.exp(x) for x in s)
    p = [sympy.exp(x) / total for x in s]
    loss = sum(a * b for a, b in zip(p, c, strict=True)) + gradient * sympy.log(total)
    meaning = {"P": p[0], "dP": c[0], "D": sum(a * b for a, b in zip(p, c, strict=True)), "L": gradient}
    found = to_sympy(answer.formula, meaning)
    return sympy.simplify(sympy.diff(loss, s[0]) - found) == 0


@lru_cache(maxsize=8)
def attention_case(seed: int | None, size: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(q, k, v, out, lse, d_out) with k and v one block of the keys, and autograd's gradients for it."""
    rng = generator(seed, f"attention {size}")
    made = torch.Generator().manual_seed(rng.randrange(2**31))
    n, m, d, c = size + 2, 3 * size, size + 1, size + 4
    start, stop = (0, m) if size == 1 else (size, 2 * size)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=made)

    q, k, v, d_out = draw(n, d).requires_grad_(), draw(m, d), draw(m, c), draw(n, c)
    block = [t[start:stop].clone().requires_grad_() for t in (k, v)]
    parts = [[t[:start].detach(), b, t[stop:].detach()] for t, b in zip((k, v), block, strict=True)]
    whole_k, whole_v = (torch.cat(p) for p in parts)
    # dq of the block alone: the scores of the block are differentiated by q, the others held fixed.
    held = q.detach()
    scores = [(q if 1 == i else held) @ p.mT * d**-0.5 for i, p in enumerate(parts[0])]
    p = torch.softmax(torch.cat(scores, -1), -1)
    out, lse = p @ whole_v, torch.logsumexp(held @ whole_k.detach().mT * d**-0.5, -1)
    truth = torch.autograd.grad(out, (q, *block), d_out)
    return tuple(t.detach() for t in (q, *block, out, lse, d_out)), truth


GRADIENT_MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "softmax-of-the-block": (
        ex15_answers.softmax_of_the_block,
        "A softmax over the block alone has other probabilities: LSE knows the keys that are out of reach.",
    ),
    "sum-over-the-block": (
        ex15_answers.sum_over_the_block,
        "The sum of P dP is that of the whole row, not of the block. What is it equal to?",
    ),
    "row-term-forgotten": (ex15_answers.row_term_forgotten, "The derivative of a softmax has a second term."),
    "scale-forgotten": (ex15_answers.scale_forgotten, "The scores are scaled, so the gradients of q and k are, too."),
}


def judge_gradients(callee: Callee, seed: int | None) -> Verdict:
    """Blocks of several attentions, beside autograd's gradients of the whole."""
    for size in (1, 2, 4):
        inputs, truth = attention_case(seed, size)
        outcome = callee.call(*(t.clone() for t in inputs))
        shapes = f"(q of {tuple(inputs[0].shape)}, k of {tuple(inputs[1].shape)}, v of {tuple(inputs[2].shape)}, ...)"
        if outcome.failed:
            kind = "timed-out" if outcome.timed_out else "failed-call"
            return wrong("Your function failed.", ("call", shapes), ("reason", outcome.reason()), mistake=kind)
        found = outcome.value
        if not isinstance(found, list | tuple) or len(found) != 3:
            return wrong("It returned something of the wrong form.", ("reason", "it is no triple of tensors"),
                         mistake="wrong-form")  # fmt: skip
        if not all(isinstance(a, torch.Tensor) and a.shape == b.shape for a, b in zip(found, truth, strict=True)):
            said = ", ".join(str(tuple(getattr(a, "shape", ()))) for a in found)
            return wrong("It returned something of the wrong form.", ("shapes", said),
                         ("those of q, k and v", shapes), mistake="wrong-form")  # fmt: skip
        off = [name for name, a, b in zip(("dq", "dk", "dv"), found, truth, strict=True) if not _near(a, b)]
        if not off:
            continue
        facts = (("call", shapes), ("not autograd's", ", ".join(off)))
        for name, (function, message) in GRADIENT_MISTAKES.items():
            if all(_near(a, b) for a, b in zip(found, function(*inputs), strict=True)):
                return wrong(message, *facts, mistake=name)
        return wrong("Not the gradients that autograd has for the whole attention.", *facts)
    return right("Autograd's gradients, from one block of keys and LSE.", ("tried", "3 attentions in float64"))


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.allclose(a.detach().double(), b, rtol=1e-8, atol=1e-10))
