"""By what a prefix is judged on one input (Section 11.4): the observation of eager execution, and bounds for it.

Bounds are made for the flat results of the captured graph and then put where these stand in what the function returns.
They are made only if some prefix is not equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..api import _target_of as target_of
from ..api import compile as compiled_for
from ..capture.graph import nodes_in
from ..measure.agreement import Agreement
from ..measure.program_bounds import Bounds, bounds_of
from .sample import Observation, Sample, leaves_of
from .staging import compilation_of

if TYPE_CHECKING:
    from .search import Search


class Criterion:
    """A sample, what eager execution shows on it, and how other runs are compared with that.

    ``staged`` is a compilation of the sample that is taken stage by stage.
    """

    def __init__(self, search: Search, sample: Sample, reference: Observation):
        self.search, self.sample, self.reference = search, sample, reference
        self.target = target_of((sample.fn, sample.args, sample.kwargs))
        self.staged = compilation_of(sample, search.options, self.target)
        self._bounds: dict[int, Bounds] = {}

    def bounds(self, height: int = 0) -> Bounds:
        """The bounds of an observation of this sample, value by value."""
        if height not in self._bounds:
            found = self._flat_bounds(height)
            self._bounds[height] = found
            if found.reason:
                self.search.notes.append(f"no bounds could be made, so bits are compared: {found.reason}")
        return self._bounds[height]

    def _flat_bounds(self, height: int) -> Bounds:
        sample = self.sample
        module, capture = sample.capture.module, sample.capture
        count = len(nodes_in(module.graph.output.args[0]))
        places = [_Place(k) for k in range(count)]
        leaves: list[tuple[str, Any]] = []
        leaves_of(capture.rebuild(tuple(places), (sample.args, sample.kwargs)), "result", leaves, [])
        upstream = self._flat_upstream(places, [leaf for _, leaf in leaves]) if sample.trains else None
        inputs = sample.flat_copies()
        found = bounds_of(module, inputs, upstream=upstream, seed=sample.seed, height=height)
        if found.reason:
            return found
        rest = len(found) - count
        spread = [
            tuple(
                [values[leaf.number] if isinstance(leaf, _Place) else None for _, leaf in leaves]
                + list(values[len(values) - rest :] if rest else ())
            )
            for values in (found.exact, found.bound)
        ]
        return Bounds(spread[0], spread[1])

    def _flat_upstream(self, places: list[_Place], leaves: list[Any]) -> list[Any]:
        """The upstream gradient of each flat result that is differentiable: summed up where it is returned twice."""
        remaining = iter(self.sample.upstream)
        found: dict[int, Any] = {}
        for leaf, value in zip(leaves, self.reference_requires_grad(), strict=True):
            if not value or not isinstance(leaf, _Place):
                continue
            tangent = next(remaining, None)
            if tangent is not None:
                before = found.get(leaf.number)
                found[leaf.number] = tangent if before is None else before + tangent
        wanted = [place.number for place in places if place.number in self._differentiable(leaves)]
        return [found.get(number) for number in wanted]

    def reference_requires_grad(self) -> list[bool]:
        """For each leaf of the results, whether it is differentiable."""
        if not hasattr(self, "_grads"):
            seen: list[bool] = []

            def watching(*args: Any, **kwargs: Any) -> Any:
                result = self.sample.fn(*args, **kwargs)
                leaves: list[tuple[str, Any]] = []
                leaves_of(result, "result", leaves, [])
                seen.extend(isinstance(x, torch.Tensor) and x.requires_grad for _, x in leaves)
                return result

            self.sample.observe(watching)
            self._grads = seen
        return self._grads

    def _differentiable(self, leaves: list[Any]) -> set[int]:
        pairs = zip(leaves, self.reference_requires_grad(), strict=True)
        return {leaf.number for leaf, wanted in pairs if wanted and isinstance(leaf, _Place)}

    def judge(self, call: Callable[..., Any], exact: bool, height: int = 0) -> Agreement:
        """Observe a call, and compare: bit for bit first, then, if that is not asked for, with the bounds."""
        seen = self.sample.observe(call)
        found = seen.against(self.reference)
        if exact or found.identical and found.agrees:
            return found
        return seen.against(self.reference, self.bounds(height).bound or None)

    def regional(self, call: Callable[[list[torch.Tensor]], Any]) -> Callable[..., Any]:
        """What maps flat inputs to flat results, as a function like the user's."""
        capture = self.sample.capture

        def run(*args: Any, **kwargs: Any) -> Any:
            result = call(capture.bind(args, kwargs))
            flat = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            return capture.rebuild(flat, (args, kwargs))

        return run

    def compiled(self, backend: str, strict: bool = False) -> Any:
        """The function compiled anew."""
        search = self.search
        return compiled_for(
            self.sample.fn, backend=backend, options=search.changed_options(), dynamic=search.options.dynamic,
            strict_native=strict,
        )  # fmt: skip


class _Place:
    """Stands for the flat result with this number."""

    def __init__(self, number: int):
        self.number = number
