"""Which values go to memory (Section 6.6): the realization rule, each verdict with the reason that led to it.

Inlining a value with k users computes it k times and reads its inputs k times; realizing it writes it once and reads
it k times. With N elements, c operations and q input bytes per element, b bytes per stored element, throughput P and
bandwidth B, inlining costs ``k N (c/P + q/B)`` and realizing ``N (c/P + q/B) + (1 + k) N b / B``. With one user
inlining always wins. For more, thresholds stand in for the model: costly functions, many operations, many reads. The
two device classes differ because their P/B and their price of a transcendental function do.

The thresholds decide; the model is worked out beside them and kept with each decision (:func:`model_seconds`), so that
one can see where the two disagree. On a CPU they often do: a vectorised ``exp`` is far cheaper than the rule assumes.

Whether a value is realized never changes what is computed (Theorem 6.1): this is a matter of cost alone, except that a
half-precision value is rounded when it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..options import GPU_SPECS, Decision, DeviceSpec
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
    """What the rules look at, taken from a recorded body, and what the model needs: ``elements`` (N), ``work`` (c,
    operations for one element, a transcendental function counting as several), ``read_bytes`` and ``stored_bytes``
    (q and b, for one element)."""

    operations: int
    buffers_read: int
    accumulated_reads: int
    functions: frozenset[str]
    elements: int = 0
    work: int = 0
    read_bytes: float = 0.0
    stored_bytes: int = 0

    @classmethod
    def of(cls, body: LoopBody, dtypes: Mapping[str, torch.dtype], stored: torch.dtype) -> Cost:
        """Of a pointwise body that reads buffers of ``dtypes`` and makes elements of dtype ``stored``. What is read
        again for other elements, as a row that is broadcast, counts once."""
        statements = body.all_statements()
        loads = [s for s in statements if s.operation == "load"]
        named = [s.operation for s in statements if s.operation in OPERATIONS]
        elements = 1
        for symbol in body.symbols:
            elements *= int(symbol.upper) + 1
        read = sum(access.unique_elements * dtypes[access.buffer].itemsize for access in body.reads())
        return cls(
            len(named), len({s.args[0] for s in loads}), len(loads), frozenset(named),
            elements, body.operation_count(), read / elements, stored.itemsize,
        )  # fmt: skip


@dataclass(frozen=True)
class Rates:
    """P and B of the model: ``throughput`` in operations/s, ``bandwidth`` in bytes/s, and where they come from."""

    throughput: float
    bandwidth: float
    source: str

    def seconds(self, operations: float, nbytes: float) -> float:
        """Time for so many operations and bytes, one after the other, as the model has it."""
        return operations / self.throughput + nbytes / self.bandwidth


def rates(device: DeviceSpec) -> Rates:
    """The two rates of a device: those of its data sheet, or an estimate where the spec has none.

    A CPU is taken to begin two float32 vector operations in each cycle of 3 GHz on every thread, and each of up to 16
    threads to move 16 GB/s; a GPU that is no entry of ``GPU_SPECS`` to be a part, by multiprocessors, of the nearest.
    """
    if device.nominal_throughput and device.nominal_bandwidth:
        return Rates(device.nominal_throughput, device.nominal_bandwidth, f"data sheet of {device.name}")
    if device.is_gpu:
        nearest = min(GPU_SPECS.values(), key=lambda known: abs(known.compute_capability - device.compute_capability))
        part = (device.multiprocessors or nearest.multiprocessors) / nearest.multiprocessors
        source = f"estimate: {part:.2g} of the data sheet of {nearest.name}"
        return Rates(part * nearest.nominal_throughput, part * nearest.nominal_bandwidth, source)
    lanes = max(device.vector_bytes // 4, 1)
    source = f"estimate for {device.threads} threads of {lanes} lanes"
    return Rates(device.threads * lanes * 2 * 3e9, min(device.threads, 16) * 16e9, source)


def model_seconds(users: int, cost: Cost, rate: Rates) -> tuple[float, float]:
    """What the model says: seconds if the value is inlined, and if it is realized."""
    once = rate.seconds(cost.elements * cost.work, cost.elements * cost.read_bytes)
    passed = rate.seconds(0, (1 + users) * cost.elements * cost.stored_bytes)
    return users * once, once + passed


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
        *_model_inputs(users, cost, device),
    )
    for number, (fires, reason) in enumerate(rules, 1):
        if fires:
            return Decision("realize", subject, "realize", f"rule {number}: {reason}", ("realize", "inline"), inputs)
    reason = "one user" if users <= 1 else "cheap enough to compute for each user"
    return Decision("realize", subject, "inline", reason, ("realize", "inline"), inputs)


INLINED, REALIZED = "seconds inlined", "seconds realized"  # what the model's two costs are called in a decision


def _model_inputs(users: int, cost: Cost, device: DeviceSpec) -> tuple[tuple[str, float], ...]:
    inlined, realized = (float(f"{seconds:.3g}") for seconds in model_seconds(users, cost, rates(device)))
    facts = (("N", cost.elements), ("c", cost.work), ("q", float(f"{cost.read_bytes:.3g}")), ("b", cost.stored_bytes))
    return (*facts, (INLINED, inlined), (REALIZED, realized))


def model_choice(decision: Decision) -> str | None:
    """What the model would have chosen; None for a decision that it says nothing about."""
    facts = dict(decision.inputs)
    if INLINED not in facts:
        return None
    return "realize" if facts[REALIZED] < facts[INLINED] else "inline"


def required(subject: str, reason: str) -> Decision:
    """A value that must be in memory whatever it costs: an output, an extern call's argument, a reduction."""
    return Decision("realize", subject, "realize", reason, ("realize",))
