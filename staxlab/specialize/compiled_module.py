"""A compiled module is a module (Section 2.4).

Training code treats models by what :class:`torch.nn.Module` promises: an optimizer asks for ``parameters()``, a
checkpoint for ``state_dict()``, a parent registers its children when they are assigned to it. What
``staxlab.compile(module)`` returns keeps all of this, and is the module under another class: both objects have *one*
attribute dictionary. So names in ``state_dict()`` have no prefix, ``compiled.train()`` and ``compiled.to()`` act on the
module, and an attribute that is assigned to one is the other's too.

The class is made for the module's own and derives from it, so methods and ``isinstance`` work. Only the call differs:
``__call__`` is a slot of the instance that holds the dispatcher, and calling it takes no further Python frame.
"""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import torch

from .dispatch import Dispatcher

#: What a dispatcher offers, and a compiled module where the module has nothing of that name.
_OF_THE_DISPATCHER = frozenset(
    {"versions", "recompiles", "options", "growth", "cache_info", "report", "reset", "specialize", "last_level", "fn"}
)


class CompiledModule(torch.nn.Module):
    """A module whose call is compiled. ``compiled.dispatcher`` is the :class:`.dispatch.Dispatcher`; its versions,
    reasons and counts are attributes here as well, unless the module has attributes of the same names."""

    __slots__ = ("__call__",)

    def __init_subclass__(cls, **options: Any) -> None:
        """The user's classes are not told of subclasses that they did not write."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """``type(self)(...)``, as in slicing an ``nn.Sequential``, makes a module of the original class."""
        return _original(cls)(*args, **kwargs)

    @property
    def dispatcher(self) -> Dispatcher:
        """What decides, at each call, which version runs."""
        return object.__getattribute__(self, "__call__")

    @property
    def __wrapped__(self) -> torch.nn.Module:
        """The module itself."""
        return self.dispatcher.fn

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _OF_THE_DISPATCHER:
                raise
        return getattr(self.dispatcher, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_OF_THE_DISPATCHER})

    def __copy__(self) -> CompiledModule:
        return compiled_module(self.dispatcher.of(copy.copy(self.__wrapped__)))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        """A compiled copy of the module, which compiles anew."""
        result = memo[id(self)] = compiled_module(copy.deepcopy(self.dispatcher, memo))
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled like the module, without the versions."""
        return compiled_module, (self.dispatcher,)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.dispatcher._repr_mimebundle_(include, exclude)


def compiled_module(dispatcher: Dispatcher) -> Any:
    """The module of a dispatcher as a :class:`CompiledModule`; the dispatcher itself where no class can be derived from
    the module's (one with slots of its own)."""
    module = dispatcher.fn
    if isinstance(module, torch.jit.ScriptModule):
        return dispatcher
    try:
        kind = _compiled_class(type(module))
        result = object.__new__(kind)
    except TypeError:
        return dispatcher
    object.__setattr__(result, "__dict__", vars(module))
    object.__setattr__(result, "__call__", dispatcher)
    return result


def uncompiled(fn: Any) -> Any:
    """The module inside a compiled one; anything else as it is."""
    return fn.__wrapped__ if isinstance(fn, CompiledModule) else fn


@functools.lru_cache(maxsize=1024)
def _compiled_class(kind: type) -> type:
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__slots__=(), __module__=kind.__module__, __doc__=kind.__doc__)

    return types.new_class(f"Compiled{kind.__name__}", (CompiledModule, kind), {}, fill)


def _original(kind: type) -> type:
    """The module's own class."""
    return kind.__mro__[kind.__mro__.index(CompiledModule) + 1]
