"""Forward and backward put together again (Sections 5.6 and 5.7): a compiled region as one node of autograd's graph.

A :class:`TrainingRegion` calls the compiled forward inside a subclass of ``torch.autograd.Function``, which keeps the
saved values in its context, and calls the compiled backward when the engine comes by. The backward is compiled when it
is first needed, so a call that is never differentiated does not pay for it. Saved values go through
``save_for_backward``: they are released after the first backward unless the graph is retained, and one that was
modified in place meanwhile raises eager's error.

What autograd can leave undefined, the region leaves undefined: an upstream gradient that is None is not replaced by
zeros, which would turn an untouched ``.grad`` into zeros and an infinity times nothing into NaN. There is a backward
for each pattern of undefined upstream gradients that occurs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.graph import TensorMeta
from .graph import JointGraph, Result

Call = Callable[[list[torch.Tensor]], Sequence[Any]]


class TrainingRegion:
    """What runs for a region that is differentiated. Called with the flat inputs, returns the flat results.

    ``forward`` maps the primals to ``(*outputs, *saved)``; ``saved_places`` says where each value the backward reads is
    found: ``("primal", k)``, ``("output", k)`` or ``("saved", k)``. ``backward(undefined)`` compiles and returns the
    backward for a set of undefined tangents (numbers of forward outputs), which maps
    ``(*saved values, *defined tangents)`` to the gradients of the primals. ``second(primals, drawn, tangents)``, if
    given, computes the same gradients so that autograd can differentiate them; without it a second differentiation
    raises (Section 5.7).
    """

    def __init__(
        self,
        joint: JointGraph,
        forward: Call,
        saved_places: Sequence[tuple[str, int]],
        backward: Callable[[frozenset[int]], Call],
        second: Callable[..., tuple[Any, ...]] | None = None,
    ):
        self.joint = joint
        self.forward = forward
        self._saved = _positions(saved_places, len(joint.primals), len(joint.outputs))
        self.differentiable = tuple(k for k, tangent in enumerate(joint.tangents) if tangent is not None)
        self.layouts = tuple(joint.tangents[k].val for k in self.differentiable)
        self.second = second
        self._compile_backward = backward
        self._backwards: dict[frozenset[int], Call] = {}
        self._lock = threading.Lock()
        # Without the detour for function transforms, inside which the function itself runs and no compiled region.
        self._apply = super(torch.autograd.Function, _function_of(self)).apply

    def __call__(self, inputs: list[torch.Tensor]) -> tuple[Any, ...]:
        if self.differentiable and torch.is_grad_enabled():
            outputs = self._apply(*inputs)
        else:
            with torch.no_grad():
                outputs = self.forward(inputs)
        return tuple(_result(result, inputs, outputs) for result in self.joint.results)

    def backward(self, undefined: frozenset[int]) -> Call:
        """The backward for this pattern of undefined tangents, compiled now if it never was."""
        found = self._backwards.get(undefined)
        if found is None:
            with self._lock:
                if undefined not in self._backwards:
                    self._backwards[undefined] = self._compile_backward(undefined)
                found = self._backwards[undefined]
        return found

    def saved_values(self, inputs: Sequence[Any], delivered: Sequence[Any]) -> list[torch.Tensor]:
        """The values the backward reads, in its order."""
        values = (*inputs, *delivered)
        return [values[position] for position in self._saved]

    def gradients(self, saved: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """Run the backward: one gradient, or None, for each primal."""
        pairs = zip(upstream, self.layouts, strict=True)
        given = [_with_layout(tangent, layout) for tangent, layout in pairs if tangent is not None]
        undefined = _NOTHING
        if len(given) < len(upstream):
            undefined = frozenset(k for k, t in zip(self.differentiable, upstream, strict=True) if t is None)
        return tuple(self.backward(undefined)([*saved, *given]))

    def materialized(self, upstream: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The upstream gradients with zeros where there is none."""
        return [
            torch.zeros(layout.shape, dtype=layout.dtype, device=layout.device) if tangent is None else tangent
            for tangent, layout in zip(upstream, self.layouts, strict=True)
        ]


_NOTHING: frozenset[int] = frozenset()


def _positions(places: Sequence[tuple[str, int]], primals: int, outputs: int) -> tuple[int, ...]:
    """Where saved values are in ``(*primals, *outputs, *saved)``."""
    start = {"primal": 0, "output": primals, "saved": primals + outputs}
    return tuple(start[source] + place for source, place in places)


def _function_of(region: TrainingRegion) -> type[torch.autograd.Function]:
    """The autograd function of a region (Section 5.6)."""
    count = len(region.joint.outputs)
    plain = [k for k in range(count) if region.joint.tangents[k] is None]

    class CompiledRegion(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            delivered = region.forward(list(inputs))
            outputs = tuple(delivered[:count])
            saved = region.saved_values(inputs, delivered)
            ctx.count = len(saved)
            if region.second is None:
                ctx.primals = _primals_for_grad(inputs)
            else:
                saved += [*inputs, *outputs[count - len(region.joint.drawn) :]]
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if plain:
                ctx.mark_non_differentiable(*(outputs[k] for k in plain))
            return outputs

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            saved, extra = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
            tangents = [upstream[k] for k in region.differentiable]
            if all(tangent is None for tangent in tangents):
                return (None,) * len(region.joint.primals)
            if not torch.is_grad_enabled():
                return region.gradients(saved, tangents)
            # create_graph=True: what is returned must have a graph of its own
            if region.second is not None:
                primals = len(region.joint.primals)
                return region.second(extra[:primals], extra[primals:], region.materialized(tangents))
            return _OnlyOnce.apply(region, saved, len(tangents), *tangents, *ctx.primals)

    return CompiledRegion


class _OnlyOnce(torch.autograd.Function):
    """The compiled backward where its own derivative may be asked for: the same values, and a clear refusal in the
    place of the derivative. The primals are among the arguments so that every way back leads here (Listing 5.5)."""

    @staticmethod
    def forward(ctx: Any, region: TrainingRegion, saved: Any, count: int, *tensors: Any) -> tuple[Any, ...]:
        return region.gradients(saved, tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "a compiled region was differentiated twice: its backward is compiled code, which has no graph of its own; "
            'compile it with options={"double_backward": True}, or call the function without compiling it'
        )


class _Anchor(torch.autograd.Function):
    """An empty tensor that depends on its arguments, and keeps no memory of theirs."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise AssertionError("_OnlyOnce raises before")


def _primals_for_grad(inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Tensors through which autograd finds the primals again. A leaf is kept alive by its accumulator anyway; what
    other primals hold in memory may be gone by the time of the backward pass, as in eager execution."""
    primals = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    others = [x for x in primals if x.grad_fn is not None]
    if not others:
        return tuple(primals)
    with torch.enable_grad():
        return (*(x for x in primals if x.grad_fn is None), _Anchor.apply(*others))


def _result(result: Result, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    if result.source is None:
        return result.constant
    value = inputs[result.index] if result.source == "input" else outputs[result.index]
    for step in result.chain:
        value = step(value)
    return value


def _with_layout(tangent: torch.Tensor, layout: TensorMeta) -> torch.Tensor:
    """The upstream gradient laid out as the backward was compiled for; a copy only where it is not."""
    if tangent.stride() == layout.stride and not (tangent.is_neg() or tangent.is_conj()):
        return tangent
    laid_out = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=tangent.device)
    return laid_out.copy_(tangent)
