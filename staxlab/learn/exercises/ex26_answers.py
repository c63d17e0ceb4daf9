"""Answers to Exercise 26: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex26 import Variant


def execution_times(times, L, G):
    host = 0
    device = 0
    for t in times:
        host = host + L
        if host > device:
            device = host
        device = device + t
    whole = G if times else 0
    for t in times:
        whole = whole + t
    return [device, whole]


WHEN = """A graph replaces n launches by one submission, so it saves host time and nothing else. It pays where the host
decides: many short kernels, n L above the sum of the kernels' times, as in a small model, at batch size one, or in an
optimizer step over many small tensors. There the gain grows with n towards L/t. Where kernels are longer than a launch
the device is busy anyway, launches hide behind kernels, and a graph only adds its own submission at the beginning: a
factor just below 1. Fusion lowers n and so the same cost, and memory traffic besides; but the launches that are left
still cost L each, and after fusion the kernels are longer, so there is less for a graph to gain."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex26_runs import break_even

    n, t, launch, graph = variant.n, variant.t, variant.launch, variant.graph
    return {
        "launched": "max(n*L, n*t)",
        "as_graph": "G + n*t",
        "gain": "n*max(L, t)/(G + n*t)",
        "bound": "max(L/t, 1)",
        "bound_for_n": "max(n*L/G, 1)",
        "own_gain": f"{n * max(launch, t)}/{graph + n * t}",
        "break_even": break_even(t, launch, graph),
        "crossing": f"{n * t}/{launch}",
        "execution_times": execution_times,
        "when": WHEN,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def first_order(times, L, G):
    total = sum(times)
    return [max(len(times) * L, total), G + total if times else 0]


def serial(times, L, G):
    total = sum(times)
    return [len(times) * L + total, G + total if times else 0]


def launch_per_kernel(times, L, G):
    device = host = 0
    for t in times:
        host = host + L
        device = max(host, device) + t
    return [device, len(times) * G + sum(times)]


def never_waits(times, L, G):
    return [(L if times else 0) + sum(times), (G if times else 0) + sum(times)]


def _single(times, L, G):
    return sum(times)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex26_runs import break_even

    n, t, launch, graph = variant.n, variant.t, variant.launch, variant.graph
    even = break_even(t, launch, graph)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("one-after-the-other", launched="n*(L + t)"),
        slip("host-only", launched="n*L"),
        slip("device-only", launched="n*t"),
        slip("submission-per-kernel", as_graph="n*(G + t)"),
        slip("without-submission", as_graph="n*t"),
        slip("launches-remain", as_graph="G + n*L + n*t"),
        slip("upside-down", gain="(G + n*t)/(n*max(L, t))"),
        slip("short-kernels-only", gain="n*L/(G + n*t)"),
        slip("kernels-for-nothing", gain="n*max(L, t)/G"),
        slip("short-kernels-only", bound="L/t"),
        slip("for-one-kernel", bound="L"),
        slip("short-kernels-only", bound_for_n="n*L/G"),
        slip("without-n", bound_for_n="max(L/G, 1)"),
        slip("upside-down", own_gain=f"{graph + n * t}/{n * max(launch, t)}"),
        slip("the-limit", own_gain=f"{launch}/{t}"),
        slip("one-less", break_even=even - 1),
        slip("one-more", break_even=even + 1),
        slip("upside-down", crossing=f"{launch}/{n * t}"),
        slip("launches-over-kernel", crossing=f"{n * launch}/{t}"),
        slip("first-order", execution_times=first_order),
        slip("one-after-the-other", execution_times=serial),
        slip("submission-per-kernel", execution_times=launch_per_kernel),
        slip("never-waits", execution_times=never_waits),
        slip("wrong-form", execution_times=_single),
    )
