"""Exercise 30 (Section 11.1, Proposition 11.1): when two keys meet, and when a key does not say enough.

The birthday bound is checked by counting; a stale artifact is made with a real compiler, in a cache that is keyed by
text as the chapter's is, and compared with this package's own key; and an extension of the key is tried against every
change that the text does not show.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex30_answers import HARMLESS, reference, wrong_answers
from .ex30_runs import (
    ANY_TWO,
    NOTHING,
    SOURCE,
    TOGETHER,
    judge_collision,
    judge_extension,
    judge_situation,
    key_slips,
    most_keys,
)

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 11
TITLE = "Keys that meet, and keys that say too little"
DIFFICULTY = 2

statement = r"""
A cache stores what $\mathrm{build}(s, a)$ gives under $h(s, a)$, a hash with $2^\ell$ values: $s$ is the source, $a$
all else that is known to matter. Two things can go wrong with it. Two different keys may get the same hash
(Proposition 11.1 says how seldom), and what was hashed may not be all that the artifact depends on.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The length of the hash in bits, and the probability 10^-nines that is allowed. The defaults are the chapter's
    length, and one in a million."""

    bits: int = 255
    nines: int = 6

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice((48, 56, 64, 80, 96, 128, 160)), rng.randint(3, 9))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("ℓ", f"{self.bits} bits"), ("allowed probability", f"1e-{self.nines}"))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Let $h$ be a random function: each of the $q$ keys gets one of $n = 2^\ell$ values, all equally likely and independent.

1. `collision(q, n)` returns the probability that at least two of $q$ keys get the same value of $n$: exactly (a
   `Fraction`), or as a float.
2. What does one get by adding up, over all pairs of keys, the probability that the two agree? A formula in `q` and `l`.
3. That sum is an upper bound (a union bound). Which values have to be independent for it?
4. How many keys may a cache hold at most, so that $q^2 / 2^{\ell+1}$ is not above the allowed probability?
5. In words: prove Proposition 11.1. Say what follows for an entry that is found, and why nothing is ever invalidated.
"""

PART_2 = rf"""
Construct a situation in which $\mathrm{{build}}$ is **not** a function of $(s, a)$. `situation(w)` gets a workshop and
changes something in it; nothing needs to be returned. The workshop is a real directory, in which this is compiled:

```cpp
{SOURCE}```

- `w.source`, `w.flags`: the text above, and a list of flags;
- `w.command()`: the command line, made of compiler, flags and the directory of the headers. With `w.source` it is the
  whole key;
- `w.header`: the path of `scale.h`, which defines `SCALE` and includes `unit.h` (`w.inner`), which defines `UNIT`;
- `w.site`: the path of a directory that holds `offset.h`, which defines `OFFSET`;
- `w.environment`: the compiler's variables, a dictionary. `CPATH` (where else to look for headers) is `w.site`; flags
  in `KERNEL_FLAGS` are added to those of the command line;
- `w.compiler`: the path of the compiler, a script that starts the real one;
- `w.files()`: the files that the compiler reads, by its own account, as paths; `w.root` is a directory for your own.

The kernel is built before and after. With the same source and the same command the second artifact must be another one:
then a cache that is keyed by text returns the first, which is stale.
"""

PART_3 = r"""
Now extend $a$. `extended(w)` returns what has to be added to source and command, as text, bytes, numbers, or a list of
these. Whenever the artifact would be another one, this has to be another one, whatever of the workshop was changed; and
if nothing has changed it must be the same again, or the cache would never find anything.

In words: which premise of Proposition 11.1 does this restore, what does it cost, and what is still left outside?
"""

SITUATION_EXAMPLE = """\
def situation(w):
    w.flags.append("-O2")"""

EXTENDED_EXAMPLE = """\
def extended(w):
    return [w.compiler.stat().st_size]"""

PROOF = Rubric(
    (
        Criterion(
            "One pair",
            1,
            "Two different keys agree with probability 2^-l, since their values are independent.",
            none="No probability for a pair.",
        ),
        Criterion(
            "All pairs",
            1,
            "The union bound over q(q - 1)/2 pairs, without independence among pairs, and the estimate by q^2/2^(l+1).",
            "Counts the pairs, but takes them to be independent.",
            "No sum over pairs.",
        ),
        Criterion(
            "What it means for the cache",
            1,
            "Without a collision what is found was stored for the same (s, a); by purity it is what a build would "
            "give; and a change shows in the key, so that nothing is invalidated.",
            "Says that the artifact is right without using purity.",
            "Stops at the probability.",
        ),
    ),
    "The birthday bound, and what it is good for",
)

