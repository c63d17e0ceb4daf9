"""Time and peak memory of causal attention against its length (Section 9.10): is memory linear in N?

    python -m benchmarks.attention_lengths --out benchmarks/results/attention_lengths_h200.json
    python -m benchmarks.attention_lengths --backward --out benchmarks/results/attention_lengths_backward_h200.json
    python -m benchmarks.attention_lengths --device cpu --threads 2 --longest 8192 --out ...
    python -m benchmarks.attention_lengths --smoke      small, on the CPU, nothing worth keeping

Ways: ``omni_attention`` with a causal block mask, PyTorch's ``scaled_dot_product_attention``, FlexAttention under
``torch.compile`` (on a GPU), and attention written by operators, which forms N x N matrices and is left out where they
would take more than ``--most-bytes``. All take turns reading by reading; on a GPU a reading is one call between CUDA
events, on a CPU between two looks at the clock. Each way is compared with the first that ran, in the dtype measured.

Peak memory is what was allocated at once beyond the operands and what was there before: on a GPU by PyTorch's
allocator, on a CPU by the events of PyTorch's profiler (``benchmarks.peak_memory``), which do not see what a thread of
a C++ kernel keeps for itself, a few tiles. Block masks are made before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from staxlab.measure.attention_lengths import FORMAT

Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LENGTHS = tuple(1 << e for e in range(10, 18))
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}  # absolute, of results of the size of 1


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def ways_of(length: int, device: str, most_bytes: int, heads: int, itemsize: int) -> dict[str, Way | str]:
    """Every way by name; in place of one that is left out, the reason."""
    import staxlab

    mask = staxlab.create_block_mask(causal, None, None, length, length, device=device)

    def matrix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v

    ways: dict[str, Way | str] = {
        "staxlab": lambda q, k, v: staxlab.omni_attention(q, k, v, block_mask=mask),
        "sdpa": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    if device == "cuda":
        try:
            ways["flex"] = _flex(length)
        except torch.OutOfMemoryError as error:  # PyTorch makes the block mask from an N x N matrix of bools
            ways["flex"] = f"no memory for its block mask: {str(error).splitlines()[0]}"
    needed = 3 * heads * length * length * itemsize
    too_much = f"three matrices of N x N would take {needed / 1e9:.3g} GB"
    ways["matrix"] = matrix if needed <= most_bytes else too_much
    return ways


def _flex(length: int) -> Way:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    mask = create_block_mask(causal, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def step_of(way: Way, operands: list[torch.Tensor], upstream: torch.Tensor | None) -> Callable[[], torch.Tensor]:
    """One call, with the gradients of all operands where ``upstream`` is given."""
    if upstream is None:
        return lambda: way(*operands)

    def step() -> torch.Tensor:
        out = way(*operands)
        torch.autograd.grad(out, operands, upstream)
        return out

    return step


def reading(step: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        from benchmarks.gpu import seconds_per_call

        return seconds_per_call(step, 1)
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def measure(length: int, options: argparse.Namespace) -> dict[str, Any]:
    """All ways at one length."""
    from benchmarks.peak_memory import peak_on
    from staxlab.measure.timing import median_interval

    device, dtype = options.device, getattr(torch, options.dtype)
    generator = torch.Generator(device).manual_seed(length)
    shape = (options.batch, options.heads, length, options.head_size)
    operands = [torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(3)]
    upstream = torch.randn(shape, generator=generator, device=device).to(dtype) if options.backward else None
    if options.backward:
        operands = [t.requires_grad_() for t in operands]
    heads = options.batch * options.heads
    found: dict[str, dict[str, Any]] = {}
    steps: dict[str, Callable[[], torch.Tensor]] = {}
    first: torch.Tensor | None = None
    for name, way in ways_of(length, device, options.most_bytes, heads, dtype.itemsize).items():
        if isinstance(way, str):
            found[name] = {"problem": way}
            continue
        step = step_of(way, operands, upstream)
        try:
            result = step().detach()
            error = 0.0 if first is None else (result.float() - first.float()).abs().max().item()
            if not error <= ALLOWED[dtype]:  # NaN included
                raise ArithmeticError(f"off by {error:.3g} from the first")
            first = result if first is None else first
            found[name] = {"max_difference": error, "peak_bytes": peak_on(device, step)}
            steps[name] = step
        except Exception as error:  # a way that fails is a finding, not the end of the run
            found[name] = {"problem": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.readings + 1):
        for name, step in steps.items():
            taken[name].append(reading(step, device))
    for name, values in taken.items():
        kept = values[1:]  # the first is a warm-up
        interval = median_interval(kept)
        found[name] |= {"median_s": statistics.median(kept), "interval_s": [interval.low, interval.high]}
    return {"length": length, "peers": found}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when every way that ran was right, 1 when one failed, 2 without the device asked for."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.attention_lengths", description=__doc__.split("\n")[0])
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default=None, help="bfloat16 on a GPU")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--head-size", type=int, default=128)
    p.add_argument("--longest", type=int, default=LENGTHS[-1])
    p.add_argument("--readings", type=int, default=11)
    p.add_argument("--threads", type=int, default=None)
    p.add_argument("--most-bytes", type=int, default=48 << 30, help="of the N x N matrices")
    p.add_argument("--backward", action="store_true", help="forward and backward")
    p.add_argument("--smoke", action="store_true", help="two short lengths on the CPU")
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    lengths = [n for n in LENGTHS if n <= options.longest]
    if options.smoke:
        options.device, options.heads, options.head_size, options.readings, lengths = "cpu", 2, 16, 3, [128, 256]
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --smoke or --device cpu runs without one")
        return 2
    if options.threads:
        torch.set_num_threads(options.threads)
    from benchmarks.records import header, save

    record: dict[str, Any] = {
        **header(FORMAT, options.device), "device_present": not options.smoke, "backward": options.backward,
        "shape": {
            "batch": options.batch, "heads": options.heads, "head_size": options.head_size, "dtype": options.dtype,
            "mask": "causal" + (", forward and backward" if options.backward else ""),
        },
        "threads": torch.get_num_threads(), "lengths": [],
    }  # fmt: skip
    failed = 0
    for length in lengths:
        entry = measure(length, options)
        record["lengths"].append(entry)
        said = []
        for name, found in entry["peers"].items():
            if "problem" in found:
                said.append(f"{name} left out ({found['problem']})")
                failed += not found["problem"].startswith(("no memory", "three matrices"))
            else:
                said.append(f"{name} {1e3 * found['median_s']:.3g} ms, {found['peak_bytes'] / 1e6:.4g} MB")
        print(f"N = {length}: {'; '.join(said)}", flush=True)
        if options.out:
            save(record, options.out)  # after every length: what is measured stays
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
