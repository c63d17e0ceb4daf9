"""The laws of the online softmax, proved on symbols, and the derivation of its backward pass, checked step by step.

:func:`monoid_laws` runs the rule of merging (:mod:`staxlab.loops.online_softmax`, the one that tensors go through) on
SymPy's symbols and asks whether both sides of each law are the same expression. :func:`lse_derivation` computes each
quantity of the backward pass of attention by its formula and as autograd has it, in float64 (Section 9.10, Exercise
15).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.lse_backward import attention_backward, probabilities, row_products, score_gradient
from ..attention.online_softmax import State, merge_all, merge_error_bound
from ..errors import MissingDependencyError, OptionError
from ..loops.online_softmax import Part, merge
from .tables import Table, Tabular

# --- On symbols -------------------------------------------------------------------------------------------------------


def load_sympy() -> Any:
    """The sympy module. Raises MissingDependencyError naming the extra."""
    try:
        import sympy
    except ImportError as error:
        raise MissingDependencyError("proofs need sympy", remedy="pip install 'staxlab[grading]'") from error
    return sympy


class SymbolicOps:
    """The operations of the rule on SymPy expressions of real symbols.

    ``where(a == b, v, w)`` stands for ``w`` alone, which is refused unless ``w`` becomes ``v`` where a and b are equal:
    for finite maxima the distinction makes no difference.
    """

    def __init__(self) -> None:
        self.sympy = load_sympy()

    def maximum(self, a: Any, b: Any) -> Any:
        return self.sympy.Max(a, b)

    def exp(self, a: Any) -> Any:
        return self.sympy.exp(a)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def eq(self, a: Any, b: Any) -> tuple[Any, Any]:
        return a, b

    def where(self, condition: tuple[Any, Any], value: Any, other: Any) -> Any:
        a, b = condition
        factor = self.sympy.exp(a - b)
        if self.sympy.expand(other - value * factor) != 0:
            raise ValueError("the two branches are not equal where the condition holds")
        return other


def symbolic_parts(count: int = 3, sums: int = 2) -> tuple[Part, ...]:
    """Triples (m_k, l_k, a_k) of real symbols, the sums in as many components as asked for."""
    sympy = load_sympy()
    names = "la" + "bcdefgh"[: max(sums - 2, 0)]
    return tuple(
        tuple(sympy.Symbol(f"{name}{k}", real=True) for name in "m" + names[:sums]) for k in range(1, count + 1)
    )


def equal_parts(first: Part, second: Part) -> bool:
    """Whether two parts are the same expressions, for every value of their symbols."""
    sympy = load_sympy()
    return all(sympy.expand(sympy.powsimp(sympy.expand(a - b))) == 0 for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Law:
    """One law: in formulas, whether it is proved, and how far both sides are apart in float64 on random states."""

    name: str
    formula: str
    proved: bool
    difference: float


@dataclass(frozen=True, repr=False)
class MonoidLaws(Tabular):
    """The laws of merging, on symbols and in float64; ``bound`` is what rounding may do there, relative."""

    laws: tuple[Law, ...]
    bound: float

    @property
    def holds(self) -> bool:
        return all(law.proved and law.difference <= self.bound for law in self.laws)

    def summary(self) -> str:
        proved = sum(law.proved for law in self.laws)
        worst = max(law.difference for law in self.laws)
        return f"{proved} of {len(self.laws)} laws proved on symbols; in float64 within {worst:.2g} of each other"

    def table(self) -> Table:
        rows = [(law.name, law.formula, "proved" if law.proved else "not proved", f"{law.difference:.2g}")
                for law in self.laws]  # fmt: skip
        note = f"rounding allows a relative difference of {self.bound:.2g}; {self.summary()}"
        return Table.build(
            "Merging (m, l, a): laws", ("law", "in formulas", "on symbols", "float64, relative difference"), rows,
            [note], text_columns=3,
        )  # fmt: skip


def monoid_laws(rule: Callable[[Any, Part, Part], Part] = merge, seed: int = 0) -> MonoidLaws:
    """Associativity, commutativity and the identity of a rule of merging, and that multiplying by exp(m) turns it into
    addition, from which all of them follow. Another ``rule`` may be given, to see which laws it breaks.

    Takes about a second. Raises MissingDependencyError without SymPy.
    """
    sympy, ops = load_sympy(), SymbolicOps()
    x, y, z = symbolic_parts()
    nothing = (-sympy.oo, sympy.Integer(0), sympy.Integer(0))

    def run(first: Part, second: Part) -> Part:
        return rule(ops, first, second)

    def unscaled(part: Part) -> Part:
        m, *sums = part
        return tuple(sympy.expand(s * sympy.exp(m)) for s in sums)

    added = tuple(a + b for a, b in zip(unscaled(x), unscaled(y), strict=True))
    proofs = {
        "associative": equal_parts(run(run(x, y), z), run(x, run(y, z))),
        "commutative": equal_parts(run(x, y), run(y, x)),
        "identity": run(nothing, x) == x and run(x, nothing) == x,
        "addition": equal_parts(unscaled(run(x, y)), added),
    }
    spread = 40.0
    differences = _differences(rule, spread, seed)
    formulas = {
        "associative": "(x + y) + z = x + (y + z)", "commutative": "x + y = y + x",
        "identity": "(-inf, 0, 0) + x = x + (-inf, 0, 0) = x",
        "addition": "exp(m) (l, a) of x + y is that of x plus that of y",
    }  # fmt: skip
    laws = tuple(Law(name, formulas[name], proved, differences[name]) for name, proved in proofs.items())
    return MonoidLaws(laws, 2 * merge_error_bound(2, spread) + 2.0**-50)


def _differences(rule: Callable[..., Part], spread: float, seed: int) -> dict[str, float]:
    """The largest relative difference of the two sides of each law, over a thousand random states with l, a > 0, in
    which nothing cancels."""
    from ..loops.semantics import Evaluator

    ops, generator = Evaluator({}, {}), torch.Generator().manual_seed(seed)

    def draw() -> Part:
        m, l, a = torch.rand(3, 1000, dtype=torch.float64, generator=generator)
        return spread * (m - 0.5), l + 0.5, a + 0.5

    x, y, z = draw(), draw(), draw()
    nothing = (torch.full_like(x[0], -math.inf), torch.zeros_like(x[0]), torch.zeros_like(x[0]))

    def run(first: Part, second: Part) -> Part:
        return rule(ops, first, second)

    def apart(first: Part, second: Part) -> float:
        found = (((a - b).abs() / b.abs().clamp_min(1e-300)).max() for a, b in zip(first, second, strict=True))
        # A NaN is no small difference.
        return max(float(torch.nan_to_num(value, nan=math.inf, posinf=math.inf)) for value in found)

    def unscaled(part: Part) -> Part:
        return tuple(s * torch.exp(part[0]) for s in part[1:])

    added = tuple(a + b for a, b in zip(unscaled(x), unscaled(y), strict=True))
    return {
        "associative": apart(run(run(x, y), z), run(x, run(y, z))),
        "commutative": apart(run(x, y), run(y, x)),
        "identity": max(apart(run(nothing, x), x), apart(run(x, nothing), x)),
        "addition": apart(unscaled(run(x, y)), added),
    }


# --- The backward pass ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DerivationStep:
    """One step: what is computed, by which formula, why, and how far it is from autograd's in float64."""

    quantity: str
    formula: str
    reason: str
    difference: float
    largest: float  # absolute value of the quantity


