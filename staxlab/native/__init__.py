"""The part of a call that is too short for Python (Sections 2.4 and 8.5): an extension module in C, with a fallback.

``pool.c`` keeps result memory between calls, ``program.c`` runs the kernels of a region from a table, ``line.c`` notes
what a compiled version expects of a call, ``ambient.c`` reads the modes around one, and ``entry.c``
compares a call with what compiled versions expect. The extension is compiled when the package is installed; where that
was not possible (no compiler, no headers) ``available`` is False, ``reason`` says why, and the same work is done in
Python, a few microseconds slower. ``STAXLAB_NATIVE=0`` turns it off.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch

#: DLPack's type codes: signed and unsigned integers, floating point, bfloat, complex, bool.
DLPACK_TYPES: dict[torch.dtype, tuple[int, int]] = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.bfloat16: (4, 16), torch.bool: (6, 8),
}  # fmt: skip

#: Which interface of the extension this module speaks (`native.h` has the same number).
INTERFACE = 2

#: What fits into the extension's tables (`native.h` and `program.c` have the same numbers).
MOST_DIMENSIONS, MOST_ARGUMENTS, MOST_SLOTS = 12, 16, 256

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
        _native.connect(torch.Tensor, table, vars(forward_ad))
        limit = os.environ.get("STAXLAB_POOL_BYTES")
        if limit is not None:
            _native.pool_limit(int(limit))
    except (RuntimeError, ValueError) as error:
        return None, str(error)
    return _native, ""


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
    if not available or size < POOLED_FROM or dtype not in DLPACK_TYPES or len(shape) > MOST_DIMENSIONS or 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return _extension.pool_empty(size, DLPACK_TYPES[dtype], shape, stride)


def pool_statistics() -> dict[str, int]:
    """What the pool has done: blocks ``taken`` and ``reused``, ``lent_bytes``, ``resting_bytes``, ``resting_blocks``,
    and its ``limit`` in bytes. Empty without the extension."""
    return _extension.pool_statistics() if available else {}


def clear() -> None:
    """Return all memory that rests in the pool to the operating system."""
    if available:
        _extension.pool_clear()
