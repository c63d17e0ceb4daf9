"""In which order nodes run (Section 7.5): the topological order with the lowest peak, or nearly.

Finding it is NP-complete (Proposition 7.4): in the graph made of an undirected graph the peak counts the vertices whose
neighbours are not all placed, which is its vertex separation number, or path width (Kinnersley 1992, "The vertex
separation number of a graph equals its path-width"). Three things help all the same:

* *search* where graphs are small. What is alive depends on which nodes have run and not on their order, so a state is a
  set of nodes; :func:`exact` expands sets in the order of the peak that reaches them, and takes a node that lowers what
  is alive without raising the peak at once, since no completion is better off without it;
* *trees*, where every value has one user. Sethi and Ullman (1970, "The generation of optimal code for arithmetic
  expressions") evaluate the costlier operand first; with values of different sizes subtrees have to be interleaved, as
  Liu (1987, "An application of generalized tree pebbling to sparse matrix factorization") showed: :func:`tree_order`;
* *rules of thumb* otherwise, of which the best is kept: none wins always.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import ScheduleError
from ..options import Decision
from .lifetimes import Step, peak

#: Sets of nodes that :func:`exact` looks at before it gives up, and that :func:`beam` keeps at a time.
STATES = 20_000
WIDTH = 24


@dataclass(frozen=True)
class OrderProblem:
    """Steps in an order in which they can run, the ``sizes`` of what they write in bytes, which of it is kept to the
    end (``escaping``), and pairs ``(before, after)`` of names that must keep their order for another reason.

    Raises ScheduleError if a step reads what a later one writes.
    """

    steps: tuple[Step, ...]
    sizes: Mapping[str, int]
    escaping: frozenset[str] = frozenset()
    ordered: frozenset[tuple[str, str]] = field(default=frozenset())

    def __post_init__(self) -> None:
        for position, needed in enumerate(self.before):
            if needed >> position:
                raise ScheduleError(f"{self.steps[position].name} stands before a step that it needs")

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each step the set of those that must run sooner, as a bit mask of positions."""
        position = {step.name: k for k, step in enumerate(self.steps)}
        writer = {name: k for k, step in enumerate(self.steps) for name in step.writes}
        masks = [0] * len(self.steps)
        for k, step in enumerate(self.steps):
            for name in step.reads:
                if name in writer and writer[name] != k:
                    masks[k] |= 1 << writer[name]
        for first, second in self.ordered:
            masks[position[second]] |= 1 << position[first]
        return tuple(masks)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The bytes that each step adds to what is alive."""
        return tuple(sum(self.sizes[name] for name in step.writes) for step in self.steps)

    @cached_property
    def buffers(self) -> tuple[tuple[int, int], ...]:
        """(bytes, the set of steps that write or read it) of every buffer that is let go at some time."""
        users: dict[str, int] = {}
        for k, step in enumerate(self.steps):
            for name in step.writes:
                users[name] = users.get(name, 0) | 1 << k
        for k, step in enumerate(self.steps):
            for name in step.reads:
                if name in users:
                    users[name] |= 1 << k
        return tuple((self.sizes[name], mask) for name, mask in users.items() if name not in self.escaping)

    @cached_property
    def touching(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each step the buffers among :attr:`buffers` that it writes or reads."""
        return tuple(tuple(b for b in self.buffers if b[1] >> k & 1) for k in range(len(self.steps)))

    def freed(self, done: int, step: int) -> int:
        """The bytes let go after ``step`` has run last of the set ``done``, which contains it."""
        return sum(size for size, users in self.touching[step] if not users & ~done)

    def peak(self, order: Sequence[int]) -> int:
        """The peak of an order, given by positions (Definition 7.5)."""
        return peak([self.steps[k] for k in order], self.sizes, self.escaping)

    def is_legal(self, order: Sequence[int]) -> bool:
        """Whether an order is one of all steps, each after those it needs."""
        done = 0
        for step in order:
            if self.before[step] & ~done or done >> step & 1:
                return False
            done |= 1 << step
        return done == (1 << len(self.steps)) - 1

    def ready(self, done: int) -> list[int]:
        """The steps that can run next."""
        return [k for k, needed in enumerate(self.before) if not done >> k & 1 and not needed & ~done]

    @cached_property
    def least(self) -> int:
        """A bound from below for every order: some step must run, with all it reads and writes and what is kept."""
        bound = sum(self.sizes[name] for step in self.steps for name in step.writes if name in self.escaping)
        for step in self.steps:
            names = {*step.writes, *(name for name in step.reads if name in self.sizes)}
            bound = max(bound, sum(self.sizes[name] for name in names))
        return bound


