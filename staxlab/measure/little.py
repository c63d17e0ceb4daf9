"""Little's law for memory: how many bytes must be on their way for the bandwidth to be used (Section 9.1).

A queue that serves ``B`` bytes per second and lets each wait ``latency`` seconds holds ``latency * B`` bytes at any
time (Little, 1961). Read backwards: with fewer bytes on their way the memory delivers no more than what is on its way
divided by the latency, however wide it is. So a kernel needs many resident warps, or several independent loads in each
thread, and the product of the two is what counts.

The law says nothing about where the bytes come from. It takes the latency as a constant, which is right as long as the
memory is not saturated; near saturation requests queue and the latency grows, so the corner of the curve is round on a
real machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.triton.launch import LATENCY, bytes_in_flight_wanted
from ..errors import OptionError
from ..options import DeviceSpec, device_spec


@dataclass(frozen=True)
class InFlight:
    """What a kernel keeps on its way: ``bytes_per_thread`` that a thread has asked for before it must wait,
    ``resident_warps`` per multiprocessor, and ``label``, what to call it."""

    label: str
    bytes_per_thread: float
    resident_warps: int
    warp_size: int = 32

    @property
    def per_multiprocessor(self) -> float:
        """Bytes in flight on one multiprocessor."""
        return self.bytes_per_thread * self.warp_size * self.resident_warps


@dataclass(frozen=True)
class LittlesLaw:
    """The bytes in flight that a device asks for, and what kernels keep.

    ``latency`` in seconds, ``bandwidth`` in bytes per second; ``warps`` resident per multiprocessor and ``read_bytes``
    of one load instruction of a thread are those that the derivation divides by; ``points`` are kernels to compare.
    """

    device: DeviceSpec
    latency: float
    warps: int
    read_bytes: int
    points: tuple[InFlight, ...] = ()

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.device.nominal_bandwidth

    @property
    def total(self) -> float:
        """Bytes in flight on the whole device, latency times bandwidth."""
        return self.latency * self.bandwidth

    @property
    def per_multiprocessor(self) -> int:
        """Whole bytes: the number that the launch rules compare with."""
        return bytes_in_flight_wanted(self.device, self.latency)

    @property
    def per_warp(self) -> float:
        return self.total / self.device.multiprocessors / self.warps

    @property
    def per_thread(self) -> float:
        return self.per_warp / self.device.warp_size

    @property
    def reads_per_thread(self) -> int:
        """The least whole number of load instructions that each thread must have on their way (Exercise 22)."""
        return math.ceil(self.per_thread / self.read_bytes - 1e-9)

    def achieved(self, per_multiprocessor: float) -> float:
        """Bytes per second that this many bytes in flight on each multiprocessor allow."""
        return min(self.bandwidth, per_multiprocessor * self.device.multiprocessors / self.latency)

    def share(self, point: InFlight) -> float:
        """The part of the bandwidth that a kernel can reach, between 0 and 1."""
        return self.achieved(point.per_multiprocessor) / self.bandwidth

    def steps(self) -> list[tuple[str, str, str]]:
        """The derivation: quantity, formula with the numbers, value with its unit."""
        sms, size = self.device.multiprocessors, self.device.warp_size
        return [
            ("in flight", f"latency x bandwidth = {self.latency * 1e9:g} ns x {self.bandwidth / 1e12:g} TB/s",
             f"{self.total / 1e6:.3g} MB"),
            ("per multiprocessor", f"divided by {sms} multiprocessors", f"{self.per_multiprocessor / 1e3:.3g} KB"),
            ("per warp", f"divided by {self.warps} resident warps", f"{_bytes(self.per_warp)} B"),
            ("per thread", f"divided by {size} threads", f"{_bytes(self.per_thread)} B"),
            (f"reads of {self.read_bytes} bytes per thread", f"divided by {self.read_bytes} bytes, rounded up",
             f"{self.reads_per_thread}"),
        ]  # fmt: skip

    def rows(self) -> list[list[str]]:
        """A row for each kernel: name, bytes per thread, warps, bytes per multiprocessor, bandwidth it can reach."""
        return [
            [p.label, f"{p.bytes_per_thread:g} B", str(p.resident_warps), f"{p.per_multiprocessor / 1e3:.3g} KB",
             f"{self.achieved(p.per_multiprocessor) / 1e12:.3g} TB/s ({100 * self.share(p):.0f}%)"]
            for p in self.points
        ]  # fmt: skip

    def summary(self) -> str:
        words = (
            f"{self.device.name}: {self.total / 1e6:.3g} MB in flight, {self.per_multiprocessor / 1e3:.3g} KB per SM"
        )
        for point in self.points[:1]:
            words += f"; {point.label} keeps {point.per_multiprocessor / 1e3:.3g} KB"
        return words

    def format(self) -> str:
        """The derivation, and a line for each kernel."""
        width = max(len(name) for name, _, _ in self.steps())
        formula = max(len(text) for _, text, _ in self.steps())
        lines = [f"Little's law on {self.device.name}: what must be on its way for the bandwidth to be used"]
        lines += [f"  {name:<{width}}  {text:<{formula}}  = {value}" for name, text, value in self.steps()]
        for label, each, warps, here, reached in self.rows():
            lines.append(
                f"  {label}: {each} per thread x 32 threads x {warps} warps = {here} per SM: at most {reached}"
            )
        return "\n".join(lines)

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _bytes(number: float) -> str:
    """Four digits, or a whole number where that is longer."""
    return f"{number:,.0f}" if number >= 1e4 else f"{number:.4g}"


def littles_law(
    target: str | DeviceSpec = "sm_90",
    *,
    latency: float | None = None,
    bandwidth: float | None = None,
    multiprocessors: int | None = None,
    warps: int = 32,
    read_bytes: int = 16,
    points: tuple[InFlight, ...] = (),
) -> LittlesLaw:
    """Little's law on a GPU: ``target`` names it, and what is given besides replaces its data sheet.

    ``latency`` in seconds (default: the 600 ns that the launch rules take), ``bandwidth`` in bytes per second. Raises
    OptionError for a target that is no GPU, and for a quantity that is not positive.
    """
    device = target if isinstance(target, DeviceSpec) else device_spec(target)
    if not device.is_gpu:
        raise OptionError(f"{device.name} is no GPU", remedy="name one, as target='sm_90'")
    given = {"latency": latency, "bandwidth": bandwidth, "multiprocessors": multiprocessors}
    for name, value in (*given.items(), ("warps", warps), ("read_bytes", read_bytes)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise OptionError(f"{name}={value!r} is not allowed: it must be a positive number")
    device = replace(
        device,
        nominal_bandwidth=float(bandwidth or device.nominal_bandwidth or 3.35e12),
        multiprocessors=multiprocessors or device.multiprocessors,
    )
    return LittlesLaw(device, LATENCY if latency is None else latency, warps, read_bytes, tuple(points))
