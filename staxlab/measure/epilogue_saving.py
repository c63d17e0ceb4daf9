"""What it saves to apply ``relu(A B + bias)`` before the result leaves the registers (Section 9.8).

On its own the pointwise part reads the ``m x n`` product and the bias and writes ``m n`` results; fused into the
product's kernel it reads the bias and nothing else. So ``2 m n`` elements are saved, whatever ``k`` is, while the
traffic of the product grows with ``k``: the share is large where ``k`` is small. In tiles of ``T x T`` it is about ``T
/ k`` of what the product reads.

In time it is worth more than in bytes where tensor cores do the product: the faster the arithmetic, the longer the
pointwise part is beside it (:meth:`EpilogueSaving.speedup`). That is a model, ``max(operations / P, bytes / B)`` for
each kernel, and no measurement.

>>> saving = epilogue_saving(4096, 4096, 4096, tile=(128, 128, 32), capacity=48 * 1024)
>>> saving.saved, saving.share_of_reads, saving.share
(33554432, Fraction(1, 32), Fraction(2, 65))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..errors import OptionError
from .matrix_traffic import TileTraffic, compulsory_elements, tile_traffic
from .tables import Table, Tabular, bytes_text


@dataclass(frozen=True, repr=False)
class EpilogueSaving(Tabular):
    """``relu(A B + bias)`` as two kernels and as one. ``traffic`` is the product's, ``rate`` (operations per second)
    and ``bandwidth`` (bytes per second) those of the model of time; ``depths`` are other ``k`` to compare with. Counts
    in elements. Draws the share that is saved against ``k``."""

    traffic: TileTraffic
    rate: float
    bandwidth: float
    depths: tuple[int, ...]

    @property
    def saved(self) -> int:
        """``2 m n``: the product is neither written and read again."""
        return self.separate - self.fused

    @property
    def separate(self) -> int:
        """Elements moved by the product, and by the pointwise kernel after it (``2 m n + n``)."""
        return self.traffic.elements + 2 * self.traffic.m * self.traffic.n + self.traffic.n

    @property
    def fused(self) -> int:
        """The product with the bias."""
        return self.traffic.elements + self.traffic.n

    @property
    def share(self) -> Fraction:
        """What is saved over the traffic of the product, ``C`` included."""
        return Fraction(self.saved, self.traffic.elements)

    @property
    def share_of_reads(self) -> Fraction:
        """What is saved over what the product reads: ``T / k`` for tiles ``T x T`` that divide the result."""
        return Fraction(self.saved, self.traffic.read)

    @property
    def share_at_least_traffic(self) -> Fraction:
        """What is saved over ``mk + kn + mn``, the traffic of a product that reads everything once."""
        t = self.traffic
        return Fraction(self.saved, compulsory_elements(t.m, t.n, t.k))

    def _seconds(self, elements: int, operations: int) -> float:
        return max(operations / self.rate, elements * self.traffic.itemsize / self.bandwidth)

    @property
    def speedup(self) -> float:
        """Two kernels over one, by ``max(operations / P, bytes / B)``, each byte of the product moved once (the second
        level cache serves what tiles read again); the operations of the pointwise part are not counted."""
        t = self.traffic
        once, point = compulsory_elements(t.m, t.n, t.k), 2 * t.m * t.n + t.n
        apart = self._seconds(once, t.operations) + self._seconds(point, 0)
        return apart / self._seconds(once + t.n, t.operations)

    def at(self, k: int) -> EpilogueSaving:
        """The same for another ``k``."""
        t = self.traffic
        other = tile_traffic(t.m, t.n, k, tile=t.tile, itemsize=t.itemsize, capacity=t.capacity)
        return replace(self, traffic=other)

    @property
    def curve(self) -> tuple[EpilogueSaving, ...]:
        """One for each of the depths."""
        return tuple(map(self.at, self.depths))

    def summary(self) -> str:
        t = self.traffic
        return (
            f"{self.saved:,} elements ({bytes_text(self.saved * t.itemsize)}) are saved, {float(self.share):.3g} of "
            f"the product's traffic ({float(self.share_of_reads):.3g} of its reads)"
        )

    def table(self) -> Table:
        rows = []
        for one in sorted({*self.curve, self}, key=lambda s: s.traffic.k):
            rows.append(
                (f"{one.traffic.k:,}", f"{one.traffic.elements:,}", f"{one.saved:,}", f"{float(one.share):.2%}",
                 f"{float(one.share_at_least_traffic):.2%}", f"{one.speedup:.3f}x")
            )  # fmt: skip
        t = self.traffic
        caption = f"relu(A B + bias), {t.m} x k by k x {t.n}, tiles of {t.tile[0]} x {t.tile[1]}: what fusing saves"
        head = ("k", "product moves", "saved", "of that", "of least traffic", "model of time")
        notes = [
            self.summary() + f" at k = {t.k:,}",
            f"model of time: {self.rate / 1e12:g} TFLOP/s, {self.bandwidth / 1e12:g} TB/s, nothing measured",
        ]
        return Table.build(caption, head, rows, notes)  # fmt: skip


def epilogue_saving(
    m: int,
    n: int,
    k: int,
    *,
    tile: Sequence[int] = (128, 128, 32),
    itemsize: int = 4,
    capacity: int = 48 * 1024,
    rate: float = 67e12,
    bandwidth: float = 3.35e12,
    depths: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
) -> EpilogueSaving:
    """The saving for ``relu(A B + bias)`` with ``A`` of ``m x k``, ``B`` of ``k x n``, a bias of ``n``.

    ``rate`` and ``bandwidth`` (by default an H100's float32 without tensor cores, data sheet) are those of the model of
    time. Raises OptionError for sizes below 1, or a rate or bandwidth that is not above 0.
    """
    if not (rate > 0 and bandwidth > 0):
        raise OptionError(
            f"no times with {rate} operations and {bandwidth} bytes per second", remedy="give values above 0"
        )
    traffic = tile_traffic(m, n, k, tile=tile, itemsize=itemsize, capacity=capacity)
    return EpilogueSaving(traffic, rate, bandwidth, tuple(depths))
