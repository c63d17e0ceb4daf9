"""Algebraic identities under IEEE 754, decided by the machine (Section 4.2, Table 4.1).

Over the reals ``x + 0``, ``x * 1`` and ``x - x`` can be simplified without a second thought. Tensors hold IEEE 754
numbers, with two zeros, infinities, NaN and a rounding after every operation, and which identities are left is a
question of fact. So it is put to the arithmetic itself: both sides are computed by PyTorch, eagerly, for *all* float16
and bfloat16 numbers and for many telling ones of the wider types (:mod:`~staxlab.measure.bit_patterns`), and compared
bit by bit. NaN equals NaN here, whatever its payload.

=============================  ======================================================================================
verdict                        meaning
=============================  ======================================================================================
exact                          no difference was found
except for the sign of zero    ``+0`` became ``-0`` or the reverse; ``==`` does not see it, ``1 / x`` does
except for NaN                 all differences are where an argument or one of the two sides is NaN
wrong                          two different numbers; how many units in the last place apart, if both are finite
another dtype                  the sides have different types, so a rewrite that keeps types never comes to it
not defined                    PyTorch refuses one of the sides for this dtype
=============================  ======================================================================================

Arithmetic is that of the CPU, on long vectors: PyTorch computes the exponential and others differently for the few
elements left over at an end. (A GPU may compute ``x / c`` as ``x * (1 / c)``, which the table says is wrong.) Where a
type is too wide to be tried whole, "exact" means that the search found nothing; :mod:`~staxlab.measure.proof` proves
some of these for all float32 numbers.

The value is not everything. An identity can also change dtype, shape and memory (Section 4.2):
:mod:`~staxlab.measure.conditions` shows each with a program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import torch

from ..transform.operations import is_number
from ..transform.patterns import Apply, Expr, Rule, Var, spelling
from .bit_patterns import bits_of, count_of, number_text, ordinals, simplest, tuples
from .tables import Table, Tabular

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
QUICK = (torch.float16, torch.float32, torch.int8, torch.bool)


class Verdict(Enum):
    """What a comparison found; the later, the worse. The value is (words, mark in a table)."""

    UNDEFINED = ("not defined", "-")
    EXACT = ("exact", "exact")
    SIGN_OF_ZERO = ("exact except for the sign of zero", "±0")
    NAN = ("exact except for NaN", "NaN")
    NAN_AND_SIGN = ("exact except for NaN and the sign of zero", "NaN, ±0")
    DTYPE = ("another dtype", "dtype")
    WRONG = ("wrong", "wrong")

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def mark(self) -> str:
        return self.value[1]

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.rank, default=Verdict.UNDEFINED)


@dataclass(frozen=True)
class Identity:
    """``left -> right``: two expressions over the same variables, as in a :class:`~staxlab.transform.patterns.Rule`."""

    left: Expr
    right: Any
    family: str = ""

    @property
    def law(self) -> str:
        return f"{self.left} -> {self.right}"

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_variables(self.left)))

    @classmethod
    def of(cls, rule: Rule | Identity) -> Identity:
        """What a rewrite rule claims. ValueError for a rule whose replacement is a function, and so claims nothing
        definite."""
        if isinstance(rule, Identity):
            return rule
        if callable(rule.replace) and not isinstance(rule.replace, Expr):
            raise ValueError(f"the replacement of {rule.name!r} is computed: it states no single identity")
        return cls(rule.pattern, rule.replace)


def _variables(part: Any) -> Iterable[str]:
    if isinstance(part, Var):
        yield part.name
    elif isinstance(part, Apply):
        for argument in (*part.args, *(value for _, value in part.kwargs)):
            yield from _variables(argument)


def evaluate(expression: Any, values: dict[str, Any]) -> Any:
    """An expression computed eagerly by PyTorch; what holds numbers only is computed by Python."""
    if isinstance(expression, Var):
        return values[expression.name]
    if not isinstance(expression, Apply):
        return expression
    arguments = [evaluate(part, values) for part in expression.args]
    named = {name: evaluate(part, values) for name, part in expression.kwargs}
    op, target = spelling(expression.operation)
    if op == "call_method":
        return getattr(arguments[0], target)(*arguments[1:], **named)
    return target(*arguments, **named)


@dataclass(frozen=True)
class Counterexample:
    """Arguments at which the two sides differ, and what each gives, as text and as Python numbers."""

    arguments: tuple[tuple[str, Any], ...]
    left: Any
    right: Any
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Case:
    """One identity for one dtype.

    ``tried`` tuples of arguments were compared, ``complete`` if there are no others. ``signs``, ``nans`` and ``wrongs``
    count the differences of each kind; ``ulps`` is the largest distance of two finite numbers among the wrong ones.
    """

    dtype: torch.dtype
    verdict: Verdict
    tried: int = 0
    complete: bool = False
    counterexample: Counterexample | None = None
    signs: int = 0
    nans: int = 0
    wrongs: int = 0
    ulps: float = 0.0
    reason: str = ""


def compare(identity: Identity | Rule, dtype: torch.dtype, quick: bool = False, seed: int = 0) -> Case:
    """Both sides for the numbers of a dtype, bit by bit. O(numbers tried) operations of each side."""
    identity = Identity.of(identity)
    names = identity.variables
    columns, complete = tuples(dtype, len(names), quick, seed)
    values = dict(zip(names, columns, strict=True))
    with one_thread():
        try:
            left = evaluate(identity.left, values)
            right = evaluate(identity.right, values)
        except (RuntimeError, TypeError, NotImplementedError, ZeroDivisionError, ValueError) as error:
            return Case(dtype, Verdict.UNDEFINED, reason=str(error).splitlines()[0])
        return _compared(names, columns, complete, left, right)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread of PyTorch's: how elements are dealt out to threads decides which of them are left over at an end.
    (And on a busy machine, waiting for the other thread would be most of the time.)"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _compared(
    names: Sequence[str], columns: Sequence[torch.Tensor], complete: bool, left: torch.Tensor, right: Any
) -> Case:
    dtype, tried = columns[0].dtype, len(columns[0])
    if is_number(right):  # `x * 0 -> 0` stands for a tensor full of zeros, of the dtype it replaces
        right = torch.full_like(left, right)
    if left.dtype is not right.dtype:
        example = _example(names, columns, 0, left, right)
        example = replace(example, text=f"{_name(left.dtype)} became {_name(right.dtype)}")
        return Case(dtype, Verdict.DTYPE, tried, complete, example)
    differs = bits_of(left) != bits_of(right)
    if left.dtype.is_floating_point:
        differs &= ~(left.isnan() & right.isnan())
    if not bool(differs.any()):
        return Case(dtype, Verdict.EXACT, tried, complete)
    nan = torch.zeros_like(differs)
    for column in (*columns, left, right):
        if column.dtype.is_floating_point:
            nan |= column.isnan()
    nan &= differs
    sign = differs & (left == right)
    wrong = differs & ~nan & ~sign
    counts = [int(mask.sum()) for mask in (sign, nan, wrong)]
    if counts[2]:
        verdict, shown = Verdict.WRONG, wrong
    elif counts[1]:
        verdict, shown = (Verdict.NAN_AND_SIGN if counts[0] else Verdict.NAN), nan
    else:
        verdict, shown = Verdict.SIGN_OF_ZERO, sign
    example = _example(names, columns, simplest(columns, shown), left, right)
    return Case(dtype, verdict, tried, complete, example, *counts, ulps=_distance(left[wrong], right[wrong]))


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    if not left.numel() or left.dtype is torch.bool:
        return 0.0
    if left.dtype.is_floating_point:
        finite = left.isfinite() & right.isfinite()
        left, right = left[finite], right[finite]
    one, other = ordinals(left), ordinals(right)
    same_side = (one < 0) == (other < 0)  # there the difference fits int64, and is needed to the last digit
    apart = torch.where(same_side, (one - other).double(), one.double() - other.double())
    return float(apart.abs().max()) if apart.numel() else 0.0


def _example(
    names: Sequence[str], columns: Sequence[torch.Tensor], at: int, left: torch.Tensor, right: torch.Tensor
) -> Counterexample:
    where = ", ".join(f"{name} = {number_text(column[at])}" for name, column in zip(names, columns, strict=True))
    text = f"{where}: {number_text(left[at])} became {number_text(right[at])}"
    arguments = tuple((name, column[at].item()) for name, column in zip(names, columns, strict=True))
    return Counterexample(arguments, left[at].item(), right[at].item(), text)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Decided(Tabular):
    """An identity with what was found for each dtype. ``proof`` is what a prover said about float32, if one was asked
    (:mod:`~staxlab.measure.proof`)."""

    identity: Identity
    cases: tuple[Case, ...]
    proof: str = ""

    @property
    def law(self) -> str:
        return self.identity.law

    @property
    def verdict(self) -> Verdict:
        """The worst over the floating-point types: what a rule may rely on."""
        return worst(case.verdict for case in self.cases if case.dtype in FLOATS)

    @property
    def counterexample(self) -> Counterexample | None:
        """The first that shows the verdict, in the order of the dtypes; float32's if there is one."""
        for case in sorted(self.cases, key=lambda case: case.dtype is not torch.float32):
            if case.verdict is self.verdict and case.counterexample is not None:
                return case.counterexample
        return None

    def case(self, dtype: torch.dtype) -> Case:
        """KeyError where the dtype was not asked for."""
        for case in self.cases:
            if case.dtype is dtype:
                return case
        raise KeyError(dtype)

    def of(self, dtypes: Iterable[torch.dtype]) -> Verdict:
        """The worst over some dtypes."""
        wanted = set(dtypes)
        return worst(case.verdict for case in self.cases if case.dtype in wanted)

    def table(self) -> Table:
        rows = []
        for case in self.cases:
            share = "all" if case.complete else "of " + _size(count_of(case.dtype, len(self.identity.variables)))
            tried = f"{case.tried:,} ({share})" if case.tried else ""
            found = "; ".join(filter(None, [str(case.counterexample or case.reason), _ulps(case)]))
            rows.append((_name(case.dtype), case.verdict.words, tried, found))
        notes = [f"float32, by Z3: {self.proof}"] if self.proof else []
        return Table.build(self.law, ("dtype", "verdict", "tried", "simplest difference"), rows, notes, text_columns=4)


