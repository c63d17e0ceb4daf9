"""Checkpointing: which states of a chain to keep, which to compute again (Section 5.8, Theorems 5.3 and 5.4).

The backward step k of a chain of ``l`` steps needs the state ``z_(k-1)``. Four schedules, each a reversal order in the
moves of ``reversal``, each with another price:

==============================  ==================================  ==================================================
schedule                        slots                               how often a forward step is computed
==============================  ==================================  ==================================================
:func:`save_all`                ``l``                               once
:func:`recompute_all`           1                                   up to ``l - 1`` times, ``l (l - 1) / 2`` in all
:func:`uniform_segments`        at most ``c + l / c``               at most twice
:func:`binomial`                ``s``                               at most ``t`` times, if ``l <= C(s + t, s)``
==============================  ==================================  ==================================================

The last is the best there is, for every length and not only for the binomial coefficients themselves. With
``beta(s, t)`` for the longest chain that ``s`` slots reverse when every step may be computed ``t`` times, its recursion
is the proof of Theorem 5.4: advance to ``z_m`` and keep it; reverse the steps after it with the ``s - 1`` slots that
are left; give ``z_m`` up; reverse the ``m`` steps before it, which have been computed once, with all ``s`` slots. The
first part may be as long as ``beta(s, t - 1)``, the second as ``beta(s - 1, t)``, and their sum is Pascal's rule.
:func:`longest_chain_by_search` knows nothing of this: it tries all orders.

Why ``m`` is chosen as it is: of all splits that keep the repetition, those with ``beta(s, t - 2) <= m`` also compute
the fewest forward steps in all, ``t l - C(s + t, s + 1)`` (:func:`fewest_forward_evaluations`; the tests compare it
with the recurrence over all splits).

Chen, T., Xu, B., Zhang, C., & Guestrin, C. (2016). Training deep nets with sublinear memory cost. Griewank, A. (1992).
Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation. Griewank, A., &
Walther, A. (2000). Algorithm 799: revolve.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

from ..errors import StaxError
from ..specialize.report import counted
from .reversal import Advance, Free, Move, Reversal, Reverse, Store, simulate

MOST_SEARCHED = 2_000_000  # positions of the search over all orders


class CheckpointError(StaxError):
    """A schedule that cannot exist: too few slots or repetitions, or a chain without steps."""


def beta(slots: int, repetitions: int) -> int:
    """The longest chain that can be reversed with ``slots`` slots if every forward step may be computed
    ``repetitions`` times: ``C(s + t, s)`` (Theorem 5.4). 0 for a negative number of repetitions, and without slots.

    >>> [[beta(s, t) for t in range(4)] for s in (1, 2, 3)]
    [[1, 2, 3, 4], [1, 3, 6, 10], [1, 4, 10, 20]]
    """
    return comb(slots + repetitions, slots) if slots >= 1 and repetitions >= 0 else 0


def minimal_repetitions(length: int, slots: int) -> int:
    """The smallest ``t`` with ``length <= beta(slots, t)``. O(t)."""
    _require(length, slots)
    repetitions = 0
    while beta(slots, repetitions) < length:
        repetitions += 1
    return repetitions


def minimal_slots(length: int, repetitions: int) -> int:
    """The smallest ``s`` with ``length <= beta(s, repetitions)``. O(log s). Raises CheckpointError where no number of
    slots would do: a chain of more than one step that may not compute anything.

    >>> [minimal_slots(1000, t) for t in (1, 2, 3, 4)]
    [999, 44, 17, 10]
    """
    _require(length, 1)
    if repetitions < 1 and length > 1:
        raise CheckpointError(
            f"a chain of {length} steps cannot be reversed without computing a forward step",
            remedy="allow at least one repetition",
        )
    low, high = 1, 1
    while beta(high, repetitions) < length:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if beta(middle, repetitions) >= length else (middle + 1, high)
    return low


def fewest_forward_evaluations(length: int, slots: int) -> int:
    """The fewest forward steps that any reversal order with ``slots`` slots computes: ``t l - C(s + t, s + 1)`` with
    the smallest possible repetition ``t`` (Griewank & Walther 2000, Algorithm 799; there the last step counts too).

    >>> fewest_forward_evaluations(10, 1), fewest_forward_evaluations(10, 3), fewest_forward_evaluations(10, 10)
    (45, 15, 9)
    """
    repetitions = minimal_repetitions(length, slots)
    return repetitions * length - comb(slots + repetitions, slots + 1)


def _require(length: int, slots: int) -> None:
    if length < 1 or slots < 1:
        raise CheckpointError(
            f"no reversal order for {length} steps and {slots} slots",
            remedy="a chain has at least one step, and one slot holds its input",
        )


# --- Schedules --------------------------------------------------------------------------------------------------------


def save_all(length: int) -> Reversal:
    """Keep every state: ``length`` slots, each forward step but the last computed once."""
    _require(length, 1)

    def moves() -> Iterator[Move]:
        yield from _filling(0, length)
        yield from _emptying(0, length)

    return simulate(moves(), length, length, 1, name="save all")


def recompute_all(length: int) -> Reversal:
    """Keep ``z_0`` only and begin there for every backward step: ``length (length - 1) / 2`` forward steps."""
    _require(length, 1)
    return simulate(_from_start(0, length), length, 1, name="recompute all")


def uniform_segments(length: int, segments: int) -> Reversal:
    """Equal segments (Theorem 5.3): the forward pass stores the first state of each; going backwards, the states of one
    segment at a time are computed and kept until the segment is done.

    At most ``c + ceil(l / c) - 1`` slots for ``c`` segments (the first state of a segment is counted once), and no step
    is computed more than twice: those of the last segment once, since the forward pass goes on through it and keeps
    them. Segments differ by at most one step. Raises CheckpointError for fewer than one segment or more than steps.
    """
    _require(length, 1)
    if not 1 <= segments <= length:
        raise CheckpointError(
            f"{length} steps cannot be parted into {segments} segments",
            remedy=f"choose a number of segments from 1 to {length}; {round(length**0.5)} needs the fewest slots",
        )
    bounds = [length * k // segments for k in range(segments + 1)]

    def moves() -> Iterator[Move]:
        for start, stop in zip(bounds[:-2], bounds[1:-1], strict=True):
            yield Advance(start, stop)
            yield Store(stop)
        for start, stop in reversed(list(zip(bounds[:-1], bounds[1:], strict=True))):
            yield from _filling(start, stop)
            yield from _emptying(start, stop)
            if start:
                yield Free(start)

    return simulate(
        moves(), length, segments + -(-length // segments) - 1, 2, name=counted(segments, "uniform segment")
    )


def binomial(length: int, slots: int, repetitions: int | None = None) -> Reversal:
    """The recursive order of Theorem 5.4, for any length up to ``beta(slots, repetitions)``.

    By default ``repetitions`` is the smallest possible. No other order with that many slots has a smaller repetition,
    and none computes fewer forward steps. Raises CheckpointError where ``length`` exceeds ``beta``.

    >>> run = binomial(10, 3)
    >>> run.peak_slots, run.repetitions, run.forward_evaluations
    (3, 2, 15)
    """
    _require(length, slots)
    least = minimal_repetitions(length, slots)
    if repetitions is not None and repetitions < least:
        raise CheckpointError(
            f"with {counted(slots, 'slot')} and {counted(repetitions, 'repetition')} a chain may have at most "
            f"{counted(beta(slots, repetitions), 'step')}, and this one has {length:,} (Theorem 5.4)",
            remedy=f"allow {least} repetitions, or {minimal_slots(length, repetitions)} slots"
            if repetitions
            else f"allow {least} repetitions",
        )
    return simulate(_binomial(length, slots, least), length, slots, least, name=f"binomial, {counted(slots, 'slot')}")


def split(length: int, slots: int, repetitions: int) -> int:
    """Where the recursion of Theorem 5.4 parts a chain of ``length >= 2`` steps: the steps before the state it stores.

    Of the splits that keep the repetition, one that also computes the fewest forward steps.
    """
    return max(1, beta(slots, repetitions - 2), length - beta(slots - 1, repetitions))


def _binomial(length: int, slots: int, repetitions: int) -> Iterator[Move]:
    """The moves, from a list of what is still to do (a recursion would be as deep as there are slots)."""
    pending: list[Move | tuple[int, int, int, int]] = [(0, length, slots, repetitions)]
    while pending:
        task = pending.pop()
        if not isinstance(task, tuple):
            yield task
            continue
        start, stop, slots, repetitions = task  # reverse the steps after z_start, which is stored, up to stop
        if slots == 1 or stop - start == 1:
            yield from _from_start(start, stop)
            continue
        middle = start + split(stop - start, slots, repetitions)
        pending += [
            (start, middle, slots, repetitions - 1), Free(middle), (middle, stop, slots - 1, repetitions),
            Store(middle), Advance(start, middle),
        ]  # fmt: skip


def _from_start(start: int, stop: int) -> Iterator[Move]:
    """Reverse the steps after ``z_start``, which is stored, without another slot."""
    for step in range(stop, start, -1):
        if step - 1 > start:
            yield Advance(start, step - 1)
        yield Reverse(step)


def _filling(start: int, stop: int) -> Iterator[Move]:
    """Store every state after ``z_start`` that the steps up to ``stop`` need."""
    for state in range(start + 1, stop):
        yield Advance(state - 1, state)
        yield Store(state)


def _emptying(start: int, stop: int) -> Iterator[Move]:
    for step in range(stop, start, -1):
        yield Reverse(step)
        if step - 1 > start:
            yield Free(step - 1)


# --- All orders -------------------------------------------------------------------------------------------------------


def longest_chain_by_search(slots: int, repetitions: int, most: int = 64) -> int:
    """The longest chain that can be reversed, found by trying all orders (Theorem 5.4 without its proof).

    Left out are moves that cannot help: an advance begins at the nearest stored state and ends where its result is
    stored or read by a backward step; a backward step that can run is run; a state is given up for another one, or when
    no backward step needs it any more. The number of positions grows exponentially all the same. Raises CheckpointError
    where there are too many, or where chains of ``most`` steps still can be reversed.

    >>> [longest_chain_by_search(s, 2) for s in (1, 2, 3)]
    [3, 6, 10]
    """
    if repetitions < 0 or slots < 1:
        return 0
    for length in range(1, most + 1):
        if not can_be_reversed(length + 1, slots, repetitions):
            return length
    raise CheckpointError(f"chains of up to {most} steps can be reversed", remedy="search further: raise most")


def can_be_reversed(length: int, slots: int, repetitions: int) -> bool:
    """Whether any order at all reverses the chain, by depth-first search.

    A position is: the next backward step, the stored states, and how often each forward step may still be computed.
    """
    start = (length, frozenset({0}), (repetitions,) * (length - 1))
    seen, pending = {start}, [start]
    while pending:
        step, stored, left = pending.pop()
        if step == 1:  # z_0 is still needed, so it is still stored
            return True
        for position in _next_positions(step, stored, left, slots):
            if position not in seen:
                seen.add(position)
                pending.append(position)
        if len(seen) > MOST_SEARCHED:
            raise CheckpointError(
                f"more than {MOST_SEARCHED:,} positions: {length} steps, {slots} slots, {repetitions} repetitions",
                remedy="beta(slots, repetitions) has the answer",
            )
    return False


Position = tuple[int, frozenset[int], tuple[int, ...]]


def _next_positions(step: int, stored: frozenset[int], left: tuple[int, ...], slots: int) -> Iterator[Position]:
    """What one advance leads to: a state that is stored, or the next backward step."""
    wanted = step - 1
    if wanted in stored:
        yield wanted, stored - {wanted}, left[: wanted - 1]
        return
    for target in range(1, step):
        if target in stored:
            continue
        begin = max(state for state in stored if state < target)
        if min(left[begin:target]) == 0:
            continue
        fewer = (*left[:begin], *(count - 1 for count in left[begin:target]), *left[target:])
        if target == wanted:
            yield wanted, stored, fewer[: wanted - 1]
        elif len(stored) < slots:
            yield step, stored | {target}, fewer
        else:
            for state in stored - {0}:
                yield step, stored - {state} | {target}, fewer
