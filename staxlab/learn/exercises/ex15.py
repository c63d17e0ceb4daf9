"""Exercise 15 (Section 9.10, Proposition 9.1): states of attention that merge, and gradients from LSE alone.

The student's merge runs on floats, on the states in which nothing has been seen, and on symbols, where its laws are
proved. The gradients are compared with autograd's in float64, and the formula for a score with SymPy's derivative.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, FormulaIn, Function, Numbers, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, one_of, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex15_answers import HARMLESS, IDENTITY, reference, wrong_answers
from .ex15_runs import (
    judge_gradients,
    judge_merge,
    judge_same,
    judge_score_gradient,
    lse_of,
    merged_slips,
    merged_triple,
    probability,
)

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 9
TITLE = "States that merge, and gradients from LSE"
DIFFICULTY = 2

statement = r"""
For one query and a segment of keys with scores $s_j$ and values $v_j$, let

$$m = \max_j s_j, \qquad \ell = \sum_j e^{s_j - m}, \qquad a = \sum_j e^{s_j - m}\, v_j .$$

Two segments with $(m_1, \ell_1, a_1)$ and $(m_2, \ell_2, a_2)$ together have, with $\mu = \max(m_1, m_2)$,

$$\bigl(\mu,\ \ \ell_1 e^{m_1 - \mu} + \ell_2 e^{m_2 - \mu},\ \ a_1 e^{m_1 - \mu} + a_2 e^{m_2 - \mu}\bigr).$$

At the end $o = a / \ell$, and $\mathrm{LSE} = m + \log \ell$ is kept for the backward pass. For a matrix of scores $S$
with a row for each query, $P$ is its softmax by rows and $O = P V$. In Part 1 a value is one number.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Two states with whole numbers."""

    first: tuple[int, int, int] = (3, 2, 5)
    second: tuple[int, int, int] = (1, 4, -6)

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        low = rng.randint(-4, 4)
        values = rng.sample([-9, -7, -6, -5, -4, -3, 3, 4, 5, 6, 7, 9], 2)
        totals = rng.sample(range(2, 9), 2)
        first, second = (low + rng.randint(1, 3), totals[0], values[0]), (low, totals[1], values[1])
        return cls(first, second) if rng.random() < 0.5 else cls(second, first)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("first state", f"(m, l, a) = {self.first}"), ("second state", f"(m, l, a) = {self.second}"))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. Merge your two states. Three numbers; they may be written as `"5 + 4*exp(-2)"`.
2. Which triple changes no other when it is merged with it?
3. `merge(x, y, exp, maximum)` merges two triples `(m, l, a)` and returns a triple. It gets its exponential function and
   its maximum of two numbers as arguments, because it is run on floats and on symbols. It must cope with segments in
   which no key is visible, also when both are like that.
4. In words: prove that merging is associative and commutative. (Your function is put to the proof by SymPy; find an
   argument that needs no case distinction.)
"""

PART_2 = r"""
1. LSE of a row, as a formula in `m` and `l`; and the probability of a score `S` in that row, as a formula in `S` and
   `LSE`.
2. Only $m$ was kept. Give two rows of scores with the same maximum and the same first score (`same_m`), in which the
   first probabilities differ.
3. Only $\ell$ was kept. The same with the same $\ell$ (`same_l`).
"""

PART_3 = r"""
Let $dO$ be the gradient of the loss with respect to $O$, $dP$ that with respect to $P$ and so on, and
$D_i = \sum_c dO_{ic} O_{ic}$.

1. $dS_{ij}$ as a formula in `P`, `dP` (of the same element) and `D` (of its row).
2. The same where LSE is a result of its own, and `L` is the gradient of the loss with respect to it: a formula in `P`,
   `dP`, `D` and `L`.
3. `gradients(q, k, v, out, lse, d_out)` returns `(dq, dk, dv)`, float64 tensors. `q` is N x d, `out` and `d_out` are
   N x c, `lse` has N elements: those of the whole attention, with scores $q k^{\mathsf T} / \sqrt{d}$. But `k` and `v`
   are *one block* of the keys and values; the others are out of reach. `dk` and `dv` are those of the block, `dq` is
   what it contributes.
4. In words: why does one block suffice, and where is the sum over the whole row that the derivative of a softmax has?
"""

MERGE_EXAMPLE = """\
def merge(x, y, exp, maximum):
    return maximum(x[0], y[0]), x[1] + y[1], x[2] + y[2]"""

GRADIENTS_EXAMPLE = """\
def gradients(q, k, v, out, lse, d_out):
    return q * 0, k * 0, v * 0"""

LAWS = Rubric(
    (
        Criterion(
            "What makes it addition",
            2,
            "Multiplying l and a by exp(m) turns merging into a maximum and two sums; nothing is lost, because exp(m) "
            "is not 0.",
            "Computes both sides with all factors, correctly, for one of the laws.",
            "Says only that maximum and addition are associative.",
        ),
        Criterion(
            "The identity",
            1,
            "With m = -inf the factor is exp(-inf) = 0; two of them are to be treated apart, as -inf has no difference "
            "from itself.",
            none="Does not look at the segment without keys.",
        ),
    ),
    "Associative and commutative",
)

