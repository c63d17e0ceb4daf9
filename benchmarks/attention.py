"""Attention on a CUDA device beside FlexAttention and scaled_dot_product_attention (Section 9.10).

    python -m benchmarks.attention --out benchmarks/results/attention.json          peers on every case
    python -m benchmarks.attention --sweep --seconds 300 --out sweep.json           tiles; goes on where it stopped
    python -m benchmarks.attention --sweep-file sweep.json --out attention.json     peers, and the best of the sweep
    python -m benchmarks.attention --best sweep.json                                print what a sweep has found
    python -m benchmarks.attention --smoke                                          no device: small, interpreted

``--only`` takes cases whose name contains a text ("causal", "decode"), ``--quick N`` measures the first N candidates of
a case on the way and lets the best take part, ``--without flex`` leaves a peer out.

Peers: ``omni_attention`` as a user calls it; its kernel alone, in the rule's configuration and in the best that was
found; FlexAttention under ``torch.compile``; PyTorch's own kernel where a case is one it has. All take turns reading by
reading in one process; a reading is the time between two CUDA events around several calls. Before anything is timed,
results are compared with the definition on some rows: what is wrong is reported and not timed. Rates count the products
of *visible* positions (for decoding, bytes of visible keys and values), so that every peer is given the same work.

A sweep notes in its file what it is about to run. Should a configuration end the process or hang, the next call knows
which and leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention_cases import CASES, Case, small
from benchmarks.records import added_to, continued, save_progress

FORMAT = "staxlab-attention-1"
READING_SECONDS = 8e-3
MOST_CALLS = 100
THREADS = 8  # that compile
ALLOWED = 3e-2  # of the largest element: the rounding of bfloat16 in what is summed

Run = Callable[[], Any]


# --- Where it runs ----------------------------------------------------------------------------------------------------


class Cuda:
    """The device, and CUDA events for a clock."""

    device, measured = "cuda", True

    def spec(self) -> Any:
        from staxlab.options import device_spec

        return device_spec("cuda")

    def seconds(self, run: Run, calls: int) -> float:
        from benchmarks.gpu import seconds_per_call

        return seconds_per_call(run, calls)

    def wait(self) -> None:
        torch.cuda.synchronize()


class Pretended:
    """No device: kernels run in Triton's interpreter on a clock that stands still. For trying the command."""

    device, measured = "cpu", False

    def spec(self) -> Any:
        from staxlab.options import GPU_SPECS

        return GPU_SPECS["sm_90"]

    def seconds(self, run: Run, calls: int) -> float:
        return 1e-3

    def wait(self) -> None:
        pass


@dataclass
class Prepared:
    """A case with its tensors and functions."""

    case: Case
    place: Any
    tensors: list[torch.Tensor]
    score_mod: Any
    mask_mod: Any
    block_mask: Any
    share: float
    problem: Any
    captured: list[torch.Tensor]

    @property
    def work(self) -> float:
        """What a rate is counted in: bytes for decoding, else operations."""
        count = self.case.moved if self.case.direction == "decode" else self.case.operations
        return count(self.share)


def prepare(case: Case, place: Any) -> Prepared:
    import staxlab
    from staxlab.attention.modification import modification
    from staxlab.attention.problem import AttentionProblem, BlockGeometry

    dtype = torch.bfloat16 if place.measured else torch.float32
    tensors = case.inputs(place.device, dtype)
    query, key, value, _ = tensors
    score_mod, mask_mod = case.score_mod(), case.mask_mod(place.device)
    mask = mask_mod and staxlab.create_block_mask(mask_mod, None, None, case.queries, case.keys, device=place.device)
    score, traced = (
        function and modification(function, kind, case.shape, device=query.device)
        for function, kind in ((score_mod, "score"), (mask_mod, "mask"))
    )
    geometry = BlockGeometry(*mask.block_size, False, False) if mask else None
    problem = AttentionProblem(
        case.batch, case.heads, case.key_heads, case.queries, case.keys, case.size, case.size, dtype, case.size**-0.5,
        query.stride(), key.stride(), value.stride(), score, traced, geometry, case.direction == "backward",
        place.spec(),
    )  # fmt: skip
    captured = [c.tensor.detach() for c in problem.captured]
    share = case.visible_share(mask_mod, place.device)
    return Prepared(case, place, tensors, score_mod, mask_mod, mask, share, problem, captured)


