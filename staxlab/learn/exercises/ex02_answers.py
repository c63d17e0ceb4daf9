"""Answers to Exercise 2: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex02 import Variant


def calls():
    import torch

    x = torch.full((2, 3), 5.0)
    return (x, 2), (x, 3)


def violated_by_scale(k_first, x, k):
    return x * k_first != x * k


def violated_by_threshold(k_first, x, k):
    return max(x - k_first, 0) != max(x - k, 0)


def violated_by_clamp(k_first, x, k):
    return min(x, k_first) != min(x, k)


def violated_by_power(k_first, x, k):
    return x**k_first != x**k


VIOLATED = {
    "scale": violated_by_scale,
    "threshold": violated_by_threshold,
    "clamp": violated_by_clamp,
    "power": violated_by_power,
}


def rewrite(g, compile):
    import torch

    compiled = compile(g)

    def with_number(x, k):
        return compiled(x, torch.tensor(k))

    return with_number


def operations(k, a, b):
    return 3 - (k == a + 1) - (k == b)


PRICE = """As a constant, k let Python compute k - a and k - b once, while tracing, and let the passes drop a
multiplication by 1 or an addition of 0. As an input it may be anything at the next call, so both subtractions run at
every call and no identity applies, for an identity has to hold for every k. In return one version serves all values:
no compilation and no cache entry for each new k. That is worth it as soon as k changes often."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "calls": calls,
        "violated": VIOLATED[variant.form],
        "versions_by_value": len({(type(k), k) for k in variant.ks}),
        "versions_as_tensor": len({type(k) for k in variant.ks}),
        "rewrite": rewrite,
        "operations": operations,
        "operations_tensor": 5,
        "fired_number": "multiply by one",
        "fired_tensor": "neither",
        "price": PRICE,
    }


# Changes to the functions above that leave them right: other calls go wrong as well.
HARMLESS = {
    "calls": (
        "x = torch.full((2, 3), 5.0) -> x = torch.full((3, 3), 5.0)",
        "x = torch.full((2, 3), 5.0) -> x = torch.full((1, 3), 5.0)",
        "x = torch.full((2, 3), 5.0) -> x = torch.full((2, 4), 5.0)",
        "x = torch.full((2, 3), 5.0) -> x = torch.full((2, 2), 5.0)",
        "x = torch.full((2, 3), 5.0) -> x = torch.full((2, 3), 6.0)",
        "x = torch.full((2, 3), 5.0) -> x = torch.full((2, 3), 4.0)",
        "return ((x, 2), (x, 3)) -> return ((x, 1), (x, 3))",
        "return ((x, 2), (x, 3)) -> return ((x, 2), (x, 4))",
    ),
}


def _calls_on_another_shape():
    import torch

    return (torch.ones(4), 2), (torch.ones(5), 3)


def _calls_with_equal_results():
    import torch

    # 0 times anything, relu below zero, a clamp that is never reached, powers of 0.
    return (torch.zeros(4), 1), (torch.zeros(4), 3)


def _calls_with_tensors():
    import torch

    return (torch.ones(4), torch.tensor(2)), (torch.ones(4), torch.tensor(3))


def _calls_with_the_same_k():
    import torch

    return (torch.ones(4), 2), (torch.full((4,), 7.0), 2)


def _whenever_k_differs(k_first, x, k):
    return k != k_first


def _only_where_x_is_positive(k_first, x, k):
    return x > 0 and k != k_first


def _passes_the_number(g, compile):
    compiled = compile(g)
    return lambda x, k: compiled(x, k)


def _reads_it_back(g, compile):
    import torch

    compiled = compile(lambda x, k: g(x, k.item()))
    return lambda x, k: compiled(x, torch.tensor(k))


def _compiles_every_time(g, compile):
    import torch

    return lambda x, k: compile(g)(x, torch.tensor(k))


def _wraps_too_late(g, compile):
    import torch

    compiled = compile(lambda x, k: g(x, torch.tensor(k)))
    return lambda x, k: compiled(x, k)


def _rounds(g, compile):
    import torch

    compiled = compile(g)
    return lambda x, k: compiled(x, torch.tensor(int(k) + 1))


def _does_not_compile(g, compile):
    return g


def _compiles_something_else(g, compile):
    compiled = compile(lambda x: x + 0)
    return lambda x, k: g(compiled(x), k)


def _makes_k_large(g, compile):
    import torch

    compiled = compile(g)
    return lambda x, k: compiled(x, torch.full_like(x, k))


def _forgets_times_one(k, a, b):
    return 3 - (k == b)


def _forgets_adding_zero(k, a, b):
    return 3 - (k == a + 1)


def _removes_times_zero(k, a, b):
    return 3 - (k == a + 1) - (k == b) - (k == a)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    right = reference(variant)
    by_value, as_tensor = right["versions_by_value"], right["versions_as_tensor"]
    found = [
        slip("key-differs", calls=_calls_on_another_shape),
        slip("same-result", calls=_calls_with_equal_results),
        slip("k-is-a-tensor", calls=_calls_with_tensors),
        slip("same-k", calls=_calls_with_the_same_k),
        slip("wrong-form", calls=lambda: (1, 2)),
        slip("no-violation", violated=_whenever_k_differs),
        slip("missed-violation", violated=lambda k_first, x, k: False),
        slip("wrong-form", violated=lambda k_first, x, k: "yes"),
        slip("read-at-run-time", versions_by_value=as_tensor),
        slip("value-in-the-key", versions_as_tensor=by_value),
        slip("one-version-per-value", rewrite=_passes_the_number),
        slip("one-version-per-value", rewrite=_wraps_too_late),
        slip("value-read-back", rewrite=_reads_it_back),
        slip("compiled-at-every-call", rewrite=_compiles_every_time),
        slip("wrong-value", rewrite=_rounds),
        slip("nothing-compiled", rewrite=_does_not_compile),
        slip("k-not-an-input", rewrite=_compiles_something_else),
        slip("k-as-large-as-x", rewrite=_makes_k_large),
        slip("times-one-missed", operations=_forgets_times_one),
        slip("plus-zero-missed", operations=_forgets_adding_zero),
        slip("times-zero-removed", operations=_removes_times_zero),
        slip("arithmetic-on-k-forgotten", operations_tensor=3),
        slip("value-known", operations_tensor=4),
        slip("chose-add-zero", fired_number="add zero"),
        slip("chose-neither", fired_number="neither"),
        slip("chose-multiply-by-one", fired_tensor="multiply by one"),
    ]
    if variant.form == "scale":
        found.append(slip("missed-violation", violated=_only_where_x_is_positive))
    if len(set(variant.ks)) not in (by_value, as_tensor):
        found.append(slip("types-ignored", versions_by_value=len(set(variant.ks))))
    if len(variant.ks) != by_value:
        found.append(slip("calls-counted", versions_by_value=len(variant.ks)))
    if as_tensor > 1:
        found.append(slip("dtype-ignored", versions_as_tensor=1))
    return tuple(found)
