"""What Exercise 27 runs: the loop that keeps results, on a device that records and replays on the same memory.

:class:`Recorded` is the wrapper of Section 9.9 and nothing more: it compares addresses, replays, and gives its results
out where they lie. staxlab's own (:class:`staxlab.runtime.graphs.GraphedRegion`) would notice that results are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ...runtime.graphs import GraphedRegion
from ...runtime.simulated_device import SimulatedDevice
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex27_answers

if TYPE_CHECKING:
    from .ex27 import Variant

VALUES, RESULTS, INPUTS = "the values a call returns", "the memory of earlier results", "the addresses of the inputs"
OPTIONS = (VALUES, RESULTS, INPUTS)


class Recorded:
    """A function of one tensor, recorded at its second call for an address. The first runs as it is."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        self.function, self.device = function, SimulatedDevice()
        self.address: tuple[int, torch.Size] | None = None
        self.graph: Any = None
        self.result: torch.Tensor | None = None
        self.replays = self.direct = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        here = (x.data_ptr(), x.shape)
        if here != self.address and self.graph is None:
            self.address = here
        elif here == self.address:
            if self.graph is None:
                self.graph, (self.result,) = self.device.record(lambda inputs: (self.function(inputs[0]),), [x], ())
            self.device.replay(self.graph)
            self.replays += 1
            assert self.result is not None
            return self.result.detach()
        self.direct += 1
        return self.function(x)


# --- The loop ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def loop_without_copies(variant: Variant) -> tuple[list[int], int]:
    """What stands in the list after the loop, and in how many memories: by running it."""
    f = Recorded(lambda x: x * variant.factor)
    x = torch.full((1,), float(variant.start))
    kept = []
    for _ in range(variant.steps):
        kept.append(f(x))
        x.add_(variant.increment)
    return [int(y.item()) for y in kept], len({y.data_ptr() for y in kept})


def slips_of(variant: Variant) -> tuple[Slip, ...]:
    """Lists one may expect instead."""
    each = [variant.factor * (variant.start + k * variant.increment) for k in range(variant.steps)]
    return (
        Slip("as-without-graphs", each, "So it is without a graph. Where does a replay put its result?"),
        Slip("all-the-last", each[-1:] * len(each), "Nearly: the first call was no replay. Where is its result?"),
        Slip(
            "as-recorded",
            [each[0], *each[1:2] * (len(each) - 1)],
            "A replay runs the kernels again: it reads what is at the input's address now.",
        ),
    )


@lru_cache(maxsize=1)
def left_open() -> str:
    """Which of :data:`OPTIONS` does not hold in the loop, found by looking at all three while it runs."""
    f = Recorded(lambda x: x * 2)
    x = torch.zeros(1)
    addresses, returned, kept = set(), [], []
    for step in range(5):
        addresses.add(x.data_ptr())
        y = f(x)
        returned.append(y.item() == 2 * step)
        kept.append((step, y))
        x.add_(1)
    holds = {
        VALUES: all(returned),
        INPUTS: len(addresses) == 1,
        RESULTS: all(y.item() == 2 * step for step, y in kept),
    }
    (broken,) = [name for name, fine in holds.items() if not fine]
    return broken


# --- The repaired loop ------------------------------------------------------------------------------------------------


def judge_collect(callee: Callee, seed: int | None) -> Verdict:
    """The student's loop around a recorded function: right values in the end, and by replays."""
    rng = generator(seed, "loops")
    cases = [(3, 1, 1), (2, 0, 2), (3, 5, 5)] + [(rng.randint(2, 9), rng.randint(-9, 9), rng.randint(3, 9))] * 2
    for factor, start, steps in cases:
        f = Recorded(lambda x, factor=factor: x * factor + 1)
        x = torch.full((2,), float(start))
        outcome = callee.call(f, x, steps)
        asked = ("f", f"a recorded graph of x * {factor} + 1"), ("x", [start] * 2), ("steps", steps)
        if outcome.failed:
            return call_failed(callee, ("f", "x", steps), outcome)
        yours = _rows(outcome.value)
        if yours is None:
            return unexpected_result(callee, ("f", "x", steps), "that is no list of results")
        expected = [[float(factor * (start + k) + 1)] * 2 for k in range(steps)]
        if yours != expected:
            return _wrong_list(outcome.value, yours, expected, asked)
        if f.replays < steps - 1:
            facts = (*asked, ("replays", f.replays), ("possible", steps - 1))
            message = "The values are right, but the graph is hardly used: its input is not where it was recorded."
            return wrong(message, *facts, mistake="no-replays")
    return right("Every result of its own step, by replays.", ("run for", f"{len(cases)} loops"))


