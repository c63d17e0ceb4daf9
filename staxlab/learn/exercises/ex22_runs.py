"""What Exercise 22 runs: Little's law and the rules of occupancy on a student's values, and mistakes as algorithms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...codegen.triton.resources import Resources
from ...codegen.triton.tiling import next_power_of_two
from ...measure.little import littles_law
from ...measure.occupancy import block_limits, limits_of
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, unexpected_result
from ..variants import generator
from . import ex22_answers

if TYPE_CHECKING:
    from .ex22 import Variant

CAPABILITY = 90
FLOAT_BYTES = 4

#: name of a mistake: the algorithm that makes it, and what to say.
MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "rounds-down": (ex22_answers.rounds_down, "Rounded down, a part of the bandwidth is not used."),
    "always-one-more": (
        ex22_answers.always_one_more,
        "Where the division comes out even, one read more is not needed.",
    ),
    "rounds-to-nearest": (ex22_answers.rounds_to_nearest, "Rounded to the nearest, it is sometimes one read too few."),
    "lanes-forgotten": (ex22_answers.forgets_lanes, "A warp is 32 threads, and each of them reads."),
    "warps-forgotten": (ex22_answers.forgets_warps, "Every multiprocessor holds several warps, and all of them read."),
    "bytes-not-reads": (ex22_answers.counts_bytes, "Those are bytes of a thread; one read fetches several of them."),
}


def reads(variant: Variant, warps: int) -> int:
    """The least whole number of reads in flight per thread, by the package's Little's law."""
    return littles_law(
        "sm_90", latency=variant.latency * 1e-9, bandwidth=variant.bandwidth * 1e9,
        multiprocessors=variant.multiprocessors, warps=warps, read_bytes=variant.read_bytes,
    ).reads_per_thread  # fmt: skip


def resident_warps(variant: Variant) -> int:
    """Warps of the kernel of Part 3 on one multiprocessor, by the package's rules of occupancy."""
    usage = Resources("kernel", CAPABILITY, variant.registers, 0, 0, 0, variant.block_warps)
    bounds = block_limits(usage, limits_of(CAPABILITY))
    return variant.block_warps * min(bound.blocks for bound in bounds if bound.blocks is not None)


def elements(variant: Variant, reads_each: int) -> int:
    """Elements of a block whose threads have so many reads."""
    return 32 * variant.block_warps * reads_each * variant.read_bytes // FLOAT_BYTES


def least_block(variant: Variant) -> int:
    return next_power_of_two(elements(variant, reads(variant, resident_warps(variant))))


def _others(truth: int, candidates: Iterable[tuple[str, int, str]]) -> tuple[Slip, ...]:
    """Slips whose answer is not the truth, each answer once."""
    found: dict[int, Slip] = {}
    for name, value, message in candidates:
        if value not in (truth, *found):
            found[value] = Slip(name, Fraction(value), message)
    return tuple(found.values())


