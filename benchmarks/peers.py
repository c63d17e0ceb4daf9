"""The compilers being compared, behind one interface: are you here, and how do I call you on these inputs?"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks import preallocated
from benchmarks.cases import Case


@dataclass(frozen=True)
class Side:
    """A case prepared by a peer. ``run()`` does the work (on a GPU: starts it, and ``wait()`` waits for it);
    ``outputs()`` gives torch tensors.

    ``first_call`` is the seconds of the first call, compilation included; ``details`` what else the peer can tell.
    """

    run: Callable[[], Any]
    outputs: Callable[[], tuple[torch.Tensor, ...]]
    first_call: float
    details: dict[str, Any] = field(default_factory=dict)
    compilation: Any = None
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Peer:
    """``missing(device)`` is None if the peer can run there, else why not; ``install`` is how to get it.

    ``prepare_into`` makes the side that overwrites results made beforehand (:mod:`benchmarks.preallocated`)."""

    name: str
    title: str
    prepare: Callable[[Case, list[torch.Tensor]], Side]
    missing: Callable[[str], str | None] = lambda device: None
    install: str = ""
    prepare_into: Callable[[Case, list[torch.Tensor]], Side] | None = None


def _torch_side(function: Callable[..., Any], inputs: list[torch.Tensor], **more: Any) -> Side:
    start = time.perf_counter()
    function(*inputs)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    first = time.perf_counter() - start
    wait = torch.cuda.synchronize if inputs[0].is_cuda else lambda: None
    return Side(lambda: function(*inputs), lambda: preallocated.flat(function(*inputs)), first, wait=wait, **more)


def _eager(case: Case, inputs: list[torch.Tensor]) -> Side:
    return _torch_side(case.function, inputs)


def _torch_compile(case: Case, inputs: list[torch.Tensor]) -> Side:
    return _torch_side(torch.compile(case.function), inputs)


def _staxlab(case: Case, inputs: list[torch.Tensor]) -> Side:
    import staxlab

    compiled = staxlab.compile(case.function, strict_native=True)
    side = _torch_side(compiled, inputs)
    compilation = compiled.versions[-1].compilation
    return replace(side, details=_compiled_details(compilation), compilation=compilation)


def _compiled_details(compilation: Any) -> dict[str, Any]:
    done = preallocated.nothing_left_to_copy(compilation.schedule)
    return {
        "kernels": [kernel.name for kernel in compilation.kernels if not done.intersection(kernel.nodes)],
        "streaming_stores": any("stream(" in kernel.source for kernel in compilation.kernels),
        "stages_s": dict(compilation.timings),
    }


# --- Into results made beforehand -------------------------------------------------------------------------------------


def _overwriting(case: Case, inputs: list[torch.Tensor], function: Callable[..., Any]) -> Side:
    """A side that calls ``function(results, *inputs)``. The results are spoilt first, so that a function that forgets
    one is found out."""
    results = preallocated.empty_like_results(case.function, inputs)
    for result in results:
        result.fill_(1)
    side = _torch_side(lambda *tensors: function(results, *tensors), inputs)
    return replace(side, outputs=lambda: tuple(results))


def _eager_into(case: Case, inputs: list[torch.Tensor]) -> Side:
    results = preallocated.empty_like_results(case.function, inputs)
    run, allocating = preallocated.eager_into(case.function, inputs, results)
    for result in results:
        result.fill_(1)
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    wait = torch.cuda.synchronize if inputs[0].is_cuda else lambda: None
    return Side(run, run, first, {"operators_with_new_results": allocating}, wait=wait)


def _torch_compile_into(case: Case, inputs: list[torch.Tensor]) -> Side:
    torch._dynamo.reset()  # versions are kept per code object, which all functions made by writing() share
    return _overwriting(case, inputs, torch.compile(preallocated.writing(case.function)))


def _staxlab_into(case: Case, inputs: list[torch.Tensor]) -> Side:
    import staxlab

    compiled = staxlab.compile(preallocated.writing(case.function), strict_native=True)
    side = _overwriting(case, inputs, compiled)
    compilation = compiled.versions[-1].compilation
    details = _compiled_details(compilation) | preallocated.written_directly(compilation)
    plain = staxlab.compile(case.function, strict_native=True)  # what the byte model is asked about
    plain(*inputs)
    return replace(side, details=details, compilation=plain.versions[-1].compilation)


def _xla_into(case: Case, inputs: list[torch.Tensor]) -> Side:
    import jax
    import jax.numpy as jnp
    import numpy

    arrays = [jnp.asarray(t.cpu().numpy()) for t in inputs]
    plain = case.jax(jax, jnp)
    function = jax.jit(lambda results, *a: preallocated.flat(plain(*a)), donate_argnums=0, keep_unused=True)
    current = [tuple(jnp.asarray(t.cpu().numpy()) for t in preallocated.empty_like_results(case.function, inputs))]

    def run() -> Any:
        current[0] = jax.block_until_ready(function(current[0], *arrays))

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    before = [a.unsafe_buffer_pointer() for a in current[0]]
    run()
    kept = before == [a.unsafe_buffer_pointer() for a in current[0]]

    def outputs() -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(numpy.array(a)) for a in current[0])

    return Side(run, outputs, first, {"direct": kept})


def _xla(case: Case, inputs: list[torch.Tensor]) -> Side:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave the GPU's memory to the other peers
    import jax
    import jax.numpy as jnp

    arrays = [jnp.asarray(t.cpu().numpy()) for t in inputs]
    function = jax.jit(case.jax(jax, jnp))

    def run() -> Any:
        return jax.block_until_ready(function(*arrays))

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    import numpy

    def outputs() -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(numpy.array(a)) for a in preallocated.flat(run()))

    if not inputs[0].is_cuda:
        return Side(run, outputs, first)
    # On a GPU the calls of a reading are queued like everybody's, and only the last one is waited for.
    last: list[Any] = [None]

    def start_one() -> None:
        last[0] = function(*arrays)

    return Side(start_one, outputs, first, wait=lambda: jax.block_until_ready(last[0]))


def _no_torch_compile(device: str) -> str | None:
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "torch.compile needs Triton for CUDA"
    return None


def _no_jax(device: str) -> str | None:
    if importlib.util.find_spec("jax") is None:
        return "jax is not installed"
    if device == "cuda":
        import jax

        if all(d.platform == "cpu" for d in jax.devices()):
            return "this jax sees no GPU"
    return None


PEERS: dict[str, Peer] = {
    "eager": Peer("eager", "eager PyTorch", _eager, prepare_into=_eager_into),
    "torch_compile": Peer(
        "torch_compile", "torch.compile", _torch_compile, _no_torch_compile, 'pip install "staxlab[gpu]"',
        _torch_compile_into,
    ),
    "xla": Peer("xla", "XLA (jax.jit)", _xla, _no_jax, 'pip install "staxlab[benchmark]"', _xla_into),
    "staxlab": Peer("staxlab", "staxlab", _staxlab, prepare_into=_staxlab_into),
}  # fmt: skip


def select(names: str) -> list[Peer]:
    """Peers by comma-separated names. KeyError names the unknown one."""
    chosen = []
    for name in (part.strip() for part in names.split(",")):
        if name not in PEERS:
            raise KeyError(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
        chosen.append(PEERS[name])
    return chosen


def limit_cores(threads: int | None) -> None:
    """Give this process ``threads`` cores, so that every peer's thread pool is as large. Call before importing a peer.

    Where the system has no affinity, only PyTorch's own thread count can be set. ValueError for more than there are.
    """
    if threads is None:
        return
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if threads > len(cores):
            raise ValueError(f"{threads} threads asked for, {len(cores)} cores usable")
        if threads < len(cores):
            os.sched_setaffinity(0, cores[:threads])
    torch.set_num_threads(threads)
