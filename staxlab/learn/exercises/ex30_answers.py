"""Answers to Exercise 30: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex30 import Variant


def collision(q, n):
    from fractions import Fraction

    apart = Fraction(1)
    for i in range(q):
        apart = apart * Fraction(n - i, n)
    return 1 - apart


def situation(w):
    w.header.write_text("#define SCALE 3.0\n#define UNIT 1.0\n")


def extended(w):
    parts = [w.compiler.read_bytes(), w.environment.get("KERNEL_FLAGS")]
    for path in w.files():
        parts.append(path.read_bytes())
    return parts


PROOF = """Two of the q keys, say the i-th and the j-th, are different texts, so their hashes are two independent draws
from 2^l values and agree with probability 2^-l. Whether a third one meets them as well does not matter: the probability
that some pair agrees is at most the sum over all pairs, which needs no independence of the pairs from each other. There
are q(q-1)/2 pairs, so it is at most q(q-1)/2 * 2^-l, which is below q^2 / 2^(l+1). If no pair agrees, an entry found
under h(s, a) was stored for this very (s, a) and no other, and since build is a function of (s, a) alone, building it
again would give the same artifact. So a wrong artifact can only be returned where two keys agree. And nothing has to be
invalidated, ever: whatever should make an entry useless changes s or a, hence the key, and the entry is not found."""

PURITY = """The proof needs that the artifact is a function of what was hashed. A path is a name for a content that can
change while the name stays, and so are the name of an environment variable and the name of a compiler. So the contents
of every file that the compiler reads go into a, by the compiler's own list (which also notices a file that now is found
first), the compiler itself, and the values of the variables it reads. This costs a run of the preprocessor for each
look-up, or the promise that only certain headers are included. What is still outside is what the compiler reads without
saying so, the libraries it loads, the assembler and linker it starts, and the machine on which the artifact runs; each
either goes into a as well (a version, a digest), or the source must be such that it cannot matter."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex30_runs import ANY_TWO, most_keys

    return {
        "collision": collision,
        "pair_bound": "q*(q - 1)/2**(l + 1)",
        "needs": ANY_TWO,
        "most_keys": most_keys(variant),
        "proof": PROOF,
        "situation": situation,
        "extended": extended,
        "purity": PURITY,
    }


# Other headers that mean something else.
HARMLESS: dict[str, tuple[str, ...]] = {}


def _bound(q, n):
    return q * (q - 1) / (2 * n)


def _apart(q, n):
    from fractions import Fraction

    apart = Fraction(1)
    for i in range(q):
        apart = apart * Fraction(n - i, n)
    return apart


def _independent_pairs(q, n):
    from fractions import Fraction

    return 1 - Fraction(n - 1, n) ** (q * (q - 1) // 2)


def _against_one(q, n):
    return 1 - (1 - 1 / n) ** (q - 1) if q else 0


def _one_more(q, n):
    from fractions import Fraction

    apart = Fraction(1)
    for i in range(q + 1):
        apart = apart * Fraction(n - i, n)
    return 1 - apart


def another_source(w):
    w.source = w.source.replace("+ OFFSET", "- OFFSET")


def another_flag(w):
    w.flags.append("-DMORE=1")


def touches_the_header(w):
    w.header.touch()


def adds_a_comment(w):
    w.header.write_text(w.header.read_text() + "// a newer version\n")


def deletes_the_header(w):
    w.header.unlink()


def sets_a_variable(w):
    w.environment["KERNEL_FLAGS"] = "-DMORE=1"


def replaces_the_compiler(w):
    w.compiler.write_text(w.compiler.read_text().replace("exec", "shift 0; exec").replace('"$@"', '-DMORE=2 "$@"'))


def links_other_headers(w):
    w.header.rename(w.root / "old.h")
    other = w.root / "new.h"
    other.write_text("#define SCALE 9.0\n#define UNIT 1.0\n")
    w.header.symlink_to(other)


def paths(w):
    return [str(path) for path in w.files()]


def times(w):
    parts = [w.environment.get("KERNEL_FLAGS"), w.compiler.stat().st_mtime_ns]
    return parts + [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in w.files()]


def the_header(w):
    return [w.header.read_bytes(), w.compiler.read_bytes(), sorted(w.environment.items())]


def without_the_compiler(w):
    return [w.environment.get("KERNEL_FLAGS"), *(path.read_bytes() for path in w.files())]


def without_the_variable(w):
    return [w.compiler.read_bytes(), *(path.read_bytes() for path in w.files())]


def known_headers(w):
    headers = [w.header, w.inner, w.site / "offset.h"]
    return [w.compiler.read_bytes(), w.environment.get("KERNEL_FLAGS"), *(path.read_bytes() for path in headers)]


def known_headers_and_variables(w):
    headers = [w.header, w.inner, w.site / "offset.h"]
    return [w.compiler.read_bytes(), sorted(w.environment.items()), *(path.read_bytes() for path in headers)]


def a_time(w):
    import time

    return time.time_ns()


def everything(w):
    parts = [w.compiler.read_bytes(), sorted(w.environment.items())]
    return parts + [path.read_bytes() for path in w.files()]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex30_runs import NOTHING, TOGETHER, key_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        *(slip(s.name, most_keys=s.answer) for s in key_slips(variant)),
        slip("bound-not-probability", collision=_bound),
        slip("no-collision", collision=_apart),
        slip("pairs-independent", collision=_independent_pairs),
        slip("against-one", collision=_against_one),
        slip("one-too-many", collision=_one_more),
        slip("the-simpler-bound", pair_bound="q**2/2**(l + 1)"),
        slip("ordered-pairs", pair_bound="q*(q - 1)/2**l"),
        slip("against-one", pair_bound="(q - 1)/2**l"),
        slip(f"chose-{TOGETHER.replace(' ', '-')}", needs=TOGETHER),
        slip(f"chose-{NOTHING.replace(' ', '-')}", needs=NOTHING),
        slip("changes-the-source", situation=another_source),
        slip("changes-the-command", situation=another_flag),
        slip("same-artifact", situation=touches_the_header),
        slip("same-artifact", situation=adds_a_comment),
        slip("does-not-build", situation=deletes_the_header),
        slip("misses-the-header", extended=paths),
        slip("times-not-contents", extended=times),
        slip("misses-an-inner-header", extended=the_header),
        slip("misses-the-compiler", extended=without_the_compiler),
        slip("misses-the-variable", extended=without_the_variable),
        slip("misses-the-search-path", extended=known_headers),
        slip("misses-a-new-file", extended=known_headers_and_variables),
        slip("never-hits", extended=a_time),
        slip("builds-for-nothing", extended=everything),
    )
