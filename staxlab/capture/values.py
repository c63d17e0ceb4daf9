"""Small tools over the values of a trace: finding tensors in arguments, naming placeholders, ambient autocast."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Container
from typing import Any

import torch

from ..errors import CaptureError, StaxError
from ..provenance import SourceLocation
from .classify import DATA_REMEDY
from .graph import Graph, Node, TensorMeta, describe_value, target_name
from .isolation import storage_key

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip


def map_leaves(argument: Any, change: Callable[[Any], Any]) -> Any:
    """Replace every leaf of nested tuples, lists, dicts and slices by ``change(leaf)``."""
    if isinstance(argument, (torch.Tensor, torch.Size)):
        return change(argument)
    if isinstance(argument, tuple):
        parts = [map_leaves(a, change) for a in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if isinstance(argument, list):
        return [map_leaves(a, change) for a in argument]
    if isinstance(argument, dict):
        return {key: map_leaves(value, change) for key, value in argument.items()}
    if isinstance(argument, slice):
        return slice(*(map_leaves(a, change) for a in (argument.start, argument.stop, argument.step)))
    return change(argument)


def map_tensors(argument: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Replace every tensor inside an argument structure by ``change(tensor)``."""
    return map_leaves(argument, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """The tensors inside an argument structure, left to right."""
    found: list[torch.Tensor] = []
    map_tensors(argument, lambda tensor: found.append(tensor) or tensor)
    return found


def contains_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (tuple, list)) and any(map(contains_tensor, value))


def shares_storage(value: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether a result is a view of (or the same tensor as) an argument."""
    keys = {storage_key(tensor) for tensor in tensors if tensor.layout is torch.strided}
    made = [tensor for tensor in tensors_in(value) if tensor.layout is torch.strided]
    return any(storage_key(tensor) in keys for tensor in made)


def with_grad(meta: Any, value: bool) -> Any:
    """Metadata whose floating-point tensors have this ``requires_grad``."""
    if isinstance(meta, TensorMeta):
        return dataclasses.replace(
            meta, requires_grad=value and (meta.dtype.is_floating_point or meta.dtype.is_complex)
        )
    return type(meta)(with_grad(part, value) for part in meta) if type(meta) in (tuple, list) else meta


def check_supported(tensor: torch.Tensor, path: str) -> None:
    """CaptureError for tensors a graph of plain tensors cannot stand for."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise CaptureError(
            f"{path} is a tensor subclass ({type(tensor).__name__}), whose behaviour a graph of plain tensors "
            "cannot keep",
            remedy="pass a plain torch.Tensor",
        )
    if tensor.layout is not torch.strided:
        raise CaptureError(f"{path} has layout {tensor.layout}", remedy="pass a dense tensor (x.to_dense())")
    if tensor.is_nested:
        raise CaptureError(f"{path} is a nested tensor", remedy="pass the parts as a list, or one padded tensor")
    if tensor._is_zerotensor():
        raise CaptureError(f"{path} is a tensor of zeros without memory", remedy="pass x.clone(), which has some")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise CaptureError(
            f"{path} belongs to a function transform (torch.vmap, torch.func.grad) that has ended",
            remedy="return it from the transformed function instead of keeping it",
        )


def check_attributes(tensor: torch.Tensor, path: str, named_by_user: Container[str]) -> None:
    """CaptureError if the function reads an attribute given to an argument tensor: those are no part of any key."""
    read = [name for name in tensor.__dict__ if name in named_by_user]
    if read:
        raise CaptureError(
            f"the function reads the attribute {read[0]!r} of the tensor {path}, which is no part of its signature",
            remedy=f"pass {path}.{read[0]} as an argument of its own",
        )


#: The devices whose memory kernels can read and write.
KERNEL_DEVICES = ("cpu", "cuda")


def memory_obstacle(graph: Graph) -> tuple[str, str, Node] | None:
    """Why kernels cannot reach the memory of some value of a graph: (reason, kind, node)."""
    for node in graph:
        for meta in leaves(node.val):
            if isinstance(meta, TensorMeta) and meta.device.type not in KERNEL_DEVICES:
                return f"%{node.name} is on device {str(meta.device)!r}, where kernels do not run", "device", node
    return None


