"""The ambient state rho of a call (Definition 2.2): what changes the traced program without being an argument.

Gradient mode decides whether a backward graph hangs on the outputs, autocast which dtype a matrix product has, the
default dtype what ``torch.zeros(3)`` makes. Training flags of modules are ambient too in spirit; they are attributes,
so they come with the free variables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

_new = tuple.__new__  # a named tuple's own constructor is three times as slow
_grad = torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_default_dtype = torch.get_default_dtype
_deterministic = torch._C._get_deterministic_algorithms
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_jit_tracing = torch._C._is_tracing
_matmul_precision = getattr(torch._C, "_get_fp32_precision_getter", None)
_forward_ad = vars(torch.autograd.forward_ad)
_dispatch_keys = torch._C._dispatch_keys
_ordinary: dict[torch.device, frozenset[int]] = {}  # the dispatch keys of ordinary tensors on a device


def product_precision() -> str:
    """ "tf32" where float32 products on a GPU may keep 10 bits of their operands' mantissas
    (``torch.set_float32_matmul_precision``, ``torch.backends.cuda.matmul``), else "ieee"."""
    if _matmul_precision is None:  # PyTorch before 2.9
        return "tf32" if torch._C._get_cublas_allow_tf32() else "ieee"
    return "tf32" if _matmul_precision("cuda", "matmul") == "tf32" else "ieee"


class Ambient(NamedTuple):
    """rho: one field for each thing that is in force around a call. The entry in C does not read the precision of
    products: a version made for the full one stays valid where less is allowed, and others are not entered there."""

    grad_mode: bool
    inference_mode: bool
    autocast: tuple | None
    default_dtype: torch.dtype
    deterministic: bool
    default_device: str | None = None
    product_precision: str = "ieee"


def read_ambient() -> Ambient:
    """The ambient state now (about half a microsecond: it is read at every call)."""
    return _new(
        Ambient,
        (
            _grad(),
            _inference(),
            _autocast() if _any_autocast() else None,
            _default_dtype(),
            _deterministic(),
            _default_device() if _function_modes() else None,
            product_precision(),
        ),
    )


def _autocast() -> tuple:
    return tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )


def _default_device() -> str | None:
    """The device of an enclosing ``torch.device`` context or of ``torch.set_default_device``."""
    from torch.utils._device import DeviceContext

    for mode in reversed(torch.overrides._get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return str(mode.device)
    return None


class _Recording(threading.local):
    tracer: Any = None


#: The tracer recording on this thread (``recording.tracer``), set by the capture stage.
recording = _Recording()


def unrecorded(function: Callable[[], Any]) -> Any:
    """The result of ``function()``, unseen by a tracer that is recording on this thread and by function transforms
    (``torch.func.grad``): what is computed is no part of the program. Both belong to threads, so the call is made on
    another. Exceptions pass."""
    if recording.tracer is None and _transforms() is None:
        return function()
    found: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((function(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, name="staxlab-unrecorded")
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result


def must_run_eagerly() -> bool:
    """Whether something around the call wants to see every operation: a recording tracer (the call is inlined into its
    graph), another function or dispatch mode, a function transform such as ``torch.vmap``, forward-mode differentiation
    (a tensor may carry a tangent that no signature shows), or ``torch.jit.trace``."""
    if recording.tracer is not None or _dispatch_modes() or _transforms() is not None:
        return True
    if _forward_ad["_current_level"] >= 0 or _jit_tracing():
        return True
    if _function_modes():
        from torch.utils._device import DeviceContext

        return any(not isinstance(mode, DeviceContext) for mode in torch.overrides._get_current_function_mode_stack())
    return False


def are_ordinary(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether PyTorch's dispatcher would do nothing with these tensors but record gradients: dense ones in the memory
    of one device, neither conjugated nor negated lazily, of no subclass, and not wrapped by a function transform."""
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        return False
    known = _ordinary.get(device)
    if known is None:
        found = []
        for inference in (False, True):
            with torch.inference_mode(inference):
                found.append(_dispatch_keys(torch.empty(0, device=device)).raw_repr())
        known = _ordinary[device] = frozenset(found)
    return all(tensor.device == device and _dispatch_keys(tensor).raw_repr() in known for tensor in tensors)
