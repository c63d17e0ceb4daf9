"""The compared functions measured side by side, every system taking its turn (Sections 12 and 13.2).

How a figure comes about is said in ``benchmarks/README.md``; what is added here are the peers that only this comparison
has: Halide under two schedules written by hand, and TVM behind this project's own front end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks import cases, deviations, peers
from benchmarks.peers import Peer, Side
from benchmarks.systems import halide

#: Example 1.1, softmax, and Example 6.1: a reduction after a chain, three passes over rows, a change of layout.
NAMES = ("example_1_1", "softmax_five_operators", "transpose_add")
BACKEND = "tvm"


def compared_cases() -> list[cases.Case]:
    """The functions that all systems are given."""
    return cases.select(",".join(NAMES))


def _halide_side(schedule: str) -> Callable[[cases.Case, list[torch.Tensor]], Side]:
    def prepare(case: cases.Case, inputs: list[torch.Tensor]) -> Side:
        import halide as hl
        import numpy

        start = time.perf_counter()
        pipeline = halide.scheduled(case.name, schedule)
        compiled = pipeline.result.compile_to_callable(list(pipeline.inputs), halide.target())
        buffers = [hl.Buffer(tensor.numpy()) for tensor in inputs]
        extents = pipeline.extents(*inputs[0].shape)

        def run() -> Any:
            result = hl.Buffer(hl.Float(32), extents)
            compiled(*buffers, result)
            return result

        run()
        first = time.perf_counter() - start

        def outputs() -> tuple[torch.Tensor, ...]:
            # A buffer's first dimension is the one that is contiguous: for NumPy that is the last.
            return (torch.from_numpy(numpy.ascontiguousarray(numpy.array(run()))),)

        return Side(run, outputs, first, {"schedule": schedule})

    return prepare


def _no_halide(device: str) -> str | None:
    return halide.missing() or (None if device == "cpu" else "its schedules here are for a CPU")


def _tvm(case: cases.Case, inputs: list[torch.Tensor]) -> Side:
    import staxlab

    compiled = staxlab.compile(case.function, backend=BACKEND, strict_native=True)
    return peers._torch_side(compiled, inputs)


def _no_tvm(device: str) -> str | None:
    if importlib.util.find_spec("tvm") is None:
        return "apache-tvm is not installed"
    return None if device == "cpu" else "it is compared on a CPU"


def compared_peers() -> list[Peer]:
    """Every system, in the order of the tables."""
    own = peers.PEERS
    by_schedule = [
        Peer(f"halide_{place}", f"Halide, {schedule}", _halide_side(schedule), _no_halide,
             'pip install "staxlab[benchmark]"')
        for place, schedule in (("stages", halide.STAGES), ("pieces", halide.PIECES))
    ]  # fmt: skip
    tvm = Peer("tvm", "TVM", _tvm, _no_tvm, 'pip install "staxlab[tvm]"')
    return [own["eager"], own["torch_compile"], own["xla"], *by_schedule, tvm, own["staxlab"]]


def counting_faults(peer: Peer) -> Peer:
    """The peer with the page faults of a call among its details: new memory for a result costs one for each page, and
    which systems give out memory they have used before explains a good part of their times."""

    def prepare(case: cases.Case, inputs: list[torch.Tensor]) -> Side:
        side = peer.prepare(case, inputs)
        return replace(side, details={**side.details, "page_faults": deviations.faults_of(side.run, calls=3)})

    return replace(peer, prepare=prepare)


@contextlib.contextmanager
def cold_caches() -> Iterator[None]:
    """Caches on disk that are empty: a first call is one that nobody has made before."""
    names = ("STAXLAB_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                os.environ[name] = os.path.join(folder, name.lower())
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
