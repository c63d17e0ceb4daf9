"""Kernels that differ in sizes alone share one library (Section 10.3).

In dynamic mode the back end plans every set of sizes for itself, with all decisions that sizes allow. What comes out is
text, and between two sets of sizes much of it is the same but for numbers: loop bounds, strides, lengths of rows. So
the texts decide what is shared. The first time a kernel's text is met it is compiled as it is. When another text comes
that has the same words and other numbers, the numbers that differ become parameters, and one library serves both and
all further texts that differ in no other number. Each of them gets a copy of its own, with its numbers written into it
once (some tens of KiB, for the life of the process); a call costs what it costs without parameters, and nothing can be
shared that was not the same program.

A number that has to be constant (the lanes of a vector) cannot be a parameter: the compiler refuses the text, and the
kernels that have these words are compiled one by one from then on. The length of an array on the stack is no such
number, since the array may be longer than it has to be: it gets the next power of two.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..codegen.kernel import Kernel
from ..errors import BuildError
from ..logs import say
from ..provenance import Line

#: A number that stands for itself and is no part of a name or a type. Fractions are among them, since a mean divides by
#: how many there are.
_NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d*(?:e[+-]?\d+)?f?|\d+e[+-]?\d+f?|\d+)(?![\w.])")

#: The declaration of an array on the stack.
_ARRAY = re.compile(r"\s*alignas\(\d+\) \w+ \w+\[\d+\];")

#: A text with more parameters than this is compiled as it is.
MOST_PARAMETERS = 128

#: The arrays of a library that hold its parameters: whole numbers, and fractions.
SIZES, FRACTIONS = "stax_sizes", "stax_fractions"


class NotShared(Exception):
    """A text whose like was not met before, or whose numbers have to be constant."""


@dataclass
class Family:
    """Texts with the same words. ``values`` are the numbers of the first, ``parameters`` the places of those that have
    differed, ``capacities`` the lengths of arrays by the place of their number, ``library`` what was compiled for them;
    ``refused`` says that the compiler did not take parameters."""

    values: tuple[str, ...]
    parameters: tuple[int, ...] = ()
    capacities: dict[int, int] = field(default_factory=dict)
    library: bytes = b""
    key: str = ""
    refused: bool = False
    instances: dict[tuple[str, ...], Any] = field(default_factory=dict)


_families: dict[tuple[Any, ...], Family] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    """A thread that was compiling does not exist in a child, and would hold its lock there for ever."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def words_and_numbers(kernel: Kernel) -> tuple[str, tuple[str, ...]]:
    """The text of a kernel without its numbers (but with their types), and those in order."""
    source = kernel.source
    return _NUMBER.sub(lambda match: f"\0{_kind(match[0])}", source), tuple(_NUMBER.findall(source))


def _kind(number: str) -> str:
    return "i" if number.isdigit() else "f" if number.endswith("f") else "d"


def _exact(number: str) -> bool:
    """Whether a number can be handed over as a parameter: rounding a decimal to double and then to single precision
    may not be rounding it to single precision."""
    value = float(number.removesuffix("f"))
    return _kind(number) != "f" or ctypes.c_float(value).value == value


def array_places(kernel: Kernel) -> frozenset[int]:
    """The places of the numbers that are lengths of arrays on the stack."""
    found, count = set(), 0
    for line in kernel.lines:
        count += len(_NUMBER.findall(line.text))
        if _ARRAY.match(line.text):
            found.add(count - 1)
    return frozenset(found)


