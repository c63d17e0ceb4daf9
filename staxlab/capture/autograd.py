"""What autograd would have recorded (Sections 3.2 and 5).

The sample runs with gradient recording off, so whether a value *would* require grad has to be kept in books of our own.
Three rules of autograd make up most of them:

* the result of an operation requires grad if an argument does and recording is on;
* a tensor and its views are of one family: a write that requires grad, through any of them, makes all of them require
  grad. ``detach()`` and ``.data`` share the memory and leave the family;
* recording is switched off inside ``torch.no_grad()`` and ``torch.inference_mode()``.

A graph has no modes. Where recording was off, an operation with a new result is recorded on detached arguments, which
means the same. One that writes or that makes a view is recorded as a call of :func:`call_without_grad`: what it returns
belongs to a family that requires grad, and the detached value would not. :func:`call_in_inference_mode` does the same
for tensors that only ``inference_mode`` can make.

What autograd does beside values (hooks, custom backward functions, transforms of functions) no graph of operations
holds; it is found here and refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from ..errors import CaptureError
from ..provenance import SourceLocation
from . import classify
from .graph import Graph, Node, TensorMeta, describe_value
from .isolation import storage_key
from .values import with_grad

_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_transforms = torch._C._functorch.peek_interpreter_stack
_forward_ad = vars(torch.autograd.forward_ad)


@dataclass(slots=True)
class Family:
    """What a tensor shares with its views. ``inference``: made under ``torch.inference_mode()`` inside the function."""

    requires_grad: bool = False
    inference: bool = False


def call_without_grad(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run ``function`` as where the user called it: with gradient recording off."""
    with torch.no_grad():
        return function(*args, **kwargs)


