"""Compiling several Triton kernels at once, ahead of whoever needs them (Section 11.2).

The workers' processes put what they compile into Triton's store on disk, where the parent finds it in a few
milliseconds: when a kernel is first launched (Section 9.7), or when its listing is wanted on a machine without a GPU.
So nothing that runs depends on a worker. Where one dies, and where it is not worth starting them, since a single kernel
is missing or there is a single core, the parent compiles alone.

A launch is compiled for pointers that are multiples of 16, as those of PyTorch's allocations are; for any others the
kernel is compiled when it is first called.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..codegen.kernel import Kernel
from ..codegen.triton import ahead
from ..errors import BuildError
from . import workers
from .build_report import Recorder, worker_count
from .processes import ProcessGroup

log = logging.getLogger("staxlab.build")


def compile_kernels(
    kernels: Sequence[Kernel], *, capability: int | None = None, listing: bool = False, record: Recorder | None = None
) -> dict[int, BuildError]:
    """Have Triton's store hold all of these, compiled side by side for compute capability ``capability`` (90 for sm_90;
    default: the kernels' device), as they are launched or, with ``listing``, as
    :func:`~staxlab.codegen.triton.compile.aot_compile` does it. What the compiler refused, by position in ``kernels``.

    Raises CodegenError for a kernel that is not Triton's, MissingDependencyError without Triton. What is there already
    is left alone, and so is everything if fewer than two are missing.
    """
    make = ahead.listing_job if listing else ahead.launch_job
    record = record or Recorder(worker_count())
    missing: dict[str, tuple[int, Kernel, ahead.Job]] = {}
    for position, kernel in enumerate(kernels):
        if 0 in kernel.launch["grid"]:
            continue
        job, queued = make(kernel, capability), record.now()
        if ahead.is_done(job):
            with record.task(kernel, queued) as task:
                task.hit = True
        else:
            missing.setdefault(ahead.identity(job), (position, kernel, job))
    if len(missing) < 2 or worker_count() < 2:
        return {}
    with ProcessGroup() as group:

        def work(kernel: Kernel, job: ahead.Job, queued: float) -> BuildError | None:
            try:
                with record.task(kernel, queued):
                    ahead.note(job, workers.compile_triton(job, group))
            except workers.WorkerLost as error:
                log.warning("%s; it is compiled without a worker", error)
            except BuildError as error:
                return error
            return None

        pool = workers.pool()
        order = sorted(missing.values(), key=lambda entry: len(entry[1].lines), reverse=True)
        found = workers.gather({at: pool.submit(work, kernel, job, record.now()) for at, kernel, job in order})
    return {position: error for position, error in found.items() if error is not None}