def expected_rows(made: Prepared, rows: int = 64) -> tuple[list[int], torch.Tensor]:
    """The last rows of the first and of the last head by the definition, in float32 (float64 where it is free)."""
    case, (query, key, value, _) = made.case, made.tensors
    chosen = list(range(max(case.queries - rows, 0), case.queries))
    results = []
    for b, h in ((0, 0), (case.batch - 1, case.heads - 1)):
        kv = h // (case.heads // case.key_heads)
        scores = query[b, h, chosen].float() @ key[b, kv].float().T * case.size**-0.5
        places = [torch.tensor(n, dtype=torch.int32, device=query.device) for n in (b, h)]
        places.append(torch.tensor(chosen, dtype=torch.int32, device=query.device)[:, None])
        places.append(torch.arange(case.keys, dtype=torch.int32, device=query.device)[None, :])
        if made.score_mod is not None:
            scores = made.score_mod(scores, *places)
        if made.mask_mod is not None:
            scores = scores.masked_fill(~made.mask_mod(*places), float("-inf"))
        results.append(torch.softmax(scores, -1) @ value[b, kv].float())
    return chosen, torch.stack(results)


def error_of(result: torch.Tensor, expected: tuple[list[int], torch.Tensor]) -> float:
    """The largest deviation in the rows that were computed by the definition, relative to their largest element."""
    rows, wanted = expected
    found = torch.stack([result[0, 0, rows], result[-1, -1, rows]]).float()
    gap = (found - wanted).abs().max() / wanted.abs().max()
    return float(torch.nan_to_num(gap, nan=float("inf")))