def call_in_inference_mode(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run ``function`` as where the user called it: in inference mode."""
    with torch.inference_mode():
        return function(*args, **kwargs)


def as_function_call(node: Node, caller: Callable, *before: Any) -> None:
    """Rewrite a node so that ``caller`` runs its target: ``x.mul_(2)`` becomes ``caller(torch.Tensor.mul_, x, 2)``."""
    target = getattr(torch.Tensor, node.target) if node.op == "call_method" else node.target
    node.op, node.target, node.args = "call_function", caller, (*before, target, *node.args)


def written(name: str, value: Any, args: tuple, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Which tensors of a writing call autograd regards as written: the target of a method in place, and what is
    returned. Running statistics of a normalization are written too, but never become part of what is recorded."""
    returned = {id(part) for part in flat_tensors(value)}
    in_place = name.endswith("_") and (not name.endswith("__") or name.startswith("__i")) or name == "__setitem__"
    targets = {id(part) for part in flat_tensors(args[0])} if in_place and args else set()
    return [tensor for tensor in tensors if id(tensor) in returned or id(tensor) in targets]


def sharing(value: torch.Tensor, tensors: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """The argument whose memory a result shares; None if there is none."""
    if value.layout is not torch.strided:
        return None
    key = storage_key(value)
    for tensor in tensors:
        if tensor.layout is torch.strided and storage_key(tensor) == key:
            return tensor
    return None


class Books:
    """What autograd would know at this point of a recording.

    ``symbol`` gives the symbol of a tensor (None if it has none), ``locate`` the user's line. ``trains`` becomes true
    with the first tensor that requires grad where that counts, ``refusal`` is set by what the profile function saw.
    """

    def __init__(self, symbol: Callable[[torch.Tensor], Any], locate: Callable[[], SourceLocation | None]):
        self.symbol, self.locate = symbol, locate
        self.trains = False
        self.refusal: CaptureError | None = None
        self._hooks = _saved_tensors_hooks(True)

    def family(
        self, value: torch.Tensor, node: Node, requires_grad: bool, name: str, tensors: list[torch.Tensor]
    ) -> Family:
        """The family of a result of ``node``, a call of ``name`` on ``tensors``: a new one, or that of the tensor it is
        a view of."""
        aliases, source = node.meta.get("aliases", False), sharing(value, tensors)
        shared = Family() if source is None else self.symbol(source).family
        differentiable = value.is_floating_point() or value.is_complex()
        if source is not None and differentiable and name not in classify.LEAVES_FAMILY:
            return shared
        family = Family(inference=shared.inference or (node.meta.get("inference_mode", False) and not aliases))
        if value.requires_grad and not aliases:  # torch.zeros(3, requires_grad=True)
            node.meta["makes_leaf"] = self.trains = family.requires_grad = True
        family.requires_grad |= requires_grad and differentiable
        return family

    def write(self, tensors: Iterable[torch.Tensor], *, requires_grad: bool) -> None:
        """Tensors have been written by a call whose result requires grad, or does not."""
        for tensor in tensors:
            family = self.symbol(tensor).family
            if family.inference and not torch.is_inference_mode_enabled():
                raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
            family.requires_grad |= requires_grad and (tensor.is_floating_point() or tensor.is_complex())

    def described(self, value: Any) -> Any:
        """Metadata of a result, with ``requires_grad`` as eager execution would have it."""
        if isinstance(value, torch.Tensor):
            symbol = self.symbol(value)
            return with_grad(describe_value(value), symbol is not None and symbol.requires_grad)
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return (list if type(value) is list else tuple)(map(self.described, value))
        return describe_value(value)

    def restore_modes(self, graph: Graph, returned: Iterable[Family]) -> None:
        """Once the function is known, give back to the nodes the modes they ran under, where it makes a difference.

        In training, a write or a view made while recording was off keeps that mode, even if nothing it touched
        required grad yet, since a later write may change that.
        """
        infers = any(family.inference for family in returned)
        for node in graph:
            if node.meta.get("inference_mode"):
                if infers or self.trains:
                    as_function_call(node, call_in_inference_mode)
            elif node.meta.get("recording_off") and self.trains:
                if node.meta.get("mutates") or node.meta.get("aliases"):
                    as_function_call(node, call_without_grad)

    def check_saved_tensors_hooks(self) -> None:
        """CaptureError if hooks on saved tensors have been installed inside the function. Those of
        ``torch.utils.checkpoint`` only save memory: without them the gradients are the same."""
        hooks = _saved_tensors_hooks(True)
        if hooks is None or hooks == self._hooks or getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
            return
        raise CaptureError(
            "the function installs hooks on the tensors saved for backward, which a graph does not have",
            remedy="install them around the call of the compiled function",
        )

    def custom_function(self, frame: FrameType) -> None:
        """An autograd function is being applied (``frame`` runs :data:`APPLY`). If the call would be recorded, its
        backward is code that the graph does not hold. Without gradients it is an ordinary function."""
        if self.refusal is not None or not torch.is_grad_enabled():
            return
        values = frame.f_locals
        with torch._C.DisableTorchFunction():
            tensors = flat_tensors([*values["args"], *values["kwargs"].values()])
            if any(map(self._would_require_grad, tensors)):
                self.refusal = self._refuse(values["cls"])

    def _would_require_grad(self, tensor: torch.Tensor) -> bool:
        symbol = self.symbol(tensor)
        return tensor.requires_grad if symbol is None else symbol.requires_grad

    def _refuse(self, function: type) -> CaptureError:
        if function.__module__ == "torch.utils.checkpoint":
            return CaptureError(
                "checkpoint(..., use_reentrant=True) runs the function once more in its backward, which a graph does "
                "not hold",
                where=self.locate(),
                remedy="use_reentrant=False, or apply checkpoint to the compiled function",
            )
        if function.__module__ == "torch.nn.modules._functions":
            what = "a module has backward hooks, which a graph does not hold"
            return CaptureError(what, remedy="remove the hooks, or " + _KEEP_OUTSIDE)
        return CaptureError(
            f"the custom torch.autograd.Function {function.__qualname__} would lose its backward in the graph",
            where=self.locate(),
            remedy=_KEEP_OUTSIDE,
        )


def autograd_obstacle(graph: Graph, *, trains: bool) -> tuple[str, str, Node] | None:
    """Why kernels cannot stand for a graph: (reason, kind, node). ``trains`` says that gradients are recorded for its
    inputs; views of inputs are then made outside the kernels (:class:`staxlab.autodiff.graph.Result`)."""
    for node in graph.calls:
        if node.meta.get("makes_leaf"):
            reason = f"%{node.name} requires grad, and no compiled region makes leaves of autograd's graph"
            return reason, "requires-grad", node
        if node.target is call_in_inference_mode:
            return f"%{node.name} is made in inference mode, which a kernel's result is not", "inference", node
    for node in () if trains else graph.output.inputs:
        if _is_detached_input(node):
            return f"%{node.name} is an input that requires grad, detached and returned", "detached", node
    return None


def _is_detached_input(node: Node) -> bool:
    """Whether a value that requires no grad shares memory with an input that does. A strided view of the input, which
    is what compiled code returns, would require grad."""
    if not isinstance(node.val, TensorMeta) or node.val.requires_grad:
        return False
    seen, pending = set(), [node]
    while pending:
        source = pending.pop()
        if source.op == "placeholder" and source.val.requires_grad:
            return True
        if source not in seen and (source.meta.get("aliases") or source.target is operator.getitem):
            seen.add(source)
            pending.extend(source.inputs)
    return False


# -- what no graph holds ----------------------------------------------------------------------------------------------

_KEEP_OUTSIDE = "keep it outside the compiled function, or call the compiled function under torch.no_grad()"


def check_transforms() -> None:
    """CaptureError inside a function transform or forward-mode differentiation begun by the traced function."""
    if _transforms() is not None:
        raise CaptureError(
            "the function applies a transform (torch.func.grad, vjp, jvp, torch.vmap), whose inner calls a graph of "
            "operations does not hold",
            remedy="apply the transform outside: torch.vmap(compiled)(x) runs the function eagerly inside it",
        )
    if _forward_ad["_current_level"] >= 0:
        raise CaptureError(
            "the function differentiates in forward mode (torch.autograd.forward_ad), and a graph holds no tangents",
            remedy="enter dual_level() outside: a compiled function called there runs eagerly",
        )


#: The code object of ``torch.autograd.Function.apply``.
APPLY = torch.autograd.Function.apply.__func__.__code__


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and lists, left to right."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in flat_tensors(part)]
    return []
