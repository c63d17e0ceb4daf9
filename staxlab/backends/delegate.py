"""The stage that hands a graph to an outside backend, and the contract it is held to (Section 11.3).

The backend's promise is small: the same values as the graph it was given. Everything else that makes a compiled
function indistinguishable from the function is done around it here or in the stages before. So each result is compared
with what the graph says of it, in number, shape, dtype and device, at every call; a deviation is a
:class:`BackendError` and never passed on. After "operators" strides are made eager's, too, and a result that lies in an
input's memory is copied.

Failing is a *backend failure*: the graph is at hand, so the region runs operator by operator with a FallbackWarning in
the backend's own words, and ``strict_native=True`` makes it the error it was. What only the user can mend, a library
that is not installed or an option that does not exist, is an error in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import TensorMeta
from ..capture.isolation import RandomState
from ..capture.module import GraphModule
from ..compilation import Compilation
from ..errors import BackendError, StaxError
from ..operators.structure import flatten
from .region import Division, divide, separate, with_strides
from .table import Backend


@dataclass(frozen=True)
class Delegated:
    """The record of the stage: who was given which graph, and what came back.

    ``module`` is the graph, ``function`` what the backend returned (None where there was nothing to compute: a region
    of views only), ``run`` the region: flat inputs in, flat results out. ``text`` is the backend's own representation,
    if what it returned has a method ``format()``.
    """

    backend: Backend
    module: GraphModule
    function: Callable[..., Any] | None
    run: Callable[[list[torch.Tensor]], tuple[Any, ...]]
    division: Division | None = None

    @property
    def text(self) -> str | None:
        form = getattr(self.function, "format", None)
        return form() if callable(form) else None

    def format(self) -> str:
        count = len(self.module.graph.calls)
        lines = [f"backend {self.backend.name}: given {count} operation{'s' * (count != 1)} ({self.backend.after})"]
        if self.division is not None and self.division.finishing:
            finishing = ", ".join(f"%{node.name}" for node in self.division.finishing)
            lines.append(f"carried out here afterwards (views of results, writes into inputs): {finishing}")
        lines.append(self.text or str(self.module))
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def delegate(compilation: Compilation) -> Delegated:
    """Hand the graph of a compilation to its backend.

    Raises BackendError with the backend's words, or whatever error of ours it raised. O(elements of the inputs), for
    the backend gets copies, besides what it takes itself.
    """
    backend = compilation.options.outside
    assert backend is not None
    if compilation.last == "transforms":
        module, division = compilation.transforms.final, None
    else:
        division = divide(compilation.operators)
        module = division.module
    if division is not None and not division.values:
        return Delegated(backend, module, None, lambda inputs: division.finish(inputs, ()), division)
    function = _ask(compilation, backend, module)
    contract = _Contract(backend.name, compilation.name)
    if division is None:
        expected = [leaf.val if hasattr(leaf, "val") else leaf for leaf in flatten(module.graph.output.args[0])]
        trains = compilation.trains

        def run(inputs: list[torch.Tensor]) -> tuple[Any, ...]:
            return tuple(contract.checked(contract.call(function, inputs), expected, trains))

    else:
        metas = division.metas

        def run(inputs: list[torch.Tensor]) -> tuple[Any, ...]:
            inputs = [*inputs]  # what a forward half saved comes as an iterator that lets go of it
            with torch.no_grad():
                results = contract.checked(contract.call(function, inputs), metas, False)
                own = separate([r.detach() if r.requires_grad else r for r in results], inputs)
                return division.finish(inputs, [*map(with_strides, own, metas)])

    return Delegated(backend, module, function, run, division)


def _ask(compilation: Compilation, backend: Backend, module: GraphModule) -> Callable[..., Any]:
    """What the backend makes of a graph. The random state is as before afterwards, whatever it ran."""
    before = RandomState()
    try:
        function = backend.load()(module, example_inputs(compilation), **_settings(compilation, backend))
    except StaxError:
        raise
    except Exception as error:
        raise BackendError(
            f"backend {backend.name!r} refused {compilation.name}: {type(error).__name__}: {error}",
            remedy="backend='stax' compiles the region itself",
        ) from error
    finally:
        before.restore()
    if not callable(function):
        raise BackendError(
            f"backend {backend.name!r} returned {type(function).__name__} for {compilation.name}",
            remedy="a backend returns a callable of flat tensors",
        )
    return function


def _settings(compilation: Compilation, backend: Backend) -> dict[str, Any]:
    """The options a backend is called with: its own that were given, and ours that it declares."""
    declared, _ = backend.parameters()
    options = compilation.options
    ours = {name: getattr(options, name) for name in declared if name in options.names()}
    return {**ours, **dict(options.extra)}


def example_inputs(compilation: Compilation) -> list[Any]:
    """Copies of the sample, with its strides; for a backward half, which has none, zeros like its inputs. They are the
    backend's to write into."""
    if compilation.sample is not None:
        return [_copy(x) if isinstance(x, torch.Tensor) else x for x in compilation.sample]
    return [_zeros(node.val) for node in compilation.operators.graph.placeholders]


