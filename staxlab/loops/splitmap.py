"""Where reductions are split, and into how many segments: Algorithm 6.1 over all shapes of a reduction at once.

>>> split_map("sm_90").segments(64, 16384)  # Example 6.2
2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..options import DeviceSpec, device_spec
from .splitting import SplitRule

LONGEST = 1 << 28
EXAMPLE_6_2 = (64, 16384)


@dataclass(frozen=True)
class SplitMap:
    """The decisions for powers of two: ``outputs`` (``n``, elements of the result) and ``lengths`` (``n_r``, elements
    merged into one), of reductions whose lanes run along the row or ``across`` rows."""

    device: DeviceSpec
    across: bool
    outputs: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def direction(self) -> str:
        return "outer" if self.across else "inner"

    @property
    def title(self) -> str:
        return f"Segments of an {self.direction} reduction on {self.device.name} (Algorithm 6.1)"

    @property
    def mark(self) -> tuple[int, int] | None:
        """Example 6.2, which is an inner reduction."""
        return None if self.across else EXAMPLE_6_2

    def segments(self, n: int, n_r: int) -> int:
        """Into how many segments each of ``n`` ranges of ``n_r`` elements is cut; 1: none is."""
        return SplitRule.of(n, self.device, self.across).split(n, n_r).segments

    def facts(self) -> str:
        """What the rule depends on, in a sentence."""
        rule = SplitRule.of(max(self.outputs), self.device, self.across)
        return (
            f"S = {self.device.multiprocessors} multiprocessors of T = {self.device.max_threads_per_multiprocessor} "
            f"threads, w = {self.device.warp_size}, m = {rule.threads}; {rule.enough_outputs:,} outputs or more, or "
            f"{rule.whole_up_to:,} elements or fewer, stay whole; D_min = {rule.small:,}, D_max = {rule.large:,}"
        )

    def rows(self) -> list[list[str]]:
        """A row for each length, longest first: the length, then the segments for each number of outputs."""
        return [
            [f"{n_r:,}", *(str(k) if (k := self.segments(n, n_r)) > 1 else "-" for n in self.outputs)]
            for n_r in reversed(self.lengths)
        ]

    def format(self) -> str:
        """The map as text: lengths down, outputs across, both doubling from cell to cell."""
        rows = [["n_r \\ n", *(f"{n:,}" for n in self.outputs)], *self.rows()]
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        legend = "n: outputs, n_r: elements merged into each; -: not split"
        if self.mark:
            n, n_r = self.mark
            legend += f"; Example 6.2 is n = {n}, n_r = {n_r:,}: {self.segments(n, n_r)} segments"
        return "\n".join([self.title, *lines, legend, self.facts()])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def split_map(device: DeviceSpec | str = "sm_90", across: bool = False) -> SplitMap:
    """The map for a GPU, up to the number of outputs from which nothing is split and to 2**28 elements. OptionError for
    a CPU, where nothing is split at all."""
    device = device_spec(device) if isinstance(device, str) else device
    if not device.is_gpu or not device.multiprocessors:
        raise OptionError(
            f"reductions are split on GPUs only, and {device.name} is none", remedy='name an architecture, as "sm_90"'
        )
    widest = SplitRule(device, device.warp_size if across else 1)
    outputs = [1]
    while outputs[-1] < widest.enough_outputs:
        outputs.append(2 * outputs[-1])
    lengths = [1 << (widest.whole_up_to.bit_length() - 2)]
    while lengths[-1] < LONGEST:
        lengths.append(2 * lengths[-1])
    return SplitMap(device, across, tuple(outputs), tuple(lengths))
