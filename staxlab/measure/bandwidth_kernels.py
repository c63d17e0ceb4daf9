"""Bandwidth at a working set of any size (Section 13.1): the same kernels over little memory many times, or much once.

How fast bytes move depends on where they lie, and they lie where the *working set*, all that a kernel walks over, fits.
A reading over a few kilobytes would time the call; so a thread walks over its part again and again inside one call,
until enough bytes have moved, and the clock stands inside, after a first pass that brings the part into the cache. On a
GPU a kernel does the same for its program instances, between two events of the device.

Both classes have ``bandwidth(probe, working_set, threads)`` in bytes per second. Bytes are those of the model: a copy
counts each element twice. On a CPU the probes are those of ``roofline_probes``, on a GPU "read", "copy" and "write".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..codegen.kernel import Kernel, KernelArgument
from ..errors import OptionError
from ..options import DeviceSpec, device_spec
from ..provenance import Line
from .roofline_probes import BLOCK, NATIVE_PROBES, call, load_kernels

#: Bytes that a thread moves in one reading, unless one pass moves more: a third of a millisecond or longer.
CPU_TRAFFIC = 32 << 20
#: Bytes that a GPU moves in one reading, unless one pass moves more: about a millisecond.
GPU_TRAFFIC = 4 << 30

#: Room for a block of each of very many threads, however small the working set.
LEAST_BUFFER = 1 << 20

#: Floats of a page, and how many pages lie between the places of two readings.
PAGE, STRIDE = 1024, 7

#: Floats of 33 cache lines.
HALF_PAGE = 528

#: Two of them are copied from one to the other.
TWO_BUFFERS = ("copy", "streaming copy")


def passes_for(moved: int, traffic: int) -> int:
    """How often to walk over a working set of which one pass moves so many bytes. It does not depend on the clock, so
    that a disturbance cannot decide what is measured."""
    return max(1, traffic // max(moved, 1))


class CpuKernels:
    """``bandwidth.cpp`` on buffers of ``largest`` bytes of working set or more. BuildError without a C++ compiler."""

    probes: Sequence[str] = NATIVE_PROBES

    def __init__(self, largest: int):
        self.entry = load_kernels()
        count = max(largest, LEAST_BUFFER) // 4 // BLOCK * BLOCK
        # Large blocks of memory begin at the same place of a page, and a processor that compares the places alone takes
        # a load for one of what was just stored 4 KiB, or a multiple, away. Half a page apart, it does not.
        self.source, self.target = torch.ones(count), torch.zeros(count + HALF_PAGE)[HALF_PAGE:]
        self._readings = 0

    def rounded(self, probe: str, working_set: int, threads: int = 1) -> int:
        """The working set that is walked over in place of this one: as many blocks of 128 elements for every thread."""
        whole = 4 * BLOCK * threads * (2 if probe in TWO_BUFFERS else 1)
        return max(working_set // whole, 1) * whole

    def bandwidth(self, probe: str, working_set: int, threads: int = 1, *, far: bool = False) -> float:
        """Bytes per second of one reading over the :meth:`rounded` working set. ``far`` asks for lines of memory ahead
        of time, which costs in a cache. OptionError for a working set beyond the buffers."""
        count = self.rounded(probe, working_set, threads) // 4 // (2 if probe in TWO_BUFFERS else 1)
        if count > self.source.numel():
            raise OptionError(f"a working set of {working_set} bytes does not fit into these buffers",
                              remedy="make them larger")  # fmt: skip
        moved = 4 * count * (2 if probe in TWO_BUFFERS else 1)
        passes = passes_for(moved, CPU_TRAFFIC * threads)
        first = self._next_place(count)
        target, source = self.target[first:], self.source[first:]
        seconds = call(self.entry, probe, target, source, count, threads, passes, far)[2]
        return moved / max(seconds, 1e-12)

    def _next_place(self, count: int) -> int:
        """Where in the buffers a reading begins: on another page than the one before, as far as there is room.

        Some processors guess from a hash of a line's address in which way of the first cache it is. Pages with the same
        hash take turns there, and with one place for all readings even the best of them would be a place's bad luck.
        """
        self._readings += 1
        return self._readings * STRIDE * PAGE % (self.source.numel() - count + 1) // PAGE * PAGE


# --- On a GPU ---------------------------------------------------------------------------------------------------------

GPU_BLOCK = 4096
GPU_PROGRAMS = 4  # instances for each multiprocessor: 64 KiB of loads are on their way there (Section 9.1)

#: What an instance does to the block at ``at``. Loads go past the first-level cache, whose contents no other
#: multiprocessor shares: the question is what the second level can do.
GPU_BODIES = {
    "read": '            total += tl.load(source + at, cache_modifier=".cg")',
    "copy": '            tl.store(target + at, tl.load(source + at, cache_modifier=".cg"))',
    "write": "            tl.store(target + at, total + walk)",
}
GPU_SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def bandwidth_{name}(source, target, sums, blocks, passes, BLOCK: tl.constexpr):
    # Each instance walks over blocks of its own, as often as it is told; {name} is what it does to each.
    first = tl.program_id(0)
    step = tl.num_programs(0)
    total = tl.zeros([BLOCK], tl.float32)
    for walk in range(passes):
        for block in range(first, blocks, step):
            at = block * BLOCK + tl.arange(0, BLOCK)
{body}
    tl.store(sums + first, tl.sum(total, 0))
"""