def deviation(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest difference of several tensors, each relative to the largest element of its counterpart."""
    gaps = [
        torch.nan_to_num((f.float() - w.float()).abs().max() / w.float().abs().max().clamp(min=1e-30), nan=float("inf"))
        for f, w in zip(found, wanted, strict=True)
    ]
    return float(max(gaps))


# --- Peers ------------------------------------------------------------------------------------------------------------


def kernel_run(made: Prepared, configuration: Any = None) -> Run:
    """The generated kernels alone, in a configuration (None: the rule's). The call returns a tuple of tensors."""
    from staxlab.codegen.triton.attention.backward import build_backward
    from staxlab.codegen.triton.attention.decoding import build_decoding
    from staxlab.codegen.triton.attention.forward import build_forward

    query, key, value, upstream = made.tensors
    if made.case.direction != "backward":
        build = build_decoding if made.case.direction == "decode" else build_forward
        run = build(made.problem, configuration)
        return lambda: run(query, key, value, made.block_mask, made.captured)
    out, lse = build_forward(made.problem)(query, key, value, made.block_mask, made.captured)
    gradients = build_backward(made.problem, configuration)
    return lambda: gradients(query, key, value, out, lse, upstream, None, made.block_mask, made.captured)


def _gradient_run(made: Prepared, attend: Callable[..., torch.Tensor]) -> Run:
    """The backward pass of a function through autograd, the forward pass done beforehand."""
    leaves = [t.detach().requires_grad_() for t in made.tensors[:3]]
    out = attend(*leaves)
    return lambda: torch.autograd.grad(out, leaves, made.tensors[3], retain_graph=True)


def _call_run(made: Prepared, attend: Callable[..., torch.Tensor]) -> Run:
    if made.case.direction == "backward":
        return _gradient_run(made, attend)
    query, key, value, _ = made.tensors
    return lambda: (attend(query, key, value),)


def peers_of(made: Prepared) -> dict[str, Callable[[], Run]]:
    """What makes the call of each peer. Making it compiles."""
    import staxlab

    case = made.case
    grouped = case.heads != case.key_heads

    def omni(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return staxlab.omni_attention(q, k, v, made.score_mod, made.block_mask, enable_gqa=grouped)

    found: dict[str, Callable[[], Run]] = {
        "staxlab": lambda: _call_run(made, omni),
        "staxlab, kernel": lambda: kernel_run(made),
        "flex": lambda: _call_run(made, _flex(made)),
    }
    if case.score or case.mask not in ("", "causal"):
        return found

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, is_causal=case.mask == "causal", enable_gqa=grouped)

    return found | {"sdpa": lambda: _call_run(made, sdpa)}


def _flex(made: Prepared) -> Callable[..., torch.Tensor]:
    """FlexAttention, compiled where there is a device, with a block mask of its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case, device = made.case, made.place.device
    mask = made.mask_mod and create_block_mask(made.mask_mod, None, None, case.queries, case.keys, device=device)
    torch._dynamo.reset()
    attend = torch.compile(flex_attention, dynamic=False) if made.place.measured else flex_attention
    grouped = case.heads != case.key_heads

    def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, score_mod=made.score_mod, block_mask=mask, enable_gqa=grouped)

    return flex


def compare(case: Case, place: Any, best: Any, readings: int, without: Sequence[str], quick: int) -> dict[str, Any]:
    """All peers on one case; ``best`` is a configuration that takes part, too, or None."""
    made = prepare(case, place)
    record: dict[str, Any] = {
        "case": case.name, "direction": case.direction, "shape": case.shape, "key_heads": case.key_heads,
        "size": case.size, "visible": made.share, "work": made.work, "peers": {},
    }  # fmt: skip
    makers = {name: maker for name, maker in peers_of(made).items() if name not in without}
    if quick:
        found: dict[str, Any] = {}
        _sweep_case(made, found, time.perf_counter() + 1e9, lambda: None, most=quick)
        best = best or _best_configuration(made, found)
    if best is not None:
        makers["staxlab, best"] = lambda: kernel_run(made, best)
    wanted = None if case.direction == "backward" else expected_rows(made)
    runs: dict[str, Run] = {}
    gradients: tuple[torch.Tensor, ...] | None = None
    for name, maker in makers.items():
        began = time.perf_counter()
        entry = record["peers"][name] = {}
        try:
            run = maker()
            result = tuple(run())
            place.wait()
        except Exception as error:  # a peer that fails is a finding; the others are measured all the same
            entry["problem"] = (str(error).split("\n")[0] or type(error).__name__)[:200]
            continue
        entry["first_call_s"] = time.perf_counter() - began
        if wanted is not None:
            entry["error"] = error_of(result[0], wanted)
        else:
            gradients = gradients or result[:3]
            entry["error"] = deviation(result[:3], gradients)  # of the first peer's gradients
        if not entry["error"] <= ALLOWED:
            entry["problem"] = f"wrong by {entry['error']:.3g} of the largest element"
            continue
        runs[name] = run
        if name == "staxlab, best":
            entry["configuration"] = _plain(best)
    for name, taken in _in_turns(place, runs, readings).items():
        record["peers"][name] |= _summary(taken, made.work)
    return record


def _summary(taken: Sequence[float], work: float) -> dict[str, Any]:
    from staxlab.measure.timing import median_interval

    interval, middle = median_interval(taken), statistics.median(taken)
    bounds = [interval.low, interval.high]
    return {"median_s": middle, "interval_s": bounds, "rate": work / middle, "readings": len(taken)}


def _in_turns(place: Any, runs: dict[Any, Run], readings: int) -> dict[Any, list[float]]:
    """Readings of each, taken in turn; as many calls to a reading as take some milliseconds."""
    calls = {}
    for name, run in runs.items():
        place.seconds(run, 2)
        calls[name] = max(1, min(MOST_CALLS, int(READING_SECONDS / max(place.seconds(run, 2), 1e-7))))
    taken: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(readings):
        for name, run in runs.items():
            taken[name].append(place.seconds(run, calls[name]))
    return taken


# --- The sweep --------------------------------------------------------------------------------------------------------


def candidates_of(made: Prepared) -> list[Any]:
    """Configurations of a case, the rule's first, then the most promising ones."""
    from staxlab.codegen.triton.attention import backward_configurations, configurations

    if made.case.direction == "backward":
        return list(backward_configurations.candidates(made.problem))
    if made.case.direction == "decode":
        return list(configurations.decoding_candidates(made.problem))
    return list(configurations.candidates(made.problem))


def _plain(configuration: Any) -> dict[str, Any]:
    return asdict(configuration)


def _name(configuration: Any) -> str:
    return json.dumps(_plain(configuration), sort_keys=True)


def _sweep_case(
    made: Prepared, found: dict[str, Any], until: float, save: Callable[[], None], most: int | None = None
) -> None:
    """Measure configurations until the time is up. ``found`` is the case's own, by the name of a configuration."""
    everything = candidates_of(made)[:most]
    for entry in found.values():
        if entry.get("trying"):
            entry.pop("trying")
            entry["problem"] = "an earlier run did not come back from it"
    todo = [c for c in everything if _name(c) not in found]
    wanted = None if made.case.direction == "backward" else expected_rows(made)
    gradients = tuple(kernel_run(made)())[:3] if wanted is None else None

    def start(configuration: Any) -> tuple[Any, Run | None, str]:
        try:
            run = kernel_run(made, configuration)
            result = tuple(run())
            made.place.wait()
            error = error_of(result[0], wanted) if wanted is not None else deviation(result[:3], gradients or ())
        except Exception as problem:  # of the compiler's or the launcher's: a configuration less
            return configuration, None, (str(problem).split("\n")[0] or type(problem).__name__)[:200]
        return configuration, run, "" if error <= ALLOWED else f"wrong by {error:.3g} of the largest element"

    while todo and time.perf_counter() < until:
        batch = todo[: THREADS if made.place.measured else 1]
        todo = todo[len(batch) :]
        for configuration in batch:
            found[_name(configuration)] = {"configuration": _plain(configuration), "trying": True}
        save()
        with ThreadPoolExecutor(THREADS) as pool:
            started = list(pool.map(start, batch))
        good = {}
        for configuration, run, problem in started:
            entry = found[_name(configuration)]
            entry.pop("trying")
            if problem:
                entry["problem"] = problem
            else:
                good[_name(configuration)] = run
        for name, taken in _in_turns(made.place, good, 5).items():
            found[name]["median_s"] = statistics.median(taken)
            found[name]["rate"] = made.work / found[name]["median_s"]
        save()


def ranked(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What has been measured, the fastest first."""
    return sorted((e for e in found.values() if "median_s" in e), key=lambda e: e["median_s"])


def _best_configuration(made: Prepared, found: dict[str, Any]) -> Any:
    """The fastest configuration of a record, as the generators take it; None if nothing was measured."""
    names = {_name(c): c for c in candidates_of(made)}
    seconds = {names[_name_of(e)]: e["median_s"] for e in ranked(found) if _name_of(e) in names}
    if made.case.direction == "backward":  # two kernels, one after the other: the best of each
        from staxlab.codegen.triton.attention.backward_configurations import combined

        return combined(made.problem, seconds)
    return next(iter(seconds), None)


def _name_of(entry: dict[str, Any]) -> str:
    return json.dumps(entry["configuration"], sort_keys=True)


def sweep(place: Any, chosen: Sequence[Case], path: Path | None, seconds: float, most: int | None) -> dict[str, Any]:
    """Every case in turn, each with its share of the time that is left. Goes on with what ``path`` holds."""
    record = continued(path, FORMAT, place)
    until = time.perf_counter() + seconds
    for position, case in enumerate(chosen):
        share = (until - time.perf_counter()) / (len(chosen) - position)
        if share <= 0:
            break
        found = record["cases"].setdefault(case.name, {"configurations": {}})["configurations"]
        made = prepare(case, place)
        _sweep_case(made, found, time.perf_counter() + share, lambda: save_progress(record, path), most)
        save_progress(record, path)
        print(f"{case.name}: {len(found)} of {len(candidates_of(made))} configurations", flush=True)
        print(_shown(found, case), flush=True)
        del made
    return record


def _shown(found: dict[str, Any], case: Case | None, most: int = 3) -> str:
    unit = "TB/s" if case is not None and case.direction == "decode" else "TFLOP/s"
    lines = [f"    {e['rate'] / 1e12:8.3f} {unit}  {_words(e['configuration'])}" for e in ranked(found)[:most]]
    bad = sum("problem" in e for e in found.values())
    return "\n".join(lines or ["    nothing measured"]) + (f"\n    {bad} did not run" if bad else "")


def _words(configuration: dict[str, Any]) -> str:
    parts = configuration.items()
    if all(isinstance(value, dict) for value in configuration.values()):
        return "; ".join(f"{side}: {_words(value)}" for side, value in parts)
    return ", ".join(name if value is True else f"{name}={value}" for name, value in parts if value not in (False, 0))


# --- The command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if everything was measured (or, without a device, ran)."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__.split("\n")[0])
    p.add_argument("--sweep", action="store_true", help="configurations instead of peers")
    p.add_argument("--sweep-file", type=Path, help="a sweep whose best configurations take part")
    p.add_argument("--best", type=Path, help="print what a sweep has found, and end")
    p.add_argument("--smoke", action="store_true", help="small sizes without a device, in Triton's interpreter")
    p.add_argument("--only", default="", help="only cases whose name contains one of these, separated by semicolons")
    p.add_argument("--seconds", type=float, default=450.0, help="when to stop (default 450)")
    p.add_argument("--most", type=int, help="configurations of a case that a sweep looks at")
    p.add_argument("--quick", type=int, default=0, help="measure so many configurations first; the best takes part")
    p.add_argument("--without", default="", help="peers to leave out, separated by semicolons")
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    if options.best:
        cases = {case.name: case for case in CASES}
        for name, entry in json.loads(options.best.read_text())["cases"].items():
            print(f"{name}:\n{_shown(entry['configurations'], cases.get(name), 5)}")
        return 0
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here; --smoke runs small cases in Triton's interpreter")
        return 2
    place: Any = Pretended() if options.smoke else Cuda()
    wanted = [text.strip() for text in options.only.split(";")]
    chosen = [c for c in (small() if options.smoke else CASES) if any(text in c.name for text in wanted)]
    # A cache of its own: Triton's directory is set for all threads at once.
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "staxlab-attention"))
    if options.sweep:
        sweep(place, chosen, options.out, options.seconds, options.most)
        return 0
    return _compared(place, chosen, options)


def _compared(place: Any, chosen: Iterable[Case], options: argparse.Namespace) -> int:
    swept = json.loads(options.sweep_file.read_text())["cases"] if options.sweep_file else {}
    chosen = list(chosen)
    record = added_to(options.out, FORMAT, place, {case.name for case in chosen})
    until, left_out = time.perf_counter() + options.seconds, 0
    without = [name.strip() for name in options.without.split(";")]
    for case in chosen:
        if time.perf_counter() > until:
            left_out += 1
            continue
        best = None
        if case.name in swept:
            best = _best_configuration(prepare(case, place), swept[case.name]["configurations"])
        entry = compare(case, place, best, options.readings, without, options.quick)
        record["cases"].append(entry)
        save_progress(record, options.out)
        print(report(entry, place.measured), flush=True)
        if place.measured:
            torch.cuda.empty_cache()
    if left_out:
        print(f"the time was up before {left_out} cases; --only names those to run")
    return int(left_out > 0)


def report(entry: dict[str, Any], measured: bool = True) -> str:
    """One line for each peer: time, rate, and how much faster it is than FlexAttention and PyTorch's own kernel."""
    unit = "TB/s" if entry["direction"] == "decode" else "TFLOP/s"
    lines = [f"{entry['case']} ({entry['direction']}), {100 * entry['visible']:.3g}% visible"]
    medians = {name: peer["median_s"] for name, peer in entry["peers"].items() if "median_s" in peer}
    for name, peer in entry["peers"].items():
        found = peer.get("problem", f"ran, error {peer.get('error', 0):.2g}; nothing is measured without a device")
        if measured and name in medians:
            own = medians[name]
            found = f"{own * 1e3:9.4f} ms {peer['rate'] / 1e12:8.3f} {unit}"
            found += "".join(f"  {medians[o] / own:.3f} x {o}" for o in ("flex", "sdpa") if o in medians and o != name)
        if "configuration" in peer:
            found += f"  ({_words(peer['configuration'])})"
        lines.append(f"    {name:16s} {found}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
