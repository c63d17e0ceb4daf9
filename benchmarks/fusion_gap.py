"""Greedy fusion against the optimum on fragments of models (Section 7.3, Definition 7.3).

    python -m benchmarks.fusion_gap --out benchmarks/results/fusion_gap.json

Every fragment is compiled for a CPU in the ordinary way; then the kernels that greedy merging (Algorithm 7.1) came to
are held against the best partition there is, by the same rules of what may share a kernel, and by the bytes each moves.
Bytes are counted, so the numbers are the same on every machine. Where there is a gap the file names the merge that made
it, and what other scores for the next merge would have come to. The backward pass of a fragment with gradients is a
program of its own, and has a row of its own.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import staxlab
from benchmarks.records import header, save
from staxlab.measure.fusion_gap import fusion_history, gap
from staxlab.measure.tables import bytes_text
from staxlab.schedule.fusion import Pair, Score

FORMAT = "staxlab-fusion-gap-1"
ROWS, WIDTH = 2048, 1024

#: Scores for the next merge that are tried beside the compiler's. The first is Section 7.3's.
SCORES: dict[str, Score] = {
    "kind, bytes, nearness": lambda pair: (pair.kind == "vertical", pair.bytes_saved, -pair.distance),
    "bytes, kind, nearness": lambda pair: (pair.bytes_saved, pair.kind == "vertical", -pair.distance),
    "nearness, kind, bytes": lambda pair: (-pair.distance, pair.kind == "vertical", pair.bytes_saved),
    "several rows, kind, bytes, nearness": lambda pair: (
        pair.merged is not None and pair.merged.rows > 1,
        pair.kind == "vertical",
        pair.bytes_saved,
        -pair.distance,
    ),
    "bytes per member": lambda pair: (pair.bytes_saved / _members(pair), pair.kind == "vertical", -pair.distance),
}


def _members(pair: Pair) -> int:
    return len(pair.first.members) + len(pair.second.members)


@dataclass(frozen=True)
class Fragment:
    """A piece of a model: a function, and how to make its inputs."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    note: str = ""


def _random(*shapes: tuple[int, ...], grad: bool = False) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.rand(shape, requires_grad=grad) for shape in shapes)


N, W = (ROWS, WIDTH), (WIDTH,)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)) @ v


