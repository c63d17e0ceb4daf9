"""Both halves of Proposition 1.1 as claims that run: a schedule that attains the bound, and why none can beat it.

*Attaining it.* A student's function produces the instructions of a kernel for one size. They are executed on the
machine of :mod:`staxlab.learn.machine`, several times with different inputs since a schedule must not depend on values,
and the run is held against the ideal one: right result, each input element read once, each output element written
once, nothing else moved. Sizes grow, so the size that is shown to the student is the smallest that fails.

*No less.* That an element must be read is shown by an adversary: two inputs that differ in that element alone and have
different results. Whoever does not read it does the same in both cases, and is wrong in one. The student's function
plays the adversary; the search looks for an element and a size at which its two inputs are not told apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from .answers import Callee, Malformed, as_number
from .claims import choices, integers
from .feedback import Verdict, nearly, wrong
from .judges import Judge, Slip, call_failed, construction, for_all, number_text, point_text, unexpected_result
from .machine import MachineError, Tensors, departures, execute
from .variants import generator

LARGEST_SCHEDULE = 20_000  # instructions
INPUTS_PER_SIZE = 4
CREDIT_FOR_RESULT = Fraction(1, 3)

REMARKS = {
    "intermediate-write": "an intermediate value makes a round trip through main memory, as in eager execution.",
    "input-reread": "an input element is read again. Keep what you need in a register.",
    "output-rewritten": "an output element is written more than once. Accumulate on the chip.",
    "output-reread": "an output element is read back. Accumulate on the chip.",
    "input-overwritten": "an input is overwritten, a write that the bound does not have.",
}


@dataclass(frozen=True)
class Instance:
    """One size to try, in the exercise's own terms, and the student's function's ``arguments`` by name."""

    size: tuple[int, ...]
    arguments: Mapping[str, Any]


def attains_bound(
    instances: Sequence[Instance],
    draw_inputs: Callable[[Instance, random.Random], Tensors],
    compute: Callable[[Tensors, Instance], Tensors],
    *,
    registers: int,
    seed: int | None,
    praise: str = "Right result, every input element read once, every output written once, nothing else moved.",
) -> Judge:
    """A schedule with the right result that attains the bound, within ``registers`` registers. A third of the credit
    for a right result with more traffic or more on-chip storage.

    ``compute`` gives the true outputs for some inputs. O(sizes * inputs * instructions).
    """

    def examine(callee: Callee, arguments: tuple[Any, ...]) -> Verdict | None:
        (instance,) = arguments
        given = tuple(instance.arguments.values())
        outcome = callee.collect(*given, limit=LARGEST_SCHEDULE)
        if outcome.failed:
            return call_failed(callee, given, outcome)
        if len(outcome.value) > LARGEST_SCHEDULE:
            return unexpected_result(callee, given, f"more than {LARGEST_SCHEDULE:,} instructions")
        rng = generator(seed, f"schedule {instance.size}")
        for _ in range(INPUTS_PER_SIZE):
            inputs = draw_inputs(instance, rng)
            verdict = _run(outcome.value, instance, inputs, compute(inputs, instance), registers)
            if verdict is not None:
                return verdict
        return None

    return construction([(instance,) for instance in instances], examine, praise=praise)


def _run(
    instructions: list[Any], instance: Instance, inputs: Tensors, expected: Tensors, registers: int
) -> Verdict | None:
    size = ("size", point_text(instance.arguments))
    shapes = {name: tuple(max(axis) + 1 for axis in zip(*given, strict=True)) for name, given in expected.items()}
    try:
        run = execute(instructions, inputs, shapes, registers=registers)
    except MachineError as error:
        facts = (size, ("step", f"{error.position}: {error.instruction!r}"), ("problem", error.message))
        if error.kind == "too-many-registers":
            message = "This needs on-chip storage that grows with the input. Use a value as soon as it is there."
            return nearly(message, *facts, credit=CREDIT_FOR_RESULT, mistake=error.kind)
        return wrong("An instruction of your schedule cannot be executed.", *facts, mistake=error.kind)
    found = departures(run, inputs, expected)
    if not found:
        return None
    first = found[0]
    if first.kind in ("wrong-result", "output-missing"):
        facts = [(name, _values_text(given)) for name, given in inputs.items()]
        return wrong("The result is not right.", size, *facts, ("found", first.message), mistake=first.kind)
    bound = sum(len(given) for given in (*inputs.values(), *expected.values()))
    return nearly(
        "The result is right, but " + REMARKS.get(first.kind, "the traffic is not that of the bound."),
        size,
        ("found", first.message),
        ("moved", f"{run.transfers} elements; the bound is {bound}"),
        credit=CREDIT_FOR_RESULT,
        mistake=first.kind,
    )


def _values_text(elements: Mapping[Any, Fraction]) -> str:
    return "[" + ", ".join(number_text(value) for value in elements.values()) + "]"


def no_element_can_be_skipped(
    function: Callable[..., torch.Tensor],
    tensors: Sequence[str],
    dtype: torch.dtype,
    *,
    seed: int | None,
    explain: Callable[..., Slip | None] = lambda tensor, *values: None,
    largest: tuple[int, int] = (4, 6),
    trials: int = 150,
) -> Judge:
    """The student's ``witness(tensor, i, j)`` returns a fill value per tensor and a changed value, and changing element
    [i, j] of the named tensor alone changes the result of ``function``, for matrices of every size up to ``largest``.

    ``explain(tensor, *fills, changed)`` may name the reason why a change had no effect.
    """
    rows, columns = largest

    def against(callee: Callee, tensor: str, rows: int, columns: int, i: int, j: int) -> Verdict | None:
        i, j = i % rows, j % columns
        arguments = (tensor, i, j)
        outcome = callee.call(*arguments)
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        form = f"({', '.join(tensors)}, changed)"
        if not isinstance(outcome.value, tuple | list) or len(outcome.value) != len(tensors) + 1:
            return unexpected_result(callee, arguments, f"{outcome.value!r} is not {form}")
        try:
            *fills, changed = (float(as_number(value)) for value in outcome.value)
        except (Malformed, OverflowError) as error:
            return unexpected_result(callee, arguments, f"{outcome.value!r} is not {form}: {error}")
        given = [torch.full((rows, columns), fill, dtype=dtype) for fill in fills]
        other = [value.clone() for value in given]
        which = tensors.index(tensor)
        other[which][i, j] = changed
        named = zip([*tensors, "changed"], [*fills, changed], strict=True)
        returned = ("returned", ", ".join(f"{name} = {value:g}" for name, value in named))
        if torch.equal(given[which], other[which]):
            return wrong("The two inputs are the same.", returned, mistake="same-inputs")
        before, after = function(*given), function(*other)
        if not bool(torch.isfinite(before).all() & torch.isfinite(after).all()):
            message = f"A result is not finite in {dtype_name(dtype)}. Smaller numbers will do."
            return wrong(message, returned, mistake="not-finite")
        if not torch.equal(before, after):
            return None
        both = ("result", f"{before.tolist()} both times")
        reason = explain(tensor, *fills, changed)
        if reason is not None:
            return reason.verdict(returned, both)
        return wrong("The result does not change.", returned, both, mistake="no-difference")

    return for_all(
        {
            "tensor": choices(tuple(tensors)),
            "rows": integers(1, rows),
            "columns": integers(1, columns),
            "i": integers(0, rows - 1),
            "j": integers(0, columns - 1),
        },
        against,
        seed=seed,
        trials=trials,
        praise="No trial could skip its element: whoever does not read it cannot tell the two inputs apart.",
    )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
