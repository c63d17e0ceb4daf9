"""What tensor cores do to a product's place on the roofline (Section 9.8, "tensor cores and mixed precision").

A kind of number with ``b`` bytes has an arithmetic rate ``P`` of its own, so a ridge point ``P / B`` of its own. A
square product of order ``n`` does at most ``2n / (3b)`` operations per byte: it is bound by arithmetic from ``n >= 3 b
P / (2 B)`` on. Halving ``b`` doubles ``P`` on tensor cores, so that order hardly changes; what changes is how far the
ridge point lies from what other kernels reach.

The rates are those of data sheets, dense, without sparsity. They are not measured; where a rate was measured it can be
put beside them (:meth:`RidgeTable.with_measured`), and :func:`measured_roofline` draws a saved run of
``python -m benchmarks.product_models``.

>>> [(row.dtype, row.least_order) for row in ridge_table("sm_90").rows if row.dtype in ("bfloat16", "float8")]
[('bfloat16', 886), ('float8', 886)]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..errors import OptionError
from ..options import DeviceSpec, device_spec
from .matrix_traffic import peak_intensity
from .roofline import Ceiling, Point, Roofline
from .tables import Table, Tabular, quantity_text

#: Dense rates of data sheets in operations per second, by compute capability and kind of number: NVIDIA A100 (SXM,
#: data sheet of 2021) and H100 (SXM, data sheet of 2023, whose tensor core rates include sparsity and are halved here).
#: "float32" is without tensor cores.
NOMINAL_RATES: dict[int, dict[str, float]] = {
    80: {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12, "float16": 312e12},
    90: {"float32": 67e12, "tf32": 494.5e12, "bfloat16": 989e12, "float16": 989e12, "float8": 1978e12},
}
ITEMSIZE = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True)
class Ridge:
    """One kind of number: ``itemsize`` in bytes, ``rate`` in operations per second, ``bandwidth`` in bytes per second;
    ``measured`` is a rate that a product reached, in the same unit, if one is known."""

    dtype: str
    itemsize: int
    rate: float
    bandwidth: float
    measured: float | None = None

    @property
    def ridge(self) -> float:
        """``P / B`` in operations per byte."""
        return self.rate / self.bandwidth

    @property
    def least_order(self) -> int:
        """The smallest ``n`` whose square product is bound by arithmetic: ``2n / (3b) >= P / B``, exactly."""
        return least_order(self.itemsize, self.rate, self.bandwidth)


def least_order(itemsize: int, rate: float, bandwidth: float) -> int:
    """The smallest order of a square product with ``2n / (3b) >= rate / bandwidth``.

    ``rate`` in operations per second, ``bandwidth`` in bytes per second. Raises OptionError unless all are above 0.

    >>> least_order(2, 989e12, 3.35e12)
    886
    """
    if itemsize < 1 or not (rate > 0 and bandwidth > 0):
        raise OptionError(f"no ridge point for {itemsize} bytes, {rate} operations and {bandwidth} bytes per second",
                          remedy="give values above 0")  # fmt: skip
    return math.ceil(Fraction(3 * itemsize, 2) * Fraction(rate) / Fraction(bandwidth))


@dataclass(frozen=True, repr=False)
class RidgeTable(Tabular):
    """Ridge points of a GPU by kind of number, and the smallest square product beyond each."""

    device: str
    bandwidth: float
    rows: tuple[Ridge, ...]

    def __getitem__(self, dtype: str) -> Ridge:
        for row in self.rows:
            if row.dtype == dtype:
                return row
        raise KeyError(f"no rate of {dtype!r}; there are {', '.join(row.dtype for row in self.rows)}")

    def with_measured(self, rates: Mapping[str, float]) -> RidgeTable:
        """The same table with rates that products reached, in operations per second."""
        for dtype in rates:
            self[dtype]
        return replace(self, rows=tuple(replace(row, measured=rates.get(row.dtype, row.measured)) for row in self.rows))

    def roofline(self, orders: Sequence[int] = (), dtype: str = "bfloat16") -> Roofline:
        """A roofline with one ceiling of arithmetic for each rate, and square products of these ``orders``.

        The products are drawn *on* the roof of ``dtype``, with the intensity of compulsory traffic: where they could be
        at best, not where they were measured. The label says so. With products, ceilings above theirs are left out.
        """
        own = self[dtype]
        names = {"float32": "float32, no tensor cores"}
        ceilings = [Ceiling("main memory", "bandwidth", self.bandwidth, "nominal")]
        by_rate: dict[float, list[str]] = {}
        for row in self.rows:
            if orders and row.rate > own.rate:
                continue
            by_rate.setdefault(row.rate, []).append(names.get(row.dtype, row.dtype))
        ceilings += [Ceiling(", ".join(who), "throughput", rate, "nominal") for rate, who in by_rate.items()]
        points = []
        for order in orders:
            intensity = float(peak_intensity(order, order, order, own.itemsize))
            operations = 2.0 * order**3
            seconds = operations / min(own.rate, self.bandwidth * intensity)
            points.append(Point(f"n = {order}, at best", operations, operations / intensity, seconds))
        what = f"{self.device}, rates of data sheets" + (f"; products in {dtype}" if orders else "")
        return Roofline(
            tuple(ceilings), tuple(points), {"device": what},
            notes=(f"ridge points: {self.ridges_text()}", "products stand where they could be at best; nothing here is "
                   "measured"),
        )  # fmt: skip

    def ridges_text(self) -> str:
        return ", ".join(f"{row.dtype} {row.ridge:.4g}" for row in self.rows) + " FLOP/byte"

    def table(self) -> Table:
        lowest = min(row.ridge for row in self.rows)
        rows = [
            (row.dtype, row.itemsize, quantity_text(row.rate, "FLOP/s"), f"{row.ridge:.4g}",
             f"{row.ridge / lowest:.3g}x", f"{row.least_order:,}",
             *((quantity_text(row.measured, "FLOP/s"),) if row.measured else ("",)))
            for row in self.rows
        ]  # fmt: skip
        head = ("numbers", "bytes", "rate", "ridge (FLOP/byte)", "over the lowest", "bound by arithmetic from n =",
                "measured")  # fmt: skip
        notes = [
            f"main memory {quantity_text(self.bandwidth, 'B/s')}; rates of data sheets, dense",
            "square products whose operands and result pass once: 2n / (3b) operations per byte",
        ]
        return Table.build(f"Ridge points of {self.device}", head, rows, notes)


def ridge_table(
    device: DeviceSpec | str = "sm_90",
    *,
    bandwidth: float | None = None,
    rates: Mapping[str, float] | None = None,
) -> RidgeTable:
    """The ridge points of a device: nominal rates and bandwidth, unless others are given.

    ``bandwidth`` in bytes per second (4.8e12 is the data sheet's for an H200, whose rates are those of an H100),
    ``rates`` in operations per second by kind of number, one of :data:`ITEMSIZE`. Raises OptionError for a device
    whose rates are not known, or an unknown kind of number.
    """
    spec: Any = device_spec(device) if isinstance(device, str) else device
    if not isinstance(spec, DeviceSpec):
        raise OptionError(f"{spec!r} is no device", remedy="give a DeviceSpec, or the name of a target such as 'sm_90'")
    known = rates if rates is not None else NOMINAL_RATES.get(spec.compute_capability)
    if not known:
        raise OptionError(f"no arithmetic rates of {spec.name} are known", remedy="give rates={'bfloat16': ...}")
    unknown = [dtype for dtype in known if dtype not in ITEMSIZE]
    if unknown:
        raise OptionError(f"unknown kind of number {unknown[0]!r}", remedy=f"known: {', '.join(ITEMSIZE)}")
    speed = bandwidth if bandwidth is not None else spec.nominal_bandwidth
    rows = tuple(Ridge(dtype, ITEMSIZE[dtype], rate, speed) for dtype, rate in known.items())
    for row in rows:
        least_order(row.itemsize, row.rate, row.bandwidth)
    return RidgeTable(spec.name, speed, rows)


def measured_roofline(record: Mapping[str, Any], dtype: str = "bfloat16") -> Roofline:
    """Square products of one kind of number as they were measured, below the highest rate any of them reached.

    ``record`` is what ``python -m benchmarks.product_models --out FILE`` saved, as read by ``json``. The roof is the
    bandwidth of a copy and the best rate of each kind of number; intensities are those of compulsory traffic, so that a
    product that the caches serve may lie above the slanted part. Raises OptionError for a record without such products.
    """
    entries = [entry for entry in record.get("ridge", ()) if entry["dtype"] == dtype]
    bandwidth = record.get("copy_bandwidth")
    if not entries or not bandwidth:
        raise OptionError(f"no products in {dtype} were measured in this run",
                          remedy="run python -m benchmarks.product_models on a CUDA device")  # fmt: skip
    best: dict[str, float] = {}
    for entry in record["ridge"]:
        best[entry["dtype"]] = max(entry["rate"], best.get(entry["dtype"], 0.0))
    ceilings = [Ceiling("copy", "bandwidth", bandwidth, "measured")]
    ceilings += [
        Ceiling(f"best {kind}", "throughput", rate, "measured") for kind, rate in best.items() if rate <= best[dtype]
    ]
    points = []
    for entry in entries:
        operations = 2.0 * entry["order"] ** 3
        between = tuple(entry["interval_s"]) if entry.get("interval_s") else None
        points.append(
            Point(f"n = {entry['order']}", operations, operations / entry["intensity"], entry["median_s"],
                  between=between)
        )  # fmt: skip
    return Roofline(
        tuple(ceilings), tuple(points), record.get("machine", {}), record.get("versions", {}),
        record.get("command", ""), record.get("date", ""), (f"square products in {dtype} by the library",),
    )  # fmt: skip
