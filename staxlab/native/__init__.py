"""The part of a call that is too short for Python (Sections 2.4 and 8.5): an extension module in C, with a fallback.

``pool.c`` keeps memory between calls and ``tensors.c`` makes tensors of it; ``table.c`` reads what a compiled region
does, ``program.c`` runs it, one entry per call, and ``launch.c`` calls a kernel; ``line.c`` notes what a compiled
version expects of a call, ``ambient.c`` reads the modes around one, and ``entry.c`` compares a call with what versions
expect. The extension is compiled when the package is installed; where that was not possible (no compiler, no headers)
``available`` is False, ``reason`` says why, and the same work is done in Python, a few microseconds slower.
``STAXLAB_NATIVE=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

from ..errors import OptionError, OutOfMemoryError

#: DLPack's type codes: signed and unsigned integers, floating point, bfloat, complex, bool.
DLPACK_TYPES: dict[torch.dtype, tuple[int, int]] = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.bfloat16: (4, 16), torch.bool: (6, 8),
}  # fmt: skip

#: Which interface of the extension this module speaks (`native.h` has the same number).
INTERFACE = 4

#: How many arguments a kernel may take (`launch.c` and Python's own ctypes have the same number).
MOST_ARGUMENTS = 1024

# How `ambient.c` calls an exported function that answers what a Python function would.
_ASK, _FLAG, _DEPTH, _SCALAR, _FLAG_OF_DEVICES, _FLAG_OF_KEY, _FLAG_OF_OBJECT, _POINTER = range(8)

#: The ambient state, in the order `ambient.c` numbers it: a function that reads it, what it must answer (the first four
#: are compared with the key instead), and which exported C++ function answers the same without going through Python.
_READERS: tuple[tuple[Callable[[], Any], Any, int, str], ...] = (
    (torch.is_grad_enabled, None, _FLAG, "_ZN3c108GradMode10is_enabledEv"),
    (torch.is_inference_mode_enabled, None, _FLAG, "_ZN3c1013InferenceMode10is_enabledEv"),
    (torch.get_default_dtype, None, _SCALAR, "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    (torch._C._get_deterministic_algorithms, None, _FLAG_OF_OBJECT, "_ZNK2at7Context23deterministicAlgorithmsEv"),
    (
        torch._C._is_any_autocast_enabled,
        False,
        _FLAG_OF_DEVICES,
        "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
    ),
    (torch._C._len_torch_function_stack, 0, _DEPTH, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
    (torch._C._len_torch_dispatch_stack, 0, _DEPTH, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"),
    (
        torch._C._functorch.peek_interpreter_stack,
        None,
        _FLAG_OF_KEY,
        "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    ),
    (torch._C._is_tracing, False, _POINTER, "_ZN5torch3jit6tracer15getTracingStateEv"),
)


def _exported(symbol: str) -> Any:
    """A function of PyTorch's libraries by its linker name, None if they do not export it."""
    for library in ("libc10", "libtorch_cpu"):
        for suffix in (".so", ".dylib"):
            path = os.path.join(os.path.dirname(torch.__file__), "lib", library + suffix)
            try:
                return getattr(ctypes.CDLL(path), symbol)
            except (OSError, AttributeError):
                continue
    return None


def _shortcut(kind: int, symbol: str) -> tuple[int, int, int]:
    """(kind, address, argument) of a shortcut; kind 0 where there is none."""
    function, argument = _exported(symbol), 0
    if function is None:
        return _ASK, 0, 0
    if kind == _FLAG_OF_KEY:
        key = getattr(torch._C.DispatchKey, "FuncTorchDynamicLayerFrontMode", None)
        if key is None:
            return _ASK, 0, 0
        argument = int(key)
    elif kind == _FLAG_OF_OBJECT:
        context = _exported("_ZN2at13globalContextEv")
        if context is None:
            return _ASK, 0, 0
        context.restype = ctypes.c_void_p
        argument = context()
    return kind, ctypes.cast(function, ctypes.c_void_p).value or 0, argument