def _zeros(meta: Any) -> Any:
    if not isinstance(meta, TensorMeta):
        return meta
    memory = torch.zeros(_reach(meta.shape, meta.stride), dtype=meta.dtype, device=meta.device)
    return memory.as_strided(meta.shape, meta.stride)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A tensor of its own memory with values, strides and ``requires_grad`` of ``x``."""
    if x.layout is not torch.strided:
        return x.detach().clone().requires_grad_(x.requires_grad)
    memory = x.detach().as_strided((_reach(tuple(x.shape), x.stride()),), (1,)).clone()
    return memory.as_strided(x.shape, x.stride()).requires_grad_(x.requires_grad)


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first to the last one of a tensor."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


@dataclass(frozen=True)
class _Contract:
    """What a callable must deliver. The names are for its messages."""

    backend: str
    region: str

    def call(self, function: Callable[..., Any], inputs: list[Any]) -> Any:
        try:
            return function(*inputs)
        except Exception as error:
            error.add_note(f"while {self.region} ran in backend {self.backend!r}")
            raise

    def checked(self, results: Any, expected: Sequence[Any], trains: bool) -> Sequence[Any]:
        """The results, if they are what the graph says (:class:`BackendError` if not). O(number of results)."""
        if isinstance(results, torch.Tensor) and len(expected) == 1:
            results = (results,)
        if not isinstance(results, (tuple, list)):
            raise self._broken(f"returned {type(results).__name__} instead of a tuple of {len(expected)} results")
        if len(results) != len(expected):
            raise self._broken(f"returned {len(results)} results where the graph has {len(expected)}")
        for place, (result, meta) in enumerate(zip(results, expected, strict=True)):
            if isinstance(meta, TensorMeta):
                self._check(place, result, meta, trains)
        return results

    def _check(self, place: int, result: Any, meta: TensorMeta, trains: bool) -> None:
        if not isinstance(result, torch.Tensor):
            raise self._broken(f"returned {type(result).__name__} as result {place}, which is a tensor {meta}")
        if tuple(result.shape) != tuple(meta.shape) or result.dtype != meta.dtype or result.device != meta.device:
            given = TensorMeta.of(result) if result.layout is torch.strided else result.layout
            raise self._broken(
                f"returned {given} on {result.device} as result {place}, which is {meta} on {meta.device}"
            )
        if trains and meta.requires_grad and torch.is_grad_enabled() and not result.requires_grad:
            raise BackendError(
                f"backend {self.backend!r} cannot train {self.region}: result {place} does not lead back to the inputs "
                "that require grad",
                remedy="register it with after='operators', where forward and backward half are compiled one by one; "
                "or call under torch.no_grad()",
            )

    def _broken(self, what: str) -> BackendError:
        return BackendError(
            f"backend {self.backend!r} {what}, for {self.region}",
            remedy="a backend's callable returns the graph's results, flat and in order",
        )