def gpu_kernel(probe: str, blocks: int, passes: int, programs: int, device: DeviceSpec) -> Kernel:
    """A Triton kernel that walks ``passes`` times over ``blocks`` blocks of 4096 float32 elements."""
    text = GPU_SOURCE.format(name=probe, body=GPU_BODIES[probe])
    arguments = (
        KernelArgument("source", "source", "input", torch.float32),
        KernelArgument("target", "target", "inout", torch.float32),
        KernelArgument("sums", "sums", "output", torch.float32),
    )
    launch: dict[str, Any] = {
        "form": "bandwidth", "grid": (programs, 1, 1), "constants": {"BLOCK": GPU_BLOCK},
        "sizes": {"blocks": blocks, "passes": passes}, "num_warps": 8, "num_stages": 1,
        "options": {"enable_fp_fusion": False},
    }  # fmt: skip
    lines = tuple(Line(line) for line in text.splitlines())
    return Kernel(f"bandwidth_{probe}", "triton", lines, arguments, (), device, launch=launch)


class GpuKernels:
    """Triton kernels on buffers of ``largest`` bytes of working set. OptionError without a GPU, MissingDependencyError
    without Triton."""

    probes: Sequence[str] = tuple(GPU_BODIES)

    def __init__(self, largest: int, device: str = "cuda"):
        from ..codegen.triton.source_files import require_triton

        if not torch.cuda.is_available():
            raise OptionError("no CUDA device is visible", remedy="device='cpu' needs none")
        require_triton()
        self.spec = device_spec(device)
        blocks = max(largest // 4 // GPU_BLOCK, 1)
        self.source = torch.ones(blocks * GPU_BLOCK, device=device)
        self.target = torch.zeros_like(self.source)
        self.sums = torch.zeros(self.spec.multiprocessors * GPU_PROGRAMS, device=device)
        self._kernels: dict[tuple[str, int, int], Any] = {}

    def rounded(self, probe: str, working_set: int, threads: int | None = None) -> int:
        """The working set that is walked over in place of this one: whole blocks of 4096 elements."""
        whole = 4 * GPU_BLOCK * (2 if probe in TWO_BUFFERS else 1)
        return max(working_set // whole, 1) * whole

    def bandwidth(self, probe: str, working_set: int, threads: int | None = None) -> float:
        """Bytes per second of one reading between two events, over the :meth:`rounded` working set. OptionError for one
        beyond the buffers."""
        blocks = self.rounded(probe, working_set) // 4 // GPU_BLOCK // (2 if probe in TWO_BUFFERS else 1)
        if blocks * GPU_BLOCK > self.source.numel():
            raise OptionError(f"a working set of {working_set} bytes does not fit into these buffers",
                              remedy="make them larger")  # fmt: skip
        moved = 4 * blocks * GPU_BLOCK * (2 if probe in TWO_BUFFERS else 1)
        passes = passes_for(moved, GPU_TRAFFIC)
        launch = self._kernels.get((probe, blocks, passes))
        with torch.cuda.device(self.source.device):
            if launch is None:
                from ..codegen.triton.launcher import load

                programs = min(self.sums.numel(), blocks)
                launch = load(gpu_kernel(probe, blocks, passes, programs, self.spec))
                self._kernels[probe, blocks, passes] = launch
                launch(self.source, self.target, self.sums)  # compiles, and fills the cache
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            launch(self.source, self.target, self.sums)
            stop.record()
            stop.synchronize()
        return moved * passes / (start.elapsed_time(stop) * 1e-3)


def kernels_for(device: str, largest: int) -> CpuKernels | GpuKernels:
    """The kernels of a device, "cpu" or "cuda". OptionError for another or an absent one, BuildError without a C++
    compiler, MissingDependencyError without Triton."""
    if device == "cpu":
        return CpuKernels(largest)
    if device.split(":")[0] == "cuda":
        return GpuKernels(largest, device)
    raise OptionError(f"unknown device {device!r}", remedy="choose 'cpu' or 'cuda'")
