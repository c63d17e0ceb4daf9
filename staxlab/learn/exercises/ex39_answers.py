"""Answers to Exercise 39: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex39 import Variant


def witness(values, k):
    count = len([v for v in values if v != 0])
    return [0.0] * len(values) if count > k else [1.0] * len(values)


def rewritten(x, k, check):
    n = x.nonzero().shape[0]
    check(n > k, "more elements should be different from zero")
    return x.sum() / n


def decide(low, high, k):
    if low > k:
        return True
    if high is not None and high <= k:
        return False
    return None


RELATION = """Of n it is known that 0 <= n <= N. From that neither n > k nor its negation follows, so by the proposition
the compiler refuses. The assertion adds n > k to what is known. After it the decision is true for every n that is left,
the branch is no question any more, and the compiled path is the one the program takes for all of these n; for the
others the assertion raises at run time, so nothing silently goes the wrong way. A shape guard may be decided by the
sample because it is checked at every later call before anything has run, and another version can be compiled where it
fails. The number of nonzero elements is known only in the middle of the call, when it is too late for another
version."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex39_runs import AFTER, decision_of

    return {
        "witness": witness,
        "checked_when": AFTER,
        "rewritten": rewritten,
        "decide": decide,
        **{f"decision_{c}": decision_of(variant, bound) for c, bound in zip("abc", variant.bounds, strict=True)},
        "assertion_and_proof": RELATION,
    }


# As many of something else; another number that is not zero; None by falling through.
HARMLESS: dict[str, tuple[str, ...]] = {
    "witness": (
        "count = len([v for v in values if v != 0]) -> count = len([k for v in values if v != 0])",
        "count = len([v for v in values if v != 0]) -> count = len([values for v in values if v != 0])",
        "return [0.0] * len(values) if count > k else [1.0] * len(values) -> "
        "return [0.0] * len(values) if count > k else [2.0] * len(values)",
    ),
    "decide": ("return None -> pass",),
}


def _witness_same(values, k):
    return [2.0 * v for v in values]


def _witness_zero(values, k):
    return [0.0] * len(values)


def _witness_longer(values, k):
    return [1.0] * (len(values) + k + 1)


def _witness_number(values, k):
    return 0


def _unchanged(x, k, check):
    n = x.nonzero().shape[0]
    if n > k:
        return x.sum() / n
    return x.sum()


def _sample_branch(x, k, check):
    n = x.nonzero().shape[0]
    return x.sum() / n


def _raises_by_hand(x, k, check):
    n = x.nonzero().shape[0]
    if n <= k:
        raise ValueError("too few")
    return x.sum() / n


def _python_assert(x, k, check):
    n = x.nonzero().shape[0]
    assert n > k
    return x.sum() / n


def _too_late(x, k, check):
    n = x.nonzero().shape[0]
    result = x.sum() / n if n > k else x.sum()
    check(n > k, "too few")
    return result


def _too_weak(x, k, check):
    n = x.nonzero().shape[0]
    check(n >= 0, "a size is not negative")
    if n > k:
        return x.sum() / n
    check(n > k, "too few")
    return x.sum()


def _too_strong(x, k, check):
    n = x.nonzero().shape[0]
    check(n > k + 1, "too few")
    return x.sum() / n


def _reads_data(x, k, check):
    n = int((x != 0).sum())
    check(n > k, "too few")
    return x.sum() / n


def _other_values(x, k, check):
    n = x.nonzero().shape[0]
    check(n > k, "too few")
    return x.sum() / x.shape[0]


def _no_number(x, k, check):
    n = x.nonzero().shape[0]
    check(n > k, "too few")
    return x / n


def _of_lowest(low, high, k):
    return low > k


def _never_false(low, high, k):
    return True if low > k else None


def _off_by_one(low, high, k):
    if low >= k:
        return True
    return False if high is not None and high < k else None


def _always_refused(low, high, k):
    return None


def _false_if_open(low, high, k):
    return bool(low > k or high is None)


def _as_text(low, high, k):
    return "refused"


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex39_runs import ALWAYS_FALSE, ALWAYS_TRUE, BEFORE, NEVER, REFUSED, decision_of

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def chose(option: str) -> str:
        return f"chose-{option.replace(' ', '-')}"

    decisions = [
        slip(chose(option), **{f"decision_{letter}": option})
        for letter, bound in zip("abc", variant.bounds, strict=True)
        for option in (ALWAYS_TRUE, ALWAYS_FALSE, REFUSED)
        if option != decision_of(variant, bound)
    ]
    return (
        slip("same-way", witness=_witness_same),
        slip("same-way", witness=_witness_zero),
        slip("other-key", witness=_witness_longer),
        slip("wrong-form", witness=_witness_number),
        *(slip(chose(option), checked_when=option) for option in (BEFORE, NEVER)),
        slip("not-asserted", rewritten=_unchanged),
        slip("not-asserted", rewritten=_sample_branch),
        slip("decides-on-data", rewritten=_raises_by_hand),
        slip("decides-on-data", rewritten=_python_assert),
        slip("too-late", rewritten=_too_late),
        slip("too-weak", rewritten=_too_weak),
        slip("too-strong", rewritten=_too_strong),
        slip("reads-data", rewritten=_reads_data),
        slip("other-values", rewritten=_other_values),
        slip("wrong-form", rewritten=_no_number),
        slip("lowest", decide=_of_lowest),
        slip("never-false", decide=_never_false),
        slip("edge", decide=_off_by_one),
        slip("always-refused", decide=_always_refused),
        slip("guess", decide=_false_if_open),
        slip("wrong-form", decide=_as_text),
        *decisions,
    )
