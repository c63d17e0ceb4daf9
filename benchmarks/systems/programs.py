"""The programs that are compared, as text, and the sequences of calls they are watched in (Section 12.1 and 12.2).

The text is what a reader sees, so the text is what runs. ``torch`` and ``jax`` are the same function in two libraries'
words; where the words are the same there is one text. ``log`` is a list outside of the function, empty at first.

An argument is written as a number, or as ``"+4x2"`` for a tensor of ones of shape (4, 2), ``"-4x2"`` for one of minus
ones; an ``h`` at the end asks for half precision instead of float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[Any, ...]

#: Aspects of Exercise 32.
CONTROL_FLOW = "data-dependent control flow"
EFFECTS = "Python side effects"
SPECIALIZATION = "degree of specialization"
FAILURE = "compilation failure"


@dataclass(frozen=True)
class Program:
    """One program: ``source`` in PyTorch's words, ``jax`` in JAX's (None: the same words), the sequences it is called
    in, and whether every pair of calls of the first sequence is asked to share a compilation (``pairs``)."""

    name: str
    title: str
    aspect: str
    source: str
    sequences: tuple[tuple[Call, ...], ...]
    jax: str | None = None
    pairs: bool = False

    def text(self, library: str) -> str:
        """The program's text for "torch" or "jax"."""
        return self.jax if library == "jax" and self.jax is not None else self.source


def function_of(text: str, namespace: dict[str, Any], place: str) -> Callable[..., Any]:
    """The function ``f`` that a program's text defines, with its lines known to tracebacks."""
    import linecache

    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    scope = dict(namespace)
    exec(compile(text, place, "exec"), scope)
    return scope["f"]


def sequence_text(sequence: Sequence[Call]) -> str:
    """A sequence as one line: ``"+4, 2; +4, 3"`` are two calls of two arguments."""
    return "; ".join(", ".join(str(argument) for argument in call) for call in sequence)


def shape_of(written: str) -> tuple[int, tuple[int, ...], bool]:
    """Of ``"-4x2h"``: the sign, the shape, and whether it is of half precision."""
    half = written.endswith("h")
    sign = {"+": 1, "-": -1}[written[0]]
    return sign, tuple(int(extent) for extent in written[1:].removesuffix("h").split("x")), half


def calls(*arguments: Any) -> tuple[Call, ...]:
    """Calls of one argument each."""
    return tuple((argument,) for argument in arguments)


BRANCH = """\
def f(x):
    if x.sum() > 0:
        return x * 2
    return x - 1
"""
SELECT = """\
def f(x):
    return torch.where(x.sum() > 0, x * 2, x - 1)
"""
LOOP = """\
def f(x):
    while x.sum() < 16:
        x = x * 2
    return x
"""
NUMBER_FROM_DATA = """\
def f(x):
    return x * float(x.sum())
"""
APPEND = """\
def f(x):
    log.append("called")
    return x * 2
"""
PRINTING = """\
def f(x):
    print("called")
    return x * 2
"""
SCALE = """\
def f(x, k):
    return x * k
"""
SHAPES = """\
def f(x):
    return torch.relu(x) + 1
"""
GUARDED_SCALE = """\
def f(x, k):
    if x.sum() > 0:
        return x * k
    return x - k
"""
GUARDED_SCALE_JAX = """\
def f(x, k):
    return lax.cond(x.sum() > 0, lambda: x * k, lambda: x - k)
"""

#: The first sequence of each program is the one that is shown.
_SIGNS = tuple(
    calls(*(f"{sign}4" for sign in signs))
    for signs in dict.fromkeys(["+-+-", *map("".join, itertools.product("+-", repeat=4))])
    if len(set(signs)) == 2
)
_REPEATED = tuple(
    calls(*shapes)
    for shapes in (
        ("+4", "+4", "+4"), ("+4", "+4", "+4", "+4"), ("+4", "+4", "+4", "+4", "+4"), ("+4", "+4", "+8"),
        ("+4", "+8", "+4"), ("+4", "+8", "+4", "+8"), ("+4", "+4", "+8", "+8", "+4"), ("+4", "+8", "+12"),
        ("+4", "+4", "+4", "+8"), ("+4", "+8", "+8", "+8", "+8"),
    )
)  # fmt: skip
_NUMBERS = tuple(
    tuple(("+4", k) for k in numbers)
    for numbers in (
        (2, 3, 4), (2, 3, 4, 5), (2.0, 3.0, 4.0), (2.5, 3.5, 4.5, 5.5), (2, 3, 2, 3), (2, 2.0, 3, 3.0),
        (2, 3, 2.5, 3.5), (2.5, 3.5, 2, 3, 4), (3, 4, 5, 6, 7), (2, 2, 3, 3, 4),
    )
)  # fmt: skip
_SHAPES = tuple(
    calls(*shapes)
    for shapes in (
        ("+4", "+5", "+6", "+1"), ("+4", "+5", "+6"), ("+4", "+5", "+6", "+7"), ("+4", "+5", "+4", "+5"),
        ("+4x2", "+5x2", "+6x2", "+7x2"), ("+4x2", "+5x2", "+5x3", "+6x3"), ("+4x2", "+4x3", "+5x3", "+6x4"),
        ("+4", "+4x2", "+5", "+5x2"), ("+4", "+4x1", "+6", "+6x1"), ("+8", "+4", "+2", "+1"), ("+1", "+4", "+5"),
        ("+4", "+1", "+5"), ("+1", "+2", "+1", "+3"), ("+2", "+2", "+2"), ("+3", "+3", "+2", "+3", "+4"), ("+1", "+1"),
        ("+4", "+5"), ("+4", "+1", "+1"), ("+5", "+1", "+2", "+1"),
    )
)  # fmt: skip
#: What a pair of calls may differ in: the data's sign, the number's value and type, the shape, the dtype.
_VARIED = (
    ("+4", 2), ("-4", 2), ("+4", 3), ("+4", 2.0), ("+4", 3.0), ("-4", 3), ("+6", 2), ("+4x2", 2), ("+4h", 2),
    ("-6", 2), ("-4", 2.0), ("+6h", 3), ("+8", 2),
)  # fmt: skip

PROGRAMS: tuple[Program, ...] = (
    Program("branch", "a branch on data", CONTROL_FLOW, BRANCH, _SIGNS),
    Program("select", "the same choice as an operation", CONTROL_FLOW, SELECT, _SIGNS[:1],
            SELECT.replace("torch", "jnp")),
    Program("loop", "a loop until the data are large enough", CONTROL_FLOW, LOOP,
            (calls("+4", "+8", "+4"), calls("+16", "+16"))),
    Program("number_from_data", "a Python number made of data", CONTROL_FLOW, NUMBER_FROM_DATA,
            (calls("+4", "-4", "+4"),)),
    Program("append", "a list that grows", EFFECTS, APPEND, _REPEATED),
    Program("printing", "a line that is printed", EFFECTS, PRINTING, _REPEATED),
    Program("scale", "a Python number as an argument", SPECIALIZATION, SCALE, _NUMBERS),
    Program("shapes", "changing shapes", SPECIALIZATION, SHAPES, _SHAPES, SHAPES.replace("torch", "jax.nn")),
    Program("guarded_scale", "shape, dtype, data and a number", SPECIALIZATION, GUARDED_SCALE, (_VARIED,),
            GUARDED_SCALE_JAX, pairs=True),
)  # fmt: skip
