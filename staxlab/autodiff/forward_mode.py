"""Forward mode, and forward over reverse (Section 5.7, Proposition 5.2).

A dual number is a value with a tangent; every operator updates the tangent by its forward derivative as it computes the
value, so one pass gives ``f(x)`` and ``J v``. As for the backward pass, no derivative is written here: the captured
graph runs on PyTorch's dual tensors, and the dispatcher is asked what was computed. The result is an ordinary operator
graph of the primals and their tangents, which the back end compiles like any other.

Forward mode over a reverse pass gives the product of the Hessian with a vector at the cost of a gradient (Pearlmutter
1994, "Fast exact multiplication by the Hessian"): the engine runs its backward on dual tensors, and the tangents of the
gradients are ``H v``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from ..capture.isolation import Versions
from ..capture.module import GraphModule
from ..errors import OptionError
from ..operators.graph import OperatorGraph
from ..operators.record import Recorder, run_node_by_node
from ..operators.structure import flatten
from .joint import JointRecorder

__all__ = ["hessian_vector_graph", "jacobian_vector_graph"]


def jacobian_vector_graph(
    module: GraphModule,
    inputs: list[Any],
    tangents: dict[int, int],
    *,
    basis: frozenset[torch._ops.OpOverload] | None = None,
) -> OperatorGraph:
    """The graph of a function's values and their tangents.

    ``inputs`` are the values of the placeholders; ``tangents`` maps the position of a primal to that of its tangent
    (equal shape and dtype). Of the module's flat outputs the first half counts. Returns a graph with the same
    placeholders whose flat outputs are these, then their tangents, zero where an output depends on no primal. One eager
    forward-mode pass in time.
    """
    return _ForwardMode(module, basis).trace_dual(inputs, tangents)


def hessian_vector_graph(
    module: GraphModule,
    inputs: list[Any],
    tangents: dict[int, int],
    *,
    basis: frozenset[torch._ops.OpOverload] | None = None,
) -> OperatorGraph:
    """The graph of a scalar function's value, its gradients, and the Hessian's products with ``tangents``.

    Arguments as for :func:`jacobian_vector_graph`; the module's first output is a real scalar. The outputs are the
    value, a gradient for each primal, then a product for each, in the order of ``tangents``.
    """
    return _ForwardOverReverse(module, basis).trace_dual(inputs, tangents)


class _ForwardMode(Recorder):
    """Records a run on dual tensors."""

    def trace_dual(self, inputs: list[Any], tangents: dict[int, int]) -> OperatorGraph:
        values = self._leaves(inputs, tangents)
        self._trust_constants()
        self._define_inputs(values)
        versions = Versions(value for value in inputs if isinstance(value, torch.Tensor))
        try:
            with torch.set_grad_enabled(values is not inputs), self, forward_ad.dual_level():
                duals = list(values)
                for place, tangent in tangents.items():
                    duals[place] = forward_ad.make_dual(values[place], values[tangent])
                returned = flatten(run_node_by_node(self, duals))
                results = self._results_of(returned, [values[place] for place in tangents])
        finally:
            versions.restore()
        return self._finish(tuple(results), values)

    def _leaves(self, inputs: list[Any], tangents: dict[int, int]) -> list[Any]:
        return inputs

    def _results_of(self, returned: list[Any], primals: list[torch.Tensor]) -> list[Any]:
        return _halves(returned[: len(returned) // 2])


class _ForwardOverReverse(_ForwardMode, JointRecorder):
    """Records a backward pass on dual tensors."""

    def _leaves(self, inputs: list[Any], tangents: dict[int, int]) -> list[Any]:
        return [x.detach().requires_grad_() if place in tangents else x for place, x in enumerate(inputs)]

    def _results_of(self, returned: list[Any], primals: list[torch.Tensor]) -> list[Any]:
        value = returned[0]
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise OptionError(
                f"the Hessian is that of a function whose result is one real number, and this one returns {shape}",
                remedy="return a 0-dim floating-point tensor, such as a sum",
            )
        self.differentiably = True  # not every adjoint that PyTorch prefers has a tangent
        found = self._run_engine([value], [torch.ones_like(value)], primals)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(primals, found, strict=True)]
        return [forward_ad.unpack_dual(value).primal.detach(), *_halves(gradients)]


def _halves(values: list[Any]) -> list[Any]:
    """The primal parts of dual tensors, then their tangents."""
    pairs = [forward_ad.unpack_dual(x) if isinstance(x, torch.Tensor) else None for x in values]
    primals = [x if pair is None else pair.primal for x, pair in zip(values, pairs, strict=True)]
    tangents = [
        x if pair is None else torch.zeros_like(pair.primal) if pair.tangent is None else pair.tangent
        for x, pair in zip(values, pairs, strict=True)
    ]
    return [*primals, *tangents]
