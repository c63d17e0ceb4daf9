"""Occupancy: how many warps of a kernel a multiprocessor holds at a time, and what limits them (Section 9.1).

Four resources are handed out to whole program instances (thread blocks), each in portions of its own:

* *registers*, warp by warp, in units of 256, and from the quarter of the register file that belongs to the scheduler a
  warp is assigned to; so what is left over in each quarter is lost, and warps come four at a time,
* *shared memory*, in units of 128 bytes, with 1 KB that the system keeps for itself in every block,
* *warps*, of which a multiprocessor holds 64, and *blocks*, of which it holds 32.

The scarcest decides. These are the rules of NVIDIA's occupancy calculator; the numbers are those of the table of
compute capabilities in the CUDA C++ Programming Guide (NVIDIA, 2024). More resident warps are not a goal in themselves:
what hides the latency is bytes in flight (:mod:`.little`), and few warps with many loads each may have more of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..codegen.kernel import Kernel
from ..codegen.triton.resources import Resources, resource_usage
from ..errors import OptionError
from ..options import GPU_SPECS, DeviceSpec
from .little import InFlight, LittlesLaw, littles_law
from .loads_in_flight import LoadsInFlight, loads_in_flight


@dataclass(frozen=True)
class ResidencyLimits:
    """What a multiprocessor of a compute capability has to hand out. Bytes and registers; ``partitions``: schedulers
    among which the register file is divided; ``reserved``: shared memory the system takes for each block."""

    capability: int
    warps: int = 64
    blocks: int = 32
    registers: int = 65536
    register_unit: int = 256
    registers_per_thread: int = 255
    registers_per_block: int = 65536
    partitions: int = 4
    shared: int = 0
    shared_per_block: int = 0
    shared_unit: int = 128
    reserved: int = 1024
    threads_per_block: int = 1024
    warp_size: int = 32


#: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
LIMITS: dict[int, ResidencyLimits] = {
    80: ResidencyLimits(80, shared=164 << 10, shared_per_block=163 << 10),
    90: ResidencyLimits(90, shared=228 << 10, shared_per_block=227 << 10),
}


def limits_of(capability: int) -> ResidencyLimits:
    """The limits of a compute capability. OptionError for one that is not in the table."""
    if capability not in LIMITS:
        known = ", ".join(map(str, LIMITS))
        raise OptionError(f"no table of limits for compute capability {capability}", remedy=f"known: {known}")
    return LIMITS[capability]


@dataclass(frozen=True)
class Limit:
    """What one resource allows: ``blocks`` per multiprocessor (None: none of it is used), and the sum behind it."""

    resource: str
    blocks: int | None
    reason: str


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def block_limits(usage: Resources, limits: ResidencyLimits) -> tuple[Limit, ...]:
    """Blocks that registers, shared memory, warps and the number of blocks allow on one multiprocessor."""
    warps = usage.warps
    each = _round_up(usage.registers * limits.warp_size, limits.register_unit)
    quarter = limits.registers // limits.partitions
    held = quarter // each * limits.partitions if each else 0
    whole = each * _round_up(warps, limits.partitions)  # the hardware checks as if every quarter gave its share
    if not usage.registers:
        registers = Limit("registers", None, "none are used")
    elif usage.registers > limits.registers_per_thread or whole > limits.registers_per_block:
        registers = Limit(
            "registers", 0, f"{usage.registers} per thread are more than a block of {warps} warps can have"
        )
    else:
        registers = Limit(
            "registers", held // warps,
            f"{usage.registers} x 32 in units: {each:,} for a warp; {quarter:,} / {each:,} = {quarter // each} warps "
            f"in each of {limits.partitions} quarters; {held} warps / {warps}",
        )  # fmt: skip
    taken = _round_up(usage.shared + limits.reserved, limits.shared_unit)
    if usage.shared > limits.shared_per_block:
        reason = f"{usage.shared:,} bytes are more than the {limits.shared_per_block:,} that a block may have"
        shared = Limit("shared memory", 0, reason)
    elif not usage.shared:
        shared = Limit("shared memory", None, "none is used")
    else:
        reason = f"{limits.shared:,} / ({usage.shared:,} + {limits.reserved:,} reserved, in units: {taken:,})"
        shared = Limit("shared memory", limits.shared // taken, reason)
    fits = usage.threads <= limits.threads_per_block
    by_warps = Limit("warps", limits.warps // warps if fits else 0, f"{limits.warps} warps / {warps}")
    return registers, shared, by_warps, Limit("blocks", limits.blocks, f"a multiprocessor holds {limits.blocks}")


@dataclass(frozen=True)
class Occupancy:
    """How a kernel fills a multiprocessor. ``usage`` is what the compiled kernel takes, ``bounds`` what each resource
    allows, ``instances`` the size of the grid, ``loads`` what a thread has on its way."""

    usage: Resources
    limits: ResidencyLimits
    device: DeviceSpec
    bounds: tuple[Limit, ...]
    instances: int
    loads: LoadsInFlight

    @property
    def blocks(self) -> int:
        """Blocks that fit on one multiprocessor."""
        return min(bound.blocks for bound in self.bounds if bound.blocks is not None)

    @property
    def binding(self) -> tuple[str, ...]:
        """The resources that allow no more than that."""
        return tuple(bound.resource for bound in self.bounds if bound.blocks == self.blocks)

    @property
    def warps(self) -> int:
        """Warps that may be resident on one multiprocessor."""
        return self.blocks * self.usage.warps

    @property
    def occupancy(self) -> float:
        """The part of the warps that a multiprocessor can hold, between 0 and 1."""
        return self.warps / self.limits.warps

    @property
    def resident_blocks(self) -> int:
        """Blocks on the fullest multiprocessor while this grid runs: fewer than fit where the grid is small."""
        return min(self.blocks, -(-self.instances // max(self.device.multiprocessors, 1)))

    @property
    def waves(self) -> float:
        """How often the grid fills the device."""
        return self.instances / max(self.blocks * self.device.multiprocessors, 1)

    @property
    def in_flight(self) -> LittlesLaw:
        """Little's law on this device with this kernel's point on the curve; without one where nothing is loaded, or an
        accelerator fetches the tiles, so that no thread's loads say how much is on its way."""
        here = InFlight(self.usage.kernel, self.loads.bytes, self.resident_blocks * self.usage.warps)
        points = () if self.loads.by_accelerator or not self.loads.issued else (here,)
        return littles_law(self.device, warps=max(here.resident_warps, 1), points=points)

    def with_usage(
        self, *, registers: int | None = None, warps: int | None = None, shared: int | None = None
    ) -> Occupancy:
        """The same kernel if it took other amounts. OptionError for one that no kernel can take."""
        given = {"registers": registers, "warps": warps, "shared": shared}
        usage = self.usage
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (name == "warps"):
                raise OptionError(f"{name}={value!r} is not allowed: it must be a whole number")
            usage = replace(usage, **{name: value})
        return replace(self, usage=usage, bounds=block_limits(usage, self.limits))

    def by_registers(self) -> list[tuple[int, int]]:
        """(registers per thread, resident warps) for every number of registers that a thread may have."""
        most = self.limits.registers_per_thread
        return [(count, self.with_usage(registers=count).warps) for count in range(16, most + 1)]

    def by_block_size(self) -> list[tuple[int, int]]:
        """(warps per block, resident warps) for the powers of two that Triton takes, with the kernel's registers per
        thread and shared memory per block."""
        return [(count, self.with_usage(warps=count).warps) for count in (1, 2, 4, 8, 16, 32)]

    def rows(self) -> list[list[str]]:
        """A row for each resource: name, what the kernel takes, blocks it allows, why."""
        takes = {
            "registers": f"{self.usage.registers} per thread", "shared memory": f"{self.usage.shared:,} B per block",
            "warps": f"{self.usage.warps} per block", "blocks": "1",
        }  # fmt: skip
        return [
            [bound.resource + (" (binds)" if bound.resource in self.binding else ""), takes[bound.resource],
             "any number" if bound.blocks is None else str(bound.blocks), bound.reason]
            for bound in self.bounds
        ]  # fmt: skip

    def summary(self) -> str:
        words = f"{self.blocks} blocks, {self.warps} of {self.limits.warps} warps ({100 * self.occupancy:.0f}%)"
        return f"{words}, limited by {' and '.join(self.binding)}"

    def facts(self) -> list[str]:
        """What follows from the numbers, in sentences."""
        loads = self.loads
        if loads.by_accelerator:
            fetched = "whole tiles are fetched by the tensor memory accelerator, which no thread's loads show"
        elif not loads.issued:
            fetched = "the kernel loads nothing"
        else:
            fetched = f"a thread has at most {loads.bytes} bytes on their way, in {loads.loads} "
            fetched += f"load{'' if loads.loads == 1 else 's'} (the text loads {loads.issued} bytes)"
        found = [
            fetched,
            f"the grid of {self.instances:,} instances fills the {self.device.multiprocessors} multiprocessors "
            f"{self.waves:.3g} times; at most {self.resident_blocks} of its blocks on each",
        ]
        if self.usage.spills:
            found.append(f"{self.usage.spills} bytes per thread did not fit into registers and lie in local memory")
        return found

    def format(self) -> str:
        """The table, the facts and Little's law as text."""
        head = ["resource", "the kernel takes", "blocks", "because"]
        table = [head, *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(head))]
        lines = [f"occupancy of {self.usage.kernel} on {self.device.name}: {self.summary()}"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([*lines, *self.facts(), self.in_flight.format()])

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def device_of(kernel: Kernel, capability: int | None) -> DeviceSpec:
    """The device a kernel was made for, or the one that a compute capability names."""
    if capability in (None, kernel.device.compute_capability):
        return kernel.device
    found = [spec for spec in GPU_SPECS.values() if spec.compute_capability == capability]
    if not found:
        known = ", ".join(str(spec.compute_capability) for spec in GPU_SPECS.values())
        raise OptionError(f"no GPU of compute capability {capability} is known", remedy=f"known: {known}")
    return found[0]


def occupancy(kernel: Kernel, capability: int | None = None) -> Occupancy:
    """Occupancy of a Triton kernel, from its machine code for ``capability`` (90 for sm_90; default: the kernel's own).

    Raises CodegenError for a kernel that is not Triton's, OptionError for a capability without a table, BuildError and
    MissingDependencyError as compiling does.
    """
    usage = resource_usage(kernel, capability)
    limits = limits_of(usage.capability)
    instances = 1
    for extent in kernel.launch["grid"]:
        instances *= extent
    return Occupancy(
        usage, limits, device_of(kernel, capability), block_limits(usage, limits), instances,
        loads_in_flight(kernel, capability),
    )  # fmt: skip
