"""Compiling kernels side by side and loading them (Sections 11.1 and 11.2).

``build`` takes a set of kernels and gives back functions. Each kernel's key covers its source, the headers, the
compiler and its flags; what the cache has is loaded, the rest is submitted to the workers (:mod:`.workers`) all at
once, and then waited for. A file lock with a second look makes several processes that want the same kernel start the
compiler once. What every worker did when is in the :class:`~staxlab.runtime.build_report.BuildReport` of the result.

A build that fails or is interrupted takes its compilers with it (:mod:`.processes`), and nothing else: other builds of
this process, and those who wait for the same kernel elsewhere, go on.

What is compiled has no names of its own: the function, its arguments and the comments are the same for all kernels that
do the same (:mod:`staxlab.codegen.anonymous`), so the layers of a model, which are alike, are compiled once.

A library is never mapped from the cache file. Its verified bytes are copied to a private file that is loaded and
unlinked, so whoever truncates or deletes the cache cannot pull code from under a running process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..codegen.anonymous import anonymous
from ..codegen.kernel import RESIDENT, Kernel, KernelSet
from ..errors import BuildError, SubscriptError
from ..logs import say
from ..options import DeviceSpec, Options, host_device_spec
from ..provenance import Line
from . import cache, sanitizers, toolchain
from .build_report import BuildReport, BuildTask, Recorder, worker_count

if TYPE_CHECKING:
    from .processes import ProcessGroup

log = logging.getLogger("staxlab.build")

HEADER_DIRECTORY = Path(__file__).parent.parent / "codegen" / "cpp"
HEADERS = ("staxlab_simd.h", "staxlab_math.h", "staxlab_openmp.h")

#: Below this much estimated work a kernel is called without releasing the interpreter's lock.
KEEP_LOCK_BELOW = 20_000


@dataclass(frozen=True)
class Loaded:
    """A compiled kernel in this process. ``hit``: it came from the disk cache (or this process had it already)."""

    launch: Callable[..., None]
    key: str
    hit: bool
    seconds: float


class Launchers(dict):
    """Callables by kernel name, with ``cache_hits`` (kernels found compiled), ``timings`` (seconds per kernel) and the
    ``report`` of the build."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_hits: dict[str, bool] = {}
        self.timings: dict[str, float] = {}
        self.report = BuildReport()


_loaded: dict[str, ctypes.CDLL] = {}
_loading = threading.Lock()


def build(kernels: KernelSet, options: Options, device: DeviceSpec) -> Launchers:
    """Compile and load every kernel that is not an extern call. Raises BuildError without a compiler, or with the
    compiler's own words if it refuses a kernel."""
    launchers = Launchers()
    record = Recorder(worker_count())
    wanted = [k for k in kernels if k.language == "cpp" and not k.launch.get("skip")]
    others = [k for k in kernels if k.language == "triton"]
    results = _sharing_sizes(wanted, record) if options.dynamic else {}
    rest = [kernel for kernel in wanted if kernel.name not in results]
    results |= zip((k.name for k in rest), _compile_all(rest, record), strict=True)
    for kernel in kernels:
        loaded = results.get(kernel.name)
        if loaded is not None:
            launchers[kernel.name] = loaded.launch
            launchers.cache_hits[kernel.name] = loaded.hit
            launchers.timings[kernel.name] = loaded.seconds
    if others and torch.cuda.is_available():
        from ..codegen.triton.launcher import alike
        from . import triton_builds

        # Kernels that differ in names alone share a launcher, whose text is that of the first.
        distinct = {alike(kernel): kernel for kernel in reversed(others)}
        for error in triton_builds.compile_kernels([*distinct.values()], record=record).values():
            raise error
    for kernel in others:
        started = record.now()
        launchers[kernel.name] = _triton_launcher(kernel, options)
        launchers.timings[kernel.name] = record.now() - started
    launchers.report = record.report()
    for task in launchers.report.tasks:
        say("build", lambda task=task: f"{task.kernel} ({task.language}): {_what_became(task)}")
    return launchers


