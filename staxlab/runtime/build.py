"""Compiling kernels side by side and loading them (Sections 11.1 and 11.2).

``build`` takes a set of kernels and gives back functions. Each kernel's key covers its source, the headers, the
compiler and its flags; what the cache has is loaded, the rest is compiled by a thread per kernel, because the work is
a subprocess and waiting for one releases the interpreter's lock. A file lock with a second look makes several processes
that want the same kernel start the compiler once.

What is compiled has no names of its own: the function, its arguments and the comments are the same for all kernels that
do the same (:func:`anonymous`), so the layers of a model, which are alike, are compiled once.

A library is never mapped from the cache file. Its verified bytes are copied to a private file that is loaded and
unlinked, so whoever truncates or deletes the cache cannot pull code from under a running process.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..codegen import cpp
from ..codegen.cpp.streaming import RESIDENT
from ..codegen.kernel import Kernel, KernelSet
from ..errors import BuildError, SubscriptError
from ..options import DeviceSpec, Options, host_device_spec
from ..provenance import Line
from . import cache, sanitizers, toolchain

log = logging.getLogger("staxlab.build")

HEADER_DIRECTORY = Path(cpp.__file__).parent
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
    """Callables by kernel name, with ``cache_hits`` (kernels found compiled) and ``timings`` (seconds per kernel)."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_hits: dict[str, bool] = {}
        self.timings: dict[str, float] = {}


_loaded: dict[str, ctypes.CDLL] = {}
_loading = threading.Lock()


def build(kernels: KernelSet, options: Options, device: DeviceSpec) -> Launchers:
    """Compile and load every kernel that is not an extern call. Raises BuildError without a compiler, or with the
    compiler's own words if it refuses a kernel."""
    launchers = Launchers()
    wanted = [k for k in kernels if k.language == "cpp" and not k.launch.get("skip")]
    others = [k for k in kernels if k.language == "triton"]
    results = dict(zip((k.name for k in wanted), _compile_all(wanted), strict=True))
    for kernel in kernels:
        loaded = results.get(kernel.name)
        if loaded is not None:
            launchers[kernel.name] = loaded.launch
            launchers.cache_hits[kernel.name] = loaded.hit
            launchers.timings[kernel.name] = loaded.seconds
    for kernel in others:
        started = time.perf_counter()
        launchers[kernel.name] = _triton_launcher(kernel, options)
        launchers.timings[kernel.name] = time.perf_counter() - started
    return launchers


def _triton_launcher(kernel: Kernel, options: Options) -> Callable[..., None]:
    """What launches a Triton kernel: one that searches for its configuration first, if the options ask for that."""
    if options.search_method and kernel.tuning is not None:
        from .autotune_launch import TunedLauncher

        return TunedLauncher(kernel, options.search_method)
    from ..codegen.triton import launcher

    return launcher.load(kernel)


def _compile_all(kernels: list[Kernel]) -> list[Loaded]:
    if not kernels:
        return []
    tools = toolchain.find()
    parts = [(kernel, compiled := anonymous(kernel), key_of(compiled, tools)) for kernel in kernels]
    alike: dict[str, tuple[Kernel, Kernel, str]] = {}
    for part in parts:
        alike.setdefault(part[2], part)
    if len(alike) == 1:
        loaded = [_load(*part, tools) for part in alike.values()]
    else:
        with ThreadPoolExecutor(max_workers=min(len(alike), os.cpu_count() or 1)) as pool:
            loaded = list(pool.map(lambda part: _load(*part, tools), alike.values()))
    first = {part[0].name: one for part, one in zip(alike.values(), loaded, strict=True)}
    return [first.get(part[0].name) or _load(*part, tools) for part in parts]


ENTRY = "kernel"  # the function's name in what is compiled


def anonymous(kernel: Kernel) -> Kernel:
    """The kernel without the names that its region gave to it, to its arguments and to rows that its members pass on,
    and without comments."""
    renamed = {argument.name: f"argument_{place}" for place, argument in enumerate(kernel.arguments)}
    renamed |= {kernel.name: ENTRY, kernel.name + RESIDENT: ENTRY + RESIDENT}
    bare = [_COMMENT.sub("", line.text) for line in kernel.lines]
    rows = dict.fromkeys(name for text in bare for name in _ROW.findall(text))
    for place, name in enumerate(rows):
        renamed |= {name: f"passed_on_{place}", f"memory_{name}": f"memory_passed_on_{place}"}
    if any(re.search(rf"\b{new}\b", text) for new in renamed.values() for text in bare):
        return kernel  # a name of ours is taken already
    names = re.compile(r"\b(" + "|".join(map(re.escape, renamed)) + r")\b")
    texts = (names.sub(lambda match: renamed[match[1]], text) for text in bare)
    return dataclasses.replace(kernel, name=ENTRY, lines=tuple(Line(text) for text in texts if text.strip()))


