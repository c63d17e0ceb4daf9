"""How often two of q keys meet in a hash of l bits: the birthday bound of Proposition 11.1, counted and drawn lots for.

A cache is addressed by ``h(s, a)`` alone, so two different builds whose hashes agree would share an entry. If ``h`` is
a random function, one pair of keys agrees with probability ``2**-l``, and the sum over all pairs bounds the probability
that any of them does (the union bound, which asks nothing of the pairs):

    P(some two agree)  <=  q (q - 1) / 2 * 2**-l  <  q**2 / 2**(l + 1)

Exactly it is ``1 - (1 - 1/n)(1 - 2/n) ... (1 - (q - 1)/n)`` with ``n = 2**l``. For the hash in use, 255 bits or more,
neither number can be observed; for a hash of a few bits both can, and :func:`birthday` draws keys to see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from ..errors import OptionError
from .tables import Table, Tabular


def collision_probability(q: int, n: int) -> Fraction:
    """The probability that at least two of ``q`` independent keys get the same of ``n`` equally likely values, exactly.
    O(q) multiplications of long numbers."""
    return 1 - math.prod((Fraction(n - i, n) for i in range(q)), start=Fraction(1))


def collision_bound(q: int, bits: int) -> Fraction:
    """``q**2 / 2**(bits + 1)``, which the probability stays below (Proposition 11.1); it may exceed 1."""
    return Fraction(q * q, 2 ** (bits + 1))


def most_keys(bits: int, allowed: Fraction) -> int:
    """The most keys for which the bound is at most ``allowed``."""
    return math.isqrt(2 ** (bits + 1) * allowed.numerator // allowed.denominator)


@dataclass(frozen=True)
class KeyCount:
    """A number of keys: in which share of the trials two met, how likely that is, and the bound (all from 0 to 1,
    the bound perhaps above)."""

    keys: int
    seen: float
    probability: float
    bound: float


@dataclass(frozen=True, repr=False)
class BirthdayBound(Tabular):
    """Collisions in a hash of ``bits`` bits, from ``trials`` drawings for each number of keys."""

    bits: int
    trials: int
    counts: tuple[KeyCount, ...]

    def summary(self) -> str:
        """One line: where the bound says nothing any longer, and how close it is before."""
        useful = [count for count in self.counts if 0 < count.bound <= 0.5]
        ratio = max((count.bound / count.probability for count in useful if count.probability), default=math.nan)
        edge = math.isqrt(2 ** (self.bits + 1))
        close = f"and while it is below 1/2, at most {ratio:.3g} times the probability"
        return f"{self.bits} bits: up to {edge:,} keys the bound is below 1, {close}"

    def table(self) -> Table:
        """A row for each number of keys."""
        rows = [(f"{c.keys:,}", f"{c.seen:.4g}", f"{c.probability:.4g}", f"{c.bound:.4g}") for c in self.counts]
        columns = ("keys q", "seen", "probability", "bound q^2 / 2^(l + 1)")
        notes = (self.summary(), f"seen: the share of {self.trials:,} drawings in which two keys met")
        return Table.build(f"Keys that meet in a hash of {self.bits} bits", columns, rows, notes, 0)


def birthday(
    bits: int = 16, trials: int = 2000, keys: Sequence[int] | None = None, seed: int = 0
) -> BirthdayBound:
    """Draw ``trials`` times so many keys, for every number in ``keys`` (default: powers of two up to where the bound is
    8), and count in how many two agree.

    OptionError for fewer than 1 bit or more than 40, where nobody would see a collision. O(trials * sum(keys)).
    """
    if not 1 <= bits <= 40:
        raise OptionError(f"bits={bits} is not allowed: with 1 to 40 bits collisions can be drawn")
    if keys is None:
        keys = [2**k for k in range(1, (bits + 1) // 2 + 3)]
    generator = torch.Generator().manual_seed(seed)
    counts = []
    for q in keys:
        met = 0
        for start in range(0, trials, batch := max(1, 2**20 // q)):
            drawn = torch.randint(2**bits, (min(batch, trials - start), q), generator=generator).sort(dim=1).values
            met += int((drawn[:, 1:] == drawn[:, :-1]).any(dim=1).sum())
        counts.append(
            KeyCount(q, met / trials, float(collision_probability(q, 2**bits)), float(collision_bound(q, bits)))
        )
    return BirthdayBound(bits, trials, tuple(counts))
