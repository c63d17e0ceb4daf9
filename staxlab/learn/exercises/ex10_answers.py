"""Answers to Exercise 10: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex10 import Variant


def escape(reads, U, B, C):
    waiting = [[v] for v in U if v not in C]
    while waiting:
        path = waiting.pop()
        if path[-1] in B:
            return path
        for v in reads:
            if path[-1] in reads[v] and v not in C:
                waiting.append([*path, v])
    return None


def always_saved(U, B):
    return U & B


def only_path(v):
    return ["s", v + "_in", v + "_out", "t"]


def unsaved_reduction(x):
    pairs = x[:, :2].sum(-1)
    return pairs.exp().mul(pairs).sum()


PROOF = """Let v be in U and in B, and C feasible. v by itself is a path that begins in U and ends in B, for it is in
both and the ends count. By Definition 5.1 the path contains a value of C, and its only value is v: so v is in C,
whatever C is. No other value is in every feasible set: if v is not in U or not in B, take all values but v. A path from
U to B then has a value other than v, its first if v is not in U, its last if v is not in B, and that value is in the
set; so the set is feasible and does not contain v."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "escape": escape,
        "always_saved": always_saved,
        "why_always": PROOF,
        "only_path": only_path,
        "forced_bytes": 4 * variant.rows,
        "forced_capacity": 4 * variant.rows * 1.1,
        "smallest_columns": 5,
        "unsaved_reduction": unsaved_reduction,
    }


# A function that ends without a return gives None; sums of one and of three elements are computed again as well.
HARMLESS: dict[str, tuple[str, ...]] = {
    "escape": ("return None -> pass",),
    "unsaved_reduction": (
        "pairs = x[:, :2].sum(-1) -> pairs = x[:, :3].sum(-1)",
        "pairs = x[:, :2].sum(-1) -> pairs = x[:, :1].sum(-1)",
    ),
}


def _only_longer_paths(reads, U, B, C):
    waiting = [[v] for v in U if v not in C]
    while waiting:
        path = waiting.pop()
        if len(path) > 1 and path[-1] in B:
            return path
        waiting += [[*path, v] for v in reads if path[-1] in reads[v] and v not in C]
    return None


def _only_single_values(reads, U, B, C):
    return next(([v] for v in sorted(U & B - C)), None)


def _starts_anywhere(reads, U, B, C):
    return escape(reads, set(reads), B, C)


def _ends_anywhere(reads, U, B, C):
    return escape(reads, U, set(reads), C)


def _ignores_c(reads, U, B, C):
    return escape(reads, U, B, set())


def _ends_only(reads, U, B, C):
    for u in sorted(U - C):
        for b in sorted(B - C):
            return [u, b] if u != b else [u]
    return None


def _yes_or_no(reads, U, B, C):
    return escape(reads, U, B, C) is None


def _through_its_readers(v):
    return ["s", v + "_in", "t"]


def _value_only(v):
    return [v + "_in", v + "_out"]


def _saved_by_rule(x):
    total = x.sum(-1)
    return (total * total * total).sum()


def _not_read(x):
    return (x * 2).sum()


def _no_reduction(x):
    return x.exp()


def _a_number(x):
    return 1.0


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    size = 4 * variant.rows
    return (
        slip("path-of-one-value", escape=_only_longer_paths),
        slip("misses-a-path", escape=_only_single_values),
        slip("wrong-start", escape=_starts_anywhere),
        slip("wrong-end", escape=_ends_anywhere),
        slip("through-C", escape=_ignores_c),
        slip("no-path", escape=_ends_only),
        slip("wrong-form", escape=_yes_or_no),
        slip("too-many", always_saved=lambda U, B: U),
        slip("too-many", always_saved=lambda U, B: B),
        slip("too-few", always_saved=lambda U, B: set()),
        slip("wrong-form", always_saved=lambda U, B: True),
        slip("not-in-network", only_path=_through_its_readers),
        slip("not-from-s-to-t", only_path=_value_only),
        slip("wrong-form", only_path=lambda v: v in "st"),
        slip("all-that-is-read", forced_bytes=2 * size),
        slip("elements", forced_bytes=variant.rows),
        slip("bytes-only", forced_capacity=size),
        slip("beta-of-fused", forced_capacity=2 * size * 1.1),
        slip("not-less", smallest_columns=4),
        slip("is-saved", unsaved_reduction=_saved_by_rule),
        slip("not-read", unsaved_reduction=_not_read),
        slip("no-reduction", unsaved_reduction=_no_reduction),
        slip("wrong-form", unsaved_reduction=_a_number),
    )
