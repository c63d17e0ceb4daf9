"""What another process needs to compile a Triton kernel, and whether it needs to (Section 11.2).

A *job* is a dictionary of plain values that :mod:`.worker` understands. Beside Triton's store stands a small note for
each job that was ever done, with Triton's key in it, so that a later process sees at once which kernels are compiled
already: working out Triton's own key takes as long as loading the kernel. A note is no more than a hint. Where it is
wrong, a kernel is compiled a second time or a little later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

from ...errors import CodegenError
from ...files import write_whole
from ...runtime import cache_directory
from ..kernel import Kernel
from .operations import POINTER_TYPES
from .source_files import (
    cache_root,
    compiler_cache,
    named_by_the_user,
    require_triton,
    source_hash,
    write_source,
)

Job = dict[str, Any]


def capability_of(kernel: Kernel, capability: int | None = None) -> int:
    """The compute capability to compile a Triton kernel for. CodegenError for other kernels, or where there is none."""
    if kernel.language != "triton":
        raise CodegenError(f"{kernel.name} is a {kernel.language} kernel, not a Triton kernel")
    capability = capability or kernel.device.compute_capability
    if not capability:
        raise CodegenError(f"{kernel.name}: no compute capability to compile for", remedy="give one, as 80 or 90")
    return capability


def signature(kernel: Kernel) -> dict[str, str]:
    """The parameter types in Triton's spelling, in order."""
    types = {a.name: POINTER_TYPES[a.dtype] for a in kernel.arguments}
    types |= {name: "i32" if size < 2**31 else "i64" for name, size in kernel.launch["sizes"].items()}
    return types | dict.fromkeys(kernel.launch["constants"], "constexpr")


def compiler_options(kernel: Kernel) -> dict[str, Any]:
    """What the compiler is told besides the source."""
    launch = kernel.launch
    return {"num_warps": launch["num_warps"], "num_stages": launch["num_stages"], **launch["options"]}


def launch_job(kernel: Kernel, capability: int | None = None) -> Job:
    """Compile as the first launch would (:class:`.launcher.TritonLauncher`) on tensors whose addresses are multiples of
    16, on a device of this capability (90 for sm_90; default: the kernel's device)."""
    types = [str(argument.dtype).removeprefix("torch.") for argument in kernel.arguments]
    rest = [*kernel.launch["sizes"].values(), *kernel.launch["constants"].values()]
    return _job(kernel, capability, launch=True, types=types, rest=rest, grid=tuple(kernel.launch["grid"]))


def listing_job(kernel: Kernel, capability: int | None = None) -> Job:
    """Compile as :func:`.compile.aot_compile` does."""
    constants, pointers = dict(kernel.launch["constants"]), len(kernel.arguments)
    return _job(
        kernel, capability, launch=False, signature=signature(kernel), constants=constants, pointers=pointers
    )  # fmt: skip


def _job(kernel: Kernel, capability: int | None, **more: Any) -> Job:
    capability = capability_of(kernel, capability)
    named = named_by_the_user() is not None
    shared = tuple(str(place / "triton" / "compiled") for place in cache_directory.shared_directories())
    environment = {k: v for k, v in os.environ.items() if k.startswith("TRITON_") and k != "TRITON_INTERPRET"}
    return {
        "name": kernel.name, "source": kernel.source, "path": write_source(kernel), "capability": capability,
        "module": f"staxlab_kernel_{source_hash(kernel)}", "options": compiler_options(kernel),
        "environment": environment, "store": None if named else str(cache_root() / "compiled"), "shared": shared,
        **more,
    }  # fmt: skip


def is_done(job: Job) -> bool:
    """Whether Triton's store has, as far as its note says, what the job would compile."""
    try:
        key = _note(job).read_text()
    except OSError:
        return False
    from triton.runtime.cache import get_cache_manager

    with compiler_cache():
        return bool(get_cache_manager(key).get_group(f"{job['name'][:150]}.json"))


def note(job: Job, key: str) -> None:
    """Remember Triton's key for a job that is done, if that is news."""
    path = _note(job)
    with contextlib.suppress(OSError):
        if path.read_text() == key:
            return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, key.encode(), private=False)


def identity(job: Job) -> str:
    """The content address of a job: two of one address compile to the same."""
    version = require_triton().__version__
    what = repr((version, sorted((name, repr(value)) for name, value in job.items())))
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def _note(job: Job) -> Path:
    return cache_root() / "done" / identity(job)
