"""Answers to Exercise 27: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex27 import Variant


def collect(f, x, steps):
    kept = []
    for _ in range(steps):
        kept.append(f(x).clone())
        x.add_(1)
    return kept


def may_replay(recorded, inputs):
    if len(recorded) != len(inputs):
        return False
    for (address, shape), (other, extents) in zip(recorded, inputs, strict=True):
        if address != other or shape != extents:
            return False
    return True


WHY = """A recording is a list of launches with all their arguments, and pointers are among the arguments: of the inputs
and of the results. So every replay writes its result to the address that was burnt in when it was recorded, in the
graph's own memory. Appending to a list copies no numbers; it keeps a tensor that looks at that memory. After the loop
all entries that came from replays look at the same memory, and it holds what the last replay has written there. The
value was right when each call returned, and that is all that soundness of a specialization promises (Proposition 2.1):
equal keys, equal results. The recording is specialized further than the kernels are, on addresses: those of the inputs
are quantities that were used as constants, so they have to be in the key, and the wrapper compares them as a guard. The
address of the result is a constant as well, but no property of the call's inputs: there is nothing to compare it with.
What is missing is a condition on the caller, that he no longer needs the last result. Either he copies what he wants to
keep, before the next call, or the wrapper has to find out whether results are still held, and not replay then."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex27_runs import left_open, loop_without_copies

    values, memories = loop_without_copies(variant)
    return {
        "listed": values,
        "memories": memories,
        "collect": collect,
        "may_replay": may_replay,
        "left_open": left_open(),
        "why": WHY,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def keeps_the_result(f, x, steps):
    kept = []
    for _ in range(steps):
        kept.append(f(x))
        x.add_(1)
    return kept


def detaches(f, x, steps):
    kept = []
    for _ in range(steps):
        kept.append(f(x).detach())
        x.add_(1)
    return kept


def copies_at_the_end(f, x, steps):
    kept = []
    for _ in range(steps):
        kept.append(f(x))
        x.add_(1)
    return [y.clone() for y in kept]


def copies_the_input(f, x, steps):
    kept = []
    copies = []
    for _ in range(steps):
        copies.append(x.clone())
        kept.append(f(copies[-1]))
        x.add_(1)
    return kept


def rebinds_the_input(f, x, steps):
    kept = []
    inputs = []
    for _ in range(steps):
        kept.append(f(x).clone())
        inputs.append(x)
        x = x + 1
    return kept


def does_not_advance(f, x, steps):
    return [f(x).clone() for _ in range(steps)]


def _only_the_last(f, x, steps):
    for _ in range(steps):
        y = f(x).clone()
        x.add_(1)
    return y


def ignores_shapes(recorded, inputs):
    return [address for address, _ in recorded] == [address for address, _ in inputs]


def ignores_addresses(recorded, inputs):
    return [shape for _, shape in recorded] == [shape for _, shape in inputs]


def ignores_the_number(recorded, inputs):
    return all(a == b for a, b in zip(recorded, inputs, strict=False))


def ignores_the_order(recorded, inputs):
    return sorted(recorded) == sorted(inputs)


def _always(recorded, inputs):
    return True


def _no_truth_value(recorded, inputs):
    return len(inputs)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex27_runs import INPUTS, OPTIONS, VALUES, slips_of

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    assert {VALUES, INPUTS} < set(OPTIONS)
    listed = [slip(s.name, listed=list(s.answer)) for s in slips_of(variant)]
    return (
        *listed,
        slip("one-each", memories=variant.steps),
        slip("all-in-one", memories=1),
        slip("same-memory", collect=keeps_the_result),
        slip("same-memory", collect=detaches),
        slip("copied-too-late", collect=copies_at_the_end),
        slip("no-replays", collect=copies_the_input),
        slip("no-replays", collect=rebinds_the_input),
        slip("input-not-advanced", collect=does_not_advance),
        slip("wrong-form", collect=_only_the_last),
        slip("ignores-shapes", may_replay=ignores_shapes),
        slip("ignores-addresses", may_replay=ignores_addresses),
        slip("ignores-number", may_replay=ignores_the_number),
        slip("ignores-order", may_replay=ignores_the_order),
        slip("always", may_replay=_always),
        slip("wrong-form", may_replay=_no_truth_value),
        slip(f"chose-{VALUES.replace(' ', '-')}", left_open=VALUES),
        slip(f"chose-{INPUTS.replace(' ', '-')}", left_open=INPUTS),
    )
