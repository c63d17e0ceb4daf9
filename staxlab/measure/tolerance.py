"""Which tolerance is right? One chooser for all comparisons of results (Sections 6.5, 11.4, 13.3).

"Equal up to 1e-5" is no criterion. For a row that cancels it calls rounding a defect; for a row that does not, it lets
a lost summand of a long sum pass. What two right programs may differ by follows from three things: the order of the
operations, the format they round to, and *the data*, whose condition number turns one absolute error into a small or a
large relative one (Section 13.3, Example 7.1). So a tolerance is chosen here from what is known, and says why:

====================  ==================================================================================================
known                 tolerance
====================  ==================================================================================================
that nothing rounds   :func:`exact`: every bit, NaN being NaN
a format              :func:`of_dtype`: one value, rounded to it so many times on each side; relative
a summation plan      :func:`of_sum`: ``gamma(h) sum(|a_i|)`` of either side (Section 6.5); absolute, for every sum
a product's factors   :func:`of_product`: the same with ``|A| |B|``; absolute, for every element
a program             :func:`of_program`: the program once more, in double precision, with deliberate errors at every
                      operator (:mod:`.program_bounds`); absolute, for every element of every result
eager's own error     :func:`beside_eager`: so many times what eager is off by itself, and what sums typically are;
                      for long measurements, where a second and third run of the program cost too much
====================  ==================================================================================================

The first that applies is the sharpest. Where kernels are compared with the meaning of their own loops, intervals are
sharper still (:mod:`.reduction_bounds`, :mod:`staxlab.loops.enclosure`).

>>> import torch
>>> x = torch.tensor([[3.0, -2.0, 1.0], [1e8, 1.0, -1e8]])
>>> tolerance = of_sum(x)
>>> [f"{room:.1e}" for room in tolerance.room(x.sum(-1)).tolist()]
['1.4e-06', '4.8e+01']
>>> tolerance.compare(torch.tensor([2.0, 0.0]), torch.tensor([2.0, 1.0])).agrees
True
>>> tolerance.compare(torch.tensor([2.1, 1.0]), torch.tensor([2.0, 1.0])).agrees
False
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.module import GraphModule
from ..errors import ToleranceError
from ..operators.structure import flatten
from .agreement import Agreement, Difference, compare
from .program_bounds import RUNS, bounds_of
from .rounding import (
    SummationPlan,
    expected_height,
    gamma,
    segmented,
    stored_apart,
    summation_bound,
    unit_roundoff,
)

#: Times that a right result may be further from the truth than eager's is. Errors of a badly conditioned row are the
#: same draw from the same distribution on both sides, whose ratio has a long tail: the chance that one normal error is
#: a hundred times another is (2/pi) atan(1/100), 0.6%, and the largest of many rows are far closer to each other.
FURTHER_THAN_EAGER = 100.0


@dataclass(frozen=True)
class Tolerance:
    """How far one right result may lie from another: ``absolute`` (a number, or a float64 tensor with one for every
    element, NaN where anything goes) plus ``relative`` times the magnitude of what is expected. ``why`` says so."""

    absolute: Any
    relative: float
    why: str

    @property
    def is_exact(self) -> bool:
        """Whether every bit is asked for."""
        return not isinstance(self.absolute, torch.Tensor) and not self.absolute and not self.relative

    def room(self, expected: torch.Tensor) -> torch.Tensor:
        """What each element of a result may be off by, in float64. ToleranceError where the tolerance was chosen for
        another shape."""
        if isinstance(self.absolute, torch.Tensor) and self.absolute.shape != expected.shape:
            shapes = f"values of shape {list(expected.shape)}, a tolerance for {list(self.absolute.shape)}"
            raise ToleranceError(shapes, remedy="choose it from the data that the values were computed from")
        size = torch.where(expected.isfinite(), expected.abs(), 0).double()
        absolute = self.absolute.to(size.device) if isinstance(self.absolute, torch.Tensor) else self.absolute
        return absolute + self.relative * size

    def compare(self, computed: Any, expected: Any, name: str = "the result") -> Agreement:
        """The verdict on one value: dtype, shape and device have to be the same, and numbers within the room. NaN and
        infinities have to be where they are. O(elements)."""
        exact = self.is_exact or not isinstance(expected, torch.Tensor) or not _rounds(expected.dtype)
        bound = None if exact else self.room(expected).expand(expected.shape)
        return compare([computed], [expected], [name], [bound])

    def agrees(self, computed: Any, expected: Any) -> bool:
        return self.compare(computed, expected).agrees

    def require(self, computed: Any, expected: Any, name: str = "the result") -> Agreement:
        """The agreement. ToleranceError, which is an AssertionError, with the first element that is too far off, what
        it may be off by, and why that much."""
        found = self.compare(computed, expected, name)
        if not found.agrees:
            raise refusal(found.difference, self.why)
        return found

    def __str__(self) -> str:
        absolute = self.absolute
        if isinstance(absolute, torch.Tensor):
            known = absolute[~absolute.isnan()]
            ends = (float(known.min()), float(known.max())) if known.numel() else (0.0, 0.0)
            absolute = f"{ends[0]:.2g} to {ends[1]:.2g}, element by element"
        else:
            absolute = f"{absolute:.2g}"
        return f"absolute {absolute}, relative {self.relative:.2g}: {self.why}"


def refusal(difference: Difference | None, why: str) -> ToleranceError:
    """The error for a difference."""
    remedy = f"that is more than rounding explains ({why}): look for a wrong value, not for a wider tolerance"
    return ToleranceError(str(difference), remedy=remedy)


def _rounds(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def exact(why: str = "nothing rounds: moves, comparisons, integers") -> Tolerance:
    """Every bit."""
    return Tolerance(0.0, 0.0, why)


def of_dtype(dtype: Any, roundings: int = 1) -> Tolerance:
    """For values that either side rounds ``roundings`` times, each by a factor ``1 + d``, ``|d| <= u``: products,
    quotients, conversions, roots. Differences are no such thing, since they cancel: see :func:`of_program`.

    Integers and booleans are exact. ValueError for a negative number of roundings, and where so many have no bound.
    """
    if roundings < 0:
        raise ValueError(f"a value cannot be rounded {roundings} times")
    if isinstance(dtype, torch.dtype) and not _rounds(dtype):
        return exact(f"{str(dtype).removeprefix('torch.')} does not round")
    real = torch.empty((), dtype=dtype).real.dtype if isinstance(dtype, torch.dtype) and dtype.is_complex else dtype
    floor = float(stored_apart(0.0, real)) if roundings else 0.0
    name = str(dtype).removeprefix("torch.")
    return Tolerance(floor, 2 * gamma(roundings, real), f"{roundings} roundings to {name} on either side")


def of_sum(
    summands: torch.Tensor,
    plan: SummationPlan | None = None,
    other: SummationPlan | None = None,
    *,
    dtype: Any = None,
    result_dtype: Any = None,
    exact_reference: bool = False,
    typical: bool = False,
) -> Tolerance:
    """For sums over the last dimension of ``summands``, added in the order of ``plan`` on one side and of ``other`` on
    the other (None: in any). ``exact_reference``: the other side does not round. ``typical``: an order that is not
    known is taken to have :func:`~.rounding.expected_height`, and not the worst.

    ``dtype`` is what the additions are carried out in (that of the summands; float32 for 16-bit ones), ``result_dtype``
    what sums are stored in (that of the summands). Rigorous unless ``typical``: the worst case of Section 6.5.
    O(elements).
    """
    if not _rounds(summands.dtype):
        return exact("integers have one sum in any order")
    dtype = dtype if dtype is not None else _accumulator(summands.dtype)
    result_dtype = result_dtype if result_dtype is not None else summands.dtype
    n = summands.shape[-1]
    size = summands.abs().double().sum(-1)
    usual = segmented(n, max(math.isqrt(n), 1)) if typical else None  # of just about that height
    orders = [order or usual for order in (plan, other)[: 2 - exact_reference]]
    absolute = sum(summation_bound(n, order, size, dtype, result_dtype=result_dtype) for order in orders)
    heights = [max(n - 1, 0) if order is None else order.height for order in orders]
    name = str(dtype).removeprefix("torch.")
    why = f"sums of {n:,} numbers in {name}, trees of height {' and '.join(f'{h:,}' for h in heights)}, times sum(|a|)"
    return Tolerance(absolute, 0.0, why)


def of_product(
    a: torch.Tensor, b: torch.Tensor, *, dtype: Any = None, result_dtype: Any = None, typical: bool = True
) -> Tolerance:
    """For ``a @ b`` in two orders: ``gamma(h)`` of ``|a| @ |b|`` on either side.

    ``typical``: ``h`` is :func:`~.rounding.expected_height` of the depth; else the worst case of any order. ``dtype``
    is that of the accumulator (float32 for 16-bit factors), ``result_dtype`` that of the result. One float64 product.
    """
    if not _rounds(a.dtype):
        return exact("integers have one product in any order")
    dtype = dtype if dtype is not None else _accumulator(a.dtype)
    depth = a.shape[-1]
    height = expected_height(depth) if typical else depth
    size = a.abs().double() @ b.abs().double()
    absolute = 2 * gamma(height, dtype) * size
    floor = stored_apart(size, result_dtype if result_dtype is not None else a.dtype)
    name = str(dtype).removeprefix("torch.")
    return Tolerance(absolute + floor, 0.0, f"products of depth {depth:,} in {name}, height {height:,}, times |A||B|")


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else torch.empty((), dtype=dtype).real.dtype


def of_program(
    program: Callable[..., Any] | GraphModule, *inputs: Any, height: int = 0, runs: int = RUNS
) -> tuple[Tolerance, ...]:
    """One tolerance for each of the flat results of a function or a captured graph, on these very inputs.

    ``height`` is that of the tallest summation tree among the kernels that are compared
    (:func:`~.rounding.expected_height`). ``runs + 1`` runs in double precision; two will do where results have many
    elements that are alike. Where the program cannot run so, every result
    has to be equal bit for bit, and the reason is told. A function may be given anything it takes; a graph one value
    for each of its placeholders.
    """
    module, flat = program, list(inputs)
    if not isinstance(program, GraphModule):
        from ..capture.tracer import trace

        capture = trace(program, inputs, {})
        module, flat = capture.module, capture.bind(inputs, {})
    assert isinstance(module, GraphModule)
    found = bounds_of(module, flat, height=height, runs=runs)
    count = len(flatten(module.graph.output.args[0]))
    if found.reason:
        return (exact(f"no bounds could be made: {found.reason}"),) * count
    why = "errors of a right implementation at every operator, sent through the program on these data"
    return tuple(exact() if bound is None else Tolerance(bound, 0.0, why) for bound in found.bound[:count])


def require_agreement(computed: Any, expected: Any, tolerances: Sequence[Tolerance]) -> Agreement:
    """The worst agreement of the flat results of two runs. ToleranceError where they differ by more than that."""
    results, wanted = flatten(computed), flatten(expected)
    if not len(results) == len(wanted) == len(tolerances):
        counts = f"{len(results)} results beside {len(wanted)}, with {len(tolerances)} tolerances"
        raise ToleranceError(counts, remedy="compare results of one structure")
    found = [
        tolerance.require(one, other, f"result {number}")
        for number, (one, other, tolerance) in enumerate(zip(results, wanted, tolerances, strict=True))
    ]
    return max(found, key=lambda agreement: agreement.share, default=Agreement(True))


def beside_eager(eager_error: float, dtype: Any, terms: int = 1) -> float:
    """What a result may be off by from the exact one, where eager is off by ``eager_error``: both relative to the size
    of what is compared. ``terms``: how many numbers an element is the sum of.

    Badly conditioned data amplify the roundings of every order alike, so eager's error carries the condition number
    (:data:`FURTHER_THAN_EAGER`). Eager adds some sums in double precision, though, and a short one may come out exact:
    so what float32 sums typically err by (Theorem 13.1) and two roundings of the result are allowed in any case.
    """
    accumulator = min(unit_roundoff(dtype), unit_roundoff("float32"))
    return FURTHER_THAN_EAGER * eager_error + 8 * math.sqrt(terms) * 2 * accumulator + 2 * unit_roundoff(dtype)
