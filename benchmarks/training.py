"""A training step, forward and backward, under eager PyTorch, ``torch.compile``, XLA and staxlab (Section 5).

    python -m benchmarks.training --case all --threads 2 --out training.json

A step is the loss and the gradients of all parameters. Before anything is timed, every peer's loss and gradients are
held against eager's in double precision. Beside the seconds stands what is kept between the two passes: the bytes eager
execution packs for its backward, and the bytes the minimum cut saves; these are counted and do not depend on a machine.
XLA joins where the case has a twin for JAX.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

FORMAT = "staxlab-training-1"


@dataclass(frozen=True)
class Case:
    """``make()`` gives the module, ``loss(module, x)`` a scalar; ``jax`` makes the loss of (parameters, x) from the
    ``jax`` and ``jax.numpy`` modules, parameters in the order of ``module.parameters()``."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    jax: Callable[[Any, Any], Callable[..., Any]] | None = None


class Weights(nn.Module):
    """Nothing but parameters."""

    def __init__(self, *shapes: tuple[int, ...]):
        super().__init__()
        self.w = nn.ParameterList(nn.Parameter(torch.randn(shape) / math.sqrt(shape[0])) for shape in shapes)


class Block(nn.Module):
    """A transformer block: attention and a two-layer network, each behind a layer norm, with dropout."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.heads = nn.Dropout(dropout), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = self.dropout((q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)).softmax(-1))
        x = x + self.dropout(self.out((weights @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


def _mean_square(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x).pow(2).mean()


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 64))


def _convolutions() -> nn.Module:
    layers = [nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    layers += [nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers)


def _jax_layer_norm(jnp: Any, x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * weight + bias


CASES: tuple[Case, ...] = (
    Case("example_5_1", "Example 5.1: gelu(x @ W).sum()", lambda: Weights((512, 512)), (2048, 512),
         lambda m, x: F.gelu(x @ m.w[0]).sum(),
         lambda jax, jnp: lambda p, x: jax.nn.gelu(x @ p[0], approximate=False).sum()),
    Case("example_1_1", "Example 1.1 with gradients: (relu(x + w) * 2).sum()", lambda: Weights((2048,)), (4096, 2048),
         lambda m, x: (torch.relu(x + m.w[0]) * 2).sum(-1).sum(),
         lambda jax, jnp: lambda p, x: (jax.nn.relu(x + p[0]) * 2).sum(-1).sum()),
    Case("norm_gelu", "Layer norm, gelu, mean square", lambda: nn.LayerNorm(1024), (4096, 1024),
         lambda m, x: F.gelu(m(x)).pow(2).mean(),
         lambda jax, jnp: lambda p, x: (jax.nn.gelu(_jax_layer_norm(jnp, x, *p), approximate=False) ** 2).mean()),
    Case("cross_entropy", "Scale, log-softmax, cross entropy", lambda: Weights((1000,)), (4096, 1000),
         lambda m, x: F.cross_entropy(x * m.w[0], torch.arange(len(x), device=x.device) % 1000),
         lambda jax, jnp: lambda p, x: -jnp.take_along_axis(
             jax.nn.log_softmax(x * p[0], -1), (jnp.arange(len(x)) % 1000)[:, None], 1).mean()),
    Case("mlp", "MLP 256-1024-1024-64, batch 256", _mlp, (256, 256), _mean_square),
    Case("convolutions", "Two convolutions with batch norm", _convolutions, (16, 16, 32, 32), _mean_square),
    Case("block", "Transformer block, width 256, 8 x 128 tokens, no dropout", lambda: Block(256, 8, 0.0),
         (8, 128, 256), _mean_square),
    Case("block_dropout", "Transformer block, dropout 0.1", lambda: Block(256, 8, 0.1), (8, 128, 256), _mean_square),
)  # fmt: skip


def _inputs(case: Case, device: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return case.make().to(device), torch.randn(case.shape).to(device)


def _step(loss: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for parameter in module.parameters():
        parameter.grad = None
    value = loss(x)
    value.backward()
    return value


def _result(loss: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    value = _step(loss, module, x)
    return [value.detach().double(), *(p.grad.double() for p in module.parameters())]


def _torch_side(case: Case, peer: str, device: str) -> tuple[Callable[[], Any], list[torch.Tensor], Any]:
    import staxlab

    module, x = _inputs(case, device)
    loss: Any = lambda x: case.loss(module, x)  # noqa: E731
    if peer == "torch_compile":
        loss = torch.compile(loss)
    elif peer == "staxlab":
        loss = staxlab.compile(loss)
    results = _result(loss, module, x)
    return lambda: _step(loss, module, x), results, loss.versions[0].compilation if peer == "staxlab" else None


def _xla_side(case: Case, device: str) -> tuple[Callable[[], Any], list[torch.Tensor]]:
    import jax
    import jax.numpy as jnp
    import numpy

    module, x = _inputs(case, device)
    arrays = [jnp.asarray(t.detach().cpu().numpy()) for t in (*module.parameters(), x)]
    step = jax.jit(jax.value_and_grad(case.jax(jax, jnp)))
    parameters, data = arrays[:-1], arrays[-1]
    value, gradients = step(parameters, data)
    results = [torch.from_numpy(numpy.array(a)).double() for a in (value, *gradients)]
    return lambda: jax.block_until_ready(step(parameters, data)), results


def error_of(results: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    """The largest deviation of a loss or gradient, relative to the largest element of the reference's."""
    pairs = zip(results, reference, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item() for a, b in pairs)


