"""What the roofline times: bandwidth kernels of our own, PyTorch's matrix product, and PyTorch alone where need be.

The C++ kernels (``bandwidth.cpp``) are built by the same toolchain and cache as the compiler's own, so the ceilings
they measure are ceilings for the code this package generates.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError
from .roofline import Probe
from .timing import Progress

SOURCE = Path(__file__).with_name("bandwidth.cpp")
MATMUL_ORDER = 2048


def cpu_probes(device: str, buffer_bytes: int, native: bool) -> tuple[list[Probe], list[str]]:
    """Probes on fresh buffers of ``buffer_bytes`` each, and remarks on what could not be measured."""
    import torch

    if device != "cpu":
        raise OptionError(f"unknown device {device!r} for a roofline", remedy="choose 'cpu' or 'cuda'")
    remarks: list[str] = []
    library = None
    if native:
        try:
            library = load_kernels()
        except BuildError as error:
            remarks.append(f"no C++ compiler, so bandwidths are those of PyTorch's operators ({error.what})")
    a = torch.randn(MATMUL_ORDER, MATMUL_ORDER)
    b = torch.randn(MATMUL_ORDER, MATMUL_ORDER)
    out = torch.empty(MATMUL_ORDER, MATMUL_ORDER)
    matmul = Probe(
        "matmul float32", "throughput", 2.0 * MATMUL_ORDER**3, lambda: torch.mm(a, b, out=out), f"order {MATMUL_ORDER}"
    )
    probes = _torch_bandwidth(buffer_bytes, "cpu") if library is None else _native_bandwidth(library, buffer_bytes)
    if library is not None and not library.has_streaming_stores():
        remarks.append("this compiler offers no streaming stores for this processor: those rows are ordinary stores")
    return [*probes, matmul], remarks


def _torch_bandwidth(buffer_bytes: int, device: str) -> list[Probe]:
    import torch

    source = torch.ones(buffer_bytes // 4, device=device)
    target = torch.zeros(buffer_bytes // 4, device=device)
    nbytes = 4 * source.numel()
    return [
        Probe("read", "bandwidth", nbytes, source.sum, "torch.sum"),
        Probe("copy", "bandwidth", 2 * nbytes, lambda: target.copy_(source), "copy_, one read and one write counted"),
        Probe("write", "bandwidth", nbytes, lambda: target.fill_(1.0), "fill_"),
    ]


def _native_bandwidth(library: Any, buffer_bytes: int) -> list[Probe]:
    import torch

    block = library.block_floats()
    count = max(buffer_bytes // 4 // block, 1) * block
    source, target = torch.ones(count), torch.zeros(count)
    threads = torch.get_num_threads()
    to, start = target.data_ptr(), source.data_ptr()
    nbytes = 4 * count
    buffers = (source, target)

    def probe(name: str, amount: float, run: Callable[[], Any], note: str) -> Probe:
        return Probe(name, "bandwidth", amount, run, note, buffers)

    allocate = "ordinary stores; one read and one write counted, the line fetched before a store is a third"
    return [
        probe("read", nbytes, lambda: library.read_all(start, count, threads), "sum of all"),
        probe("copy", 2 * nbytes, lambda: library.copy_ordinary(to, start, count, threads), allocate),
        probe(
            "streaming copy",
            2 * nbytes,
            lambda: library.copy_streaming(to, start, count, threads),
            "non-temporal stores",
        ),
        probe("write", nbytes, lambda: library.write_ordinary(to, 1.0, count, threads), "ordinary stores"),
        probe(
            "streaming write", nbytes, lambda: library.write_streaming(to, 1.0, count, threads), "non-temporal stores"
        ),
    ]


@lru_cache(maxsize=1)
def load_kernels() -> ctypes.CDLL:
    """Build (or take from the cache) and load ``bandwidth.cpp``. BuildError without a C++ compiler."""
    from ..runtime.build import build_library

    library = build_library(SOURCE.read_text())
    pointer, count, threads = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    signatures = {
        "has_streaming_stores": ([], ctypes.c_int32),
        "block_floats": ([], ctypes.c_int32),
        "read_all": ([pointer, count, threads], ctypes.c_float),
        "copy_ordinary": ([pointer, pointer, count, threads], None),
        "copy_streaming": ([pointer, pointer, count, threads], None),
        "write_ordinary": ([pointer, ctypes.c_float, count, threads], None),
        "write_streaming": ([pointer, ctypes.c_float, count, threads], None),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


# --- CUDA -------------------------------------------------------------------------------------------------------------


def cuda_probes(device: str, buffer_bytes: int, native: bool) -> tuple[list[Probe], list[str]]:
    """Copy and read bandwidth and matrix products on a GPU. OptionError if none is visible."""
    import torch

    if not torch.cuda.is_available():
        raise OptionError("no CUDA device is visible", remedy="measure(device='cpu') needs none")
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    size = min(buffer_bytes, free // 8)
    probes = _torch_bandwidth(size, device)
    for dtype, order in ((torch.float32, 4096), (torch.bfloat16, 8192)):
        a = torch.randn(order, order, device=device, dtype=dtype)
        b = torch.randn(order, order, device=device, dtype=dtype)
        out = torch.empty_like(a)
        name = f"matmul {str(dtype).removeprefix('torch.')}"
        run = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)  # noqa: E731
        probes.append(Probe(name, "throughput", 2.0 * order**3, run, f"order {order}"))
    remarks = []
    if torch.backends.cuda.matmul.allow_tf32:
        remarks.append("TF32 is allowed: matmul float32 is not full float32 arithmetic")
    return probes, remarks


def cuda_round(probes: Sequence[Probe], readings: int, progress: Progress | None) -> tuple[dict[str, float], bool]:
    """Best seconds per probe between CUDA events, which the device itself time-stamps: no launch overhead inside."""
    import torch

    best = dict.fromkeys((p.name for p in probes), math.nan)
    try:
        for probe in probes:
            for _ in range(2):
                probe.run()
        for r in range(readings):
            for probe in probes:
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                probe.run()
                stop.record()
                stop.synchronize()
                seconds = start.elapsed_time(stop) * 1e-3
                best[probe.name] = seconds if math.isnan(best[probe.name]) else min(best[probe.name], seconds)
            if progress is not None:
                progress((r + 1) / readings, f"round {r + 1} of {readings}")
    except KeyboardInterrupt:
        return best, False
    return best, True
