"""The moves by which a chain is differentiated within a few stored states, and their rules (Section 5.8).

A chain has ``l`` steps, ``z_k = phi_k(z_(k-1))``. Its backward pass takes the steps from the last to the first; step k
turns the adjoint of ``z_k`` into that of ``z_(k-1)`` and needs ``z_(k-1)`` for it. States can be kept in ``s`` slots,
one each, and what is not kept is computed again. A *reversal order* (Definition 5.3) is a sequence of four moves:

=================  =================================================================================================
``Advance(i, j)``  from ``z_i``, which is stored or at hand, compute ``z_(i+1)``, ..., ``z_j``; only ``z_j`` stays
``Store(k)``       put ``z_k``, which must be at hand, into a free slot
``Free(k)``        give up a slot that holds ``z_k``
``Reverse(k)``     the backward step k; ``z_(k-1)`` is stored or at hand, and the adjoint of ``z_k`` is known
=================  =================================================================================================

At the start one slot holds ``z_0``, which is at hand as well, and the adjoint of ``z_l`` is known. The order is
complete when ``Reverse(1)`` has run; its *repetition* is the largest number of times that one forward step was
computed. :func:`simulate` runs an order move by move and refuses the first that breaks a rule, naming the rule. What it
returns is the whole history, which prints as text and draws as a space-time diagram.

Nothing is said here about where an order comes from (``checkpoint``) or what the steps compute (``chain``).

Griewank, A. (1992). Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation. The four moves are those of Griewank, A., & Walther, A. (2000). Algorithm 799: revolve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Any, NoReturn

from ..errors import StaxError
from ..specialize.report import counted

MOST_LINES = 80  # moves listed in a terminal
MOST_COLUMNS = 110  # units of time in the text diagram


@dataclass(frozen=True)
class Advance:
    """Compute ``z_stop`` from ``z_start``: ``stop - start`` forward steps, of which only the last result is kept."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"advance {self.start} -> {self.stop}"


@dataclass(frozen=True)
class Store:
    """Put the state at hand, which must be ``z_state``, into a free slot."""

    state: int

    def __str__(self) -> str:
        return f"store {self.state}"


@dataclass(frozen=True)
class Free:
    """Give up a slot that holds ``z_state``."""

    state: int

    def __str__(self) -> str:
        return f"free {self.state}"


@dataclass(frozen=True)
class Reverse:
    """The backward step: from the adjoint of ``z_step`` and from ``z_(step-1)`` to the adjoint of ``z_(step-1)``."""

    step: int

    def __str__(self) -> str:
        return f"reverse {self.step}"


Move = Advance | Store | Free | Reverse


class Rule(Enum):
    """The rules of Definition 5.3, in words. A move that breaks none of them is legal."""

    KNOWN_MOVE = "a reversal order consists of advance, store, free and reverse"
    IN_CHAIN = "states are numbered from 0 to the length of the chain, steps from 1"
    FORWARD = "an advance goes forward by at least one step"
    FROM_CHECKPOINT = "an advance starts from a state that is stored or at hand"
    STORE_AT_HAND = "only the state at hand can be stored"
    FREE_SLOT = "a state is stored into a free slot"
    FREE_STORED = "only a slot that holds the state can be freed"
    LAST_FIRST = "backward steps run from the last to the first, each once: its adjoint must be known"
    STATE_PRESENT = "backward step k needs the state k - 1, stored or at hand"
    REPETITIONS = "no forward step is computed more often than the repetition allows"
    COMPLETE = "every backward step has to be run"


class ReversalError(StaxError):
    """A reversal order breaks a rule of Definition 5.3.

    ``rule`` is the :class:`Rule`, ``position`` the number of the move, from 0 (the number of moves where the order is
    incomplete), ``move`` the move itself or None, and ``history`` the :class:`Reversal` up to it.
    """

    def __init__(self, rule: Rule, reason: str, position: int, move: Any, history: Reversal):
        self.rule, self.reason, self.position, self.move, self.history = rule, reason, position, move, history
        which = "at the end" if move is None else f"move {position + 1}, {move}"
        super().__init__(f"{which}: {reason} (Definition 5.3: {rule.value})")


@dataclass(frozen=True)
class Residence:
    """A stay of a state in a slot: stored at time ``start`` and given up at ``stop``, in units of one step. ``first``
    and ``last`` are the numbers of the moves that did it (-1: there from the start; the number of moves: never)."""

    state: int
    slot: int
    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True)