def _sharing_sizes(kernels: list[Kernel], record: Recorder) -> dict[str, Loaded]:
    """Those kernels whose text was met before with other numbers, by name (:mod:`.size_parameters`)."""
    from . import size_parameters

    tools = toolchain.find() if kernels else None

    def compile_text(compiled: Kernel) -> tuple[bytes, str, bool]:
        key = key_of(compiled, tools)
        library, hit = _compiled_once(compiled, key, tools, kernel.name)
        return library, key, hit

    found: dict[str, Loaded] = {}
    for kernel in kernels:
        compiled, started = anonymous(kernel), time.perf_counter()
        with contextlib.suppress(size_parameters.NotShared), record.task(kernel, record.now()) as task:
            made = size_parameters.shared(compiled, compile_text, functools.partial(_opened, compiled))
            library, key, task.hit = made
            launch = _launcher(kernel, library, compiled.name)
            found[kernel.name] = Loaded(launch, key, task.hit, time.perf_counter() - started)
    return found


def _triton_launcher(kernel: Kernel, options: Options) -> Callable[..., None]:
    """What launches a Triton kernel: one that searches for its configuration first, if the options ask for that."""
    from ..codegen.triton import launcher

    if options.search_method and kernel.tuning is not None:
        from .autotune_launch import TunedLauncher

        return launcher.shared(kernel, lambda one: TunedLauncher(one, options.search_method), options.search_method)
    return launcher.load(kernel)


Part = tuple[Kernel, Kernel, str]  # a kernel, what is compiled for it, and the key of that


def _what_became(task: BuildTask) -> str:
    if task.hit:
        return "found compiled"
    return f"compiled in {task.seconds:.3g} s by worker {task.worker}"


def _compile_all(
    kernels: list[Kernel], record: Recorder | None = None, tools: toolchain.Toolchain | None = None
) -> list[Loaded]:
    """All of them loaded, in their order. What is found compiled is loaded at once, by the calling thread; the rest is
    submitted, longest source first (a schedule that begins with the long tasks ends soonest: Graham, 1969)."""
    if not kernels:
        return []
    record = record or Recorder(worker_count())
    tools = tools or toolchain.find()
    parts = [(kernel, compiled := anonymous(kernel), key_of(compiled, tools)) for kernel in kernels]
    done: dict[str, Loaded] = {}
    missing: dict[str, Part] = {}
    for part in parts:
        name, key = part[0].name, part[2]
        if key in missing:
            continue  # the same code as another of this region: loaded once that is
        library = None if key in _loaded else cache.read_library(key)
        if key in _loaded or library is not None:
            with record.task(part[0], record.now()) as task:
                done[name] = _load(*part, tools, library=library)
                task.hit = done[name].hit
        else:
            missing[key] = part
    if missing:
        order = sorted(missing.values(), key=lambda part: len(part[1].source), reverse=True)
        done |= _submitted(order, tools, record)
    for part in parts:
        if part[0].name not in done:
            with record.task(part[0], record.now()) as task:
                done[part[0].name] = _load(*part, tools)
                task.hit = done[part[0].name].hit
    return [done[kernel.name] for kernel in kernels]


def _submitted(parts: list[Part], tools: toolchain.Toolchain, record: Recorder) -> dict[str, Loaded]:
    """Kernels that have to be compiled, by name: all submitted, then waited for."""
    from . import workers  # a start that finds everything in the cache does without
    from .processes import ProcessGroup

    with ProcessGroup() as group:

        def work(part: Part, queued: float) -> Loaded:
            with record.task(part[0], queued) as task:
                loaded = _load(*part, tools, group)
                task.hit = loaded.hit
            return loaded

        pool = workers.pool()
        futures = {part[0].name: pool.submit(work, part, record.now()) for part in parts}
        return workers.gather(futures)


_INCLUDED = re.compile(r'^#include "(staxlab_\w+\.h)"', re.MULTILINE)


