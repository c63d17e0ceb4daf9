"""What the roofline times: bandwidth kernels of our own, PyTorch's matrix product, and PyTorch alone where need be.

The C++ kernels (``bandwidth.cpp``) are built by the same toolchain and cache as the compiler's own, so the ceilings
they measure are ceilings for the code this package generates.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..codegen.kernel import Kernel, KernelArgument, KernelSet
from ..errors import BuildError, OptionError
from ..provenance import Line
from .roofline import Probe
from .timing import Progress, sample

SOURCE = Path(__file__).with_name("bandwidth.cpp")
MATMUL_ORDER = 2048

#: The kinds of number whose products are timed, float32 first; a processor's are made smaller where they take longer
#: than this many seconds.
CPU_NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LONGEST_PRODUCT = 0.05

#: Floats the kernels handle at a time, whatever the vector width, and their numbers in ``bandwidth.cpp``.
BLOCK = 128
NATIVE_PROBES = ("read", "copy", "streaming copy", "write", "streaming write")


def cpu_probes(
    device: str, buffer_bytes: int, native: bool, *, every_number: bool = False
) -> tuple[list[Probe], list[str]]:
    """Probes on fresh buffers of ``buffer_bytes`` each, and remarks on what could not be measured. Products are those
    of float32, or of every kind of number."""
    if device != "cpu":
        raise OptionError(f"unknown device {device!r} for a roofline", remedy="choose 'cpu' or 'cuda'")
    remarks: list[str] = []
    entry = None
    if native:
        try:
            entry = load_kernels()
        except BuildError as error:
            remarks.append(f"no C++ compiler, so bandwidths are those of PyTorch's operators ({error.what})")
    probes = _torch_bandwidth(buffer_bytes, "cpu") if entry is None else _native_bandwidth(entry, buffer_bytes)
    if entry is not None and not has_streaming_stores(probes):
        remarks.append("this compiler offers no streaming stores for this processor: those rows are ordinary stores")
    for dtype in CPU_NUMBERS if every_number else CPU_NUMBERS[:1]:
        order = MATMUL_ORDER if dtype == torch.float32 else _affordable_order(dtype)
        if order is None:
            remarks.append(f"PyTorch has no product of {_name(dtype)} on this processor")
            continue
        probes.append(_product(dtype, order, "cpu"))
    return probes, remarks


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _product(dtype: torch.dtype, order: int, device: str) -> Probe:
    """A square product of PyTorch's, with a result that is there already."""
    a, b = (torch.randn(order, order, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Probe(f"matmul {_name(dtype)}", "throughput", 2.0 * order**3, lambda: torch.mm(a, b, out=out),
                 f"order {order}")  # fmt: skip


def _affordable_order(dtype: torch.dtype) -> int | None:
    """The largest order of a product that should take at most :data:`LONGEST_PRODUCT` seconds here, judged by a small
    one: a processor without instructions for a kind of number is slow at it. None where there is no such product."""
    small = min(MATMUL_ORDER, 256)
    try:
        probe = _product(dtype, small, "cpu")
        seconds = sample(probe.run, readings=3, warmup=1, calls=1).minimum
    except (RuntimeError, NotImplementedError):
        return None
    order = small
    while order < MATMUL_ORDER and 8 * seconds <= LONGEST_PRODUCT:
        order, seconds = 2 * order, 8 * seconds
    return order


def _torch_bandwidth(buffer_bytes: int, device: str) -> list[Probe]:
    source = torch.ones(buffer_bytes // 4, device=device)
    target = torch.zeros(buffer_bytes // 4, device=device)
    nbytes = 4 * source.numel()
    return [
        Probe("read", "bandwidth", nbytes, source.sum, "torch.sum"),
        Probe("copy", "bandwidth", 2 * nbytes, lambda: target.copy_(source), "copy_, one read and one write counted"),
        Probe("write", "bandwidth", nbytes, lambda: target.fill_(1.0), "fill_"),
    ]


def _native_bandwidth(entry: Callable[[int], None], buffer_bytes: int) -> list[Probe]:
    """Probes that call ``bandwidth.cpp`` for one pass over buffers of their own, with PyTorch's number of threads."""
    count = max(buffer_bytes // 4 // BLOCK, 1) * BLOCK
    source, target = torch.ones(count), torch.zeros(count)
    threads = torch.get_num_threads()
    nbytes = 4 * count

    def probe(name: str, amount: float, note: str) -> Probe:
        def run() -> tuple[int, int]:
            return call(entry, name, target, source, count, threads)[:2]

        return Probe(name, "bandwidth", amount, run, note, (source, target))

    return [
        probe("read", nbytes, "sum of all"),
        probe("copy", 2 * nbytes, "ordinary stores; each line is fetched before it is overwritten"),
        probe("streaming copy", 2 * nbytes, "streaming stores: past the caches, nothing is fetched"),
        probe("write", nbytes, "ordinary stores; each line is fetched before it is overwritten"),
        probe("streaming write", nbytes, "streaming stores: past the caches, nothing is fetched"),
    ]


def call(
    entry: Callable[[int], None],
    name: str,
    target: torch.Tensor,
    source: torch.Tensor,
    count: int,
    threads: int,
    passes: int = 1,
    far: bool = True,
) -> tuple[int, int, float]:
    """One call of ``bandwidth.cpp`` over the first ``count`` elements: the sum it read, whether stores can stream, and
    the seconds of one pass of ``passes``. ``far`` asks for lines of memory ahead of time, which costs in a cache."""
    number = NATIVE_PROBES.index(name)
    request = (ctypes.c_int64 * 7)(number, target.data_ptr(), source.data_ptr(), count, threads, passes, far)
    entry(ctypes.addressof(request))
    return request[0], request[1], request[2] * 1e-9 / passes


def load_kernels() -> Callable[[int], None]:
    """Build ``bandwidth.cpp`` (or take it from the cache) with this machine's own flags. BuildError without a
    compiler."""
    from ..codegen.cpp.unit import INSTRUCTION_SETS
    from ..options import Options, host_device_spec
    from ..runtime.build import build

    device = host_device_spec()
    kernel = Kernel(
        name="bandwidth",
        language="cpp",
        lines=tuple(Line(text) for text in SOURCE.read_text(encoding="utf-8").splitlines()),
        arguments=(KernelArgument("request", "request", "inout", torch.int64),),
        nodes=(),
        device=device,
        flags=(*INSTRUCTION_SETS[device.instruction_set], "-fopenmp"),
        launch={"work": 1 << 30},  # long enough to let other Python threads run meanwhile
    )
    return build(KernelSet((kernel,)), Options(), device)["bandwidth"]


def has_streaming_stores(probes: Sequence[Probe]) -> bool:
    """What the kernels say of themselves after any of them ran."""
    return any(p.name == "streaming write" and p.run()[1] for p in probes)


# --- CUDA -------------------------------------------------------------------------------------------------------------


def cuda_probes(
    device: str, buffer_bytes: int, native: bool, *, every_number: bool = False
) -> tuple[list[Probe], list[str]]:
    """Copy and read bandwidth and matrix products on a GPU. OptionError if none is visible."""
    if not torch.cuda.is_available():
        raise OptionError("no CUDA device is visible", remedy="measure(device='cpu') needs none")
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    size = min(buffer_bytes, free // 8)
    probes = _torch_bandwidth(size, device)
    orders = {torch.float32: 4096, torch.bfloat16: 8192}
    if every_number:
        orders |= {torch.float16: 8192, torch.float64: 4096}
    for dtype, order in orders.items():
        probe = _product(dtype, order, device)
        probes.append(replace(probe, run=_with_precision("highest", probe.run)) if dtype == torch.float32 else probe)
    if every_number:
        tf32 = _product(torch.float32, 8192, device)
        note = f"{tf32.note}, float32 rounded to 10 bits for the tensor cores"
        probes.append(replace(tf32, name="matmul tf32", run=_with_precision("high", tf32.run), note=note))
    return probes, []


def _with_precision(precision: str, run: Callable[[], None]) -> Callable[[], None]:
    """``run`` with another precision of float32 products, which is put back afterwards."""

    def there_and_back() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            run()
        finally:
            torch.set_float32_matmul_precision(before)

    return there_and_back


def cuda_round(probes: Sequence[Probe], readings: int, progress: Progress | None) -> tuple[dict[str, float], bool]:
    """Best seconds per probe between CUDA events, which the device itself time-stamps: no launch overhead inside."""
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