def _connect() -> tuple[Any, str]:
    if os.environ.get("STAXLAB_NATIVE", "1") == "0":
        return None, "STAXLAB_NATIVE=0 turns the extension off"
    try:
        from . import _native
    except ImportError as error:
        return None, f"the extension was not built when the package was installed ({error})"
    if getattr(_native, "INTERFACE", 0) != INTERFACE:
        return None, "the extension was built from an older version of its sources; install the package again"
    from torch.autograd import forward_ad

    table = tuple((read, off, *_shortcut(kind, symbol)) for read, off, kind, symbol in _READERS)
    try:
        _native.connect(torch.Tensor, torch.as_strided, _exhausted, table, vars(forward_ad))
    except (RuntimeError, ValueError) as error:
        return None, str(error)
    limit = os.environ.get(LIMIT_VARIABLE)
    if limit is not None:
        _native.pool_limit(bytes_of(limit, LIMIT_VARIABLE))
    return _native, ""


#: Sets how many bytes may rest in the pool: ``STAXLAB_POOL_BYTES=512M``.
LIMIT_VARIABLE = "STAXLAB_POOL_BYTES"


def bytes_of(text: str | int, name: str = "limit") -> int:
    """A number of bytes, also as text with a unit of 1024: "64K", "512M", "2G". OptionError for anything else."""
    try:
        digits = str(text).strip().upper().removesuffix("B").removesuffix("I")
        exponent = "KMGT".find(digits[-1:]) + 1 if digits[-1:] else 0
        number = int(digits[:-1] if exponent else digits) << (10 * exponent)
        if isinstance(text, bool) or not 0 <= number < 1 << 62:
            raise ValueError
        return number
    except ValueError:
        raise OptionError(
            f"{name} is {text!r}, which is no number of bytes", remedy='write 1073741824, "1G", or 0 to keep nothing'
        ) from None


def _exhausted(size: int) -> OutOfMemoryError:
    lent = pool_statistics().get("lent_bytes", 0)
    return OutOfMemoryError(
        f"no memory for a result of {size:,} bytes: the system refused it, also after everything that rested in "
        f"staxlab's pool was returned ({lent:,} bytes of the pool are in use)",
        remedy="free results that are no longer needed, or compute the result in pieces",
    )


_extension, reason = _connect()
available = _extension is not None

Entry: Any = getattr(_extension, "Entry", None)
Line: Any = getattr(_extension, "Line", None)
Program: Any = getattr(_extension, "Program", None)


#: Tensors below this size come from PyTorch's allocator as fast; larger ones are fresh pages there, each a page fault.
POOLED_FROM = 1 << 18


def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor: over memory of the pool where that pays and the layout allows it."""
    extent = 1 + sum([(n - 1) * s for n, s in zip(shape, stride)])  # noqa: B905
    size = extent * dtype.itemsize
    if not available or size < POOLED_FROM or dtype not in DLPACK_TYPES or 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return _extension.pool_empty(size, DLPACK_TYPES[dtype], shape, stride)


def pool_statistics() -> dict[str, int]:
    """What the pool has done, in blocks and bytes (:class:`staxlab.native.memory.MemoryStats` says what is what).
    Empty without the extension."""
    return _extension.pool_statistics() if available else {}


def set_limit(limit: int | None) -> None:
    """Set how many bytes may rest in the pool; None: an eighth of the machine's memory, at most one GiB."""
    if available:
        _extension.pool_limit(limit)


def restart_counts() -> None:
    """Start the pool's peaks and sums anew."""
    if available:
        _extension.pool_restart_counts()


def clear() -> None:
    """Return all memory that rests in the pool to the operating system."""
    if available:
        _extension.pool_clear()


def counters() -> dict[str, int]:
    """What all programs of this process have done so far: ``entries``, one per call of a region whatever it is made of;
    ``kernels`` launched, ``operators`` of PyTorch called and ``views`` made in them. Empty without the extension."""
    return _extension.counters() if available else {}
