"""Answers to Exercise 37: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex37 import Variant


def window_counts(N, B, w):
    n = N // B
    full = visited = 0
    for d in range(n):
        blocks = n if d == 0 else 2 * (n - d)
        nearest = max((d - 1) * B + 1, 0)
        farthest = (d + 1) * B - 1
        if farthest <= w:
            full += blocks
        if nearest <= w:
            visited += blocks
    return full, visited - full, n * n - visited


WHY = """Blocks at distance d = |i - j| hold positions that are between (d - 1) B + 1 and (d + 1) B - 1 apart. A
diagonal is full if the largest of these distances is within the window, (d + 1) B - 1 <= w, and it is empty if even
the smallest is not, (d - 1) B + 1 > w. If w = k B, the diagonals below k are full and k is the only one in between: 2
(n - k) partial blocks. If w = k B + r with 0 < r < B - 1, the window reaches into the diagonal k + 1 as well and does
not yet cover the diagonal k, so both are partial: 2 (n - k) + 2 (n - k - 1), nearly twice as many. With r = B - 1 the
diagonal k is full, since its farthest pair is (k + 1) B - 1 apart, and only k + 1 remains partial. Every partial block
evaluates the mask element by element and computes scores that are thrown away, so one rounds w to a multiple of B, or
to one less."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...measure.block_counts import visited_blocks
    from .ex37_runs import causal_mask, saved, window

    length, block = variant.length, variant.block
    return {
        "full_blocks": "n*(2*k - 1) - k*(k - 1)",
        "partial_blocks": "2*(n - k)",
        "empty_blocks": "(n - k)*(n - k - 1)",
        "window_visited": visited_blocks(window(length, block, variant.width)),
        "causal_visited": visited_blocks(causal_mask(length, block)),
        "saved_computation": str(saved(length, block, variant.width)),
        "window_counts": window_counts,
        "ragged_partial": window(length, block, variant.ragged_width).partial,
        "last_partial": window(length, block, variant.last_width).partial,
        "why_partial": WHY,
    }


# Distances are compared with w, which is not below zero: a smallest distance of zero or less is all the same. And the
# first diagonal is visited whatever w is.
HARMLESS = {
    "window_counts": (
        "nearest = max((d - 1) * B + 1, 0) -> nearest = max((d - 1) * B + 1, -1)",
        "blocks = n if d == 0 else 2 * (n - d) -> blocks = n if visited == 0 else 2 * (n - d)",
    )
}


def whole_blocks_only(N, B, w):
    n, k = N // B, min(w // B, N // B)
    if k == 0:
        return 0, n, n * n - n
    full = n * (2 * k - 1) - k * (k - 1)
    partial = 2 * (n - k)
    return full, partial, n * n - full - partial


def rounded_up(N, B, w):
    n = N // B
    k = min(-(-w // B), n)
    if k == 0:
        return 0, n, n * n - n
    full = n * (2 * k - 1) - k * (k - 1)
    partial = 2 * (n - k)
    return full, partial, n * n - full - partial


def always_two(N, B, w):
    n = N // B
    full = visited = 0
    for d in range(n):
        blocks = n if d == 0 else 2 * (n - d)
        if d < w // B:
            full += blocks
        if d <= -(-w // B):
            visited += blocks
    return full, visited - full, n * n - visited


def one_sided(N, B, w):
    n = N // B
    full = visited = 0
    for d in range(n):
        if (d + 1) * B - 1 <= w:
            full += n - d
        if (d - 1) * B + 1 <= w:
            visited += n - d
    return full, visited - full, n * n - visited


def _exchanged(N, B, w):
    full, partial, empty = window_counts(N, B, w)
    return partial, full, empty


def _diagonal_counted_twice(N, B, w):
    full, partial, empty = window_counts(N, B, w)
    return full + N // B, partial, empty


def _visited_and_empty(N, B, w):
    full, partial, empty = window_counts(N, B, w)
    return full + partial, empty


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex37 import causal_slips, last_slips, ragged_slips, saving_slips, visited_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("diagonal-twice", full_blocks="2*n*k - k*(k - 1)"),
        slip("one-sided", full_blocks="n*k - k*(k - 1)/2"),
        slip("partial-as-well", full_blocks="n*(2*k + 1) - k*(k + 1)"),
        slip("ends-forgotten", full_blocks="n*(2*k - 1)"),
        slip("one-sided", partial_blocks="n - k"),
        slip("ends-forgotten", partial_blocks="2*n"),
        slip("diagonal-is-full", partial_blocks="n + 2*(n - k)"),
        slip("one-sided", empty_blocks="(n - k)*(n - k - 1)/2"),
        slip("partial-as-well", empty_blocks="(n - k)*(n - k + 1)"),
        *(slip(s.name, window_visited=s.answer) for s in visited_slips(variant)),
        *(slip(s.name, causal_visited=s.answer) for s in causal_slips(variant)),
        *(slip(s.name, saved_computation=s.answer) for s in saving_slips(variant)),
        *(slip(s.name, ragged_partial=s.answer) for s in ragged_slips(variant)),
        *(slip(s.name, last_partial=s.answer) for s in last_slips(variant)),
        slip("whole-blocks-only", window_counts=whole_blocks_only),
        slip("rounded-up", window_counts=rounded_up),
        slip("window-ends-with-a-block", window_counts=always_two),
        slip("one-sided", window_counts=one_sided),
        slip("exchanged", window_counts=_exchanged),
        slip("not-all-blocks", window_counts=_diagonal_counted_twice),
        slip("wrong-form", window_counts=_visited_and_empty),
    )