def leaves(value: Any) -> list[Any]:
    """The parts of nested tuples and lists, left to right."""
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, (tuple, list)) else [value]


def unknown_tensor(tensor: torch.Tensor) -> CaptureError:
    """The refusal of a tensor that came from nowhere the tracer can see."""
    return CaptureError(
        f"the function uses a tensor ({describe_value(tensor)}) that is no argument and not reachable "
        "through its globals, closure or module attributes, so that later calls could not fetch it",
        remedy="pass the tensor as an argument; build new ones with torch.tensor rather than torch.Tensor or "
        "torch.from_numpy",
    )


def symbolic(what: str) -> CaptureError:
    """The refusal of a question that only a value can answer."""
    return CaptureError(
        f"Python code needs {what}, which purely symbolic tracing does not know",
        remedy="trace with execute=True: the function then runs on the sample, and the answer becomes a guard",
    )


def caught(error: Exception, where: SourceLocation | None) -> CaptureError:
    """The refusal of a function that goes on after an operation has failed."""
    return CaptureError(
        f"the function caught an exception of an operation ({type(error).__name__}: {error}) and went on; "
        "whether it is raised depends on the inputs, which a graph cannot express",
        where=where,
        remedy="test for the condition with an operation instead of try/except",
    )


def explained(refusal: StaxError, error: Exception) -> StaxError:
    """A refusal that other code has turned into an exception of its own, in terms of that code where it is known."""
    if "TorchScript interpreter" not in str(error):
        return refusal
    return CaptureError(
        "the function calls TorchScript code (torch.jit), whose operations pass by the tracer",
        where=refusal.where,
        remedy="call the Python function or module that was scripted or traced",
    )


def placeholder_name(path: str) -> str:
    """A Python name for a path: ``batch['x']`` becomes ``batch_x``, ``self.layers.0.weight`` ``layers_0_weight``."""
    return re.sub(r"\W+", "_", path.removeprefix("self.")).strip("_") or "value"


Autocast = tuple[tuple[str, torch.dtype], ...]


def autocast_state() -> Autocast:
    """The device types for which autocast is on, with the dtype it casts to."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple((d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))


def call_with_autocast(state: Autocast, func: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run ``func`` under the autocast state that was in force where the user called it."""
    chosen = dict(state)
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, dtype=chosen.get(device), enabled=device in chosen))
        return func(*args, **kwargs)


def check_plain(func: Any, value: Any) -> None:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for part in value:
            check_plain(func, part)
    elif not isinstance(value, PLAIN):
        raise CaptureError(
            f"{target_name(func)} returns a {type(value).__name__}, which a graph cannot hold",
            remedy=DATA_REMEDY,
        )


def check_result(func: Any, value: Any) -> None:
    """CaptureError for a result without shape or strides, which no metadata describes."""
    for tensor in [value] if isinstance(value, torch.Tensor) else tensors_in(value):
        try:
            tensor.stride()
        except RuntimeError:
            kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
            raise CaptureError(
                f"{target_name(func)} makes {kind}, which has no strides",
                remedy="make it outside the compiled function, or use dense tensors",
            ) from None


def check_argument(value: Any) -> None:
    """CaptureError for an argument whose contents may change without anyone noticing."""
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray):
        raise CaptureError(
            "a NumPy array takes part in a tensor computation; later calls would not notice when it changes",
            remedy="convert it with torch.from_numpy outside the function and pass the tensor",
        )


def name_of(fn: Any) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def source_of(fn: Any) -> tuple[str, int, str]:
    """Source text of a callable, the number of its first line, and its file; empty where there is none."""
    target = fn
    while hasattr(target, "func") and not inspect.isfunction(target):
        target = target.func
    if isinstance(target, torch.nn.Module):
        target = type(target).forward
    elif not inspect.isroutine(target) and not isinstance(target, type):
        target = inspect.getattr_static(type(target), "__call__", target)
    try:
        lines, line = inspect.getsourcelines(target)
        return "".join(lines), line, inspect.getsourcefile(target) or ""
    except (OSError, TypeError):
        return "", 1, ""
