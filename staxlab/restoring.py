"""A compilation whose later stages come from the cache (Section 11.1), and how it shows them all the same.

Where a plan of the region's operator graph is kept (:mod:`staxlab.runtime.plan`), the stages ``loops``, ``schedule``,
``kernels`` and ``wrapper`` do not run. Their records exist as soon as somebody asks for one: the same stages run then
on the same graph, under the settings the region was compiled with, and what they generate is compared with what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .compilation import RESTORABLE, STAGES, Compilation, Stage
from .runtime import plan
from .runtime.plan_key import ambient


def look_up(compilation: Compilation, run_stage: Callable[[Compilation, Stage], None]) -> None:
    """Give a compilation whose operator graph is there the plan that the cache has of it, if any; ``run_stage`` is what
    makes a record when one is asked for."""
    if compilation.last != "artifact":
        return
    operators, device = compilation.operators, compilation.device
    key = plan.name_of(operators, compilation.options, device, compilation.owned_inputs, compilation.name)
    compilation.plan_key = key
    compilation.plan = plan.restored(key, operators, device, compilation.name)
    if compilation.restored:
        compilation.make_again = lambda: _make_again(compilation, run_stage)


def plan_of(compilation: Compilation) -> Any:
    """The plan that a compilation's stages came to."""
    records = (compilation.loops, compilation.schedule, compilation.kernels, compilation.wrapper)
    return plan.made(compilation.operators, *records, compilation.plan_key)


def _make_again(compilation: Compilation, run_stage: Callable[[Compilation, Stage], None]) -> None:
    """Run the stages whose records were not needed. BuildError if they generate something else than what runs."""
    records = compilation.records
    try:
        with _settings(compilation.plan.ambient):
            for stage in STAGES:
                if stage.name in RESTORABLE and stage.name not in records:
                    run_stage(compilation, stage)
                    del compilation.timings[stage.name]  # it is no part of what the compilation took
        compilation.plan.require_same(records["kernels"], compilation.name)
    except BaseException:
        for name in RESTORABLE:  # nobody is to find what does not belong to what runs
            records.pop(name, None)
        raise


@contextmanager
def _settings(wanted: tuple[Any, ...]) -> Iterator[None]:
    """PyTorch's settings as they were, for as long as stages run that ask for them."""
    dtype, deterministic, _ = ambient()
    if (dtype, deterministic) == wanted[:2]:
        yield
        return
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_default_dtype(wanted[0])
    torch.use_deterministic_algorithms(wanted[1], warn_only=only_warn)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warn)
