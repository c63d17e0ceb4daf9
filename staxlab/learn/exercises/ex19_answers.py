"""Answers to Exercise 19: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex19 import Variant


def fused(x, w, s):
    w, y = list(w), []
    for i in range(len(x)):
        w[i] = 2 * x[i]
        y.append(w[i + s])
    return y


def two_loops(n, s):
    return f"""
for i in range({n}):
    w[i] = 2 * x[i]
for i in range({n}):
    y[i] = w[i + {s}]
"""


WHY = """The scheduler writes the subscripts of both nodes as expressions of the fused loop's variable and compares them
for every buffer that one writes and the other reads. They must be equal: then an iteration reads what it has just
written itself (Proposition 7.2), whatever the order of the iterations, also if they run at the same time. w[i] and
w[i + 1] differ, so the pair is rejected and the reason is kept. It could be rescued by shifting b's loop by one
iteration or running both backwards, which makes the loop sequential, or by computing the missing element twice; two
kernels are always right, and cost one more pass over w."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex19_runs import backwards, distance, value_read

    return {
        "value_found": value_read(variant.shift),
        "ahead_distance": distance(variant.shift),
        "fused": fused,
        "two_loops": two_loops,
        "fused_backwards": backwards(variant.shift),
        "why_rejected": WHY,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _in_two_loops(x, w, s):
    w = [2 * value for value in x] + list(w)[len(x) :]
    return [w[i + s] for i in range(len(x))]


def _own_element(x, w, s):
    return [2 * value for value in x]


def _cleared(x, w, s):
    return [0 for value in x]


def _same_index(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\nfor i in range({n}):\n    y[i] = w[i]"


def _behind(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\nfor i in range({n}):\n    y[i] = w[i - {s}]"


def _apart(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\nfor i in range({n}):\n    y[i] = x[i + {s}]"


def _shorter(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\nfor i in range({n} - 1):\n    y[i] = w[i + {s}]"


def _one_loop(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\n    y[i] = w[i + {s}]"


def _other_shift(n, s):
    return f"for i in range({n}):\n    w[i] = x[i]\nfor i in range({n}):\n    y[i] = w[i + {s} + 1]"


def _prose(n, s):
    return "first a, then b"


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex19_runs import VALUES, WAYS

    own = reference(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def chosen(name: str, options: tuple[str, ...]) -> list[WrongAnswer]:
        return [slip(f"chose-{o.replace(' ', '-')}", **{name: o}) for o in options if o != own[name]]

    return (
        *chosen("value_found", VALUES),
        *chosen("fused_backwards", WAYS),
        slip("other-sign", ahead_distance=variant.shift),
        slip("distance-zero", ahead_distance=0),
        slip("not-fused", fused=_in_two_loops),
        slip("own-element", fused=_own_element),
        slip("wrong-value", fused=_cleared),
        slip("legal-fusion", two_loops=_same_index),
        slip("legal-fusion", two_loops=_behind),
        slip("nothing-passed-on", two_loops=_apart),
        slip("different-spaces", two_loops=_shorter),
        slip("not-two-loops", two_loops=_one_loop),
        slip("other-shift", two_loops=_other_shift),
        slip("wrong-form", two_loops=_prose),
    )
