"""Which values go to memory (Section 6.6): the realization rule, each verdict with the reason that led to it.

Inlining a value with k users computes it k times and reads its inputs k times; realizing it writes it once and reads
it k times. With N elements, c operations and q input bytes per element, b bytes per stored element, throughput P and
bandwidth B, inlining costs ``k N (c/P + q/B)`` and realizing ``N (c/P + q/B) + (1 + k) N b / B``. With one user
inlining always wins. For more, thresholds stand in for the model: costly functions, many operations, many reads. The
two device classes differ because their P/B and their price of a transcendental function do.

Whether a value is realized never changes what is computed (Theorem 6.1): this is a matter of cost alone, except that a
half-precision value is rounded when it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import Decision, DeviceSpec
from .body import LoopBody
from .ops import OPERATIONS

# Functions so costly on a CPU that computing them twice is worse than a round trip through memory.
COSTLY_ON_CPU = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})


@dataclass(frozen=True)
class Thresholds:
    """The limits of Section 6.6 for one device class. ``nearly`` is what rule 2 counts as close to the limit on
    operations."""

    operations: int
    accumulated_reads: int
    buffers_read: int = 4
    many_users: int = 5
    nearly: float = 0.8
    costly: frozenset[str] = frozenset()


CPU = Thresholds(operations=50, accumulated_reads=12, costly=COSTLY_ON_CPU)
GPU = Thresholds(operations=30, accumulated_reads=8)

# A chain inlined without end would make one huge kernel and exhaust the interpreter's stack while it is recorded.
# Values with one user are looked at only from LONG_CHAIN nested compute functions on.
LARGEST_BODY = 500
LONG_CHAIN = 32
DEEPEST_NESTING = 64


def thresholds(device: DeviceSpec) -> Thresholds:
    return GPU if device.is_gpu else CPU


@dataclass(frozen=True)
class Cost:
    """What the rules look at, taken from a recorded body."""

    operations: int
    buffers_read: int
    accumulated_reads: int
    functions: frozenset[str]

    @classmethod
    def of(cls, body: LoopBody) -> Cost:
        statements = body.all_statements()
        loads = [s for s in statements if s.operation == "load"]
        named = [s.operation for s in statements if s.operation in OPERATIONS]
        return cls(len(named), len({s.args[0] for s in loads}), len(loads), frozenset(named))


def decide(subject: str, users: int, cost: Cost, device: DeviceSpec) -> Decision:
    """Realize or inline a value that ``users`` loops read. The rules are tried in order; the first that holds fires."""
    limit = thresholds(device)
    costly = sorted(cost.functions & limit.costly)
    rules = [
        (users > 1 and bool(costly), f"{' and '.join(costly)} cost more than a round trip through memory"),
        (
            not device.is_gpu and users > limit.many_users and cost.operations >= limit.nearly * limit.operations,
            f"more than {limit.many_users} users and nearly {limit.operations} operations",
        ),
        (users > 1 and cost.operations > limit.operations, f"more than {limit.operations} operations"),
        (users > 1 and cost.buffers_read > limit.buffers_read, f"reads more than {limit.buffers_read} buffers"),
        (
            users > 1 and cost.accumulated_reads > limit.accumulated_reads,
            f"more than {limit.accumulated_reads} reads accumulated by inlining",
        ),
        (cost.operations > LARGEST_BODY, f"more than {LARGEST_BODY} operations in one loop body"),
    ]
    inputs = (
        ("users", users),
        ("operations", cost.operations),
        ("buffers read", cost.buffers_read),
        ("accumulated reads", cost.accumulated_reads),
    )
    for number, (fires, reason) in enumerate(rules, 1):
        if fires:
            return Decision("realize", subject, "realize", f"rule {number}: {reason}", ("realize", "inline"), inputs)
    reason = "one user" if users <= 1 else "cheap enough to compute for each user"
    return Decision("realize", subject, "inline", reason, ("realize", "inline"), inputs)


def required(subject: str, reason: str) -> Decision:
    """A value that must be in memory whatever it costs: an output, an extern call's argument, a reduction."""
    return Decision("realize", subject, "realize", reason, ("realize",))