def _block(x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    width = x.shape[-1]
    q, k, v = (F.layer_norm(x, (width,)) @ qkv).view(*x.shape[:-1], 3, 8, width // 8).unbind(-3)
    q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
    x = x + _attention(q, k, v).transpose(-2, -3).reshape(x.shape) @ out
    return x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def _lstm(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    return (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * hn


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v


def _lamb(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _, m, v = _adam(p, g, m, v)
    update = m / (v.sqrt() + 1e-6) + 0.01 * p
    return p - 1e-3 * (p.norm() / update.norm()) * update, m, v


def _focal(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(logits)
    pt = p * target + (1 - p) * (1 - target)
    return (-(1 - pt).square() * pt.log()).mean()


def _mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (F.gelu(x @ w) * mask * 1.25) @ v


def _swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def _distillation(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(teacher / 2, -1)
    return (p * (p.log() - torch.log_softmax(student / 2, -1))).sum(-1).mean()


def _contrastive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    similar = a @ b.t() / 0.07
    labels = torch.arange(similar.shape[0])
    return F.cross_entropy(similar, labels) + F.cross_entropy(similar.t(), labels)


def _scaled_norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = F.layer_norm(x + r, (x.shape[-1],), w, b)
    return y, x + r, y.amax(-1)


def _batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
    return torch.relu((x - mean) * torch.rsqrt(var + 1e-5) * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1))


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean(0), x.std(0), x.mean(1), x.std(1), (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


def _router(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    p = torch.softmax(x @ w, -1)
    load = p.mean(0)
    return p, load, (load * load).sum() * w.shape[-1], p.amax(-1)


def _residual_chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = x + _rms_norm(torch.tanh(x) * 0.5, w)
    return x


FRAGMENTS: dict[str, Fragment] = {
    "Example 1.1": Fragment(lambda x, w: (torch.relu(x + w) * 2).sum(-1), _random(N, N)),
    "Example 7.1": Fragment(lambda x: x / x.sum(-1, keepdim=True), _random(N)),
    "Example 7.2": Fragment(lambda x: (x.exp().sum(-1), x.exp().amax(-1)), _random(N)),
    "softmax of five operators": Fragment(
        lambda x: (lambda e: e / e.sum(-1, keepdim=True))((x - x.amax(-1, keepdim=True)).exp()), _random(N)
    ),
    "attention, by operators": Fragment(_attention, _random((2, 8, 256, 64), (2, 8, 256, 64), (2, 8, 256, 64))),
    "transformer block": Fragment(_block, _random((2, 256, 512), (512, 1536), (512, 512), (512, 2048), (2048, 512))),
    "transformer block, training": Fragment(
        lambda *a: _block(*a).square().mean(),
        _random((2, 256, 512), (512, 1536), (512, 512), (512, 2048), (2048, 512), grad=True),
    ),
    "MLP with gelu and a mask": Fragment(_mlp, _random(N, (WIDTH, 4096), (4096, WIDTH), (ROWS, 4096))),
    "MLP with gelu and a mask, training": Fragment(
        lambda *a: _mlp(*a).square().mean(), _random(N, (WIDTH, 2048), (2048, WIDTH), (ROWS, 2048), grad=True)
    ),
    "layer norm": Fragment(lambda x, w, b: F.layer_norm(x, W, w, b), _random(N, W, W)),
    "layer norm, training": Fragment(
        lambda x, w, b: F.layer_norm(x, W, w, b).square().mean(), _random(N, W, W, grad=True)
    ),
    "residual and layer norm, several results": Fragment(_scaled_norms, _random(N, W, W, N)),
    "RMS norm and rotary embedding": Fragment(
        lambda x, w, cos, sin: _rotary(_rms_norm(x, w), cos, sin), _random(N, W, N, N)
    ),
    "RMS norm, training": Fragment(lambda x, w: _rms_norm(x, w).square().sum(), _random(N, W, grad=True)),
    "SwiGLU": Fragment(_swiglu, _random(N, (WIDTH, 2048), (WIDTH, 2048), (2048, WIDTH))),
    "SwiGLU, training": Fragment(
        lambda *a: _swiglu(*a).square().mean(),
        _random(N, (WIDTH, 2048), (WIDTH, 2048), (2048, WIDTH), grad=True),
    ),
    "softmax cross-entropy": Fragment(F.cross_entropy, lambda: (torch.rand(ROWS, 8192), torch.randint(8192, (ROWS,)))),
    "softmax cross-entropy, training": Fragment(
        F.cross_entropy, lambda: (torch.rand(ROWS, 4096, requires_grad=True), torch.randint(4096, (ROWS,)))
    ),
    "batch norm and relu": Fragment(_batch_norm_relu, _random((16, 64, 56, 56), (64,), (64,))),
    "batch norm and relu, training": Fragment(
        lambda x, w, b: torch.relu(F.batch_norm(x, None, None, w, b, training=True)).square().mean(),
        _random((16, 64, 28, 28), (64,), (64,), grad=True),
    ),
    "group norm and silu": Fragment(
        lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), _random((16, 64, 32, 32), (64,), (64,))
    ),
    "LSTM cell": Fragment(_lstm, _random((ROWS, 4 * WIDTH), N)),
    "LSTM cell, training": Fragment(
        lambda g, c: sum(part.square().mean() for part in _lstm(g, c)), _random((ROWS, 4 * WIDTH), N, grad=True)
    ),
    "GRU cell": Fragment(_gru, _random((ROWS, 3 * WIDTH), (ROWS, 3 * WIDTH))),
    "Adam": Fragment(_adam, _random(N, N, N, N)),
    "LAMB": Fragment(_lamb, _random(N, N, N, N)),
    "focal loss": Fragment(_focal, _random(N, N)),
    "focal loss, training": Fragment(_focal, _random(N, N, grad=True)),
    "distillation loss": Fragment(_distillation, _random(N, N)),
    "distillation loss, training": Fragment(_distillation, _random(N, N, grad=True)),
    "contrastive loss": Fragment(_contrastive, _random((1024, 256), (1024, 256))),
    "statistics by rows and by columns": Fragment(_statistics, _random((1024, 1024))),
    "router of experts": Fragment(_router, _random(N, (WIDTH, 64))),
    "three residual norms": Fragment(_residual_chain, _random(N, W, W, W)),
}


def schedules(fragment: Fragment) -> Iterator[tuple[str, Any]]:
    """The fragment compiled, and its backward pass if it has one, each with what to add to its name."""
    inputs = fragment.inputs()
    compiled = staxlab.compile(fragment.function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", staxlab.FallbackWarning)
        result = compiled(*inputs)
        compilation = compiled.versions[0].compilation
        yield "", compilation
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.backward()
            yield " (backward)", compilation.backward


def measure(names: Sequence[str], seconds: float, said: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """A record for each fragment and backward pass."""
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        for more, compilation in schedules(FRAGMENTS[name]):
            found = gap(compilation, seconds=seconds)
            scheduled = compilation.schedule
            results[name + more] = {
                **found.to_json(),
                "bytes_scheduled": sum(
                    scheduled.bytes_read(node) + scheduled.bytes_written(node) for node in scheduled.nodes
                ),
                "bytes_unfused": found.best.problem.cost([[node] for node in found.nodes]),
                "kernels_of_pytorch": sum(node.extern is not None for node in scheduled.nodes),
                "by_score": {
                    words: found.best.problem.cost(fusion_history(compilation, score=score).groups)
                    for words, score in SCORES.items()
                },
            }
            said(line(name + more, results[name + more]))
    return results


HEAD = (
    f"{'fragment':52} {'nodes':>5} {'kernels':>7} {'best':>5} {'unfused':>10} {'greedy':>10} {'optimum':>10} "
    f"{'gap':>7}  proof"
)


def line(name: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    greedy, best = row["greedy"], row["optimum"]
    moved = (bytes_text(number) for number in (row["bytes_unfused"], greedy["bytes"], best["bytes"]))
    return (
        f"{name:52} {row['nodes']:>5} {greedy['kernels']:>7} {best['kernels']:>5} "
        f"{' '.join(f'{text:>10}' for text in moved)} {row['relative_gap']:>7.2%}  {best['proof']}"
    )


def draw(results: dict[str, dict[str, Any]], path: Path) -> Path:
    """Bytes over the optimum, for each fragment: unfused and greedy (SVG, PNG or PDF)."""
    from staxlab.view.figures import SERIES, colour_axes, new_figure, palette, write_figure

    colours = palette("light")
    names = list(results)[::-1]
    figure = new_figure((8.5, 1.2 + 0.24 * len(names)), colours)
    axes = figure.add_subplot()
    least = [results[name]["optimum"]["bytes"] for name in names]
    unfused = [results[name]["bytes_unfused"] for name in names]
    merged = [results[name]["greedy"]["bytes"] for name in names]
    for label, bytes_of, marker, colour in (
        ("one kernel for each buffer", unfused, "s", SERIES[1]),
        ("greedy fusion (Algorithm 7.1)", merged, "o", SERIES[0]),
    ):
        over = [number / best for number, best in zip(bytes_of, least, strict=True)]
        axes.plot(over, range(len(names)), marker, color=colour, label=label, linestyle="none", fillstyle="none")
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlabel("bytes moved, as a multiple of the optimum (ratio, logarithmic)")
    axes.set_ylabel("fragment")
    title = "Main-memory traffic of fusion partitions"
    axes.set_title(title)
    colour_axes(axes, colours)
    ticks = [tick for tick in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if tick <= 1.2 * axes.get_xlim()[1]]
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_xticks([], minor=True)
    figure.legend(loc="outside upper right", ncols=2, facecolor=colours["background"], labelcolor=colours["text"])
    worst = max(row["relative_gap"] for row in results.values())
    optimal = sum(not row["relative_gap"] for row in results.values())
    said = f"{len(names)} programs; greedy fusion is optimal on {optimal}, and at most {worst:.1%} above the optimum"
    return write_figure(figure, path, title, said)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion_gap", description=__doc__.split("\n")[0])
    parser.add_argument("--fragments", default="", help=f"names separated by semicolons; of {'; '.join(FRAGMENTS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="of search for each, at most (default 60)")
    parser.add_argument("--out", type=Path, help="write JSON, and a plot beside it")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.fragments.split(";") if name.strip()] or list(FRAGMENTS)
    for name in names:
        if name not in FRAGMENTS:
            parser.error(f"no fragment named {name!r}")
    torch.manual_seed(0)
    print(HEAD)
    results = measure(names, options.seconds, lambda words: print(words, flush=True))
    for name, row in results.items():
        for reason in row["reasons"]:
            print(f"{name}: {reason}")
    if options.out:
        print(f"wrote {save({**header(FORMAT), 'results': results}, options.out)}")
        print(f"wrote {draw(results, options.out.with_suffix('.svg'))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
