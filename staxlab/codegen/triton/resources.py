"""What a compiled kernel takes of a multiprocessor: registers, shared memory, spilled bytes (Section 9.1).

How many warps may be resident is not decided by the source but by what the assembler made of it. Registers per thread
stand in the machine code only, and ``cuobjdump`` reads them there; shared memory is asked for at the launch and stands
in the compiler's metadata. All of it is known ahead of time, without a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass

from ...errors import BuildError
from ..kernel import Kernel
from .compile import aot_compile, tool

_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")


@dataclass(frozen=True)
class Resources:
    """What one program instance of a kernel needs. ``registers`` per thread; ``shared`` bytes per instance; ``stack``
    and ``local`` bytes per thread, where registers are spilled to; ``warps`` per instance."""

    kernel: str
    capability: int
    registers: int
    shared: int
    stack: int
    local: int
    warps: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def spills(self) -> int:
        """Bytes per thread that did not fit into registers."""
        return self.stack + self.local


def resource_usage(kernel: Kernel, capability: int | None = None) -> Resources:
    """Compile ``kernel`` ahead of time and read what it needs. Raises as :func:`aot_compile` does, and BuildError where
    ``cuobjdump`` is missing or does not know the file."""
    steps = aot_compile(kernel, capability)
    handle, name = tempfile.mkstemp(suffix=".cubin")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(steps["cubin"])
        run = subprocess.run([tool("cuobjdump"), "--dump-resource-usage", name], capture_output=True, text=True)
    finally:
        os.unlink(name)
    found = _USAGE.search(run.stdout)
    if run.returncode or found is None:
        raise BuildError(f"cuobjdump does not say what {kernel.name} needs: {(run.stderr or run.stdout).strip()}")
    return Resources(
        kernel=kernel.name,
        capability=capability or kernel.device.compute_capability,
        registers=int(found["registers"]),
        shared=int(found["shared"]) + steps["metadata"].shared,
        stack=int(found["stack"]),
        local=int(found["local"]),
        warps=kernel.launch["num_warps"],
    )
