"""Answers to Exercise 44: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex44 import Variant


def fewest_elements(chain, tau_e, tau_c, beta):
    k = len(chain)
    reads, distinct = k - 1, set()
    for outside in chain:
        reads = reads + len(outside)
        distinct = distinct | set(outside)
    saved = 4 * (reads + k - len(distinct) - 1)
    extra = tau_c - k * tau_e
    if saved == 0:
        return 1 if extra < 0 else None
    return max(1, extra * beta // saved + 1)


LONGER = """N*(k) = beta/8 * ((tau_c - tau_e)/(k - 1) - tau_e). With every further operator the overhead of a compiled
call, which is paid once, is divided among more operators, and each brings its own tau_e and its own round trip of 8
bytes per element with it, which only eager execution pays. So N* falls, and at k = tau_c/tau_e it is zero: from there
on compiling wins at every size, even without any traffic. Small tensors lie in a cache, where the round trip is
cheaper, so N* is larger than with the bandwidth of memory; but it never exceeds what fits in the cache or N* with the
bandwidth of memory, whichever is larger, since beyond the cache the latter holds. Therefore
many small operators belong into one region and not each into a region of its own."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex44_runs import UNCHANGED, plain

    return {
        "least_size": "(tau_c - k*tau_e)*beta / (4*(R + k - d - 1))",
        "more_reads": UNCHANGED,
        "fewest_elements": fewest_elements,
        "two_operators": plain(variant, 2, variant.tau_same).fewest,
        "l2_limit": variant.l2_limit,
        "largest_bandwidth": str(variant.largest_bandwidth),
        "from_which_size": "min(g*N1, max(L, N1))",
        "chain_same": plain(variant, variant.length, variant.tau_same).fewest,
        "chain_new": plain(variant, variant.length, variant.tau_new).fewest,
        "one_more_operator": "beta*(tau_c - tau_e) / (8*k*(k - 1))",
        "always_from": variant.always_same,
        "longer_chains": LONGER,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _saved_of_13_6(chain, tau_e, tau_c, beta):
    k = len(chain)
    extra = tau_c - k * tau_e
    if k == 1:
        return 1 if extra < 0 else None
    return max(1, extra * beta // (8 * (k - 1)) + 1)


def _results_not_read(chain, tau_e, tau_c, beta):
    k = len(chain)
    saved = 4 * (sum(map(len, chain)) + k - len(set().union(*chain)) - 1)
    extra = tau_c - k * tau_e
    if saved == 0:
        return 1 if extra < 0 else None
    return max(1, extra * beta // saved + 1)


def _no_writes(chain, tau_e, tau_c, beta):
    k = len(chain)
    saved = 4 * (sum(map(len, chain)) + k - 1 - len(set().union(*chain)))
    extra = tau_c - k * tau_e
    if saved == 0:
        return 1 if extra < 0 else None
    return max(1, extra * beta // saved + 1)


def _one_overhead(chain, tau_e, tau_c, beta):
    k = len(chain)
    saved = 4 * (sum(map(len, chain)) + 2 * k - 2 - len(set().union(*chain)))
    extra = tau_c - tau_e
    if saved == 0:
        return 1 if extra < 0 else None
    return max(1, extra * beta // saved + 1)


def _not_yet(chain, tau_e, tau_c, beta):
    k = len(chain)
    saved = 4 * (sum(map(len, chain)) + 2 * k - 2 - len(set().union(*chain)))
    extra = tau_c - k * tau_e
    if saved == 0:
        return 1 if extra < 0 else None
    return max(1, extra * beta // saved)


def _always_some(chain, tau_e, tau_c, beta):
    k = len(chain)
    saved = 4 * (sum(map(len, chain)) + 2 * k - 2 - len(set().union(*chain)))
    extra = tau_c - k * tau_e
    return 10**6 if saved == 0 and extra >= 0 else max(1, extra * beta // max(saved, 1) + 1)


def _size_in_words(chain, tau_e, tau_c, beta):
    return "large enough"


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex44_runs import LARGER, SMALLER, always_slips, bandwidth_slips, fewest_slips, limit_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    k, same, new = variant.length, variant.tau_same, variant.tau_new
    found = [slip(s.name, two_operators=s.answer) for s in fewest_slips(variant, 2, same)]
    found += [slip(s.name, chain_same=s.answer) for s in fewest_slips(variant, k, same)]
    found += [slip(s.name, chain_new=s.answer) for s in fewest_slips(variant, k, new)]
    found += [slip(s.name, l2_limit=s.answer) for s in limit_slips(variant)]
    found += [slip(s.name, largest_bandwidth=s.answer) for s in bandwidth_slips(variant)]
    found += [slip(s.name, always_from=s.answer) for s in always_slips(variant)]
    found += [slip(f"chose-{option.replace(' ', '-')}", more_reads=option) for option in (LARGER, SMALLER)]
    return (
        *found,
        slip("plain-chain", least_size="(tau_c - k*tau_e)*beta / (8*(k - 1))"),
        slip("one-overhead", least_size="(tau_c - tau_e)*beta / (4*(R + k - d - 1))"),
        slip("writes-forgotten", least_size="(tau_c - k*tau_e)*beta / (4*(R - d))"),
        slip("fused-forgotten", least_size="(tau_c - k*tau_e)*beta / (4*(R + k))"),
        slip("bytes", least_size="(tau_c - k*tau_e)*beta / (R + k - d - 1)"),
        slip("shared-counted-twice", fewest_elements=_saved_of_13_6),
        slip("half-a-round-trip", fewest_elements=_results_not_read),
        slip("half-a-round-trip", fewest_elements=_no_writes),
        slip("one-overhead", fewest_elements=_one_overhead),
        slip("not-yet-faster", fewest_elements=_not_yet),
        slip("no-such-size", fewest_elements=_always_some),
        slip("wrong-form", fewest_elements=_size_in_words),
        slip("only-the-cache", from_which_size="g*N1"),
        slip("only-memory", from_which_size="N1"),
        slip("beyond-the-cache", from_which_size="max(L, N1)"),
        slip("the-ratio", one_more_operator="beta*(tau_c - k*tau_e) / (8*k*(k - 1))"),
        slip("upwards", one_more_operator="-beta*(tau_c - tau_e) / (8*k*(k - 1))"),
    )
