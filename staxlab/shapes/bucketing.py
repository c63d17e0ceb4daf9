"""Bucketing (Section 10.4): a few sizes that stand for all others, so that a few versions are compiled.

Where a version is compiled for each concrete size, a workload whose sizes vary never comes to rest. Rounding a size up
to the next of a few chosen sizes, its *buckets*, bounds the number of versions whatever the number of calls, and what
it costs is computing on the padding. With powers of two (Proposition 10.3) sizes from ``m`` to ``M`` need at most
``ceil(log2 M) - floor(log2 m) + 1`` versions, and the padded size is less than twice the true one. With another ratio
the trade is another one: the smaller it is, the less is wasted and the more versions there are.

>>> powers = Buckets()
>>> [powers.round_up(n) for n in (1, 5, 64, 65)], powers.bound(1, 64), powers.worst_waste(1, 512)
([1, 8, 64, 128], 7, Fraction(512, 257))
>>> finer = Buckets(ratio=1.25)
>>> finer.bound(1, 512), float(finer.worst_waste(1, 512)) < 1.25
(25, True)
>>> Buckets(sizes=(128, 512)).round_up(200)
512

Size 0 is its own bucket: padding it would turn an empty tensor into one that is not, and what eager refuses there
(the maximum of nothing) would have a value.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ..errors import ConstraintError, OptionError

LARGEST = 1 << 62  # sizes are 64-bit integers, and their buckets have to be, too


def bucket(size: int) -> int:
    """The smallest power of two that is at least ``size``; less than twice as large (Proposition 10.3).

    ValueError below 1. O(1).
    """
    if size < 1:
        raise ValueError(f"sizes start at 1, not {size}")
    return 1 << (size - 1).bit_length()


def bucket_bound(smallest: int, largest: int) -> int:
    """Most versions that powers of two can need for sizes in ``[smallest, largest]``, whatever the number of calls:
    ``ceil(log2 largest) - floor(log2 smallest) + 1`` (Proposition 10.3), in exact integer arithmetic. ValueError unless
    ``1 <= smallest <= largest``. O(1)."""
    if not 1 <= smallest <= largest:
        raise ValueError(f"need 1 <= smallest <= largest, got {smallest} and {largest}")
    return (largest - 1).bit_length() - (smallest.bit_length() - 1) + 1


@dataclass(frozen=True)
class Buckets:
    """Sizes to round up to: powers of ``ratio`` (rounded up, each larger than the one before), or ``sizes`` as given.

    ``ratio`` is larger than 1 and is taken exactly (``Fraction`` or a decimal such as ``1.25``). With ``sizes``, a size
    beyond the last one is a ConstraintError. OptionError for a ratio or sizes that are none, or for both.
    """

    ratio: Fraction | float | int | None = None
    sizes: tuple[int, ...] | None = None
    _grown: tuple[int, ...] = field(default=(1,), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sizes is not None:
            if self.ratio is not None:
                raise OptionError("buckets follow from a ratio or are listed, not both", remedy="give one of the two")
            object.__setattr__(self, "sizes", _listed(self.sizes))
            return
        given = 2 if self.ratio is None else self.ratio
        try:
            ratio = Fraction(str(given)) if isinstance(given, float) else Fraction(given)
        except (TypeError, ValueError):
            ratio = Fraction(0)
        if ratio <= 1 or isinstance(given, bool):
            raise OptionError(f"ratio={given!r} is not allowed: each bucket has to be larger than the one before",
                              remedy="take a number above 1, for example ratio=2")  # fmt: skip
        object.__setattr__(self, "ratio", ratio)

    def round_up(self, size: int) -> int:
        """The smallest bucket that holds ``size``; 0 stays 0. Below ``ratio * size``.

        ConstraintError beyond the last listed bucket or for a negative size. O(log size) the first time, then a binary
        search.
        """
        if size < 0:
            raise ConstraintError(f"there is no size {size}")
        if size == 0:
            return 0
        if self.ratio == 2:
            return bucket(size)
        known = self._up_to(size)
        position = bisect_left(known, size)
        if position == len(known):
            raise ConstraintError(f"size {size} is beyond the last bucket, {known[-1]}",
                                  remedy="list a larger bucket, or give a ratio, which has no last one")  # fmt: skip
        return known[position]

    def between(self, smallest: int, largest: int) -> tuple[int, ...]:
        """The buckets that sizes in ``[smallest, largest]`` are rounded up to: exactly the versions that may be needed.

        ConstraintError unless ``1 <= smallest <= largest`` and the last bucket holds ``largest``.
        """
        if not 1 <= smallest <= largest:
            raise ConstraintError(f"need 1 <= smallest <= largest, got {smallest} and {largest}")
        low, high = self.round_up(smallest), self.round_up(largest)
        known = self._up_to(high)
        return tuple(known[bisect_left(known, low) : bisect_right(known, high)])

    def bound(self, smallest: int, largest: int) -> int:
        """Most versions for sizes in ``[smallest, largest]``, whatever the number of calls.

        For powers of two the bound of Proposition 10.3, which counts from the power *below* ``smallest`` and so may be
        one too many; otherwise ``len(between(smallest, largest))``. Errors as :meth:`between`.
        """
        needed = len(self.between(smallest, largest))
        return bucket_bound(smallest, largest) if self.ratio == 2 else needed

    def worst_waste(self, smallest: int, largest: int) -> Fraction:
        """The largest padded size over true size for sizes in ``[smallest, largest]``: that of the first size beyond a
        bucket. Below ``ratio``. Errors as :meth:`between`."""
        used = self.between(smallest, largest)
        firsts = (smallest, *(size + 1 for size in used[:-1]))
        return max(Fraction(size, first) for size, first in zip(used, firsts, strict=True))

    def __str__(self) -> str:
        if self.sizes is not None:
            return "buckets " + ", ".join(map(str, self.sizes))
        return "powers of two" if self.ratio == 2 else f"buckets of ratio {float(self.ratio or 0):g}"

    def _up_to(self, size: int) -> Sequence[int]:
        """Known buckets, at least up to the first that holds ``size`` (all of them where they are listed)."""
        if self.sizes is not None:
            return self.sizes
        if size > LARGEST:
            raise ConstraintError(f"size {size} is beyond what a tensor can have")
        grown = self._grown
        if grown[-1] < size:
            more = list(grown)
            while more[-1] < size:
                more.append(self._after(more[-1]))
            grown = tuple(more)
            object.__setattr__(self, "_grown", grown)  # replaced whole: threads that ask together do not interfere
        return grown

    def _after(self, size: int) -> int:
        # Rounding up keeps the padded size below ratio * n: n >= size + 1, and ceil(ratio * size) < ratio * size + 1.
        return max(size + 1, math.ceil(size * Fraction(self.ratio or 2)))


def _listed(sizes: Sequence[int]) -> tuple[int, ...]:
    """The listed buckets, refused unless they are whole, positive and ascending."""
    try:
        given = tuple(sizes)
    except TypeError:
        given = ()
    whole = bool(given) and all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in given)
    if not whole or any(a >= b for a, b in zip(given, given[1:], strict=False)):
        raise OptionError(f"sizes={sizes!r} are no buckets", remedy="list ascending positive sizes: sizes=(64, 256)")
    return given
