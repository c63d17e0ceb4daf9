"""What Exercise 30 runs: a workshop with a real compiler in it, a cache keyed by text, and keys that know more.

A :class:`Workshop` is a directory in which one small kernel is compiled: its source, two headers beside it, one that
the compiler finds through its environment, and the compiler, which is a script that starts the real one. Whatever a
student changes there is changed on disk, and what comes of it is found out by compiling.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ...codegen.kernel import Kernel
from ...errors import BuildError
from ...measure import birthday
from ...measure.birthday import collision_probability
from ...options import host_device_spec
from ...provenance import Line
from ...runtime import toolchain
from ...runtime.build import key_of
from ..algebra import values_agree
from ..answers import Callee, Malformed, as_number
from ..feedback import Verdict, nearly, right, wrong
from ..judges import Slip, call_failed, number_text, result_text, unexpected_result

if TYPE_CHECKING:
    from .ex30 import Variant

TOGETHER, ANY_TWO, NOTHING = "all q values together", "any two of them", "none of them"

# -- the birthday bound -----------------------------------------------------------------------------------------------


def counted_collisions(q: int, n: int) -> Fraction:
    """The share of all ways to give q keys one of n values each in which two keys get the same, by counting them."""
    ways = itertools.product(range(n), repeat=q)
    return Fraction(sum(len(set(values)) < q for values in ways), n**q)


def most_keys(variant: Variant) -> int:
    """The largest q with ``q^2 / 2^(l + 1) <= 10^-k``."""
    return birthday.most_keys(variant.bits, Fraction(1, 10**variant.nines))


def key_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of keys one may arrive at."""
    bits, nines, truth = variant.bits, variant.nines, most_keys(variant)
    others = (
        (math.isqrt(2**bits // 10**nines), "lost-the-half", "The exponent is l + 1: a pair has no order, and counts "
         "once."),
        (2 ** (bits + 1) // 10**nines, "no-root", "The number of pairs grows with the square of q."),
        (2**bits // 10**nines, "against-one", "So many keys could miss one given key; any two of them must miss each "
         "other."),
        (math.isqrt(2 ** (bits + 1)), "certain", "There the bound is 1: it promises nothing."),
        (truth + 1, "rounded-up", "With one key more the bound is above the limit."),
    )  # fmt: skip
    found: dict[int, Slip] = {}
    for number, name, words in others:
        if number != truth:
            found.setdefault(number, Slip(name, Fraction(number), words))
    return tuple(found.values())


COLLISION_POINTS = (*itertools.product(range(6), range(1, 6)), (23, 365), (60, 365), (9, 8), (40, 2**20))

#: name of a mistake: the probability it leads to, and what to say.
COLLISION_MISTAKES: dict[str, tuple[Callable[[int, int], Fraction], str]] = {
    "bound-not-probability": (
        lambda q, n: Fraction(q * (q - 1), 2 * n),
        "That is the bound, summed over pairs. Two pairs may meet at once, so the probability is smaller.",
    ),
    "no-collision": (
        lambda q, n: 1 - collision_probability(q, n),
        "That is the probability that no two meet.",
    ),
    "pairs-independent": (
        lambda q, n: 1 - (1 - Fraction(1, n)) ** (q * (q - 1) // 2),
        "Pairs are independent two by two, but not all together: if 1 meets 2 and 2 meets 3, then 1 meets 3.",
    ),
    "against-one": (
        lambda q, n: 1 - (1 - Fraction(1, n)) ** max(q - 1, 0),
        "That is the probability that somebody meets one given key.",
    ),
    "one-too-many": (
        lambda q, n: collision_probability(q + 1, n),
        "That is the probability for one key more.",
    ),
}


def judge_collision(callee: Callee) -> Verdict:
    """The probability at every point, exactly or within rounding; a known mistake is named where it explains all."""
    given: list[Any] = []
    for q, n in COLLISION_POINTS:
        outcome = callee.call(q, n)
        if outcome.failed:
            return call_failed(callee, (q, n), outcome)
        try:
            given.append(as_number(outcome.value))
        except Malformed as error:
            return unexpected_result(callee, (q, n), str(error))
    truth = [collision_probability(q, n) for q, n in COLLISION_POINTS]
    differs = [k for k, (one, other) in enumerate(zip(given, truth, strict=True)) if not values_agree(one, other)]
    if not differs:
        return right("Right, as counting all ways says.", ("compared at", f"{len(truth)} points"))
    q, n = COLLISION_POINTS[differs[0]]
    facts = (("q, n", f"{q}, {n}"), ("yours", number_text(given[differs[0]])), ("of all ways", f"{n}^{q}"))
    for name, (mistaken, words) in COLLISION_MISTAKES.items():
        expected = [mistaken(*point) for point in COLLISION_POINTS]
        if all(values_agree(one, other) for one, other in zip(given, expected, strict=True)):
            return wrong(words, *facts, mistake=name)
    return wrong("That is not the share of the ways in which two keys meet.", *facts)


# -- the workshop -----------------------------------------------------------------------------------------------------

SOURCE = """\
#include "scale.h"
#include <offset.h>
#ifndef MORE
#define MORE 0
#endif
extern "C" double kernel(double x) { return SCALE * UNIT * x + OFFSET + MORE; }
"""
ARGUMENT = 10.0  # what a compiled kernel is called with, to see what it computes


class Workshop:
    """A place where one kernel is compiled; ``root`` is an empty directory.

    ``source`` is the text, ``flags`` a list of flags, ``environment`` a dictionary of the compiler's variables.
    ``header`` (which includes ``inner``), ``site`` (a directory with ``offset.h``) and ``compiler`` (a script) are
    paths of files that may be replaced.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("include", "site", "bin", "cache"):
            (root / name).mkdir(mode=0o700)
        self.source = SOURCE
        self.flags = ["-O1"]
        self.header, self.inner = root / "include" / "scale.h", root / "include" / "unit.h"
        self.header.write_text('#include "unit.h"\n#define SCALE 2.0\n')
        self.inner.write_text("#define UNIT 1.0\n")
        self.site = root / "site"
        (self.site / "offset.h").write_text("#define OFFSET 0.5\n")
        self.environment = {"CPATH": str(self.site)}
        self.compiler = root / "bin" / "c++"
        self.compiler.write_text(compiler_script())
        self.compiler.chmod(0o700)

    def __repr__(self) -> str:
        return "w"

    def command(self) -> str:
        """The compiler's command line, without the source: the a of a cache that is keyed by text."""
        return " ".join([str(self.compiler), *self.flags, f"-I{self.header.parent}"])

    def files(self) -> list[Path]:
        """The files the compiler reads beside the source, by its own account (``-M``), in its order."""
        listed = self._run("-M", "-x", "c++", "-").replace("\\\n", " ").split()[1:]
        return [Path(name) for name in listed if name != "-"]

    def compile(self) -> bytes:
        """The shared library that comes of it now. BuildError with the compiler's words if nothing does."""
        with tempfile.NamedTemporaryFile(dir=self.root, suffix=".so") as target:
            self._run("-fPIC", "-shared", "-nostdlib", "-x", "c++", "-", "-o", target.name)
            return Path(target.name).read_bytes()

    def _run(self, *arguments: str) -> str:
        surroundings = {name: value for name, value in os.environ.items() if name not in READ_BY_COMPILER}
        surroundings |= {str(name): str(value) for name, value in self.environment.items()}
        try:
            result = subprocess.run(
                [*self.command().split(), *arguments], input=self.source, capture_output=True, text=True,
                env=surroundings, timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"the compiler cannot be started: {error}") from error
        if result.returncode:
            raise BuildError(f"the compiler ended with status {result.returncode}: {result.stderr.strip()[:300]}")
        return result.stdout


#: Variables that the workshop's compiler looks at: GNU's and Clang's list of header directories, and one of its own.
READ_BY_COMPILER = ("CPATH", "KERNEL_FLAGS")


def compiler_script(more: str = "") -> str:
    """The text of the workshop's compiler: this machine's own, with the flags in ``$KERNEL_FLAGS`` and ``more``."""
    real = " ".join(f"'{part}'" for part in toolchain.find().command)
    return f'#!/bin/sh\nexec {real} $KERNEL_FLAGS {more} "$@"\n'


@contextmanager
def workshop() -> Iterator[Workshop]:
    """A new workshop in a directory of its own, gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="staxlab-workshop-"))
    try:
        yield Workshop(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def value_of(library: bytes) -> float:
    """What the kernel in a library computes for 10."""
    handle, path = tempfile.mkstemp(suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(library)
        kernel = ctypes.CDLL(path).kernel
        kernel.argtypes, kernel.restype = [ctypes.c_double], ctypes.c_double
        return kernel(ARGUMENT)
    finally:
        os.unlink(path)


class TextCache:
    """The chapter's cache: artifacts under SHA-256 of source and command, and of whatever ``extension`` adds."""

    def __init__(self, extension: Callable[[Workshop], Any] | None = None) -> None:
        self.extension = extension
        self.artifacts: dict[str, bytes] = {}

    def key(self, place: Workshop) -> str:
        """64 hexadecimal digits."""
        more = [] if self.extension is None else [as_text(self.extension(place))]
        return hashlib.sha256("|".join([place.source, place.command(), *more]).encode()).hexdigest()

    def build(self, place: Workshop) -> bytes:
        """The artifact under the key, compiled if there is none."""
        key = self.key(place)
        if key not in self.artifacts:
            self.artifacts[key] = place.compile()
        return self.artifacts[key]


def packages_key(place: Workshop) -> str:
    """The key that this package gives the same build, as a new process would."""
    own = {"STAXLAB_CXX": str(place.compiler), "STAXLAB_CACHE_DIR": str(place.root / "cache")}
    lines = tuple(Line(text) for text in place.source.splitlines())
    flags = (*place.flags, f"-I{place.header.parent}")
    kernel = Kernel("kernel", "cpp", lines, (), (), host_device_spec(), flags=flags)
    variables = {str(name): str(value) for name, value in place.environment.items()}
    with patch.dict(os.environ, {**variables, **own}):
        toolchain.clear()
        try:
            return key_of(kernel, toolchain.find())
        finally:
            toolchain.clear()


def as_text(value: Any) -> str:
    """Parts of a key as one text. Malformed for what is no text, bytes, number, None, or list of such."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(as_text, value))}]"
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    raise Malformed(f"{result_text(value)} is no text, bytes or number, and no list of them")


# -- a stale artifact -------------------------------------------------------------------------------------------------


def judge_situation(callee: Callee) -> Verdict:
    """Build, let the student change the workshop, and build again: by text, afresh, and by the package's key."""
    with workshop() as place:
        cache = TextCache()
        before, key, packages = value_of(cache.build(place)), cache.key(place), packages_key(place)
        source, command = place.source, place.command()
        outcome = callee.call(place)
        if outcome.failed:
            return call_failed(callee, (place,), outcome)
        if place.source != source:
            words = "The source is s: with another one the key is another, and the cache is right to build again."
            return wrong(words, mistake="changes-the-source")
        if place.command() != command:
            facts = (("before", command), ("now", place.command()))
            words = "The command is in the key: with another one the cache builds again."
            return wrong(words, *facts, mistake="changes-the-command")
        try:
            afresh = value_of(place.compile())
        except (BuildError, OSError, AttributeError) as error:
            words = "Now nothing can be built any more, so there is no other artifact that the cache should return."
            return wrong(words, ("the compiler", str(error).partition("\n")[0]), mistake="does-not-build")
        facts = (
            ("kernel(10), built before", f"{before:g}"),
            ("built afresh now", f"{afresh:g}"),
            ("from the cache now", f"{value_of(cache.build(place)):g}"),
        )
        if afresh == before:
            return wrong("What is built now computes the same: no artifact is stale.", *facts, mistake="same-artifact")
        assert cache.key(place) == key
        rebuilt = packages_key(place) != packages
        said = "changes, so it builds again" if rebuilt else "does not notice this either: a gap worth reporting"
        return right("Same source, same command, another artifact: the cache keyed by text returns the old one.",
                     *facts, ("this package's key", said))  # fmt: skip


# -- the extension of a -----------------------------------------------------------------------------------------------


def new_header(place: Workshop) -> None:
    place.header.write_text('#include "unit.h"\n#define SCALE 3.0\n')


def new_inner_header(place: Workshop) -> None:
    place.inner.write_text("#define UNIT 7.0\n")


def new_header_of_the_same_age(place: Workshop) -> None:
    status = place.header.stat()
    place.header.write_text('#include "unit.h"\n#define SCALE 5.0\n')
    os.utime(place.header, ns=(status.st_atime_ns, status.st_mtime_ns))


def new_compiler(place: Workshop) -> None:
    place.compiler.write_text(compiler_script("-DMORE=100"))


def new_variable(place: Workshop) -> None:
    place.environment["KERNEL_FLAGS"] = "-DMORE=3"


def new_search_path(place: Workshop) -> None:
    other = place.root / "elsewhere"
    other.mkdir()
    (other / "offset.h").write_text("#define OFFSET 0.25\n")
    place.environment["CPATH"] = str(other)


def new_file_in_front(place: Workshop) -> None:
    (place.header.parent / "offset.h").write_text("#define OFFSET 0.75\n")


#: What may change without the text: (name of the mistake of who does not notice, the change, what to say).
CHANGES: tuple[tuple[str, Callable[[Workshop], None], str], ...] = (
    ("misses-the-header", new_header, "The header was replaced in place."),
    ("misses-an-inner-header", new_inner_header, "A header that the header includes was replaced in place."),
    ("times-not-contents", new_header_of_the_same_age, "The header was replaced by one of the same length and age."),
    ("misses-the-compiler", new_compiler, "The compiler was replaced in place."),
    ("misses-the-variable", new_variable, "KERNEL_FLAGS was set, which the compiler reads."),
    ("misses-the-search-path", new_search_path, "CPATH names another directory, with another offset.h."),
    ("misses-a-new-file", new_file_in_front, "A new offset.h stands in a directory that is searched first."),
)


def touched(place: Workshop) -> None:
    os.utime(place.header, (1, 1))


def unrelated_variable(place: Workshop) -> None:
    place.environment["COLUMNS"] = "100"


def unrelated_file(place: Workshop) -> None:
    (place.header.parent / "other.h").write_text("#define OTHER 1\n")


#: What changes nothing: (what it is, the change).
HARMLESS_CHANGES: tuple[tuple[str, Callable[[Workshop], None]], ...] = (
    ("the header was touched, and has the same content", touched),
    ("a variable was set that the compiler does not read", unrelated_variable),
    ("a header that nobody includes was put beside the others", unrelated_file),
)


def judge_extension(callee: Callee) -> Verdict:
    """Every change must change what the student adds to the key; nothing else should."""
    for name, change, words in (("never-hits", None, "Nothing was changed."), *CHANGES):
        noticed = _is_noticed(callee, change)
        if isinstance(noticed, Verdict):
            return noticed
        if change is None and noticed:
            words = "Without any change it is something else each time, so no entry is ever found again."
            return wrong(words, mistake=name)
        if change is not None and not noticed:
            words += " What you add to the key is the same as before, so the stale artifact is returned."
            return wrong(words, mistake=name)
    for what, change in HARMLESS_CHANGES:
        noticed = _is_noticed(callee, change)
        if isinstance(noticed, Verdict):
            return noticed
        if noticed:
            words = "Nothing stale is returned any more, but it is also built again where nothing has changed."
            return nearly(words, ("for example", what), credit=Fraction(2, 3), mistake="builds-for-nothing")
    return right("Every change that matters changes the key, and no other does.", ("changes tried", len(CHANGES)))


def _is_noticed(callee: Callee, change: Callable[[Workshop], None] | None) -> bool | Verdict:
    with workshop() as place:
        seen = []
        for turn in range(2):
            outcome = callee.call(place)
            if outcome.failed:
                return call_failed(callee, (place,), outcome)
            try:
                if outcome.value is None:
                    raise Malformed("it returned None")
                seen.append(as_text(outcome.value))
            except Malformed as error:
                return unexpected_result(callee, (place,), str(error))
            if turn == 0 and change is not None:
                change(place)
        return seen[0] != seen[1]
