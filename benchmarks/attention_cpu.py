"""Attention on a CPU beside PyTorch's scaled_dot_product_attention and FlexAttention (Section 9.10).

    python -m benchmarks.attention_cpu --out benchmarks/results/attention_cpu.json
    python -m benchmarks.attention_cpu --only causal --readings 15 --without flex

With ``--only`` the other cases of an existing file are kept, each with the time it was measured at.

All sides take turns on the same tensors, reading by reading (:func:`staxlab.measure.timing.compare`); a ratio above 1
means that ``staxlab`` is faster. Before anything is timed, results are compared with attention in float64: a side that
is wrong is reported and not timed. ``sdpa`` gets ``is_causal`` where the case is causal, nothing where it is full, and
a dense mask of Booleans elsewhere, which is what a user of it would pass; ``flex`` is FlexAttention under
``torch.compile``, whose backward pass PyTorch does not have on CPUs. The rate counts the products of visible positions
only. Compiling FlexAttention takes longest; a second run finds it in PyTorch's cache.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import staxlab
from benchmarks import records
from staxlab.attention.reference import reference_attention
from staxlab.measure import machine
from staxlab.measure.timing import compare

FORMAT = "staxlab-attention-cpu-1"
RESULT = Path(__file__).parent / "results" / "attention_cpu.json"
SIDES = ("sdpa", "flex")
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}  # of the largest element
SLOPES = 0.5 ** torch.arange(1.0, 9.0)


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 256)


def document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx // 300 == kv_idx // 300) & (q_idx >= kv_idx)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score - SLOPES[h] * (q_idx - kv_idx)


def soft_cap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 30 * torch.tanh(score / 30)


@dataclass(frozen=True)
class Case:
    """A problem. ``sizes`` are batch, query heads, key heads, queries, keys and elements of a head."""

    name: str
    sizes: tuple[int, int, int, int, int, int]
    mask: Callable | None = None
    score: Callable | None = None
    dtype: torch.dtype = torch.float32
    backward: bool = False

    @property
    def positions(self) -> int:
        """Visible positions of all heads."""
        batch, heads, _, queries, keys, _ = self.sizes
        if self.mask is None:
            return batch * heads * queries * keys
        places = torch.arange(queries).view(-1, 1), torch.arange(keys)
        return batch * heads * int(self.mask(0, 0, *places).sum())


LONG, WIDE = (1, 8, 8, 2048, 2048, 64), (1, 4, 4, 2048, 2048, 128)
CASES = (
    Case("causal", LONG, causal),
    Case("causal, heads of 128", WIDE, causal),
    Case("full", LONG),
    Case("full, heads of 128", WIDE),
    Case("sliding window of 256", LONG, window),
    Case("documents of 300", LONG, document),
    Case("causal, ALiBi", LONG, causal, alibi),
    Case("causal, soft cap", LONG, causal, soft_cap),
    Case("vision transformer", (8, 12, 12, 197, 197, 64)),
    Case("decoding, 8 of 32 heads", (1, 32, 8, 1, 8192, 128)),
    Case("causal, bfloat16", LONG, causal, None, torch.bfloat16),
    Case("causal, float64", (1, 8, 8, 1024, 1024, 64), causal, None, torch.float64),
    Case("causal, backward", LONG, causal, backward=True),
    Case("full, backward", LONG, backward=True),
    Case("sliding window of 256, backward", LONG, window, backward=True),
    Case("causal, bfloat16, backward", LONG, causal, None, torch.bfloat16, backward=True),
)


def inputs_of(case: Case) -> list[torch.Tensor]:
    batch, heads, key_heads, queries, keys, size = case.sizes
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, heads, queries, size), (batch, key_heads, keys, size), (batch, key_heads, keys, size))
    return [torch.randn(s, generator=generator).to(case.dtype).requires_grad_(case.backward) for s in shapes]


def staxlab_side(case: Case, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    _, heads, key_heads, queries, keys, _ = case.sizes
    block_mask = None if case.mask is None else staxlab.create_block_mask(case.mask, None, None, queries, keys)
    return lambda: staxlab.omni_attention(*tensors, case.score, block_mask, enable_gqa=heads != key_heads)


def sdpa_side(case: Case, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor] | None:
    if case.score is not None:
        return None
    _, heads, key_heads, queries, keys, _ = case.sizes
    given: dict[str, Any] = {"enable_gqa": heads != key_heads}
    if case.mask is causal:
        given["is_causal"] = True
    elif case.mask is not None:
        given["attn_mask"] = case.mask(0, 0, torch.arange(queries).view(-1, 1), torch.arange(keys))
    return lambda: torch.nn.functional.scaled_dot_product_attention(*tensors, **given)


def flex_side(case: Case, tensors: list[torch.Tensor]) -> Callable[[], torch.Tensor] | None:
    if case.backward:
        return None
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    _, heads, key_heads, queries, keys, _ = case.sizes
    block_mask = None
    if case.mask is not None:
        block_mask = create_block_mask(case.mask, None, None, queries, keys, device="cpu")
    torch._dynamo.reset()  # else the ninth case would run uncompiled
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(*tensors, score_mod=case.score, block_mask=block_mask, enable_gqa=heads != key_heads)


def grad_mode(case: Case) -> Any:
    """Gradients are recorded where they are asked for: a peer is compiled once, for the mode it is timed in."""
    return torch.enable_grad() if case.backward else torch.no_grad()


def with_backward(run: Callable[[], torch.Tensor], tensors: list[torch.Tensor]) -> Callable[[], Any]:
    """Only the backward pass is timed: the graph is kept, the forward pass ran before."""
    result = run()
    upstream = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, tensors, upstream, retain_graph=True)


def wrong(case: Case, run: Callable[[], torch.Tensor], tensors: list[torch.Tensor]) -> str:
    """What is wrong with a side's result or with one of its gradients; "" if nothing is."""
    _, heads, key_heads, *_ = case.sizes
    exact = [tensor.detach().double().requires_grad_(case.backward) for tensor in tensors]
    output, _ = reference_attention(*exact, case.score, case.mask, enable_gqa=heads != key_heads)
    pairs = [(run(), output)]
    if case.backward:
        upstream = torch.ones_like(output)
        found = torch.autograd.grad(pairs[0][0], tensors, upstream.to(case.dtype))
        pairs += zip(found, torch.autograd.grad(output, exact, upstream), strict=True)
    for got, wanted in pairs:
        error = ((got.detach().double() - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()
        if not error <= ALLOWED[case.dtype] * (10 if case.backward else 1):
            return f"differs from float64 by {error:.2g} of the largest element"
    return ""


def measure(case: Case, without: Sequence[str], readings: int) -> dict[str, Any]:
    """One case: times of all sides that are right, ratios to ours, and why a side is missing."""
    tensors = inputs_of(case)
    makers = {"staxlab": staxlab_side, "sdpa": sdpa_side, "flex": flex_side}
    sides: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        if name in without:
            continue
        try:
            run = make(case, tensors)
            if run is None:
                missing[name] = "has no such attention"
                continue
            with grad_mode(case):
                said = wrong(case, run, tensors)
        except Exception as error:  # a peer that cannot do a case is a result, not a failure of the run
            said = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if said:
            missing[name] = said
        else:
            sides[name] = with_backward(run, tensors) if case.backward else run
    if "staxlab" not in sides:
        raise SystemExit(f"{case.name}: {missing['staxlab']}")
    with grad_mode(case):
        taken = compare(sides, readings=readings, pause=0.003)
    size, floating = case.sizes[-1], 10 if case.backward else 4
    median = taken["staxlab"].median
    record = {
        "case": case.name, "date": machine.timestamp(), "sizes": case.sizes,
        "dtype": str(case.dtype).removeprefix("torch."),
        "pass": "backward" if case.backward else "forward", "visible_positions": case.positions,
        "seconds": {name: taken[name].median for name in sides},
        "gflops": floating * size * case.positions / median / 1e9,
        "ratios": {name: taken.ratio("staxlab", name).to_json() for name in sides if name != "staxlab"},
        "missing": missing,
    }  # fmt: skip
    said = ", ".join(f"{name} {record['ratios'][name]['median']:.2f}" for name in record["ratios"]) or "no peer"
    print(f"{case.name}: {1e3 * median:.2f} ms, {record['gflops']:.0f} GFLOP/s; times faster than {said}", flush=True)
    for name, reason in missing.items():
        print(f"    {name}: {reason}")
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases asked for and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--without", default="", help=f"peers left out, separated by commas: {', '.join(SIDES)}")
    parser.add_argument("--readings", type=int, default=9, help="rounds in which every side has a turn (default 9)")
    parser.add_argument("--out", type=Path, help=f"where the record goes, such as {RESULT.name}")
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if options.only in case.name]
    without = [name.strip() for name in options.without.split(",") if name.strip()]
    if not chosen:
        parser.error(f"no case has {options.only!r} in its name: {', '.join(case.name for case in CASES)}")
    if unknown := set(without) - set(SIDES):
        parser.error(f"no peer named {sorted(unknown)[0]!r}; peers: {', '.join(SIDES)}")
    if options.readings < 1:
        parser.error("--readings must be at least 1")
    warnings.simplefilter("ignore")
    record = records.header(FORMAT)
    record["threads"] = torch.get_num_threads()
    measured: dict[str, dict[str, Any]] = {}
    if options.only and options.out is not None and options.out.exists():
        measured = {case["case"]: case for case in json.loads(options.out.read_text())["cases"]}
    for case in chosen:
        measured[case.name] = measure(case, without, options.readings)
        record["cases"] = [measured[known.name] for known in CASES if known.name in measured]
        if options.out is not None:
            records.save(record, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
