"""Running a compiled kernel on CUDA tensors with little overhead (Section 9.7).

Triton's own call path binds arguments by name, inspects each one and builds a key, at every call. A specialized region
knows all of that beforehand: sizes are constants of the version, and of a pointer only its 16-byte alignment matters to
the compiled code. So the first call for each alignment compiles through Triton, and every later call is a dictionary
lookup and one launch on the current stream of the tensors' device. Kernels on one stream run in the order in which they
were submitted, which is all the synchronization a schedule needs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...errors import BuildError, CodegenError
from ..anonymous import anonymous
from ..kernel import Kernel
from .ahead import compiler_options, launch_job, note
from .source_files import compiler_cache, jit_function, require_triton, source_path


class TritonLauncher:
    """``launcher(*tensors)`` runs a kernel on CUDA tensors given in the order of ``kernel.arguments``.

    The tensors must have the layouts the kernel was generated for (the guards of a compiled region see to that); only
    their data pointers are used. Nothing is launched for an empty grid. Raises BuildError if the compiler refuses the
    kernel; a failed index check surfaces as a CUDA error at the next synchronization.
    """

    def __init__(self, kernel: Kernel):
        if kernel.language != "triton":
            raise CodegenError(f"{kernel.name} is a {kernel.language} kernel; only Triton kernels can be launched here")
        self.kernel = kernel
        self.grid = tuple(kernel.launch["grid"])
        self.function = jit_function(kernel)
        self.rest = (*kernel.launch["sizes"].values(), *kernel.launch["constants"].values())
        self.empty = 0 in self.grid
        # What runs where a pointer is no multiple of 16 and the kernel's own instructions want one (Section 9.8).
        self.unaligned = TritonLauncher(kernel.launch["unaligned"]) if "unaligned" in kernel.launch else None
        self._ready: dict[Any, Callable[..., None]] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self.empty:
            return
        device = tensors[0].get_device()
        pointers = [tensor.data_ptr() for tensor in tensors]
        low = 0
        for pointer in pointers:
            low |= pointer
        # Nearly always all are multiples of 16: then the device alone tells which code to run.
        state = (device, *[pointer % 16 == 0 for pointer in pointers]) if low % 16 else device
        launch = self._ready.get(state)
        if launch is None:
            launch = self._ready[state] = self._prepare(tensors, device)
        if device == torch._C._cuda_getDevice():
            launch(torch._C._cuda_getCurrentRawStream(device), pointers)
        else:
            with torch.cuda.device(device):
                launch(torch._C._cuda_getCurrentRawStream(device), pointers)

    @property
    def compiled(self) -> list[Any]:
        """Triton's compiled kernels of this process, one per alignment seen (registers, spills, shared memory)."""
        return [launch.compiled for launch in self._ready.values()]

    def _prepare(self, tensors: tuple[torch.Tensor, ...], device: int) -> Callable[..., None]:
        """Compile for these alignments and return ``launch(stream, pointers)``."""
        aligned = not any(tensor.data_ptr() % 16 for tensor in tensors)
        if self.unaligned is not None and not aligned:
            return self.unaligned._prepare(tensors, device)
        with torch.cuda.device(device), compiler_cache():
            try:
                compiled = self._compile(tensors)
                try:
                    run = compiled.run  # loads the machine code into this device
                except Exception:
                    # A damaged file in the disk cache: compile again and put a good one in its place.
                    from triton import knobs

                    self.function.device_caches.clear()
                    with knobs.compilation.scope():
                        knobs.compilation.always_compile = True
                        compiled = self._compile(tensors)
                        run = compiled.run
            except Exception as error:  # the compiler raises many kinds
                raise BuildError(
                    f"Triton could not compile {self.kernel.name}: {error}",
                    remedy=f"the source is in {source_path(self.kernel)}",
                ) from error
        if aligned:
            note(launch_job(self.kernel), compiled.hash)  # another process need not compile it
        return _launch_function(compiled, run, self.grid, self.rest)

    def _compile(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        options = compiler_options(self.kernel)
        return self.function.run(*tensors, *self.rest, grid=self.grid, warmup=True, **options)


def _launch_function(compiled: Any, run: Any, grid: tuple, rest: tuple) -> Callable[..., None]:
    x, y, z = grid
    function, metadata = compiled.function, compiled.packed_metadata
    scratch, profile = getattr(run, "global_scratch_size", 1), getattr(run, "profile_scratch_size", 1)
    direct = getattr(run, "launch", None)
    if direct is not None and not profile and require_triton().__version__.startswith("3.6."):
        # What Triton 3.6's launcher object does, without the detour.
        cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl
        size = x * y * z * run.num_ctas * scratch

        def launch(stream: int, pointers: list[int]) -> None:
            memory = _scratch(size, 128, stream) if size else None
            direct(
                x, y, z, stream, function, cooperative, dependent, memory, None, metadata, None, None, None,
                *pointers, *rest,
            )  # fmt: skip
    elif scratch:  # tensor descriptors are written there
        set_allocator = require_triton().set_allocator

        def launch(stream: int, pointers: list[int]) -> None:
            set_allocator(_scratch)  # of this thread: a backward pass runs in another one
            run(x, y, z, stream, function, metadata, None, None, None, *pointers, *rest)
    else:

        def launch(stream: int, pointers: list[int]) -> None:
            run(x, y, z, stream, function, metadata, None, None, None, *pointers, *rest)

    launch.compiled = compiled
    return launch


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory of the current device that a kernel may write for the time that it runs."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def alike(kernel: Kernel) -> tuple[Any, ...]:
    """Equal for kernels that do the same and are launched the same way: the layers of a model differ in names alone."""
    launch = dict(kernel.launch)
    unaligned = launch.pop("unaligned", None)
    arguments = tuple((argument.dtype, argument.role, argument.shared) for argument in kernel.arguments)
    own = (anonymous(kernel).source, arguments, kernel.device, repr(sorted(launch.items())))
    return own if unaligned is None else (*own, alike(unaligned))


_shared: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
_sharing = threading.RLock()  # a launcher that searches is made of the launchers of its candidates


def shared(kernel: Kernel, make: Callable[[Kernel], Any], *how: Any) -> Any:
    """What ``make(kernel)`` makes, once for all kernels that are :func:`alike` while somebody holds it; ``how`` are
    further things that tell results apart. In a profile such kernels bear the name of the first."""
    key = (alike(kernel), *how)
    with _sharing:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = make(kernel)
        return found


def clear() -> None:
    """Forget which launchers there are."""
    with _sharing:
        _shared.clear()


def load(kernel: Kernel) -> TritonLauncher:
    """A launcher for one kernel. MissingDependencyError without Triton."""
    return shared(kernel, TritonLauncher)


def launchers(kernels: Iterable[Kernel]) -> dict[str, TritonLauncher]:
    """Launchers of the Triton kernels among ``kernels``, by name."""
    return {kernel.name: load(kernel) for kernel in kernels if kernel.language == "triton"}