def run_case(case: Case, peers: Sequence[str], readings: int, device: str) -> dict[str, Any]:
    """Prepare, check and time one case; the record of it."""
    from benchmarks.peers import PEERS
    from staxlab.measure.timing import compare

    record: dict[str, Any] = {"case": case.name, "title": case.title, "shape": list(case.shape), "problems": {}}
    module, x = _inputs(case, device)
    module, x = module.double(), x.double()
    reference = None if "dropout" in case.name else _result(lambda x: case.loss(module, x), module, x)
    timed: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for peer in peers:
        missing = PEERS[peer].missing(device) or (peer == "xla" and case.jax is None and "no twin for JAX")
        if missing:
            record["problems"][peer] = missing
            continue
        try:
            if peer == "xla":
                timed[peer], results = _xla_side(case, device)
            else:
                timed[peer], results, compilation = _torch_side(case, peer, device)
                if peer == "staxlab":
                    record["compiled"] = _counted(compilation)
        except Exception as error:  # a peer's failure is a finding, not the end of the run
            record["problems"][peer] = f"failed: {type(error).__name__}: {error}"
            continue
        if reference is not None:
            errors[peer] = error_of(results, [t.to(r.device) for t, r in zip(reference, results, strict=True)])
            if peer != "eager" and errors[peer] > 100 * errors.get("eager", 1.0):
                record["problems"][peer] = f"wrong: {errors[peer]:.2g} where eager has {errors['eager']:.2g}"
                del timed[peer]
    comparison = compare(timed, readings=readings, warmup=3, order="random", device=device)
    record["errors"] = errors
    record["comparison"] = comparison.to_json()
    record["times_eager"] = {  # how many steps in the time of one of eager's
        name: comparison.ratio(name, "eager").to_json() for name in timed if name != "eager" and "eager" in timed
    }
    if {"staxlab", "torch_compile"} <= set(timed):
        record["times_torch_compile"] = comparison.ratio("staxlab", "torch_compile").to_json()
    print(f"{case.title}\n{comparison.table().text()}")
    for name in record["times_eager"]:
        print(f"    {name}: {_times(comparison.ratio(name, 'eager'))} eager's speed")
    if "times_torch_compile" in record:
        print(f"    staxlab: {_times(comparison.ratio('staxlab', 'torch_compile'))} torch.compile's speed")
    if "compiled" in record:
        counted = record["compiled"]
        print(
            f"    kept for the backward: {counted['saved_bytes']:,} bytes, eager {counted['eager_bytes']:,}; kernels "
            f"{counted['forward_kernels']} + {counted['backward_kernels']}, "
            f"{counted['library_calls']} of them library calls"
        )
    for name, problem in record["problems"].items():
        print(f"    {name}: {problem}")
    return record


def _times(ratio: Any) -> str:
    interval = ratio.interval
    if interval is None:
        return "an unknown multiple of"
    level = f"{100 * interval.coverage:.0f}%"
    words = f"{ratio.median:.3g} times ({interval.low:.3g} to {interval.high:.3g} at {level})"
    return words + (", which may be once," if interval.low <= 1 <= interval.high else "")


def _counted(compilation: Any) -> dict[str, Any]:
    partition, halves = compilation.partition, (compilation, compilation.backward)
    kernels = [list(half.kernels) for half in halves]
    return {
        "saved_bytes": partition.saved_bytes,
        "eager_bytes": partition.eager_bytes,
        "save_all_bytes": partition.save_all_bytes,
        "saved": [node.name for node in partition.saved],
        "forward_kernels": len(kernels[0]),
        "backward_kernels": len(kernels[1]),
        "library_calls": sum(kernel.language == "extern" for group in kernels for kernel in group),
        "moved_bytes": sum(half.kernels.bytes_moved for half in halves),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__.split("\n")[0])
    p.add_argument("--case", default="all", help="names separated by commas, or all")
    p.add_argument("--peers", default="eager,torch_compile,xla,staxlab")
    p.add_argument("--threads", type=int, help="cores every peer may use (default: all)")
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from benchmarks.peers import PEERS, limit_cores
    from benchmarks.records import header, save
    from staxlab.measure import machine

    by_name = {case.name: case for case in CASES}
    names = list(by_name) if options.case == "all" else [name.strip() for name in options.case.split(",")]
    peers = [name.strip() for name in options.peers.split(",")]
    for name in names:
        if name not in by_name:
            p.error(f"no case named {name!r}; cases: {', '.join(by_name)}")
    for name in peers:
        if name not in PEERS:
            p.error(f"no peer named {name!r}; peers: {', '.join(PEERS)}")
    limit_cores(options.threads)
    run = header(FORMAT, options.device)  # the machine as it is before measuring
    if note := machine.busy_note(run["machine"]):
        print(f"note: {note}")
    record = {
        **run,
        "readings": options.readings,
        "complete": False,
        "cases": [],
    }
    try:
        for name in names:
            record["cases"].append(run_case(by_name[name], peers, options.readings, options.device))
        record["complete"] = True
    except KeyboardInterrupt:
        print("interrupted: what was measured until then is above" + (" and in the file" if options.out else ""))
    if options.out:
        print(f"wrote {save(record, options.out)}")
    return 0 if record["complete"] else 130


if __name__ == "__main__":
    raise SystemExit(main())
