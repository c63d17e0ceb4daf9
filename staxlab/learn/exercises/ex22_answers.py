"""Answers to Exercise 22: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex22 import Variant


def reads_needed(latency, bandwidth, multiprocessors, warps, read_bytes):
    in_flight = latency * bandwidth
    one_each = 32 * multiprocessors * warps * read_bytes
    return -(-in_flight // one_each)


CHOICE = """The memory sees warps times reads per thread: 64 warps with one read each keep as much on its way as 16
warps with four. So a block must be large enough that every thread has its reads of full width, and these must be
independent, that is, issued before the first result is used. A block of fewer elements than threads times elements per
read leaves lanes without work, and blocks of one warp run into the limit of 32 blocks. A larger block gives every
thread more elements, and each waits in a register: beyond some size fewer warps fit, and the product stays the same or
falls; then registers spill, which adds traffic. And a grid of few large blocks does not fill all multiprocessors. Once
the bytes in flight cover latency times bandwidth, more of them only wait in longer queues."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex22_runs import least_block, reads, resident_warps

    total = variant.latency * variant.bandwidth
    return {
        "in_flight": total,
        "per_multiprocessor": f"{total}/{variant.multiprocessors}",
        "reads_formula": "t*B/(32*S*w*b)",
        "reads_now": reads(variant, variant.warps),
        "reads_needed": reads_needed,
        "resident": resident_warps(variant),
        "reads_then": reads(variant, resident_warps(variant)),
        "block": least_block(variant),
        "block_size": CHOICE,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def rounds_down(latency, bandwidth, multiprocessors, warps, read_bytes):
    return latency * bandwidth // (32 * multiprocessors * warps * read_bytes)


def always_one_more(latency, bandwidth, multiprocessors, warps, read_bytes):
    return latency * bandwidth // (32 * multiprocessors * warps * read_bytes) + 1


def rounds_to_nearest(latency, bandwidth, multiprocessors, warps, read_bytes):
    return round(latency * bandwidth / (32 * multiprocessors * warps * read_bytes))


def forgets_lanes(latency, bandwidth, multiprocessors, warps, read_bytes):
    return -(-latency * bandwidth // (multiprocessors * warps * read_bytes))


def forgets_warps(latency, bandwidth, multiprocessors, warps, read_bytes):
    return -(-latency * bandwidth // (32 * multiprocessors * read_bytes))


def counts_bytes(latency, bandwidth, multiprocessors, warps, read_bytes):
    return -(-latency * bandwidth // (32 * multiprocessors * warps))


def _not_rounded(latency, bandwidth, multiprocessors, warps, read_bytes):
    return latency * bandwidth / (32 * multiprocessors * warps * read_bytes) + 0.5


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex22_runs import MISTAKES, block_slips, reads_now_slips, reads_then_slips, resident_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    total = variant.latency * variant.bandwidth
    found = [slip(s.name, reads_now=s.answer) for s in reads_now_slips(variant)]
    found += [slip(s.name, resident=s.answer) for s in resident_slips(variant)]
    found += [slip(s.name, reads_then=s.answer) for s in reads_then_slips(variant)]
    found += [slip(s.name, block=s.answer) for s in block_slips(variant)]
    found += [slip(name, reads_needed=algorithm) for name, (algorithm, _) in MISTAKES.items()]
    return (
        *found,
        slip("divided", in_flight=f"{variant.bandwidth}/{variant.latency}"),
        slip("seconds", in_flight=f"{total}/10**9"),
        slip("per-warp", per_multiprocessor=f"{total}/{variant.multiprocessors * variant.warps}"),
        slip("whole-device", per_multiprocessor=total),
        slip("lanes-forgotten", reads_formula="t*B/(S*w*b)"),
        slip("warps-forgotten", reads_formula="t*B/(32*S*b)"),
        slip("one-multiprocessor", reads_formula="t*B/(32*w*b)"),
        slip("bytes-not-reads", reads_formula="t*B/(32*S*w)"),
        slip("upside-down", reads_formula="32*S*w*b/(t*B)"),
        slip("wrong-form", reads_needed=_not_rounded),
    )
