"""Library or template, by measurement: the candidates for the products of a region are whole regions (Section 9.8).

A template pays where its epilogue saves more traffic than its product loses, so neither can be judged without what
follows it. Under ``options={"autotune": ...}`` a region with products is therefore compiled once for each way of
computing them, every kernel in the configuration that its own search found, and the regions take turns on the actual
arguments. The library keeps its place unless another is faster in spite of the noise.

Only what can be run again is measured: a region that writes into its inputs or draws random numbers keeps the rule's
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .. import logs
from ..codegen.configurations import Configuration, ConfigurationSpace
from ..errors import BuildError, CodegenError
from ..operators.basis import is_random
from ..operators.graph import OperatorGraph
from ..options import Decision, DeviceSpec, Options
from .autotune import THRESHOLD, Search, select
from .autotune_noise import READINGS, Interleaved

#: The ways of computing products, the one that others must beat first.
CHOICES = ("library", "template", "template-tma")

Run = Callable[[list[torch.Tensor]], Any]


def choices_for(operators: OperatorGraph, program: Any, options: Options, device: DeviceSpec) -> tuple[str, ...]:
    """The ways that are worth compiling for a region, from its operators and its loop program; none where there is
    nothing to choose: no search is asked for, the option ``matmul`` names one, no template can compute any product, or
    running the region twice is not running it once."""
    if not (options.search_method and options.matmul == "rule" and device.is_gpu):
        return ()
    found = [d for d in program.decisions if d.topic == "matmul"]
    if not any(dict(d.inputs).get("bytes of the product") for d in found):  # the rule weighed something
        return ()
    drawn = any(isinstance(n.target, torch._ops.OpOverload) and is_random(n.target) for n in operators.graph)
    if operators.write_backs or drawn:
        return ()
    return CHOICES if device.compute_capability >= 90 else CHOICES[:2]


def fastest(
    runs: Mapping[str, Run],
    inputs: Sequence[torch.Tensor],
    timer: Callable[[Callable[..., Any], Sequence[torch.Tensor]], float],
    *,
    subject: str,
    readings: int = READINGS,
) -> tuple[str, Decision, Search]:
    """The name of the run to keep, of those in ``runs`` (the first keeps its place in doubt), with the decision and the
    search behind it. ``timer(launch, tensors)`` takes a reading in seconds. What cannot be built or has no memory costs
    infinity, unless it is the first."""
    names = list(runs)
    launches = {name: lambda *tensors, run=run: run(list(tensors)) for name, run in runs.items()}
    impossible: set[str] = set()
    for name, launch in launches.items():
        try:
            launch(*inputs)  # compiles, and searches for configurations
        except (BuildError, CodegenError, torch.OutOfMemoryError):
            if name == names[0]:
                raise
            impossible.add(name)

    def cost(configuration: Configuration) -> float:
        name = names[configuration[0] - 1]
        return math.inf if name in impossible else timer(launches[name], inputs)

    space = ConfigurationSpace.of(PRODUCTS=range(1, len(names) + 1))
    search = select(list(space), Interleaved(cost, readings), space=space, threshold=THRESHOLD, subject=subject)
    chosen = names[search.chosen[0] - 1]
    seconds = {name: search.costs.get((k + 1,)) for k, name in enumerate(names)}
    measured = tuple((f"seconds, {name}", float(f"{v:.3g}")) for name, v in seconds.items() if v is not None)
    decision = Decision("matmul-search", subject, chosen, f"measured side by side: {search.reason}", CHOICES, measured)
    logs.say("autotune", lambda: str(decision))
    return chosen, decision, search