class Reversal:
    """A reversal order that was run on a chain of ``length`` steps with ``slots`` slots.

    ``times`` and ``used`` are the time and the number of occupied slots after each move; a forward step and a backward
    step take one unit of time each, storing and freeing none. ``evaluations[k - 1]`` counts how often forward step k
    was computed. ``next_step`` is the backward step that would be next: 0 once the order is complete.
    """

    name: str
    length: int
    slots: int
    moves: tuple[Move, ...]
    times: tuple[int, ...]
    used: tuple[int, ...]
    residences: tuple[Residence, ...]
    evaluations: tuple[int, ...]
    next_step: int

    @property
    def complete(self) -> bool:
        """Whether every backward step was run."""
        return self.next_step == 0

    @property
    def forward_evaluations(self) -> int:
        """Forward steps computed by advances, all told. The last step is never among the necessary ones: the backward
        step l needs ``z_(l-1)`` only."""
        return sum(self.evaluations)

    @property
    def repetitions(self) -> int:
        """The largest number of times that one forward step was computed."""
        return max(self.evaluations, default=0)

    @property
    def peak_slots(self) -> int:
        """The largest number of slots that were occupied at once, that of ``z_0`` included."""
        return max(self.used, default=1)

    @property
    def duration(self) -> int:
        """Forward and backward steps together."""
        return self.times[-1] if self.times else 0

    def summary(self) -> str:
        """One line: length, slots, evaluations."""
        state = "" if self.complete else f", not complete: backward step {self.next_step} is next"
        return (
            f"{counted(self.length, 'step')}, at most {counted(self.peak_slots, 'slot')} of {self.slots} used, "
            f"{counted(self.forward_evaluations, 'forward evaluation')}, no step computed more than "
            f"{_times(self.repetitions)}{state}"
        )

    def format(self) -> str:
        """The summary, the diagram where it is narrow enough, and the moves."""
        lines = [f"{self.name}: {self.summary()}"]
        if self.duration <= MOST_COLUMNS:
            lines += ["", *self.chart()]
        lines += ["", f"{'time':>6}  {'move':<22} slots"]
        for move, time, used in list(zip(self.moves, self.times, self.used, strict=True))[:MOST_LINES]:
            lines.append(f"{time:>6}  {move!s:<22} {used} of {self.slots}")
        if len(self.moves) > MOST_LINES:
            lines.append(f"        ... {len(self.moves) - MOST_LINES:,} more moves")
        return "\n".join(lines)

    __str__ = format

    def chart(self) -> Iterator[str]:
        """The space-time diagram as text: a row for each state, the last on top, and a column for each unit of time.

        ``>`` marks the state that a forward step computes, ``<`` the state from which a backward step reads, ``=`` a
        state in a slot. The last row counts occupied slots.
        """
        rows = {state: [" "] * self.duration for state in range(self.length + 1)}
        occupied = [0] * self.duration
        for stay in self.residences:
            for time in range(stay.start, stay.stop):
                rows[stay.state][time] = "="
                occupied[time] += 1
        for time, state, is_forward in self.units():
            rows[state][time] = ">" if is_forward else "<"
        width = len(str(self.length))
        for state in range(self.length, -1, -1):
            if state < self.length or ">" in rows[state]:
                yield f"  z_{state:<{width}} |{''.join(rows[state])}|"
        yield f"  {'slots':<{width + 2}}|{''.join(str(count) if count < 10 else '+' for count in occupied)}|"
        yield f"{' ' * (width + 5)}a column is one step: > forward, < backward; = stored"

    def units(self) -> Iterator[tuple[int, int, bool]]:
        """(time, state, whether forward) for every unit of time: the state computed, or read by a backward step."""
        time = 0
        for move in self.moves:
            if isinstance(move, Advance):
                for state in range(move.start + 1, move.stop + 1):
                    yield time, state, True
                    time += 1
            elif isinstance(move, Reverse):
                yield time, move.step - 1, False
                time += 1

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def simulate(
    order: Iterable[Move],
    length: int,
    slots: int | None = None,
    repetitions: int | None = None,
    *,
    name: str = "reversal order",
) -> Reversal:
    """Run a reversal order on a chain of ``length`` steps, checking every move against Definition 5.3.

    ``slots`` counts the one that holds ``z_0`` at the start; None means as many as are asked for. ``repetitions``
    bounds how often a forward step may be computed; None means any number of times. Takes time in proportion to the
    forward and backward steps. Raises ReversalError at the first move that breaks a rule, and at the end if backward
    steps are left.

    >>> run = simulate([Advance(0, 1), Store(1), Advance(1, 2), Reverse(3), Reverse(2), Free(1), Reverse(1)], 3, 2, 1)
    >>> run.peak_slots, run.forward_evaluations, run.repetitions
    (2, 2, 1)
    """
    if length < 1 or (slots is not None and slots < 1):
        raise StaxError(
            f"a chain of {length} steps with {slots} slots cannot be reversed",
            remedy="give it at least one step, and at least the slot that holds z_0",
        )
    run = _Run(name, length, slots, repetitions)
    for move in order:
        run.make(move)
    if run.next_step:
        run.refuse(Rule.COMPLETE, f"backward step {run.next_step} has not been run", None)
    return run.history()


