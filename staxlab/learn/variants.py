"""From a student to numbers: every student gets the same exercise with different values.

The seed of (student, exercise) is a hash of both, so it needs no list of students, no central file, and is the same
on the student's laptop and on the grading server. A variant is drawn from that seed alone; without a student and
without a seed, everyone works on the chapter's own values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

SEED_BITS = 48  # fits a float exactly, so a seed survives every JSON reader


def seed_of(student: str, exercise: str) -> int:
    """A seed in [0, 2^48) for this student and exercise: the head of SHA-256 over both names.

    Leading and trailing blanks and letter case of the student's name do not matter: "Ada " and "ada" are one person.

    >>> seed_of("ada", "ex01") == seed_of(" Ada ", "ex01"), seed_of("ada", "ex01") == seed_of("bob", "ex01")
    (True, False)
    """
    text = f"staxlab exercise\n{exercise}\n{student.strip().casefold()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: SEED_BITS // 8], "big")


def generator(seed: int | None, purpose: str) -> random.Random:
    """A random generator for one purpose ("variant", a field name...): purposes do not disturb each other's draws."""
    return random.Random(f"{seed}/{purpose}")


@dataclass(frozen=True)
class BaseVariant:
    """The parameters of an exercise. Subclass as a frozen dataclass whose defaults are the chapter's own values."""

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        """Values for one student. The default draws nothing: every student gets the chapter's values."""
        return cls()

    def constants(self) -> dict[str, Fraction]:
        """Names a student may use in formulas instead of their numbers, such as ``C`` for the number of columns."""
        return {}

    def describe(self) -> tuple[tuple[str, str], ...]:
        """(name, value) pairs for the statement; one per dataclass field unless overridden."""
        return tuple((f.name, str(getattr(self, f.name))) for f in dataclasses.fields(self))


def variant_for(variant_class: type[Any], seed: int | None) -> Any:
    """The variant a seed stands for; the chapter's own for ``seed=None``."""
    return variant_class() if seed is None else variant_class.draw(generator(seed, "variant"))