@lru_cache(maxsize=8)
def _headers_digest(own: tuple[str, ...] = ()) -> str:
    """What every kernel includes, and headers that only kernels of one kind do."""
    digest = hashlib.sha256()
    for name in (*HEADERS, *own):
        content = (HEADER_DIRECTORY / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _own_headers(source: str) -> tuple[str, ...]:
    return tuple(name for name in _INCLUDED.findall(source) if name not in HEADERS)


def command_flags(kernel: Kernel, tools: toolchain.Toolchain) -> tuple[str, ...]:
    """The flags of a kernel's compilation, paths left out."""
    parallel = toolchain.openmp_flags(tools)
    flags = [f for f in kernel.flags if f != "-fopenmp"]
    parallel = parallel if "-fopenmp" in kernel.flags else ()
    return (*toolchain.COMMON_FLAGS, *flags, *parallel, *sanitizers.flags())


def key_of(kernel: Kernel, tools: toolchain.Toolchain) -> str:
    """SHA-256 over everything that determines the artifact (the a of Proposition 11.1), as 64 hexadecimal digits: the
    source, the contents of this package's headers, the flags (instruction set included), the compiler with its version,
    machine, assembler and linker (:attr:`.Toolchain.identity`), the contents of the OpenMP runtime that a parallel
    kernel is linked with, the version of PyTorch whose symbols a kernel is bound to, and the package's format.

    File paths are not part of it (their contents are), so equal machines can share a cache: what the chapter calls the
    thorough remedy. Generated kernels include no header of the system. A hand-written source that does is known by its
    text after preprocessing, which costs a run of the compiler.
    """
    flags = command_flags(kernel, tools)
    runtime = _runtime_digest(toolchain.openmp_runtime() or "") if "-fopenmp" in flags else ""
    bound_to = str(torch.__version__) if kernel.launch.get("imports") else ""
    parts = (
        kernel.source, _headers_digest(_own_headers(kernel.source)), _included(kernel.source, flags, tools),
        " ".join(flags), tools.identity, runtime, bound_to, FORMAT,
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


#: How a kernel is called and linked. Whatever else the package decides stands in the source.
FORMAT = "3"

_FOREIGN = re.compile(r"^\s*#\s*include\b(?!\s*\"staxlab_)", re.MULTILINE)


def _included(source: str, flags: tuple[str, ...], tools: toolchain.Toolchain) -> str:
    """A digest of the source after preprocessing (without file names) if it includes more than this package's headers,
    else "". BuildError if the preprocessor refuses it."""
    if not _FOREIGN.search(source):
        return ""
    command = [*tools.command, *flags, f"-I{HEADER_DIRECTORY}", "-E", "-P", "-x", "c++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    if result.returncode:
        words = result.stderr.strip()[:4000]
        raise BuildError(f"the compiler cannot preprocess a source: {words}\n{_numbered(source)}")
    return hashlib.sha256(result.stdout.encode()).hexdigest()


@lru_cache(maxsize=4)
def _runtime_digest(path: str) -> str:
    """An OpenMP runtime by its file name, which becomes part of what is linked with it, and its content."""
    try:
        return f"{os.path.basename(path)} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError:
        return os.path.basename(path)


def load_kernel(kernel: Kernel, tools: toolchain.Toolchain) -> Loaded:
    """A callable for a kernel: from this process, from the cache, or compiled now."""
    return _compile_all([kernel], tools=tools)[0]


def _load(
    kernel: Kernel,
    compiled: Kernel,
    key: str,
    tools: toolchain.Toolchain,
    group: ProcessGroup | None = None,
    library: bytes | None = None,
) -> Loaded:
    """A kernel, given what is compiled for it and its key; and its ``library`` where the cache had it."""
    started = time.perf_counter()
    hit = True
    if key not in _loaded:
        if library is None:
            library, hit = _compiled_once(compiled, key, tools, kernel.name, group)
        with _loading:
            if key not in _loaded:
                try:
                    _loaded[key] = _opened(compiled, library)
                except BuildError:
                    if not hit:
                        raise
                    log.warning("the cached library of %s cannot be loaded here: built again", kernel.name)
                    library, hit = compile_kernel(compiled, tools, kernel.name, group), False
                    cache.write_verified(key, library, title=kernel.name)
                    _loaded[key] = _opened(compiled, library)
    return Loaded(_launcher(kernel, _loaded[key], compiled.name), key, hit, time.perf_counter() - started)


def _opened(kernel: Kernel, library: bytes) -> ctypes.CDLL:
    """A kernel's library, ready to be called."""
    opened = _open(library, kernel.name)
    _bind_imports(kernel, opened)
    return opened


def _compiled_once(
    kernel: Kernel, key: str, tools: toolchain.Toolchain, title: str = "", group: ProcessGroup | None = None
) -> tuple[bytes, bool]:
    """The shared library of a kernel that the cache did not have, and whether it has it by now: of several processes
    one compiles, the others wait and look again. ``title`` is what an error calls the kernel, ``group`` has the
    compilers of its build."""
    with cache.locked(key):
        library = cache.read_library(key)
        if library is not None:
            return library, True
        library = compile_kernel(kernel, tools, title, group)
        cache.write_verified(key, library, title=title or kernel.name)
    return library, False


def build_library(source: str, name: str = "library") -> ctypes.CDLL:
    """Compile hand-written C++ (or take it from the cache) for this machine's vectors and threads, and load it.

    Raises BuildError without a compiler or when it refuses the source.
    """
    from ..codegen.cpp.unit import INSTRUCTION_SETS

    device = host_device_spec()
    flags = (*INSTRUCTION_SETS[device.instruction_set], "-fopenmp")
    lines = tuple(Line(text) for text in source.splitlines())
    kernel = Kernel(name, "cpp", lines, (), (), device, flags=flags)
    tools = toolchain.find()
    key = key_of(kernel, tools)
    library = cache.read_library(key) or _compiled_once(kernel, key, tools)[0]
    return _open(library, name)


def compile_kernel(
    kernel: Kernel, tools: toolchain.Toolchain, title: str = "", group: ProcessGroup | None = None
) -> bytes:
    """Run the compiler, among those of ``group`` or alone; the bytes of a shared library. BuildError with the
    compiler's words."""
    from .processes import Abandoned, ProcessGroup

    if group is None:
        with ProcessGroup() as group:
            return compile_kernel(kernel, tools, title, group)
    flags = command_flags(kernel, tools)
    try:
        with tempfile.TemporaryDirectory(dir=group.directory(), ignore_cleanup_errors=True) as work:
            source, target = Path(work) / f"{kernel.name}.cpp", Path(work) / f"{kernel.name}.so"
            source.write_text(kernel.source, encoding="utf-8")
            links = toolchain.link_flags("-fopenmp" in flags)
            headers = f"-I{HEADER_DIRECTORY}"
            command = [*tools.command, *flags, headers, "-shared", str(source), "-o", str(target), *links]
            status, output, complaints = group.run(command, sanitizers.compiler_environment())
            library = b"" if status else target.read_bytes()
    except OSError as error:
        if group.killed:
            raise Abandoned from error
        raise BuildError(f"kernel {title or kernel.name} could not be compiled: {error}", remedy=_ROOM) from error
    if status:
        words = complaints.strip() or output.strip()
        full = any(sign in words for sign in ("No space left on device", "Disk quota exceeded"))
        raise BuildError(
            f"the compiler refused kernel {title or kernel.name} (status {status}):\n{words[:4000]}\n"
            f"command: {' '.join(command)}\n{_numbered(kernel.source)}",
            remedy=_ROOM if full else "this is a defect of the code generator; backend='aot_eager' avoids it",
        )
    return library


_ROOM = f"free some space where temporary files go ($TMPDIR, now {tempfile.gettempdir()})"


def _numbered(source: str) -> str:
    return "\n".join(f"{number:4d}  {line}" for number, line in enumerate(source.splitlines(), 1))


def _open(library: bytes, name: str) -> ctypes.CDLL:
    """Load a library from its bytes, by way of a private file that is gone as soon as it is mapped. (A sanitizer looks
    up line numbers in the file when it has something to report: there it stays until the process ends.)"""
    if missing := sanitizers.missing():
        raise BuildError(
            f"kernel {name} checks its accesses ({sanitizers.VARIABLE}), and this process was started without the "
            f"library of {', '.join(missing)}",
            remedy=f"run `make test-sanitized`, or unset {sanitizers.VARIABLE}",
        )
    handle, path = tempfile.mkstemp(prefix=f"staxlab-{name}-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(library)
        return ctypes.CDLL(path)
    except OSError as error:
        raise BuildError(f"kernel {name} was compiled but cannot be loaded: {error}") from error
    finally:
        if sanitizers.requested():
            atexit.register(os.unlink, path)
        else:
            os.unlink(path)


@lru_cache(maxsize=1)
def _torch_cpu() -> ctypes.CDLL:
    """The library that holds PyTorch's CPU code, already loaded: opening it again only finds it."""
    root = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if (root / name).exists():
            return ctypes.CDLL(str(root / name))
    raise BuildError(f"libtorch_cpu is not in {root}", remedy="set instruction_set='scalar'")


def _bind_imports(kernel: Kernel, library: ctypes.CDLL) -> None:
    """Point the kernel's function pointers at SLEEF's functions in libtorch_cpu."""
    for symbol in kernel.launch.get("imports", ()):
        try:
            address = ctypes.cast(getattr(_torch_cpu(), symbol), ctypes.c_void_p)
        except AttributeError:
            raise BuildError(
                f"this PyTorch does not export {symbol}, which kernel {kernel.name} calls",
                remedy="use options={'instruction_set': 'scalar'}",
            ) from None
        pointer = ctypes.c_void_p.in_dll(library, symbol.replace("Sleef_", "sleef_"))
        pointer.value = address.value


def _after_fork() -> None:
    """A forked child has none of the parent's OpenMP threads and would wait for them forever (PyTorch's own operators
    do): it computes with the one thread it has."""
    if _loaded:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _launcher(kernel: Kernel, library: ctypes.CDLL, name: str) -> Callable[..., None]:
    """The function ``name`` of a library, which the wrapper calls with data pointers. Long kernels run without the
    interpreter's lock."""
    release = kernel.launch.get("work", 0) >= KEEP_LOCK_BELOW
    entry: Any = library[name] if release else _holding(library)[name]
    entry.argtypes = [ctypes.c_void_p] * len(kernel.arguments)
    checks = kernel.launch.get("checks", ())
    entry.restype = ctypes.c_longlong if checks else None
    entry.resident = library[name + RESIDENT] if "resident" in kernel.launch else None
    return reporting(kernel, entry) if checks else entry


def reporting(kernel: Kernel, entry: Callable[..., int]) -> Callable[..., None]:
    """``entry`` for a kernel that checks subscripts: raises SubscriptError if what it returns says so. A program calls
    the ``entry`` itself and gives what it returns to ``report``, which raises the same error."""
    report = functools.partial(_raise_index_error, kernel, kernel.launch["checks"])

    def launch(*pointers: int) -> None:
        failure = entry(*pointers)
        if failure:
            report(failure)

    launch.__name__ = kernel.name
    launch.entry, launch.report = entry, report  # type: ignore[attr-defined]
    return launch


def _holding(library: ctypes.CDLL) -> ctypes.PyDLL:
    """The same library, called while holding the interpreter's lock."""
    held = ctypes.PyDLL(library._name, handle=library._handle)
    held._keep = library  # type: ignore[attr-defined]
    return held


def _raise_index_error(kernel: Kernel, checks: tuple, failure: int) -> None:
    number, index = failure >> 48, failure & ((1 << 48) - 1)
    if index >= 1 << 47:
        index -= 1 << 48
    _, size = checks[number - 1]
    raise SubscriptError(f"index {index} is out of bounds for a dimension of size {size} (in {kernel.name})")


def clear() -> None:
    """Forget every kernel loaded in this process, so that the next build looks at the disk."""
    _loaded.clear()
    _headers_digest.cache_clear()
