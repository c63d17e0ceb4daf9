"""Answers to Exercise 43: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex43 import Variant


def mean_versions(p, m):
    return sum(1 - (1 - x) ** m for x in p)


def concrete_total(p, m, C, alpha):
    versions = sum(1 - (1 - x) ** m for x in p)
    work = sum(s * x for s, x in enumerate(p, 1))
    return C * versions + m * alpha * work


def bucketed_total(p, m, C, alpha):
    share, work = {}, 0
    for s, x in enumerate(p, 1):
        b = 2 ** (s - 1).bit_length()
        share[b] = share.get(b, 0) + x
        work = work + b * x
    versions = sum(1 - (1 - x) ** m for x in share.values())
    return C * versions + m * alpha * work


SHAPES = """Under Zipf's law a few small sizes take most of the calls and many large sizes hardly occur, so fewer
different ones are seen in the same number of calls. But the tail is long: the rare sizes go on appearing for the first
time long after the uniform distribution has shown nearly all of its sizes, so versions are still compiled late."""


PROOF = """E[K_m] is a sum over sizes of 1 - (1 - p)^m. One more call adds p (1 - p)^m to a term, which is not negative
and does not grow with m, because it is multiplied by 1 - p each time: the second difference is -p^2 (1 - p)^m <= 0. So
every term is concave and increasing, and a sum of concave functions is concave. A term is a probability, at most 1, and
0 where p = 0, so the sum is at most the number of sizes with p > 0. By Bernoulli's inequality (1 - p)^m >= 1 - m p, so
a term is at most m p, and these sum to m. Both bounds hold, hence the smaller does."""


WHEN = """With C (E[K] - E[L]) > m alpha (E[b] - E[s]): the versions saved, times what one costs, must be more than the
padding of all calls. For one call both compile once and only the padding differs, so buckets lose (or tie, where every
size is a power of two). Then the versions saved grow, and buckets win if C is large. But they cannot grow beyond the
number of sizes minus the number of buckets, while padding is paid at every call, so after enough calls the exact
versions win again. Many different sizes, dear compilation, and short runs speak for buckets; few sizes, or a service
that runs for weeks, against."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex43_runs import BETWEEN, truth_of

    truth = truth_of(variant)
    return {
        "mean_versions": mean_versions,
        "zipf_versions": truth.zipf_versions,
        "uniform_versions": truth.uniform_versions,
        "zipf_and_uniform": SHAPES,
        "one_more_call": "p*(1 - p)**m",
        "second_difference": "-p**2 * (1 - p)**m",
        "linear_bound": "m*p",
        "own_history": [2, 2, 1],
        "concave_proof": PROOF,
        "concrete_total": concrete_total,
        "bucketed_total": bucketed_total,
        "least_cost": "m*alpha*(b - s)/(K - L)",
        "least_cost_here": truth.least_cost,
        "last_win": truth.last_win,
        "buckets_win": BETWEEN,
        "when_buckets": WHEN,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _at_most(p, m):
    return min(m, sum(x > 0 for x in p))


def _not_seen(p, m):
    return sum((1 - x) ** m for x in p)


def _occurrences(p, m):
    return sum(min(1, m * x) for x in p)


def _one_call_less(p, m):
    return sum(1 - (1 - x) ** max(m - 1, 0) for x in p)


def _text(p, m):
    return "many"


def _compiles_always(p, m, C, alpha):
    return C * m + m * alpha * sum(s * x for s, x in enumerate(p, 1))


def _one_call(p, m, C, alpha):
    return C * sum(1 - (1 - x) ** m for x in p) + alpha * sum(s * x for s, x in enumerate(p, 1))


def _not_padded(p, m, C, alpha):
    share = {}
    for s, x in enumerate(p, 1):
        b = 1 << (s - 1).bit_length()
        share[b] = share.get(b, 0) + x
    return C * sum(1 - (1 - x) ** m for x in share.values()) + m * alpha * sum(s * x for s, x in enumerate(p, 1))


def _not_bucketed(p, m, C, alpha):
    work = sum((1 << (s - 1).bit_length()) * x for s, x in enumerate(p, 1))
    return C * sum(1 - (1 - x) ** m for x in p) + m * alpha * work


def _all_buckets(p, m, C, alpha):
    found = {(s - 1).bit_length() for s, x in enumerate(p, 1) if x > 0}
    return C * len(found) + m * alpha * sum((1 << (s - 1).bit_length()) * x for s, x in enumerate(p, 1))


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex43_runs import ALWAYS, FROM_SOME_ON, UNTIL_SOME, cost_slips, last_slips, uniform_slips, zipf_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [slip(s.name, zipf_versions=s.answer) for s in zipf_slips(variant)]
    found += [slip(s.name, uniform_versions=s.answer) for s in uniform_slips(variant)]
    found += [slip(s.name, least_cost_here=s.answer) for s in cost_slips(variant)]
    found += [slip(s.name, last_win=s.answer) for s in last_slips(variant)]
    found += [
        slip(f"chose-{option.replace(' ', '-')}", buckets_win=option) for option in (ALWAYS, FROM_SOME_ON, UNTIL_SOME)
    ]
    return (
        *found,
        slip("upper-bound", mean_versions=_at_most),
        slip("missing-sizes", mean_versions=_not_seen),
        slip("calls-repeat", mean_versions=_occurrences),
        slip("one-call-less", mean_versions=_one_call_less),
        slip("wrong-form", mean_versions=_text),
        slip("next-call", one_more_call="p*(1 - p)**(m + 1)"),
        slip("the-term", one_more_call="1 - (1 - p)**m"),
        slip("sign", second_difference="p**2*(1 - p)**m"),
        slip("derivative-like", second_difference="-p*(1 - p)**m"),
        slip("the-other-bound", linear_bound="1"),
        slip("too-tight", linear_bound="1 - (1 - p)**m"),
        slip("concave", own_history=[1, 2, 2]),
        slip("no-sizes", own_history=["1/2", 1]),
        slip("the-other-strategy", concrete_total=bucketed_total),
        slip("every-call-compiles", concrete_total=_compiles_always),
        slip("one-call", concrete_total=_one_call),
        slip("the-other-strategy", bucketed_total=concrete_total),
        slip("calls-not-padded", bucketed_total=_not_padded),
        slip("versions-not-bucketed", bucketed_total=_not_bucketed),
        slip("all-buckets", bucketed_total=_all_buckets),
        slip("buckets-free", least_cost="m*alpha*(b - s)/K"),
        slip("whole-work", least_cost="m*alpha*b/(K - L)"),
        slip("one-call", least_cost="alpha*(b - s)/(K - L)"),
    )