def _size(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"2^{count.bit_length() - 1}"


def _ulps(case: Case) -> str:
    return f"up to {case.ulps:.3g} ulp apart" if case.ulps else ""


def decide(
    identity: Identity | Rule, dtypes: Sequence[torch.dtype] = DTYPES, quick: bool = False, prove: bool = False
) -> Decided:
    """Put an identity, or what a rewrite rule claims, to the arithmetic of every dtype.

    ``quick`` tries fewer numbers of the wide types. ``prove`` asks Z3 about float32 as well (MissingDependencyError
    without it). ValueError for a rule that states no identity.
    """
    identity = Identity.of(identity)
    said = ""
    if prove:
        from .proof import prove as ask

        said = ask(identity).text
    return Decided(identity, tuple(compare(identity, dtype, quick) for dtype in dtypes), said)


@dataclass(frozen=True)
class IdentityTable(Tabular):
    """Table 4.1, computed: ``decided`` identities in order, by family."""

    decided: tuple[Decided, ...]
    quick: bool = False

    def __getitem__(self, law: str) -> Decided:
        """By law, as printed: ``table["x * 1 -> x"]``. KeyError for one that is no candidate."""
        for entry in self.decided:
            if entry.law == law:
                return entry
        raise KeyError(law)

    def __contains__(self, law: object) -> bool:
        return any(entry.law == law for entry in self.decided)

    def exact(self) -> tuple[Decided, ...]:
        """Those that hold for every floating-point number that was tried."""
        return tuple(entry for entry in self.decided if entry.verdict is Verdict.EXACT)

    def table(self) -> Table:
        dtypes = list(dict.fromkeys(case.dtype for entry in self.decided for case in entry.cases))
        floats = [dtype for dtype in dtypes if dtype in FLOATS]
        integers = [dtype for dtype in dtypes if dtype in INTEGERS]
        proved = any(entry.proof for entry in self.decided)
        columns = ["identity", *map(_name, floats)]
        columns += (["integers"] if integers else []) + (["bool"] if torch.bool in dtypes else [])
        columns += [*(["float32, by Z3"] if proved else []), "simplest difference between floats"]
        rows = []
        for entry in self.decided:
            cells = [entry.law.replace("->", "→"), *(entry.case(dtype).verdict.mark for dtype in floats)]
            cells += [entry.of(integers).mark] if integers else []
            cells += [entry.of((torch.bool,)).mark] if torch.bool in dtypes else []
            cells += [entry.proof] if proved else []
            rows.append((*cells, str(entry.counterexample or "")))
        whole = "float16 and bfloat16: every number"
        notes = (
            "; ".join(f"{verdict.mark}: {verdict.words}" for verdict in Verdict if verdict.mark != verdict.words),
            f"{whole}, and for two variables every number with each special one; wider types: telling numbers only",
            "a number alone on the right stands for a tensor full of it; arithmetic of PyTorch on the CPU",
        )
        caption = "Identities under IEEE 754: both sides computed and compared bit by bit (Table 4.1)"
        return Table.build(caption, columns, rows, notes, text_columns=len(columns))


def identity_table(
    quick: bool = False,
    candidates: Sequence[Identity] | None = None,
    prove: bool = False,
    tell: Callable[[str], None] | None = None,
) -> IdentityTable:
    """Decide every candidate (``staxlab.measure.candidates``). Some ten seconds on two cores; ``quick`` leaves dtypes
    and numbers out and takes about one. ``tell`` is given each law before it is decided."""
    from .candidates import CANDIDATES

    decided = []
    for identity in CANDIDATES if candidates is None else candidates:
        if tell:
            tell(identity.law)
        decided.append(decide(identity, QUICK if quick else DTYPES, quick, prove))
    return IdentityTable(tuple(decided), quick)


@lru_cache(maxsize=2)
def known(quick: bool = False) -> IdentityTable:
    """The table of all candidates, computed once in a process."""
    return identity_table(quick)


def clear() -> None:
    """Forget the computed tables."""
    known.cache_clear()
