"""Which node computed this tensor? (Section 3.2 and 3.3)

Tracing runs the user's function and needs, for every tensor that turns up as an argument, two things: its *symbol*
(the node of the graph) and its *concrete value* on the sample. Here the value stands in for itself. The tensors that
flow through the function are ordinary ``torch.Tensor`` objects, so ``type(x)``, ``isinstance``, ``x is y`` and
attributes the user hung on a parameter all answer as they do without a compiler; a :class:`SymbolTable` remembers the
symbol of each by identity. Every operation still reaches the tracer, because a ``TorchFunctionMode`` sees calls on
plain tensors too.

Only where there is no value is a stand-in needed: with ``execute=False`` (purely symbolic tracing) every value is a
:class:`Proxy`, a tensor subclass without storage that knows its symbol and refuses every question about its value.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from .autograd import Family
from .graph import Node, TensorMeta


@dataclass(slots=True)
class Symbol:
    """The symbol of a tensor: a node, and for an element of a multi-result operation the indices leading to it.

    ``family.requires_grad`` is what eager execution would report (the sample itself runs without recording gradients).
    """

    node: Node
    path: tuple[int, ...] = ()
    family: Family = field(default_factory=Family)
    is_input: bool = False

    @property
    def requires_grad(self) -> bool:
        return self.family.requires_grad


class SymbolTable:
    """Maps tensor objects to symbols, by identity, without keeping the tensors alive."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref, Symbol]] = {}
        self._pinned: list[torch.Tensor] = []

    def get(self, tensor: torch.Tensor) -> Symbol | None:
        entry = self._entries.get(id(tensor))
        # An id may have been reused by a newer object: the weak reference decides.
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def set(self, tensor: torch.Tensor, symbol: Symbol, *, pin: bool = False) -> None:
        self._entries[id(tensor)] = (weakref.ref(tensor), symbol)
        if pin:
            self._pinned.append(tensor)

    def clear(self) -> None:
        self._entries.clear()
        self._pinned.clear()


class Proxy(torch.Tensor):
    """A tensor without a value: the stand-in of purely symbolic tracing. ``meta`` is known for inputs only."""

    meta: TensorMeta | None

    @staticmethod
    def make(meta: TensorMeta | None) -> Proxy:
        if meta is None:
            proxy = torch.Tensor._make_wrapper_subclass(Proxy, (), dtype=torch.float32)
        else:
            proxy = torch.Tensor._make_wrapper_subclass(
                Proxy, meta.shape, strides=meta.stride, dtype=meta.dtype, device=meta.device
            )
        proxy.known = meta
        return proxy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from ..errors import CaptureError

        raise CaptureError(
            f"{func} needs the value of a tensor, and purely symbolic tracing has none",
            remedy="trace with execute=True, which runs the function on the sample as it records it",
        )