@dataclass(frozen=True, repr=False)
class LseDerivation(Tabular):
    """The derivation of the backward pass from LSE, each step beside autograd's value. ``saved`` is the number of
    elements kept for the backward pass: with P, and with LSE in its place, for one head."""

    queries: int
    keys: int
    steps: tuple[DerivationStep, ...]
    saved: tuple[int, int]

    @property
    def holds(self) -> bool:
        """Whether no step is further from autograd's than roundings of float64 explain: a thousand units in the last
        place of the largest element."""
        return all(step.difference <= 1e3 * 2.0**-53 * max(step.largest, 1.0) for step in self.steps)

    def summary(self) -> str:
        worst = max(step.difference for step in self.steps)
        return f"{len(self.steps)} steps, none further than {worst:.2g} from autograd's value"

    def table(self) -> Table:
        rows = [(s.quantity, s.formula, s.reason, f"{s.difference:.2g}", f"{s.largest:.3g}") for s in self.steps]
        with_p, with_lse = self.saved
        notes = [self.summary(), f"kept besides Q, K, V, O: P {with_p:,} elements, or LSE {with_lse:,}"]
        head = ("quantity", "formula", "why", "largest difference", "largest element")
        caption = f"From LSE to the gradients, {self.queries} queries and {self.keys} keys, float64"
        return Table.build(caption, head, rows, notes, text_columns=3)


