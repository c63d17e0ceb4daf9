"""A compilation taken stage by stage, so that each stage can be looked at and run on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..compilation import STAGES, Compilation
from ..fallbacks import obstacle
from ..options import Options, device_spec
from ..pipeline import RUN
from .sample import Sample

LAST = "wrapper"  # what is run on its own comes from the records up to here


class StageFailed(Exception):
    """A stage raised, or refused the region: nothing behind it can be looked at."""

    def __init__(self, stage: str, error: Exception | None, reason: str):
        super().__init__(reason)
        self.stage, self.error, self.reason = stage, error, reason


def compilation_of(sample: Sample, options: Options, target: str) -> Compilation:
    """A compilation whose captured graph is the sample's; nothing else has run."""
    name = getattr(sample.fn, "__name__", None) or type(sample.fn).__name__
    options = replace(options, backend="stax", strict_native=False, validate=False, autotune=False, cuda_graphs=False)
    found = Compilation(name, target, options, device_spec(target, options))
    found.records["capture"] = sample.capture
    found.sample, found.trains = sample.flat_copies(), sample.trains
    return found


def advance(compilation: Compilation, last: str = LAST) -> Compilation:
    """Run the stages up to ``last`` that have not run. StageFailed where one raises or the region falls back."""
    for stage in STAGES:
        wanted = not stage.option and (compilation.trains or not stage.differentiates)
        if wanted and stage.name not in compilation.records:
            run(compilation, stage.name)
        if stage.name == last:
            return compilation
    return compilation


def run(compilation: Compilation, name: str) -> Any:
    """Run one stage on copies of the sample, and keep its record."""
    try:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(compilation.trains):
            compilation.records[name] = RUN[name](compilation)
            if compilation.capture is not None:
                compilation.capture.rewind()  # a stage that runs the sample draws from generators of the caller's, too
    except Exception as error:
        said = str(error).strip().splitlines()
        raise StageFailed(name, error, f"{type(error).__name__}: {said[0] if said else ''}") from error
    found = obstacle(compilation, name)
    if found is not None:
        raise StageFailed(name, None, str(found))
    return compilation.records[name]


def advance_half(compilation: Compilation) -> None:
    """The stages of a backward half that have not run: those after the operators. StageFailed as for
    :func:`advance`."""
    names = [stage.name for stage in STAGES if not stage.option]
    for name in names[names.index("operators") + 1 : names.index(LAST) + 1]:
        if name not in compilation.records:
            run(compilation, name)