_ROW = re.compile(r"\bmemory_(row_\w+)\[")  # where a kernel's own memory for a row is declared
_COMMENT = re.compile(r"\s*//[^\"]*$")
_INCLUDED = re.compile(r'^#include "(staxlab_\w+\.h)"', re.MULTILINE)


@lru_cache(maxsize=8)
def _headers_digest(own: tuple[str, ...] = ()) -> str:
    """What every kernel includes, and headers that only kernels of one kind do."""
    digest = hashlib.sha256()
    for name in (*HEADERS, *own):
        digest.update((HEADER_DIRECTORY / name).read_bytes())
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
    """SHA-256 over everything that determines the artifact: source, headers, flags, compiler, OpenMP runtime's name.

    File paths are not part of it (their contents are), so equal machines can share a cache.
    """
    parallel = "-fopenmp" in command_flags(kernel, tools)
    runtime = os.path.basename(toolchain.openmp_runtime() or "") if parallel else ""
    headers = _headers_digest(_own_headers(kernel.source))
    parts = (kernel.source, headers, " ".join(command_flags(kernel, tools)), tools.identity, runtime, "2")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_kernel(kernel: Kernel, tools: toolchain.Toolchain) -> Loaded:
    """A callable for a kernel: from this process, from the cache, or compiled now."""
    compiled = anonymous(kernel)
    return _load(kernel, compiled, key_of(compiled, tools), tools)


def _load(kernel: Kernel, compiled: Kernel, key: str, tools: toolchain.Toolchain) -> Loaded:
    """:func:`load_kernel`, given what is compiled for the kernel and its key."""
    started = time.perf_counter()
    hit = True
    if key not in _loaded:
        library, hit = _library_of(compiled, key, tools, kernel.name)
        with _loading:
            if key not in _loaded:
                try:
                    _loaded[key] = _opened(compiled, library)
                except BuildError:
                    if not hit:
                        raise
                    log.warning("the cached library of %s cannot be loaded here: built again", kernel.name)
                    library, hit = compile_kernel(compiled, tools, kernel.name), False
                    cache.write_verified(key, library)
                    _loaded[key] = _opened(compiled, library)
    return Loaded(_launcher(kernel, _loaded[key], compiled.name), key, hit, time.perf_counter() - started)


def _opened(kernel: Kernel, library: bytes) -> ctypes.CDLL:
    """A kernel's library, ready to be called."""
    opened = _open(library, kernel.name)
    _bind_imports(kernel, opened)
    return opened


def _library_of(kernel: Kernel, key: str, tools: toolchain.Toolchain, title: str = "") -> tuple[bytes, bool]:
    """A kernel's shared library and whether the cache had it. Of several processes one compiles, the others wait.
    ``title`` is what an error calls the kernel."""
    library = cache.read_verified(key)
    if library is not None:
        return library, True
    with cache.locked(key):
        library = cache.read_verified(key)
        if library is not None:
            return library, True
        library = compile_kernel(kernel, tools, title)
        cache.write_verified(key, library)
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
    library, _ = _library_of(kernel, key_of(kernel, tools), tools)
    return _open(library, name)


def compile_kernel(kernel: Kernel, tools: toolchain.Toolchain, title: str = "") -> bytes:
    """Run the compiler; the bytes of a shared library. BuildError with the compiler's words."""
    flags = command_flags(kernel, tools)
    with tempfile.TemporaryDirectory(prefix="staxlab-build-") as work:
        source, target = Path(work) / f"{kernel.name}.cpp", Path(work) / f"{kernel.name}.so"
        source.write_text(kernel.source, encoding="utf-8")
        links = toolchain.link_flags("-fopenmp" in flags)
        command = [*tools.command, *flags, f"-I{HEADER_DIRECTORY}", "-shared", str(source), "-o", str(target), *links]
        surroundings = sanitizers.compiler_environment()
        result = subprocess.run(command, capture_output=True, text=True, cwd=work, env=surroundings)
        if result.returncode:
            words = result.stderr.strip() or result.stdout.strip()
            raise BuildError(
                f"the compiler refused kernel {title or kernel.name} (status {result.returncode}):\n{words[:4000]}\n"
                f"command: {' '.join(command)}\n{_numbered(kernel.source)}",
                remedy="this is a defect of the code generator; backend='aot_eager' avoids it",
            )
        return target.read_bytes()


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