def lse_derivation(
    queries: int = 24, keys: int = 32, size: int = 8, tile: tuple[int, int] = (8, 16), seed: int = 0
) -> LseDerivation:
    """Every step of the backward pass on random operands, a causal mask and a gradient of LSE included: computed by its
    formula, from LSE, beside autograd's value, from the whole of S and P. OptionError for sizes below 1."""
    if min(queries, keys, size, *tile) < 1:
        raise OptionError("an attention of no size has no steps", remedy="give sizes of 1 or more")
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    q, k, v = (draw(n, size).requires_grad_() for n in (queries, keys, keys))
    d_out, d_lse = draw(queries, size), draw(queries)
    visible = torch.arange(queries)[:, None] + (keys - queries) >= torch.arange(keys)
    scale = size**-0.5
    scores = torch.where(visible, scale * (q @ k.mT), -math.inf)
    scores.retain_grad()
    seen = visible.any(-1)
    safe = torch.where(seen[:, None], scores, 0.0)  # a row that sees nothing would have NaN for its gradient
    p = torch.where(seen[:, None], torch.softmax(safe, -1), 0.0)
    p.retain_grad()
    lse = torch.where(seen, torch.logsumexp(safe, -1), 0.0)
    torch.autograd.backward([p @ v, lse], [d_out, d_lse])
    found = _from_lse(q, k, v, visible, d_out, d_lse, tile)
    truth = {
        "P": p, "dV": v.grad, "dP": p.grad, "D": (p * p.grad).sum(-1), "dS": scores.grad, "one tile of dS": scores.grad,
        "dQ": q.grad, "dK": k.grad,
    }  # fmt: skip
    steps = []
    for quantity, formula, reason, value in found:
        other = truth[quantity]
        other = other[: value.shape[0], : value.shape[1]] if quantity == "one tile of dS" else other
        difference = torch.nan_to_num((value - other.detach()).abs(), nan=math.inf, posinf=math.inf).max()
        largest = float(value.detach().abs().max())
        steps.append(DerivationStep(quantity, formula, reason, float(difference), largest))
    return LseDerivation(queries, keys, tuple(steps), (queries * keys, queries))


def _from_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, d_out: torch.Tensor,
    d_lse: torch.Tensor, tile: tuple[int, int],
) -> list[tuple[str, str, str, torch.Tensor]]:  # fmt: skip
    """The steps as (quantity, formula, reason, value), from nothing but operands, O and LSE."""
    with torch.no_grad():
        scale, (rows, columns) = q.shape[-1] ** -0.5, tile
        blocks = [slice(start, start + columns) for start in range(0, k.shape[0], columns)]
        state = merge_all(State.from_block(scale * (q @ k[b].mT), v[b], visible[:, b]) for b in blocks)
        out, lse = state.finish()
        scores = torch.where(visible, scale * (q @ k.mT), -math.inf)
        p = probabilities(scores, lse)
        d_p, delta = d_out @ v.mT, row_products(d_out, out)
        d_s = score_gradient(p, d_p, delta, d_lse)
        part = p[:rows, :columns]
        tiled = score_gradient(part, d_p[:rows, :columns], delta[:rows], d_lse[:rows])
        gradients = attention_backward(q, k, v, out, lse, d_out, d_lse, visible=visible, tile=tile)
    return [
        ("P", "exp(S - LSE)", "LSE is the logarithm of a row's sum of exponentials", p),
        ("dV", "P^T dO", "O = P V", gradients.value),
        ("dP", "dO V^T", "O = P V", d_p),
        ("D", "sum_c dO O", "equals sum_j P dP, by O = P V: known before any tile", delta),
        ("dS", "P (dP - D + dLSE)", "derivatives of the softmax and of LSE", d_s),
        ("one tile of dS", "P (dP - D + dLSE)", f"from {rows} x {columns} elements of P and dP", tiled),
        ("dQ", "scale dS K", "S = scale Q K^T; tile by tile", gradients.query),
        ("dK", "scale dS^T Q", "S = scale Q K^T; tile by tile", gradients.key),
    ]
