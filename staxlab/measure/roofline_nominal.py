"""Rooflines of GPUs that need not be here: the published numbers (Section 1.1, Definition 1.1; Section 9.8).

A data sheet gives a rate for each kind of number and a bandwidth, so a ridge point for each rate. Nothing can be
faster, and what a machine reaches (``roofline.measure``) is some part of it. An H100 (SXM) needs 20 operations per byte
before float32 arithmetic is the limit, and 295 before the tensor cores' bfloat16 is:

>>> h100 = nominal_roofline("H100 SXM")
>>> [round(h100[name].value / h100.bandwidth) for name in ("matmul float32", "matmul bfloat16")]
[20, 295]
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import OptionError
from .roofline import Ceiling, Roofline
from .tensor_cores import NOMINAL_RATES


@dataclass(frozen=True)
class DataSheet:
    """A GPU as published: whose rates it has (:data:`~staxlab.measure.tensor_cores.NOMINAL_RATES`, dense), the
    bandwidth of its memory in bytes per second, and where the numbers stand."""

    name: str
    compute_capability: int
    bandwidth: float
    source: str

    def rates(self) -> dict[str, float]:
        """Operations per second by kind of number."""
        return NOMINAL_RATES[self.compute_capability]


DATA_SHEETS = (
    DataSheet("A100 SXM 40GB", 80, 1.555e12, "NVIDIA A100 data sheet, 2021"),
    DataSheet("A100 SXM 80GB", 80, 2.039e12, "NVIDIA A100 data sheet, 2021"),
    DataSheet("H100 SXM", 90, 3.35e12, "NVIDIA H100 data sheet, 2023"),
    DataSheet("H200 SXM", 90, 4.8e12, "NVIDIA H200 data sheet, 2024"),
)


def data_sheet(name: str) -> DataSheet:
    """The data sheet of a name such as "H100 SXM", or of a device that calls itself "NVIDIA H200". OptionError for one
    that is not here.

    >>> data_sheet("NVIDIA A100-SXM4-80GB").bandwidth
    2039000000000.0
    """
    plain = name.upper().replace("-", " ").replace("SXM4", "SXM").replace("SXM5", "SXM").removeprefix("NVIDIA ").split()
    exact = [sheet for sheet in DATA_SHEETS if sheet.name.upper().split() == plain]
    # A name may leave out the form, or say more; the memory's size has to agree where the sheets differ by it.
    alike = [sheet for sheet in DATA_SHEETS if sheet.name.split()[0] in plain and "PCIE" not in plain and "NVL" not in
    plain
             and all(word in plain for word in sheet.name.upper().split() if word.endswith("GB"))]  # fmt: skip
    found = exact or alike
    if len(found) != 1:
        raise OptionError(f"there is no data sheet of {name!r} here",
                          remedy=f"choose among {', '.join(sheet.name for sheet in DATA_SHEETS)}")  # fmt: skip
    return found[0]


def nominal_roofline(name: str) -> Roofline:
    """The roofline of a data sheet: one slope, one ceiling for each kind of number. OptionError as
    :func:`data_sheet`."""
    sheet = data_sheet(name)
    ceilings = [Ceiling("nominal", "bandwidth", sheet.bandwidth, sheet.source)]
    ceilings += [Ceiling(f"matmul {dtype}", "throughput", rate, "dense") for dtype, rate in sheet.rates().items()]
    ridges = ", ".join(f"{dtype} {rate / sheet.bandwidth:.4g}" for dtype, rate in sheet.rates().items())
    notes = (f"ridge points: {ridges} FLOP/byte", "published numbers; nothing here is measured")
    return Roofline(tuple(ceilings), machine={"device": f"{sheet.name}, data sheet"}, notes=notes)


def beside_data_sheet(measured: Roofline) -> tuple[str, ...]:
    """Which part of the published numbers of its device a measured roofline reaches, in words; nothing for a device
    without a data sheet here."""
    try:
        sheet = data_sheet(str(measured.machine.get("device", "cpu")))
    except OptionError:
        return ()
    said = [f"bandwidth {measured.bandwidth / sheet.bandwidth:.0%}"] if measured.of("bandwidth") else []
    for ceiling in measured.of("throughput"):
        rate = sheet.rates().get(ceiling.name.removeprefix("matmul "))
        if rate is not None:
            said.append(f"{ceiling.name} {ceiling.value / rate:.0%}")
    return (f"of the data sheet of {sheet.name}: {', '.join(said)}",) if said else ()