def with_parameters(kernel: Kernel, places: tuple[int, ...], capacities: Mapping[int, int] | None = None) -> Kernel:
    """The kernel with the numbers at these places read from arrays of its library. Arrays on the stack are as long as
    ``capacities`` says, by place."""
    wanted, lengths, count, lines = set(places), capacities or {}, 0, []
    whole = fractions = 0

    def parameter(match: re.Match) -> str:
        nonlocal count, whole, fractions
        count += 1
        if count - 1 in lengths:
            return str(lengths[count - 1])
        if count - 1 not in wanted:
            return match[0]
        kind = _kind(match[0])
        if kind == "i":
            whole += 1
            return f"{SIZES}[{whole - 1}]"
        fractions += 1
        return f"(({'f32' if kind == 'f' else 'f64'}){FRACTIONS}[{fractions - 1}])"

    for line in kernel.lines:
        lines.append(Line(_NUMBER.sub(parameter, line.text), line.origins))
    head = next(k for k, line in enumerate(lines) if not line.text.startswith(("#include", "using", "//")))
    declared = Line(f'extern "C" {{ i64 {SIZES}[{max(whole, 1)}]; f64 {FRACTIONS}[{max(fractions, 1)}]; }}')
    return dataclasses.replace(kernel, lines=(*lines[:head], declared, *lines[head:]))


def shared(
    kernel: Kernel,
    compile_text: Callable[[Kernel], tuple[bytes, str, bool]],
    open_library: Callable[[bytes], ctypes.CDLL],
) -> tuple[ctypes.CDLL, str, bool]:
    """A library for a kernel whose words were met before: (library, key, whether nothing was compiled).
    ``compile_text`` gives the bytes of a library, its key, and whether it was there. Raises NotShared for a kernel that
    is to be compiled as it is."""
    words, numbers = words_and_numbers(kernel)
    identity = (words, kernel.flags, kernel.device.name)
    with _lock:
        family = _families.setdefault(identity, Family(numbers))
        if family.refused or numbers == family.values:
            raise NotShared
        known = family.instances.get(numbers)
        if known is not None:
            return known, family.key, True
        differing = {k for k, (a, b) in enumerate(zip(numbers, family.values, strict=True)) if a != b}
        places = tuple(sorted(differing | set(family.parameters)))
        if len(places) > MOST_PARAMETERS or not all(_exact(numbers[place]) for place in places):
            raise NotShared
        found = True
        lengths = {}
        for k in array_places(kernel) & set(places):
            longest = max(int(numbers[k]), int(family.values[k]), family.capacities.get(k, 0))
            lengths[k] = 1 << (longest - 1).bit_length()
        if places != family.parameters or lengths != family.capacities:
            started = time.perf_counter()
            try:
                family.library, family.key, found = compile_text(with_parameters(kernel, places, lengths))
            except BuildError:
                family.refused = True
                say("build", lambda: f"{kernel.name}: a number that differs must be constant; compiled as it is")
                raise NotShared from None
            family.parameters, family.capacities = places, lengths
            seconds = time.perf_counter() - started
            say("build", lambda: f"{kernel.name}: {len(places)} sizes are parameters now ({seconds:.3g} s)")
        library = open_library(family.library)
        given = [numbers[place] for place in family.parameters if place not in family.capacities]
        _write(library, SIZES, ctypes.c_int64, [int(text) for text in given if _kind(text) == "i"])
        _write(library, FRACTIONS, ctypes.c_double, [float(t.removesuffix("f")) for t in given if _kind(t) != "i"])
        family.instances[numbers] = library
        return library, family.key, found


def _write(library: ctypes.CDLL, name: str, kind: Any, values: list) -> None:
    (kind * len(values)).in_dll(library, name)[:] = values


def clear() -> None:
    """Forget every family: the next text of each is compiled as it is."""
    with _lock:
        _families.clear()


def statistics() -> dict[str, int]:
    """How many families there are, how many of them have parameters, how many texts share those, and how many families
    the compiler refused parameters."""
    with _lock:
        families = [*_families.values()]
    return {
        "families": len(families), "with parameters": sum(bool(f.library) for f in families),
        "texts that share": sum(len(f.instances) for f in families), "refused": sum(f.refused for f in families),
    }  # fmt: skip
