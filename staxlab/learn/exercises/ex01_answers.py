"""Answers to Exercise 1: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex01 import Variant


def schedule(n, columns, k):
    for i in range(n):
        yield ("set", "total", 0)
        for j in range(columns):
            yield ("read", "a", "x", i, j)
            yield ("read", "c", "w", i, j)
            yield ("add", "a", "a", "c")
            yield ("relu", "a", "a")
            yield ("mul", "a", "a", k)
            yield ("add", "total", "total", "a")
        yield ("write", "total", "y", i)


def witness(tensor, i, j):
    return 1, 1, 2


PROOF = """Per row the kernel keeps one running sum. It reads each element of x and w once, uses it at once, and writes
the sum when the row is done; no intermediate leaves the registers, and their number does not depend on n or C. So it
moves b(x) + b(w) + b(y). By Proposition 1.1 nobody can move less, since every input element changes some output and
the chip is empty at the start. Hence equality."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer. ``C`` and ``b`` stand for the variant's values."""
    return {
        "eager_bytes": "b*(8*C*n + n)",
        "fused_bytes": "b*(2*C*n + n)",
        "eager_intensity": "4*C*n/(b*(8*C*n + n))",
        "fused_intensity": "4*C*n/(b*(2*C*n + n))",
        "schedule": schedule,
        "steps": [
            "Sum(Sum(2*b, (j, 1, C)) + b, (i, 1, n))",
            "= Sum(2*b*C + b, (i, 1, n))",
            "= n*(2*b*C + b)",
            "= b*n*C + b*n*C + b*n",
        ],
        "witness": witness,
        "proof": PROOF,
        "bound_without_sum": "3*b*C*n",
        "saved_with_sum": "6*C/(8*C + 1)",
        "saved_without_sum": "4/7",
        "change": "smaller",
    }


# Changes to the functions above that leave them right: relu of the number 0 is 0, and other witnesses exist.
HARMLESS = {
    "schedule": ("yield ('set', 'total', 0) -> yield ('relu', 'total', 0)",),
    "witness": (
        "return (1, 1, 2) -> return (0, 1, 2)",
        "return (1, 1, 2) -> return (1, 0, 2)",
        "return (1, 1, 2) -> return (1, 1, 3)",
    ),
}


def _operator_by_operator(n, columns, k):
    cells = [(i, j) for i in range(n) for j in range(columns)]
    for i, j in cells:
        yield from (
            ("read", "a", "x", i, j),
            ("read", "c", "w", i, j),
            ("add", "a", "a", "c"),
            ("write", "a", "t", i, j),
        )
    for i, j in cells:
        yield from (("read", "a", "t", i, j), ("relu", "a", "a"), ("mul", "a", "a", k), ("write", "a", "u", i, j))
    for i in range(n):
        yield ("set", "total", 0)
        for j in range(columns):
            yield from (("read", "a", "u", i, j), ("add", "total", "total", "a"))
        yield ("write", "total", "y", i)


def _reads_w_twice(n, columns, k):
    for step in schedule(n, columns, k):
        yield step
        if step[:3] == ("read", "c", "w"):
            yield step


def _loads_the_row_first(n, columns, k):
    for i in range(n):
        for j in range(columns):
            yield from (("read", f"x{j}", "x", i, j), ("read", f"w{j}", "w", i, j))
        yield ("set", "total", 0)
        for j in range(columns):
            yield from (("add", f"x{j}", f"x{j}", f"w{j}"), ("relu", f"x{j}", f"x{j}"), ("mul", f"x{j}", f"x{j}", k))
            yield ("add", "total", "total", f"x{j}")
        yield ("write", "total", "y", i)


def _forgets_relu(n, columns, k):
    return [step for step in schedule(n, columns, k) if step[0] != "relu"]


def _never_clears_the_total(n, columns, k):
    yield ("set", "total", 0)
    yield from (step for step in schedule(n, columns, k) if step[0] != "set")


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    return (
        slip("elements-not-bytes", eager_bytes="8*C*n + n"),
        slip(
            "intermediates-counted-once",
            eager_bytes=lambda n: (5 * n * variant.columns + n) * variant.torch_dtype.itemsize,
        ),
        slip("output-forgotten", eager_bytes="8*C*n*b"),
        slip("writes-forgotten", eager_bytes="5*C*n*b"),
        slip("no-value", eager_bytes="8*C*n*b/(n - 1)"),
        slip("input-read-twice", fused_bytes="b*(3*C*n + n)"),
        slip("output-full-size", fused_bytes="3*b*C*n"),
        slip("output-forgotten", fused_bytes="2*b*C*n"),
        slip("constant-factor", fused_bytes="3*b*(2*C*n + n)"),
        slip("intensity-inverted", eager_intensity="b*(8*C*n + n)/(4*C*n)", fused_intensity="b*(2*C*n + n)/(4*C*n)"),
        slip("per-element", eager_intensity="4*C/(8*C + 1)"),
        slip("output-forgotten", eager_intensity="4/(8*b)"),
        slip("input-read-twice", fused_bytes="b*(3*C*n + n)", fused_intensity="4*C/(b*(3*C + 1))"),
        slip("intermediate-write", schedule=_operator_by_operator),
        slip("input-reread", schedule=_reads_w_twice),
        slip("too-many-registers", schedule=_loads_the_row_first),
        slip("wrong-result", schedule=_forgets_relu),
        slip("wrong-result", schedule=_never_clears_the_total),
        slip("failed-call", schedule=lambda n, columns, k: [("set", "a", 1 // (n - 1))]),
        slip("wrong-start", steps=["Sum(2*b*C, (i, 1, n))", "= 2*b*C*n"]),
        slip("wrong-step", steps=["Sum(2*b*C + b, (i, 1, n))", "= n*2*b*C + b", "= b*n*C + b*n*C + b*n"]),
        slip("wrong-end", steps=["Sum(2*b*C + b, (i, 1, n))", "= n*(2*b*C + b)", "<= 3*b*n*C"]),
        slip("inequality-for-equality", steps=["Sum(2*b*C + b, (i, 1, n))", "<= b*n*C + b*n*C + b*n"]),
        slip("no-count", steps=["n*(2*b*C + b)", "= b*n*C + b*n*C + b*n"]),
        slip("hidden-by-relu", witness=lambda tensor, i, j: (-1, -1, -2)),
        slip("same-inputs", witness=lambda tensor, i, j: (1, 1, 1)),
        slip("wrong-form", witness=lambda tensor, i, j: 1),
        slip("output-still-summed", bound_without_sum="b*(2*C*n + n)"),
        slip("output-forgotten", bound_without_sum="2*b*C*n"),
        slip("kept-not-saved", saved_with_sum="(2*C + 1)/(8*C + 1)", saved_without_sum="3/7"),
        slip("output-forgotten", saved_with_sum="3/4"),
        slip("eager-still-sums", saved_without_sum="1 - 3*C/(8*C + 1)"),
        slip("chose-larger", change="larger"),
        slip("chose-no-different", change="no different"),
    )