class _Run:
    """The state of a simulation. The only mutable thing of this module, and it never leaves it."""

    def __init__(self, name: str, length: int, slots: int | None, repetitions: int | None):
        self.name, self.length, self.limit, self.repetitions = name, length, slots, repetitions
        self.held: list[tuple[int, int, int] | None] = [(0, 0, -1)]  # per slot: state, since when, since which move
        self.held += [None] * ((slots or 1) - 1)
        self.free = list(range(1, len(self.held)))  # a heap: a state goes into the lowest free slot
        self.present: dict[int, list[int]] = {0: [0]}  # state: the slots that hold it
        self.at_hand, self.next_step, self.time, self.occupied = 0, length, 0, 1
        self.evaluations = [0] * length
        self.moves: list[Move] = []
        self.times: list[int] = []
        self.used: list[int] = []
        self.residences: list[Residence] = []

    def refuse(self, rule: Rule, reason: str, move: Any) -> NoReturn:
        raise ReversalError(rule, reason, len(self.moves), move, self.history())

    def make(self, move: Move) -> None:
        if not isinstance(move, Advance | Store | Free | Reverse):
            self.refuse(Rule.KNOWN_MOVE, f"{move!r} is no move", move)
        lowest = 1 if isinstance(move, Reverse) else 0
        for number in vars(move).values():
            if type(number) is not int or not lowest <= number <= self.length:
                reason = f"the chain has the states 0 to {self.length} and the steps 1 to {self.length}"
                self.refuse(Rule.IN_CHAIN, reason, move)
        match move:
            case Advance():
                self._advance(move)
            case Store():
                self._store(move)
            case Free():
                self._free(move)
            case Reverse():
                self._reverse(move)
        self.moves.append(move)
        self.times.append(self.time)
        self.used.append(self.occupied)

    def _advance(self, move: Advance) -> None:
        if move.stop <= move.start:
            self.refuse(Rule.FORWARD, f"it goes from {move.start} to {move.stop}", move)
        self._require_present(move.start, Rule.FROM_CHECKPOINT, move)
        for k in range(move.start, move.stop):
            if self.repetitions is not None and self.evaluations[k] >= self.repetitions:
                reason = f"forward step {k + 1} has been computed {_times(self.repetitions)} already"
                self.refuse(Rule.REPETITIONS, reason, move)
        for k in range(move.start, move.stop):
            self.evaluations[k] += 1
        self.at_hand = move.stop
        self.time += move.stop - move.start

    def _store(self, move: Store) -> None:
        if move.state != self.at_hand:
            self.refuse(Rule.STORE_AT_HAND, f"the state at hand is {self.at_hand}", move)
        if not self.free and self.limit is None:
            self.free.append(len(self.held))
            self.held.append(None)
        if not self.free:
            self.refuse(Rule.FREE_SLOT, f"all {len(self.held)} hold {self._stored_text()}", move)
        slot = heappop(self.free)
        self.held[slot] = (move.state, self.time, len(self.moves))
        self.present.setdefault(move.state, []).append(slot)
        self.occupied += 1

    def _free(self, move: Free) -> None:
        slots = self.present.get(move.state)
        if not slots:
            self.refuse(Rule.FREE_STORED, f"stored are {self._stored_text()}", move)
        slot = slots.pop()
        if not slots:
            del self.present[move.state]
        self._end(slot, len(self.moves))

    def _end(self, slot: int, move: int) -> None:
        held = self.held[slot]
        assert held is not None
        state, start, first = held
        self.residences.append(Residence(state, slot, start, self.time, first, move))
        self.held[slot] = None
        heappush(self.free, slot)
        self.occupied -= 1

    def _reverse(self, move: Reverse) -> None:
        if move.step != self.next_step:
            known = f"the adjoint of z_{self.next_step} is known, so backward step {self.next_step} is next"
            self.refuse(Rule.LAST_FIRST, known if self.next_step else "all backward steps have been run", move)
        self._require_present(move.step - 1, Rule.STATE_PRESENT, move)
        self.next_step -= 1
        self.time += 1

    def _require_present(self, state: int, rule: Rule, move: Move) -> None:
        if state != self.at_hand and state not in self.present:
            reason = f"z_{state} is neither; stored are {self._stored_text()}, at hand is {self.at_hand}"
            self.refuse(rule, reason, move)

    def _stored_text(self) -> str:
        return ", ".join(map(str, sorted(state for state, slots in self.present.items() for _ in slots))) or "none"

    def history(self) -> Reversal:
        ended = list(self.residences)
        for slot, held in enumerate(self.held):
            if held is not None:
                state, start, first = held
                ended.append(Residence(state, slot, start, self.time, first, len(self.moves)))
        return Reversal(
            self.name, self.length, len(self.held), tuple(self.moves), tuple(self.times), tuple(self.used),
            tuple(sorted(ended, key=lambda stay: (stay.start, stay.first, stay.slot))), tuple(self.evaluations),
            self.next_step,
        )  # fmt: skip


def _times(number: int) -> str:
    return {0: "0 times", 1: "once", 2: "twice"}.get(number, f"{number:,} times")
