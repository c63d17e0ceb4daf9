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
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..capture.graph import TensorMeta, describe_value
from ..specialize.ambient import must_run_eagerly
from .graph import JointGraph, Result
from .split import ancestors
from .values import modified_primals

_is_batched = torch._C._functorch.is_legacy_batchedtensor
_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks

Call = Callable[[list[torch.Tensor]], Sequence[Any]]


class TrainingRegion:
    """What runs for a region that is differentiated. Called with the flat inputs, returns the flat results.

    ``forward`` maps the primals to ``(*outputs, *saved)``; ``saved_places`` says where each value the backward reads is
    found: ``("primal", k)``, ``("output", k)`` or ``("saved", k)``. ``backward(undefined)`` compiles and returns the
    backward for a set of undefined tangents (numbers of forward outputs), which maps
    ``(*saved values, *defined tangents)`` to the gradients of the primals; ``interpreted(undefined)`` is the same
    operator by operator, for where every operation has to be seen, as by ``torch.vmap`` around the backward pass
    (``is_grads_batched=True``). ``second(values, tangents)``, if given, computes the same gradients so that autograd
    can differentiate them, from the primals numbered ``second_reads`` as they were before the forward pass, the values
    it drew, and the upstream gradients, None among them; without it a second differentiation raises (Section 5.7).
    """

    def __init__(
        self,
        joint: JointGraph,
        forward: Call,
        saved_places: Sequence[tuple[str, int]],
        backward: Callable[[frozenset[int]], Call],
        interpreted: Callable[[frozenset[int]], Call],
        second: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]] | None = None,
        second_reads: Sequence[int] = (),
    ):
        self.joint = joint
        self.forward = forward
        self.saved_places = _positions(saved_places, len(joint.primals), len(joint.outputs))
        self.differentiable = tuple(k for k, tangent in enumerate(joint.tangents) if tangent is not None)
        self.layouts = tuple(joint.tangents[k].val for k in self.differentiable)
        self.interpreted = interpreted
        self.inner = _inner_results(joint)
        self.second = second
        self.second_reads = tuple(second_reads)
        modified = modified_primals(joint)
        self.second_copies = tuple(k for k in second_reads if joint.primals[k] in modified)
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
        return [values[position] for position in self.saved_places]

    def gradients(self, saved: list[torch.Tensor], upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """Run the backward: one gradient, or None, for each primal. ``saved`` is empty afterwards."""
        given = [tangent for tangent in upstream if tangent is not None]
        undefined, layouts = _NOTHING, self.layouts
        if len(given) < len(upstream):
            pairs = [*zip(upstream, self.layouts, strict=True)]
            undefined = frozenset(k for k, (t, _) in zip(self.differentiable, pairs, strict=True) if t is None)
            layouts = tuple(layout for tangent, layout in pairs if tangent is not None)
        if every_operation_counts(given):
            return tuple(self.interpreted(undefined)([*saved, *given]))
        run = self.backward(undefined)
        saved.extend(map(_with_layout, given, layouts))
        return tuple(run(_handed_over(saved)))


def every_operation_counts(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether compiled code must not stand in for the operations: inside a transform or mode, or on batched tensors."""
    return must_run_eagerly() or True in map(_is_batched, tensors)


def _handed_over(values: list[Any]) -> Iterator[Any]:
    """The values of a list, which is empty when the last one has been taken: nobody holds them but who took them."""
    values.reverse()
    while values:
        yield values.pop()


_NOTHING: frozenset[int] = frozenset()
_NO_COPIES: dict[int, torch.Tensor] = {}


def _positions(places: Sequence[tuple[str, int]], primals: int, outputs: int) -> tuple[int, ...]:
    """Where saved values are in ``(*primals, *outputs, *saved)``."""
    start = {"primal": 0, "output": primals, "saved": primals + outputs}
    return tuple(start[source] + place for source, place in places)


def _inner_results(joint: JointGraph) -> tuple[int, ...]:
    """The differentiable results that other such results are computed from."""
    nodes = [node for node, tangent in zip(joint.outputs, joint.tangents, strict=True) if tangent is not None]
    sources = ancestors(source for node in nodes for source in node.inputs)
    return tuple(
        k
        for k, (node, tangent) in enumerate(zip(joint.outputs, joint.tangents, strict=True))
        if tangent is not None and node in sources
    )


def _check_unwatched(result: torch.Tensor | None) -> None:
    """RuntimeError if somebody wants the gradient of a result that other results are computed from: a region is one
    node of autograd's graph, and only what reaches the result from outside passes by there."""
    if result is not None and (result._backward_hooks or result.retains_grad):
        raise RuntimeError(
            "the gradient of a result was asked for (by a hook or retain_grad) that other results of the same compiled "
            "function are computed from, and their share of it stays inside; divide the function at this value, or "
            "call it without compiling it"
        )


def _function_of(region: TrainingRegion) -> type[torch.autograd.Function]:
    """The autograd function of a region (Section 5.6)."""
    drawn = len(region.joint.drawn)  # kept, and given to nobody
    count = len(region.joint.outputs) - drawn
    plain = [k for k in range(count) if region.joint.tangents[k] is None]
    read = len(region.saved_places)  # so many of the kept values the backward reads; the others are for the second
    keeps = read > 0 or (region.second is not None and (drawn > 0 or len(region.second_reads) > 0))

    class CompiledRegion(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
            before = {k: inputs[k].clone() for k in region.second_copies} if region.second_copies else _NO_COPIES
            delivered = region.forward(list(inputs))
            outputs = tuple(delivered[:count])
            saved = region.saved_values(inputs, delivered)
            if region.second is None:
                ctx.primals = _primals_for_grad(inputs)
            else:
                saved += [before[k] if k in before else inputs[k] for k in region.second_reads]
                saved += delivered[count : count + drawn]
            if region.inner:
                ctx.inner = [weakref.ref(outputs[k]) for k in region.inner]
            hooked = _saved_tensors_hooks(True) is not None
            ctx.hooked = [describe_value(value) for value in saved] if hooked else None
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if plain:
                ctx.mark_non_differentiable(*(outputs[k] for k in plain))
            return outputs

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            tangents = [upstream[k] for k in region.differentiable] if plain else upstream
            for tangent in tangents:
                if tangent is not None:
                    break
            else:
                return (None,) * len(region.joint.primals)
            if region.inner:
                for reference in ctx.inner:
                    _check_unwatched(reference())
            # Read once, for hooks run each time; and not at all where nothing is kept, for a freed graph raises there.
            kept = ctx.saved_tensors if keeps else ()
            if ctx.hooked is not None:
                kept = tuple(map(_unpacked, kept, ctx.hooked))
            saved = list(kept[:read])
            if region.second is None:
                del kept
                if keeps:  # unless the graph is retained; what the backward has read, nobody needs
                    ctx.maybe_clear_saved_tensors()
            if not torch.is_grad_enabled():
                return region.gradients(saved, tangents)
            # create_graph=True: what is returned must have a graph of its own
            if region.second is not None:
                return region.second(kept[read:], tangents)
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
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    if tangent.stride() == layout.stride and not (tangent.is_neg() or tangent.is_conj() or tangent._is_zerotensor()):
        return tangent
    laid_out = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=layout.device)
    return laid_out.copy_(tangent)


def _unpacked(value: torch.Tensor, saved: TensorMeta) -> torch.Tensor:
    """What the caller's hooks on saved tensors give back, as it was packed: compiled code relies on the geometry."""
    if value.shape != saved.shape:
        shapes = f"{list(value.shape)} for one of {list(saved.shape)}"
        raise RuntimeError(f"a hook on saved tensors gave back a tensor of shape {shapes}")
    if value.dtype == saved.dtype and value.device == saved.device:
        return _with_layout(value, saved)
    return _with_layout(value.to(saved.device, saved.dtype), saved)