def _rows(value: Any) -> list[Any] | None:
    """The results as lists of numbers; None if they are no list of such."""
    if not isinstance(value, (list, tuple)):
        return None
    try:
        return [torch.as_tensor(entry).tolist() for entry in value]
    except (TypeError, ValueError, RuntimeError):
        return None


def _wrong_list(given: Sequence[Any], yours: list[Any], expected: list[Any], asked: tuple) -> Verdict:
    facts = (*asked, ("yours", result_text(yours)))
    if len(yours) != len(expected):
        return wrong("One result for each step is asked for.", *facts, mistake="wrong-number")
    if len(yours) > 1 and yours == expected[:1] * len(yours):
        return wrong("Every step has computed the same: x is to grow by 1 after each.", *facts,
                     mistake="input-not-advanced")  # fmt: skip
    if len(yours) > 1 and yours[1:] == expected[-1:] * (len(yours) - 1):
        pointers = {entry.data_ptr() for entry in given[1:] if isinstance(entry, torch.Tensor)}
        if len(pointers) == 1 and len(yours) > 2:
            message = "All entries but the first look at one memory, the graph's, and see what was written there last."
            return wrong(message, *facts, ("memories of all entries but the first", 1), mistake="same-memory")
        message = "They were copied when the last replay had already written there."
        return wrong(message, *facts, mistake="copied-too-late")
    return wrong("Not the results of the steps.", *facts)


# --- The guard --------------------------------------------------------------------------------------------------------

Described = list[tuple[int, tuple[int, ...]]]

#: name of a mistake: the function that makes it, and what to say.
MISTAKES: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ignores-shapes": (ex27_answers.ignores_shapes, "Another shape at the same address is another program."),
    "ignores-addresses": (
        ex27_answers.ignores_addresses,
        "The kernels read where the inputs were when they were recorded, not where they are.",
    ),
    "ignores-number": (ex27_answers.ignores_the_number, "An input more or less makes another call."),
    "ignores-order": (ex27_answers.ignores_the_order, "Each address belongs to one argument: order matters."),
    "always": (lambda recorded, inputs: True, "Not every call may be replayed."),
}


@lru_cache(maxsize=1)
def calls() -> list[tuple[str, list[torch.Tensor], list[torch.Tensor]]]:
    """(what it is, the inputs that were recorded, the inputs of a call)."""
    memory = torch.arange(24.0)
    x, w = memory[:6].view(2, 3), memory[8:11]
    elsewhere = memory[12:18].view(2, 3)
    twin = memory[16:19]
    return [
        ("the same tensors", [x, w], [x, w]),
        ("other objects on the same memory", [x, w], [x.detach(), w.view(3)]),
        ("one input elsewhere", [x, w], [elsewhere, w]),
        ("the other elsewhere", [x, w], [x, memory[20:23]]),
        ("another shape", [x, w], [x.view(3, 2), w]),
        ("an input less", [x, w], [x]),
        ("an input more", [x], [x, w]),
        ("in another order", [w, twin], [twin, w]),
        ("no inputs", [], []),
    ]


def is_replayed(recorded: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
    """Whether staxlab replays what it recorded for the first inputs when it is called with the second."""
    region = GraphedRegion(lambda given: (sum([t.sum() for t in given], torch.zeros(())),), SimulatedDevice())
    for _ in range(2):
        region([*recorded])
    before = region.replays
    region([*inputs])
    return region.replays > before


@lru_cache(maxsize=1)
def replayed() -> tuple[bool, ...]:
    """For each of :func:`calls`, whether staxlab replays."""
    return tuple(is_replayed(recorded, inputs) for _, recorded, inputs in calls())


def described(tensors: list[torch.Tensor]) -> Described:
    """What the guard sees of inputs."""
    return [(t.data_ptr(), tuple(t.shape)) for t in tensors]


def judge_may_replay(callee: Callee) -> Verdict:
    """Every call; if the answers are those of a known mistake throughout, it is named."""
    given, failed, tried = [], None, calls()
    for (what, recorded, inputs), truth in zip(tried, replayed(), strict=True):
        outcome = callee.call(described(recorded), described(inputs))
        if outcome.failed:
            return call_failed(callee, (f"recorded for {what}", "inputs"), outcome)
        if not isinstance(outcome.value, bool):
            return unexpected_result(callee, (f"recorded for {what}", "inputs"), "True or False is asked for")
        given.append(outcome.value)
        if failed is None and outcome.value != truth:
            failed = what
    if failed is None:
        return right("As the package decides.", ("calls", len(tried)))
    facts = (("the call", failed), ("yours", given[[what for what, _, _ in tried].index(failed)]))
    for name, (function, message) in MISTAKES.items():
        if given == [function(described(a), described(b)) for _, a, b in tried]:
            return wrong(message, *facts, mistake=name)
    return wrong("The package decides otherwise.", *facts)