def _bits(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


@dataclass(frozen=True)
class Order:
    """An order as positions in the problem's, its ``peak`` in bytes, and whether none is lower (``is_proved``)."""

    positions: tuple[int, ...]
    peak: int
    is_proved: bool = False


# -- search ------------------------------------------------------------------------------------------------------------


def exact(problem: OrderProblem, states: int = STATES) -> Order | None:
    """An order of the lowest peak, or None if more than ``states`` sets of nodes would have to be looked at.

    The number of sets is exponential in the width of the graph, not in its length: chains of any length are quick.
    """
    count = len(problem.steps)
    everything = (1 << count) - 1
    # (peak so far, nodes to go, set, bytes alive, the order as a linked list)
    heap: list[tuple[int, int, int, int, tuple | None]] = [(0, count, 0, 0, None)]
    seen: set[int] = set()
    while heap:
        highest, _, done, alive, path = heapq.heappop(heap)
        if done in seen:
            continue
        seen.add(done)
        if done == everything:
            return Order(_unrolled(path), highest, True)
        if len(seen) > states:
            return None
        moves = []
        for step in problem.ready(done):
            during = alive + problem.written[step]
            after = during - problem.freed(done | 1 << step, step)
            moves.append((max(highest, during), step, after))
            if during <= highest and after <= alive:  # nobody is worse off for running it now
                moves = moves[-1:]
                break
        for reached, step, after in moves:
            new = done | 1 << step
            if new not in seen:
                heapq.heappush(heap, (reached, count - new.bit_count(), new, after, (step, path)))
    raise AssertionError("a graph without cycles has an order")


def _unrolled(path: tuple | None) -> tuple[int, ...]:
    steps = []
    while path is not None:
        step, path = path
        steps.append(step)
    return tuple(reversed(steps))


def beam(problem: OrderProblem, width: int = WIDTH) -> tuple[int, ...]:
    """Node by node, the ``width`` sets with the lowest peaks are continued (ties: the fewest bytes alive)."""
    states: dict[int, tuple[int, int, tuple | None]] = {0: (0, 0, None)}
    for _ in problem.steps:
        following: dict[int, tuple[int, int, tuple | None]] = {}
        for done, (highest, alive, path) in states.items():
            for step in problem.ready(done):
                new, during = done | 1 << step, alive + problem.written[step]
                found = (max(highest, during), during - problem.freed(new, step))
                if new not in following or found < following[new][:2]:
                    following[new] = (*found, (step, path))
        kept = sorted(following.items(), key=lambda item: (item[1][:2], item[0]))[:width]
        states = dict(kept)
    ((_, _, path),) = states.values()
    return _unrolled(path)


# -- trees -------------------------------------------------------------------------------------------------------------


def users_of(problem: OrderProblem) -> list[int]:
    """For each step the set of others that have to wait for it."""
    users = [0] * len(problem.steps)
    for step, needed in enumerate(problem.before):
        for k in _bits(needed):
            users[k] |= 1 << step
    return users


def is_forest(problem: OrderProblem) -> bool:
    """Whether every step has at most one user, and what has a user is not kept."""
    users = users_of(problem)
    kept = [any(name in problem.escaping for name in step.writes) for step in problem.steps]
    return all(u.bit_count() <= 1 and not (u and k) for u, k in zip(users, kept, strict=True))


def tree_order(problem: OrderProblem) -> tuple[int, ...]:
    """An order of the lowest peak for a forest: every step has at most one user (Liu 1987). O(n^2).

    The order of each subtree is cut where least is alive. Such a piece climbs to its *hill* and ends in its *valley*;
    pieces of different subtrees are merged so that the deepest descents from hill to valley come first. With values of
    one size that is the rule of Sethi and Ullman (1970): the operand that needs more memory first.

    Raises ScheduleError if the graph is no forest.
    """
    if not is_forest(problem):
        raise ScheduleError("a value has several users, so this is no tree")
    users = users_of(problem)
    children: list[list[int]] = [[] for _ in problem.steps]
    for step, above in enumerate(users):
        if above:
            children[above.bit_length() - 1].append(step)
    pieces: dict[int, list[_Piece]] = {}
    for step in range(len(problem.steps)):  # operands stand before what uses them
        profile = [(p.steps, p.hill, p.valley) for p in _merged([pieces.pop(child) for child in children[step]])]
        below = profile[-1][2] if profile else 0
        during = below + problem.written[step]
        names = [name for name in problem.steps[step].writes if name not in problem.escaping]
        left = problem.written[step] if users[step] else problem.written[step] - sum(problem.sizes[n] for n in names)
        profile.append(((step,), during, left))
        pieces[step] = _cut(profile)
    return tuple(step for piece in _merged(list(pieces.values())) for step in piece.steps)


@dataclass(frozen=True)
class _Piece:
    """Steps that run together: at most ``hill`` bytes of their subtree are alive meanwhile, ``valley`` at the end."""

    steps: tuple[int, ...]
    hill: int
    valley: int


def _merged(trees: list[list[_Piece]]) -> list[_Piece]:
    """The pieces of several subtrees in one order, with the bytes of all of them."""
    queue = [(-(piece.hill - piece.valley), tree, k) for tree, own in enumerate(trees) for k, piece in enumerate(own)]
    alive = [0] * len(trees)
    merged = []
    for _, tree, k in sorted(queue):
        piece = trees[tree][k]
        others = sum(alive) - alive[tree]
        alive[tree] = piece.valley
        merged.append(_Piece(piece.steps, others + piece.hill, others + piece.valley))
    return merged


def _cut(profile: list[tuple[tuple[int, ...], int, int]]) -> list[_Piece]:
    """Cut (steps, hill, valley) after each lowest valley that follows the highest hill of what is left."""
    pieces = []
    while profile:
        top = max(range(len(profile)), key=lambda k: (profile[k][1], k))
        end = min(range(top, len(profile)), key=lambda k: (profile[k][2], -k))
        steps = tuple(s for part in profile[: end + 1] for s in part[0])
        pieces.append(_Piece(steps, profile[top][1], profile[end][2]))
        profile = profile[end + 1 :]
    return pieces


# -- rules of thumb ----------------------------------------------------------------------------------------------------


def greedy(problem: OrderProblem) -> tuple[int, ...]:
    """Of the steps that can run, the one that leaves the fewest bytes alive (ties: the fewest meanwhile)."""
    done, alive, order = 0, 0, []
    for _ in problem.steps:

        def cost(step: int, done: int = done, alive: int = alive) -> tuple[int, int, int]:
            during = alive + problem.written[step]
            return during - problem.freed(done | 1 << step, step), during, step

        step = min(problem.ready(done), key=cost)
        alive = cost(step)[0]
        done |= 1 << step
        order.append(step)
    return tuple(order)


def reverse_greedy(problem: OrderProblem) -> tuple[int, ...]:
    """From the end: of the steps that nobody left needs, the one before which the fewest bytes are alive."""
    users = users_of(problem)
    left, order = (1 << len(problem.steps)) - 1, []
    while left:
        last = [step for step in _bits(left) if not users[step] & left]
        step = min(last, key=lambda s: (problem.freed(left, s) - problem.written[s], -s))
        left &= ~(1 << step)
        order.append(step)
    return tuple(reversed(order))


def depth_first(problem: OrderProblem) -> tuple[int, ...]:
    """From the results back: what a step reads is computed just before it, the most demanding operand first."""
    need: list[int] = []
    for step, needed in enumerate(problem.before):
        held, highest = 0, 0
        for operand in sorted(_bits(needed), key=lambda k: problem.written[k] - need[k]):
            highest = max(highest, held + need[operand])
            held += problem.written[operand]
        need.append(max(highest, held + problem.written[step]))
    done, order = 0, []
    for root in range(len(problem.steps)):
        stack = [root]
        while stack:
            step = stack[-1]
            waiting = [k for k in _bits(problem.before[step]) if not done >> k & 1]
            if waiting:
                stack.append(max(waiting, key=lambda k: (need[k] - problem.written[k], -k)))
                continue
            stack.pop()
            if not done >> step & 1:
                done |= 1 << step
                order.append(step)
    return tuple(order)


Rule = Callable[[OrderProblem], Sequence[int]]

#: Rules of thumb by name; "as it stands" is the order of the program.
RULES: dict[str, Rule] = {
    "as it stands": lambda problem: range(len(problem.steps)),
    "depth first": depth_first,
    "fewest bytes left": greedy,
    "fewest bytes before, from the end": reverse_greedy,
    "beam": beam,
}


def candidates(problem: OrderProblem, states: int = STATES) -> dict[str, Order]:
    """The orders that are tried, by name, that of the program first. Looking ends with the first that no order can
    undercut."""
    found: dict[str, Order] = {}

    def add(name: str, positions: Iterable[int], is_proved: bool = False) -> bool:
        positions = tuple(positions)
        height = problem.peak(positions)
        found[name] = Order(positions, height, is_proved or height == problem.least)
        return found[name].is_proved

    for name, rule in RULES.items():
        if add(name, rule(problem)):
            return found
    if is_forest(problem):
        add("tree", tree_order(problem), True)
    elif (best := exact(problem, states)) is not None:
        found["exact"] = best
    return found


def best_order(problem: OrderProblem, states: int = STATES) -> tuple[Order, Decision]:
    """The order with the lowest peak that was found, that of the program unless another is lower, and why."""
    found = candidates(problem, states)
    name = min(found, key=lambda key: found[key].peak)
    best = found[name]
    proved = any(order.is_proved for order in found.values())
    reason = "no order has a lower peak" if proved else f"the lowest of {len(found)} tried"
    inputs = tuple((f"peak {key}", order.peak) for key, order in found.items())
    return best, Decision("order", "schedule", name, reason, tuple(found), inputs)
