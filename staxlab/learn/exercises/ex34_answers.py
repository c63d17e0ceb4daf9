"""Answers to Exercise 34: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex34 import Variant


def experiment(run_a, run_b):
    differences = []
    for k in range(15):
        if k % 2 == 0:
            first = run_a()
            differences.append(run_b() - first)
        else:
            first = run_b()
            differences.append(first - run_a())
    differences.sort()
    return differences[3] > 0


WHY_ONE = """A reading is t0 plus a delay that is never negative and may be as large as it likes. With equal t0 any S
below 1 comes about if the compiled side was delayed enough, and so does S = 0.63 if the compiled kernel is the faster
one. A median within one round protects against a few bad readings, not against a load that lasts as long as one side
was timed: the medians of the very same row sum differ by more than a factor of two between rounds. So S says how long
the two took then. The experiment takes the readings in pairs, one of each side directly after the other, and the sides
take turns in being first, so that load and drift hit both. The differences of pairs have the median zero if nothing is
slower; the j-th smallest of n is above zero by chance with the probability of Proposition 13.2, fixed beforehand. Only
if it is, the kernel is called slower. In a second round, at another time, the direction has to be the same."""


COMPARED = """As counted, rho is 4 and S = 4.91, so the factor beta_c/beta_e = 1.23 seemed to be the better use of the
bandwidth by the fused kernel. But eager execution writes three intermediate tensors and the fused kernel only a number
per row: a line that is written is read first, and eager execution pays for that, hardly the fused kernel. With 1.5
times the traffic for writes rho is 4.75, and a factor of 1.03 is left. So what looked like the quality of a kernel is
for the most part traffic that the model had not counted. In round B S is 3.95, below 4.75: one correction does not
explain both rounds, and the effect of 20% is of the size of the difference between rounds, so it is not established."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex34_runs import HIDDEN, byte_ratio, fewest_pairs

    rho = byte_ratio(variant.columns, variant.factor)
    return {
        "speedup_at_one": "beta_c/beta_e",
        "compiled_share": str(variant.single * variant.eager_share),
        "delay_34": "t_e/S - t_c",
        "delay_here": str(variant.eager_ms / variant.observed - variant.eager_ms),
        "false_alarm": "Sum(binomial(n, i), (i, 0, j - 1)) / 2**n",
        "pairs_34": fewest_pairs(variant.level),
        "experiment": experiment,
        "why_one_number": WHY_ONE,
        "corrected_rho": "(5*C + 3*C*w + w) / (2*C + w)",
        "corrected_here": str(rho),
        "left_over": float(variant.measured / rho),
        "explained_by": HIDDEN,
        "compared_with_s": COMPARED,
    }


# A pair more or less, another way of taking turns, and ranks whose error (0.4% and 5.9%) is not counted as too large.
HARMLESS: dict[str, tuple[str, ...]] = {
    "experiment": (
        "for k in range(15): -> for k in range(16):",
        "for k in range(15): -> for k in range(14):",
        "if k % 2 == 0: -> if k % 2 == 1:",
        "if k % 2 == 0: -> if k % 3 == 0:",
        "return differences[3] > 0 -> return differences[4] > 0",
        "return differences[3] > 0 -> return differences[2] > 0",
    )
}


def single_numbers(run_a, run_b):
    return run_b() > run_a()


def medians(run_a, run_b):
    a = sorted(run_a() for _ in range(15))
    b = sorted(run_b() for _ in range(15))
    return b[7] > a[7]


def separate_intervals(run_a, run_b):
    a = sorted(run_a() for _ in range(15))
    b = sorted(run_b() for _ in range(15))
    return b[3] > a[11]


def five_percent(run_a, run_b):
    pairs = [(run_a(), run_b()) for _ in range(25)]
    differences = sorted(b - a for a, b in pairs)
    return differences[12] > 0.05 * min(a for a, _ in pairs)


def any_difference(run_a, run_b):
    differences = []
    for k in range(40):
        if k % 2:
            b, a = run_b(), run_a()
        else:
            a, b = run_a(), run_b()
        differences.append(b - a)
    differences.sort()
    return not differences[13] <= 0 <= differences[26]


def too_careful(run_a, run_b):
    differences = []
    for k in range(40):
        if k % 2:
            b, a = run_b(), run_a()
        else:
            a, b = run_a(), run_b()
        differences.append(b - a)
    return min(differences) > 0


def always_in_order(run_a, run_b):
    differences = []
    for _ in range(100):
        a = run_a()
        differences.append(run_b() - a)
    return sorted(differences)[39] > 0


def thousands(run_a, run_b):
    return sum(run_b() > run_a() for _ in range(1000)) > 550


def a_number(run_a, run_b):
    return run_b() / run_a()


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex34_runs import IMPOSSIBLE, QUALITY, SMALLER, delay_slips, left_over_slips, pair_slips, ratio_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [slip(s.name, corrected_here=s.answer) for s in ratio_slips(variant)]
    found += [slip(s.name, left_over=s.answer) for s in left_over_slips(variant)]
    found += [slip(s.name, delay_here=s.answer) for s in delay_slips(variant)]
    found += [slip(s.name, pairs_34=s.answer) for s in pair_slips(variant)]
    found += [
        slip(f"chose-{option.replace(' ', '-')}", explained_by=option) for option in (QUALITY, IMPOSSIBLE, SMALLER)
    ]
    return (
        *found,
        slip("inverse", speedup_at_one="beta_e/beta_c"),
        slip("always-one", speedup_at_one="1"),
        slip("inverse", compiled_share=variant.eager_share / variant.single),
        slip("sign", delay_34="t_c - t_e/S"),
        slip("equal-kernels", delay_34="t_e/S - t_e"),
        slip("share-of-eager", delay_34="t_e*S - t_c"),
        slip("one-term", false_alarm="binomial(n, j - 1)/2**n"),
        slip("one-more", false_alarm="Sum(binomial(n, i), (i, 0, j))/2**n"),
        slip("coverage", false_alarm="1 - Sum(binomial(n, i), (i, 0, j - 1))/2**n"),
        slip("chance", experiment=single_numbers),
        slip("chance", experiment=medians),
        slip("not-alternated", experiment=separate_intervals),
        slip("fixed-threshold", experiment=five_percent),
        slip("wrong-way", experiment=any_difference),
        slip("missed", experiment=too_careful),
        slip("fixed-order", experiment=always_in_order),
        slip("over-budget", experiment=thousands),
        slip("wrong-form", experiment=a_number),
        slip("sum-forgotten", corrected_rho="(5 + 3*w)/2"),
        slip("as-counted", corrected_rho="(8*C + 1)/(2*C + 1)"),
        slip("only-eager", corrected_rho="(5*C + 3*C*w + w)/(2*C + 1)"),
    )
