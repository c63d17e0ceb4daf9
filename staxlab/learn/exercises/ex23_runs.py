"""What Exercise 23 runs: the compiler on a softmax, whole and in five pieces, and what its kernels transfer.

Nothing is executed and no GPU is needed: kernels are generated for sm_90, and the bytes are those the schedule counts
for them. How often a kernel reads its input is counted in its text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch

from ...api import explain

TARGET = "sm_90"
FLOAT_BYTES = 4
#: Rows too long for the registers of a program instance, and enough of them that none is cut into pieces.
LONG = (300, 20_000)

#: The five operators, each of which a separate kernel would compute: name, function, and whether it takes a row value.
OPERATORS = (
    ("maximum of each row", lambda x: x.amax(-1, keepdim=True), False),
    ("subtraction", lambda x, m: x - m, True),
    ("exponential", lambda x: torch.exp(x), False),
    ("sum of each row", lambda x: x.sum(-1, keepdim=True), False),
    ("division", lambda x, s: x / s, True),
)

Counts = tuple[int, int]  # elements read, elements written


def softmax(x: Any) -> Any:
    return torch.nn.functional.softmax(x, -1)


def _counts(function: Any, inputs: tuple, **options: Any) -> tuple[Counts, ...]:
    kernels = explain(function, *inputs, target=TARGET, options={"split_reductions": False, **options}).kernels
    return tuple((k.bytes_read // FLOAT_BYTES, k.bytes_written // FLOAT_BYTES) for k in kernels)


@lru_cache(maxsize=1024)
def five_kernels(n: int, length: int) -> tuple[Counts, ...]:
    """What each of the five operators reads and writes as a kernel of its own."""
    found = []
    for _, function, takes_row in OPERATORS:
        inputs = (torch.empty(n, length), torch.empty(n, 1)) if takes_row else (torch.empty(n, length),)
        (counts,) = _counts(function, inputs, fuse=False)
        found.append(counts)
    return tuple(found)


@lru_cache(maxsize=1024)
def fused_kernels(n: int, length: int) -> tuple[Counts, ...]:
    """The same of a softmax as the compiler makes it."""
    return _counts(softmax, (torch.empty(n, length),))


@lru_cache(maxsize=1024)
def unfused_kernels(n: int, length: int) -> tuple[Counts, ...]:
    """The same with fusion switched off."""
    return _counts(softmax, (torch.empty(n, length),), fuse=False)


def bytes_of(counts: tuple[Counts, ...]) -> int:
    return FLOAT_BYTES * sum(read + written for read, written in counts)


@lru_cache(maxsize=2)
def passes(online: bool) -> int:
    """How often the kernel of a long row reads its input: of a softmax, whose maximum and sum share a pass, or of a
    quotient with the same dependences whose sum is not one of exponentials, so that it has to wait for the maximum."""

    def waiting(x: Any) -> Any:
        distance = (x - x.amax(-1, keepdim=True)).square()
        return distance / distance.sum(-1, keepdim=True)

    compiled = explain(softmax if online else waiting, torch.empty(*LONG), target=TARGET)
    (kernel,) = compiled.kernels
    return len(re.findall(r"tl\.load\(in_ptr0\b", kernel.source))
