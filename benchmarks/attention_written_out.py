"""Attention that is written out by hand: recognised, not recognised, eager, and under ``torch.compile`` (Section 9.10).

    python -m benchmarks.attention_written_out --out benchmarks/results/attention_written_out.json
    python -m benchmarks.attention_written_out --device cuda --dtype bfloat16 --lengths 512,2048,8192
    python -m benchmarks.attention_written_out --only window --lengths 1024 --without compile

The same program on the same tensors four ways: by ``staxlab.compile``, by it with ``options={"attention": "off"}``,
by eager PyTorch and by ``torch.compile``. They take turns reading by reading; a ratio above 1 means that the
recognised form is faster. Results are compared with float64 first, and a side that is further off than a hundred
times eager's error is reported and not timed. The record has the decision with its bytes, so that the threshold below
which attention stays as it is written (``staxlab.transform.attention_plans.SMALLEST``) can be held against times.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import staxlab
from benchmarks import records
from staxlab.measure.timing import compare
from staxlab.measure.tolerance import beside_eager

FORMAT = "staxlab-attention-written-out-1"
SIDES = ("off", "eager", "compile")
HEADS, SIZE = 8, 64


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    n = q.shape[-2]
    hidden = torch.ones(n, n, device=q.device).tril() == 0
    return (q @ k.transpose(-2, -1) * 0.125).masked_fill(hidden, -math.inf).softmax(-1) @ v


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.125 + bias).softmax(-1) @ v


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (30 * torch.tanh(q @ k.mT * 0.125 / 30)).softmax(-1) @ v


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    far = (i[:, None] - i).abs() > 128
    return (30 * torch.tanh(q @ k.mT * 0.125 / 30)).masked_fill(far, -math.inf).softmax(-1) @ v


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": plain, "causal": causal, "bias": biased, "soft cap": capped, "window, soft cap": window,
}  # fmt: skip


def inputs_of(name: str, length: int, dtype: torch.dtype, device: str, training: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(1, HEADS, length, SIZE) for _ in range(3)]
    found += [torch.randn(HEADS, length, length)] if name == "bias" else []
    return [x.to(device, dtype).requires_grad_(training) for x in found]


def step(run: Callable[..., torch.Tensor], tensors: list[torch.Tensor], training: bool) -> Callable[[], Any]:
    """What is timed: the call, and where it trains the gradients of all inputs."""
    if not training:
        return lambda: run(*tensors)
    upstream = torch.ones_like(tensors[0])
    return lambda: (result := run(*tensors), torch.autograd.grad(result, tensors, upstream))


def errors(run: Callable[..., torch.Tensor], exact: torch.Tensor, tensors: list[torch.Tensor]) -> float:
    return float((run(*tensors).detach().double() - exact).abs().max())


def measure(name: str, length: int, training: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One program at one length: the decision, seconds of each side, and ratios to the recognised form."""
    function, dtype = PROGRAMS[name], getattr(torch, options.dtype)
    tensors = inputs_of(name, length, dtype, options.device, training)
    recognised = staxlab.compile(function)
    runs: dict[str, Callable[..., torch.Tensor]] = {"recognised": recognised}
    runs["off"] = staxlab.compile(function, options={"attention": "off"})
    runs["eager"] = function
    if "compile" not in options.without:
        torch._dynamo.reset()
        runs["compile"] = torch.compile(function, dynamic=False)
    exact = function(*(x.detach().double() for x in tensors))
    allowed = beside_eager(errors(function, exact, tensors), dtype)
    sides: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    with torch.set_grad_enabled(training):
        for side, run in runs.items():
            if side in options.without:
                continue
            try:
                off = errors(run, exact, tensors)
            except Exception as error:  # a peer that cannot do a case is a result, not a failure of the run
                missing[side] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                continue
            if off <= allowed:
                sides[side] = step(run, tensors, training)
            else:
                missing[side] = f"differs from float64 by {off:.2g}"
        if "recognised" not in sides:
            raise SystemExit(f"{name}: {missing['recognised']}")
        taken = compare(sides, readings=options.readings, pause=0.003, device=options.device)
    (decision,) = recognised.versions[0].compilation.transforms.decisions
    record = {
        "program": name, "length": length, "heads": HEADS, "size": SIZE, "dtype": options.dtype,
        "training": training, "choice": decision.choice, "reason": decision.reason,
        "bytes": {key: value for key, value in decision.inputs if isinstance(value, int)},
        "seconds": {side: taken[side].median for side in sides},
        "ratios": {side: taken.ratio("recognised", side).to_json() for side in sides if side != "recognised"},
        "missing": missing,
    }  # fmt: skip
    said = ", ".join(f"{side} {record['ratios'][side]['median']:.2f}" for side in record["ratios"]) or "no peer"
    what = f"{name}, {length}{', training' if training else ''}"
    print(
        f"{what}: {1e3 * taken['recognised'].median:.3f} ms ({decision.choice}); times faster than {said}", flush=True
    )
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the programs asked for and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_written_out",
                                     description=__doc__.splitlines()[0])  # fmt: skip
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--without", default="", help=f"sides left out, separated by commas: {', '.join(SIDES)}")
    parser.add_argument("--lengths", default="64,128,256,512,1024", help="queries and keys, separated by commas")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--readings", type=int, default=9, help="rounds in which every side has a turn (default 9)")
    parser.add_argument("--out", type=Path, help="where the record goes")
    options = parser.parse_args(arguments)
    options.without = [name.strip() for name in options.without.split(",") if name.strip()]
    chosen = [name for name in PROGRAMS if options.only in name]
    if not chosen:
        parser.error(f"no program has {options.only!r} in its name: {', '.join(PROGRAMS)}")
    if unknown := set(options.without) - set(SIDES):
        parser.error(f"no side named {sorted(unknown)[0]!r}; sides: {', '.join(SIDES)}")
    if not all(part.strip().isdecimal() and int(part) > 1 for part in options.lengths.split(",")):
        parser.error("--lengths must be whole numbers above 1, separated by commas")
    if options.readings < 1:
        parser.error("--readings must be at least 1")
    warnings.simplefilter("ignore")
    record = records.header(FORMAT)
    record["threads"], record["device"], record["cases"] = torch.get_num_threads(), options.device, []
    for name in chosen:
        for length in map(int, options.lengths.split(",")):
            for training in (False, True):
                record["cases"].append(measure(name, length, training, options))
                if options.out is not None:
                    records.save(record, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