def reads_now_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of reads one may arrive at in Part 1."""
    total = variant.latency * variant.bandwidth
    threads = variant.multiprocessors * variant.warps * 32
    return _others(reads(variant, variant.warps), (
        ("rounds-down", total // (threads * variant.read_bytes), MISTAKES["rounds-down"][1]),
        ("lanes-forgotten", -(-32 * total // (threads * variant.read_bytes)), MISTAKES["lanes-forgotten"][1]),
        ("bytes-not-reads", -(-total // threads), MISTAKES["bytes-not-reads"][1]),
    ))  # fmt: skip


def resident_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of resident warps one may arrive at."""
    limits = limits_of(CAPABILITY)
    each = -(-variant.registers * 32 // limits.register_unit) * limits.register_unit
    quarters = limits.registers // limits.partitions // each * limits.partitions
    whole_file = limits.registers // (variant.registers * 32)
    return _others(resident_warps(variant), (
        ("blocks-not-whole", quarters, "So many warps find registers, but blocks come whole."),
        ("one-register-file", whole_file // variant.block_warps * variant.block_warps,
         "The register file is divided: what is left over in each quarter is of no use to a warp."),
        ("one-register-file", whole_file, "The register file is divided, and blocks come whole."),
        ("registers-ignored", limits.warps, "So many warps would be resident if registers did not matter."),
        ("blocks-not-warps", resident_warps(variant) // variant.block_warps, "Those are blocks."),
    ))  # fmt: skip


def reads_then_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of reads one may arrive at in Part 3."""
    return _others(reads(variant, resident_warps(variant)), (
        ("warps-of-part-1", reads(variant, variant.warps), "That is for the warps of Part 1."),
        ("warps-of-a-block", reads(variant, variant.block_warps), "All resident blocks read, not only one."),
        ("all-warps", reads(variant, limits_of(CAPABILITY).warps), "That is for all 64 warps."),
    ))  # fmt: skip


def block_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other block sizes one may arrive at."""
    needed = reads(variant, resident_warps(variant))
    return _others(least_block(variant), (
        ("not-a-power-of-two", elements(variant, needed), "Triton's blocks are powers of two."),
        ("bytes-not-elements", FLOAT_BYTES * elements(variant, needed), "Those are bytes; an element has four."),
        ("one-warp", elements(variant, needed) // variant.block_warps, "That is the part of one warp."),
        ("one-read", elements(variant, 1), "That gives every thread one read."),
    ))  # fmt: skip


Case = tuple[int, int, int, int, int]


@lru_cache(maxsize=8)
def cases(seed: int | None) -> tuple[Case, ...]:
    """Devices and warps, small ones first; every mistake of :data:`MISTAKES` shows on one of them."""
    rng: random.Random = generator(seed, "devices")
    found: list[Case] = [
        (32, 1, 1, 1, 1), (64, 4, 2, 4, 1), (33, 1, 1, 1, 1), (1, 1, 1, 1, 1), (70, 1, 1, 2, 1),
        (600, 3350, 132, 32, 16),
        (600, 3350, 132, 8, 16), (600, 3350, 132, 16, 4), (512, 4096, 128, 8, 16), (700, 1555, 108, 24, 8),
    ]  # fmt: skip
    for _ in range(60):
        device = (rng.randint(300, 1000), rng.randint(500, 8000), rng.randint(1, 200))
        found.append((*device, rng.randint(1, 64), 2 ** rng.randint(0, 4)))
    return tuple(found)


def judge_reads_needed(callee: Callee, seed: int | None) -> Verdict:
    """Every device; if the answers are those of a known mistake wherever it was tried, it is named."""
    given: list[int] = []
    failed: Case | None = None
    for case in cases(seed):
        outcome = callee.call(*case)
        if outcome.failed:
            return call_failed(callee, case, outcome)
        value = outcome.value
        if isinstance(value, bool) or not isinstance(value, int):
            return unexpected_result(callee, case, "a number of reads is a whole number")
        given.append(value)
        if failed is None and value != _truth(case):
            failed = case
    if failed is None:
        return right("So many reads, for every device.", ("tried", f"{len(given)} devices"))
    place = cases(seed).index(failed)
    names = ("latency (ns)", "bandwidth (GB/s)", "multiprocessors", "warps", "bytes of a read")
    facts = (*zip(names, failed, strict=True), ("your reads", given[place]))
    for name, (algorithm, message) in MISTAKES.items():
        if given == [algorithm(*case) for case in cases(seed)]:
            return wrong(message, *facts, mistake=name)
    return wrong("Not the least number of reads that keeps the memory busy.", *facts)


def _truth(case: Case) -> int:
    latency, bandwidth, multiprocessors, warps, read_bytes = case
    return littles_law(
        "sm_90", latency=latency * 1e-9, bandwidth=bandwidth * 1e9, multiprocessors=multiprocessors, warps=warps,
        read_bytes=read_bytes,
    ).reads_per_thread  # fmt: skip