ONE_BLOCK = Rubric(
    (
        Criterion(
            "The sum",
            2,
            "sum_j P_ij dP_ij over the whole row is D_i, because dP = dO V^T and O = P V: it is known from dO and O.",
            "Names D as what stands for the sum, without the reason.",
            "Does not say where the sum is.",
        ),
        Criterion(
            "The rest is local",
            1,
            "P of the block comes from S of the block and LSE, which already knows all keys; dP of the block from dO "
            "and its values.",
            none="Does not say what the probabilities of the block need.",
        ),
    ),
    "One block suffices",
)

PARTS = (
    Part(
        "1",
        "Merging",
        PART_1,
        (
            Numbers("merged", "your two states, merged", 1, example='[4, "3 + exp(-1)", 7]', shape=(3,)),
            Choice("identity", "the triple that changes nothing", 1, example='"(0, 0, 0)"',
                   options=("(0, 0, 0)", "(0, 1, 0)", IDENTITY, "(-inf, 1, 0)")),
            Function("merge", "two segments as one", 3, example=MERGE_EXAMPLE,
                     parameters=("x", "y", "exp", "maximum"), returns="a triple"),
            Prose("laws", "associative and commutative", LAWS.points, rubric=LAWS),
        ),
        (
            "Which of the two factors is 1?",
            "What is l exp(m), and what becomes of it when two states are merged?",
            "float('-inf') - float('-inf') is NaN. In which case does that happen, and what should the factor be?",
        ),
    ),
    Part(
        "2",
        "What to keep",
        PART_2,
        (
            FormulaIn("lse", "LSE", 1, example='"m*l"', variables=("m", "l")),
            FormulaIn("p_from_lse", "the probability", 1, example='"S*LSE"', variables=("S", "LSE")),
            Numbers("same_m", "the same m, other probabilities", 1, example="[[0, 1, 2], [0, 1, 2]]", shape=(2, None)),
            Numbers("same_l", "the same l, other probabilities", 1, example="[[0, 1], [0, 1]]", shape=(2, None)),
        ),
        (
            "The sum of exp(s) over a row is l exp(m). What is its logarithm?",
            "A row of two scores with distance 1 has the same l whichever of the two is the larger.",
        ),
    ),
    Part(
        "3",
        "Going back",
        PART_3,
        (
            FormulaIn("d_score", "the gradient of a score", 1, example='"P + dP*D"', variables=("P", "dP", "D")),
            FormulaIn("d_score_with_lse", "the same with a gradient of LSE", 1, example='"P + dP*D*L"',
                      variables=("P", "dP", "D", "L")),
            Function("gradients", "of one block", 3, example=GRADIENTS_EXAMPLE,
                     parameters=("q", "k", "v", "out", "lse", "d_out"), returns="three tensors", seconds=5.0),
            Prose("one_block", "why one block suffices", ONE_BLOCK.points, rubric=ONE_BLOCK),
        ),
        (
            "The derivative of P_ij by S_ik is P_ij (1 - P_ij) for k = j, and -P_ij P_ik otherwise.",
            "What is the derivative of LSE by S_ij?",
            "In your function: probabilities first, from the scores of the block and LSE.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    numbers = {"m": integers(1, 6), "l": integers(2, 60)}
    scores = {"S": integers(1, 8), "LSE": integers(9, 14)}
    return {
        "merged": same_numbers(merged_triple(variant.first, variant.second), slips=merged_slips(variant)),
        "identity": one_of(
            IDENTITY,
            {
                "(0, 0, 0)": "Merged with a state whose maximum is below 0 it raises the maximum.",
                "(0, 1, 0)": "It adds to the sum, and raises a maximum below 0.",
                "(-inf, 1, 0)": "Merged with itself it gives a sum of 2: a sum of no exponentials is 0.",
            },
        ),
        "merge": lambda callee: judge_merge(callee, seed),
        "laws": read_by_a_person(LAWS),
        "lse": same_quantity(
            lse_of, numbers, seed=seed,
            slips=(
                Slip("sum-not-logarithm", lambda m, l: m + l, "l is a sum of exponentials, m an exponent."),
                Slip("logarithm-alone", lambda m, l: lse_of(0, l), "That is the logarithm of l, relative to m."),
                Slip("logarithm-of-both", lambda m, l: lse_of(0, m * l), "The sum of exponentials is l exp(m)."),
            ),
        ),
        "p_from_lse": same_quantity(
            probability, scores, seed=seed,
            slips=(
                Slip("upside-down", lambda S, LSE: 1 / probability(S, LSE), "Probabilities are not larger than 1."),
                Slip("divided-by-lse", lambda S, LSE: probability(S, 0) / LSE,
                     "LSE is a logarithm; what exp(S) is divided by is its exponential."),
                Slip("difference", lambda S, LSE: S - LSE, "That is the logarithm of the probability."),
            ),
        ),
        "same_m": lambda rows: judge_same("m", rows),
        "same_l": lambda rows: judge_same("l", rows),
        "d_score": judge_score_gradient(with_lse=False, seed=seed),
        "d_score_with_lse": judge_score_gradient(with_lse=True, seed=seed),
        "gradients": lambda callee: judge_gradients(callee, seed),
        "one_block": read_by_a_person(ONE_BLOCK),
    }  # fmt: skip