PURITY = Rubric(
    (
        Criterion(
            "Which premise",
            1,
            "That build is a function of (s, a): contents in the place of names.",
            none="No premise named.",
        ),
        Criterion(
            "What it costs",
            1,
            "Finding out what is read takes a run of the preprocessor, or a promise about what may be included; files "
            "are read and hashed at every look-up.",
            "Says that it costs time, without what for.",
            "Takes it to be free.",
        ),
        Criterion(
            "What is left",
            1,
            "Names something that is still outside: the assembler and linker, libraries loaded at run time, the "
            "processor, what a compiler reads without saying so.",
            none="Takes the key to be complete.",
        ),
    ),
    "What contents in the key restore, cost and leave",
)

PARTS = (
    Part(
        "1",
        "The birthday bound",
        PART_1,
        (
            Function("collision", "the probability that two keys meet", 2,
                     example="def collision(q, n):\n    return q / n", parameters=("q", "n"), returns="a probability"),
            FormulaIn("pair_bound", "the sum over all pairs", 1, example='"q/2**l"', variables=("q", "l")),
            Choice("needs", "which values must be independent", 1, example=f'"{NOTHING}"',
                   options=(TOGETHER, ANY_TWO, NOTHING)),
            Number("most_keys", "the most keys", 1, example="1000", whole=True, unit="keys"),
            Prose("proof", "a proof of Proposition 11.1", PROOF.points, rubric=PROOF),
        ),
        (
            "Give the keys their values one after the other. How likely is it that each new one misses all before it?",
            "How many pairs are there? A pair has no order.",
            "The probability of a union is at most the sum: does that ask for anything?",
        ),
    ),
    Part(
        "2",
        "A stale artifact",
        PART_2,
        (
            Function("situation", "what is changed in the workshop", 3, example=SITUATION_EXAMPLE, parameters=("w",),
                     returns="nothing", seconds=5.0),
        ),
        (
            "The command names things by their paths. What can change while a path stays?",
            "A compiler also reads what no command names.",
        ),
    ),
    Part(
        "3",
        "A key that says enough",
        PART_3,
        (
            Function("extended", "what is added to the key", 4, example=EXTENDED_EXAMPLE, parameters=("w",),
                     returns="text, bytes, numbers, or a list of them", seconds=10.0),
            Prose("purity", "what that restores, costs and leaves", PURITY.points, rubric=PURITY),
        ),
        (
            "Of a file: its path, its age, or its content? Which of them does the artifact depend on?",
            "Who knows which headers are read, and which of two with the same name?",
            "Is everything that the compiler reads a header?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    sizes = {"q": integers(2, 1000), "l": integers(1, 64)}
    return {
        "collision": judge_collision,
        "pair_bound": same_quantity(
            lambda q, l: sum(Fraction(k, 2**l) for k in range(int(q))), sizes, seed=seed,
            counted="summed key by key, each with all before it",
            slips=(
                Slip("the-simpler-bound", lambda q, l: Fraction(q**2, 2 ** (l + 1)), "That is a little more than the "
                     "sum: it counts a key as half a pair with itself.", Fraction(1, 2)),
                Slip("ordered-pairs", lambda q, l: Fraction(q * (q - 1), 2**l), "Every pair is counted twice."),
                Slip("against-one", lambda q, l: Fraction(q - 1, 2**l), "Those are the pairs with one given key."),
            ),
        ),
        "needs": one_of(
            ANY_TWO,
            {
                TOGETHER: "More than is needed: where in the sum do three values occur together?",
                NOTHING: "The union bound needs none, but what is the probability of one pair?",
            },
        ),
        "most_keys": close_to(Fraction(most_keys(variant)), relative=Fraction(0), slips=key_slips(variant)),
        "proof": read_by_a_person(PROOF),
        "situation": judge_situation,
        "extended": judge_extension,
        "purity": read_by_a_person(PURITY),
    }  # fmt: skip
