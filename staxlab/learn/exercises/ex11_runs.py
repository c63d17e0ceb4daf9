"""What Exercise 11 runs: views of layouts, by the package's maps of subscripts and by addresses one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations, product

import torch

from ...loops.ir import Layout
from ...loops.layout import IndexMap, contiguous_stride, layout_through, numel, permuted, reshaped, sliced
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator


def layout(shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Layout:
    return Layout(tuple(shape), tuple(strides), torch.float32, "cpu", offset)


def text(found: Layout) -> str:
    return f"shape {found.shape}, strides {found.stride}, offset {found.offset}"


def addresses(found: Layout) -> list[int]:
    """The address of every element, in row-major order of the subscripts."""
    return [int(found.address(i)) for i in product(*map(range, found.shape))]


def turned(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """The layout of ``x.t()``."""
    return layout_through(layout(shape, strides), permuted(shape, (1, 0)))


def flat_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of the reshape to one dimension, or None where no stride does it: what the package says."""
    found = layout_through(layout(shape, strides), reshaped(shape, (numel(shape),)))
    return None if found is None else found.stride[0]


def sliced_and_turned(shape: Sequence[int], start: int, step: int) -> IndexMap:
    """``x[:, start::step].t()``"""
    cut = sliced(shape, 1, start, len(range(start, shape[1], step)), step)
    return cut.after(permuted(cut.shape, (1, 0)))


# --- One stride for everything ----------------------------------------------------------------------------------------


def layouts(seed: int | None) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(shape, strides) of at least two elements: contiguous, transposed, cut, expanded, with dimensions of extent 1."""
    rng = generator(seed, "layouts")
    cases = [((2,), (1,)), ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((3, 2), (4, 2)), ((2, 2), (8, 2)), ((2, 3), (0, 1)),
             ((2, 3), (0, 0)), ((1, 4), (7, 2)), ((4, 1), (2, 9)), ((2, 1, 3), (3, 5, 1)), ((2, 2, 3), (6, 3, 1)),
             ((2, 2, 3), (12, 3, 1)), ((2, 2, 3), (9, 4, 1)), ((3, 2, 2), (4, 2, 1))]  # fmt: skip
    while len(cases) < 40:
        shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(2, 4)))
        if numel(shape) < 2:
            continue
        strides = [rng.randint(1, 6) for _ in shape]
        if rng.random() < 0.6:
            scale = rng.choice((1, 2, 3))
            strides = [scale * step for step in contiguous_stride(shape)]
            if rng.random() < 0.4:
                strides[rng.randrange(len(shape))] += rng.choice((1, 2))
        cases.append((shape, tuple(strides)))
    return sorted(dict.fromkeys(cases), key=lambda case: (numel(case[0]), len(case[0])))


def judge_flat_stride(callee: Callee, seed: int | None) -> Verdict:
    cases = layouts(seed)
    for shape, strides in cases:
        outcome = callee.call(shape, strides)
        if outcome.failed:
            return call_failed(callee, (shape, strides), outcome)
        yours, truth = outcome.value, flat_stride(shape, strides)
        if isinstance(yours, bool) or not (yours is None or isinstance(yours, int)):
            return unexpected_result(callee, (shape, strides), f"{result_text(yours)} is neither an integer nor None")
        if yours == truth:
            continue
        places = addresses(layout(shape, strides))
        facts = (("shape", shape), ("strides", strides), ("yours", yours))
        if yours is None:
            shown = ("addresses in order", ", ".join(map(str, places[:12])) + (", ..." if len(places) > 12 else ""))
            if _knows_without_units(callee, shape, strides, truth):
                message = "There is one: along a dimension of extent 1 nobody moves, so its stride does not matter."
                return wrong(message, *facts, shown, mistake="unit-dimension")
            return wrong("There is one.", *facts, shown, mistake="missed-stride")
        m = next(m for m, place in enumerate(places) if place != yours * m)
        shown = (("element", m), ("it is at", places[m]), ("yours looks at", yours * m))
        return wrong("That stride leads to another element.", *facts, *shown, mistake="wrong-address")
    return right("It agrees with the compiler and with the addresses.", ("tried", f"{len(cases)} layouts"))


def _knows_without_units(callee: Callee, shape: Sequence[int], strides: Sequence[int], truth: int | None) -> bool:
    """Whether the student's function is right once dimensions of extent 1 are left out, of which there are some."""
    kept = [(extent, step) for extent, step in zip(shape, strides, strict=True) if extent > 1]
    outcome = callee.call(tuple(extent for extent, _ in kept), tuple(step for _, step in kept))
    return len(kept) < len(shape) and not outcome.failed and outcome.value == truth


# --- Slicing and permuting --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def exchanges() -> tuple[tuple[tuple[int, ...], int], ...]:
    """(order, dimension): all of two and three dimensions, and some of four."""
    found = [(order, d) for n in (2, 3) for order in permutations(range(n)) for d in range(n)]
    return (*found, *(((1, 2, 3, 0), d) for d in range(4)), *(((2, 0, 3, 1), d) for d in range(4)))


def both_ways(order: Sequence[int], d: int, place: int) -> tuple[Layout, Layout]:
    """Dimension d cut and then permuted; permuted and then the dimension at ``place`` cut."""
    shape = tuple(7 + 2 * k for k in range(len(order)))
    x = layout(shape, contiguous_stride(shape), 5)
    cut = sliced(shape, d, 1, 3, 2)
    first = layout_through(x, cut.after(permuted(cut.shape, order)))
    turn = permuted(shape, order)
    second = layout_through(x, turn.after(sliced(turn.shape, place, 1, 3, 2)))
    return first, second


def judge_moved(callee: Callee) -> Verdict:
    answers: list[tuple[tuple[int, ...], int, int]] = []
    for order, d in exchanges():
        outcome = callee.call(order, d)
        if outcome.failed:
            return call_failed(callee, (order, d), outcome)
        yours = outcome.value
        if isinstance(yours, bool) or not isinstance(yours, int) or not 0 <= yours < len(order):
            return unexpected_result(callee, (order, d), f"{result_text(yours)} is none of the {len(order)} dimensions")
        answers.append((order, d, yours))
    for order, d, yours in answers:
        first, second = both_ways(order, d, yours)
        if first == second:
            continue
        facts = (("order", order), ("d", d), ("yours", yours), ("cut, then permuted", text(first)),
                 ("permuted, then cut there", text(second)))  # fmt: skip
        if all(other == way[dim] for way, dim, other in answers):
            message = "order[d] says from where dimension d of the result comes. Where does dimension d of x go?"
            return wrong(message, *facts, mistake="other-direction")
        if all(other == dim for _, dim, other in answers):
            return wrong("Permuting moves the dimension away from there.", *facts, mistake="not-moved")
        return wrong("The two ways give different layouts.", *facts, mistake="wrong-dimension")
    return right("Both ways give one layout.", ("tried", f"{len(answers)} permutations and dimensions"))


def drawn_layouts(rng: random.Random) -> tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]:
    """Rows and columns of x, the layout of z, and the slice."""
    rows, columns = rng.sample(range(4, 10), 2)
    shape = tuple(rng.sample((2, 3, 4, 5), 3))
    scale = rng.choice((1, 2, 3))
    strides = [scale * step for step in contiguous_stride(shape)]
    if rng.random() < 0.5:
        strides[0] += scale * rng.choice((1, 2, shape[2]))
    return rows, columns, shape, tuple(strides), rng.randint(1, 2), rng.randint(2, 3)
