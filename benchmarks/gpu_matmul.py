"""Products of matrices on a CUDA device: the library, each template, and torch.compile (Section 9.8).

    python -m benchmarks.gpu_matmul --sweep --out sweep.json      which tiles are best; goes on where it stopped
    python -m benchmarks.gpu_matmul --sweep-file sweep.json --out benchmarks/results/gpu_matmul.json
    python -m benchmarks.gpu_matmul --rates gpu_matmul.json       the table of staxlab/loops/lowering/product_choice.py
    python -m benchmarks.gpu_matmul --smoke                       no device: small sizes, interpreted, a made-up clock

Cases: bfloat16 products of n x n matrices, ``A B`` and ``relu(A B + b)``, and of small depth, where the epilogue is
most of what moves. Peers take turns, reading by reading; a reading is the time between two CUDA events around several
calls, which take their operands in turn from sets that do not fit into the second-level cache together. Each call of
either mode ends after ``--seconds`` and has written what it found by then; with the same ``--out`` the next call of the
sweep goes on. A sweep compiles configurations in threads, measures the candidates, and then what lies around the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.records import added_to, continued, save_progress

FORMAT = "staxlab-gpu-matmul-1"
SQUARES = (1024, 2048, 4096, 8192)
DEPTHS = (64, 128, 256, 512)  # of 8192 x 8192 results
READING_SECONDS = 4e-3
MOST_CALLS = 100
THREADS = 8  # that compile

#: (BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, TEMPLATE, warps, stages): where a sweep begins, beside a kernel's candidates.
FIRST = tuple(
    (m, n, k, 8, template, warps, stages)
    for template, (m, n, k, warps, stages) in itertools.product(
        (4, 2, 1),
        (
            (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3),
            (128, 128, 64, 4, 4), (128, 128, 128, 8, 2), (64, 256, 64, 4, 4), (128, 64, 64, 4, 4),
        ),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """``relu(A B + b)`` of these sizes in bfloat16, or the bare product. ``transposed``: B is the transpose of what
    lies in memory row by row, as the weight of a layer is."""

    rows: int
    columns: int
    depth: int
    epilogue: bool
    transposed: bool = False

    @property
    def name(self) -> str:
        second = "W'" if self.transposed else "B"
        words = f"relu(A {second} + b)" if self.epilogue else f"A {second}"
        return f"{words}, {self.rows} x {self.depth} x {self.columns}"

    @property
    def function(self) -> Callable[..., torch.Tensor]:
        return (lambda a, b, c: torch.relu(a @ b + c)) if self.epilogue else (lambda a, b: a @ b)

    @property
    def operations(self) -> int:
        """A multiplication and an addition per product."""
        return 2 * self.rows * self.columns * self.depth

    def inputs(self, seed: int, device: str = "cuda") -> list[torch.Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        shapes = [(self.rows, self.depth), (self.depth, self.columns), (self.columns,)]
        made = [torch.randn(s, generator=generator, device=device) for s in shapes[: 3 if self.epilogue else 2]]
        made = [tensor.to(torch.bfloat16) for tensor in made]
        if self.transposed:
            made[1] = made[1].t().contiguous().t()
        return made


def cases() -> list[Case]:
    squares = [Case(n, n, n, epilogue) for n in SQUARES for epilogue in (False, True)]
    layers = [Case(8192, 5632, 2048, epilogue, True) for epilogue in (False, True)]  # of a decoder, 8192 tokens
    return squares + [Case(8192, 8192, depth, True) for depth in DEPTHS] + [Case(64, 64, 65536, False)] + layers


def small_cases() -> list[Case]:
    return [Case(48, 64, 32, True), Case(64, 48, 40, False), Case(16, 16, 2560, False), Case(48, 64, 32, False, True)]


# --- Where kernels run ------------------------------------------------------------------------------------------------


class Cuda:
    """The device, and CUDA events for a clock."""

    device, target, measured = "cuda", "cuda", True

    def sets(self, case: Case) -> Iterator[list[torch.Tensor]]:
        """Operands in turn, as many sets as do not fit into the cache together, eight at most."""
        size = sum(tensor.nbytes for tensor in case.inputs(0))
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        return itertools.cycle([case.inputs(seed) for seed in range(max(1, min(8, -(-4 * cache // size))))])

    def load(self, kernel: Any) -> Callable[..., None]:
        from staxlab.codegen.triton.launcher import load

        return load(kernel)

    def prepare(self, launches: Sequence[Any], tensors: Sequence[Sequence[torch.Tensor]]) -> list[str]:
        """Compile in threads; why each did not compile, "" for those that did."""

        def one(launch: Any, given: Sequence[torch.Tensor]) -> str:
            try:
                launch(*given)
                torch.cuda.synchronize()
            except Exception as error:  # of the compiler's or the launcher's: a configuration less
                return str(error).split("\n")[0][:160] or type(error).__name__
            return ""

        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(one, launches, tensors))

    def reading(
        self, run: Callable[[list[torch.Tensor]], Any], sets: Iterator[list[torch.Tensor]], calls: int
    ) -> float:
        from benchmarks.gpu import reading

        return reading(run, sets, calls)

    def details(self, launch: Any) -> dict[str, int]:
        found = launch.compiled
        return {"registers": max(c.n_regs for c in found), "spills": max(c.n_spills for c in found)} if found else {}


class Pretended:
    """No device: kernels run in Triton's interpreter, and a reading is the bytes that a configuration's tiles read over
    a bandwidth. For trying the command, never for a result."""

    device, target, measured = "cpu", "sm_90", False

    def sets(self, case: Case) -> Iterator[list[torch.Tensor]]:
        return itertools.repeat(case.inputs(0, "cpu"))

    def load(self, kernel: Any) -> Callable[..., None]:
        from staxlab.codegen.triton.interpreter import interpret

        def launch(*tensors: torch.Tensor) -> None:
            interpret(kernel, tensors)

        launch.kernel = kernel
        return launch

    def prepare(self, launches: Sequence[Any], tensors: Sequence[Sequence[torch.Tensor]]) -> list[str]:
        for launch, given in zip(launches, tensors, strict=True):
            launch(*given)
        return ["" for _ in launches]

    def reading(self, run: Any, sets: Iterator[list[torch.Tensor]], calls: int) -> float:
        kernel = getattr(run, "kernel", None)
        if kernel is None:
            return 1e-3
        return next(dict(d.inputs)["bytes that tiles read"] for d in kernel.decisions if d.topic == "launch") * 1e-9

    def details(self, launch: Any) -> dict[str, int]:
        return {}


# --- The sweep --------------------------------------------------------------------------------------------------------


def swept(case: Case, place: Any, record: dict[str, Any], until: float, save: Callable[[], None]) -> None:
    """Measure configurations of a case's product until the time is up or nothing near the best is left. ``record`` is
    the case's own: configurations, as text, to their readings; what it has already is not measured again."""
    import staxlab

    inputs = case.inputs(0, place.device)
    compilation = staxlab.explain(case.function, *inputs, target=place.target, options={"matmul": "template"})
    kernel = next(k for k in compilation.kernels if k.tuning is not None and k.launch["form"] != "looped")
    tuning, found = kernel.tuning, record.setdefault("configurations", {})
    if "GROUP_M" not in tuning.space.names:
        raise ValueError(f"{case.name} has no template kernel")
    sets = place.sets(case)
    buffers = dict(zip(compilation.schedule.inputs, range(len(inputs)), strict=True))

    def runner(configuration: tuple[int, ...]) -> Any:
        made = tuning.kernel(configuration)
        launch = place.load(made)
        layouts = compilation.schedule.layouts
        made_here = {
            a.buffer: torch.empty_strided(
                layouts[a.buffer].shape, layouts[a.buffer].stride, dtype=a.dtype, device=place.device
            )
            for a in made.arguments
            if a.buffer not in buffers
        }

        def run(given: list[torch.Tensor]) -> None:
            launch(*(given[buffers[a.buffer]] if a.buffer in buffers else made_here[a.buffer] for a in made.arguments))

        run.kernel, run.launch = made, launch
        run.arguments = lambda given: [
            given[buffers[a.buffer]] if a.buffer in buffers else made_here[a.buffer] for a in made.arguments
        ]
        return run

    for batch in _batches(tuning, found):
        todo = [c for c in batch if _text(c) not in found]
        for start in range(0, len(todo), THREADS):
            if time.perf_counter() > until:
                return
            chosen = todo[start : start + THREADS]
            runs = [runner(c) for c in chosen]
            first = next(sets)
            problems = place.prepare([r.launch for r in runs], [r.arguments(first) for r in runs])
            good = {}
            for configuration, run, problem in zip(chosen, runs, problems, strict=True):
                entry = found[_text(configuration)] = {"configuration": list(configuration)}
                details = place.details(run.launch) if not problem else {}
                entry |= {"problem": problem or ("spills" if details.get("spills") else ""), **details}
                if not entry["problem"]:
                    good[configuration] = run
            for configuration, taken in _in_turns(place, good, sets, 5).items():
                found[_text(configuration)]["median_s"] = statistics.median(taken)
            save()


def _batches(tuning: Any, found: dict[str, Any]) -> Iterator[list[tuple[int, ...]]]:
    """The candidates first; then, round by round, the neighbours of the three best so far that are feasible."""
    first = dict.fromkeys([*tuning.candidates, *FIRST])
    yield [c for c in first if c in tuning.space and (c == tuning.rule or tuning.feasible(c))]
    seen: set[tuple[int, ...]] = set()
    while True:
        best = [tuple(entry["configuration"]) for entry in ranked(found)[:3]]
        new = [n for c in best if c not in seen for n in tuning.space.neighbours(c) if tuning.feasible(n)]
        if not new:
            return
        seen.update(best)
        yield list(dict.fromkeys(new))


def ranked(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What has been measured, the fastest first."""
    return sorted((e for e in found.values() if "median_s" in e), key=lambda e: e["median_s"])


def _text(configuration: Iterable[int]) -> str:
    return "-".join(map(str, configuration))


def _in_turns(place: Any, runs: dict[Any, Any], sets: Iterator, readings: int) -> dict[Any, list[float]]:
    """Readings of each, taken in turn; as many calls to a reading as take some milliseconds."""
    calls = {}
    for name, run in runs.items():
        place.reading(run, sets, 2)
        calls[name] = max(1, min(MOST_CALLS, int(READING_SECONDS / max(place.reading(run, sets, 2), 1e-7))))
    taken: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(readings):
        for name, run in runs.items():
            taken[name].append(place.reading(run, sets, calls[name]))
    return taken


def sweep(place: Any, chosen: Sequence[Case], path: Path | None, seconds: float) -> dict[str, Any]:
    """Every case in turn, each with its share of the time that is left. Goes on with what ``path`` holds."""
    record = continued(path, FORMAT, place)
    until = time.perf_counter() + seconds
    for position, case in enumerate(chosen):
        share = (until - time.perf_counter()) / (len(chosen) - position)
        entry = record["cases"].setdefault(case.name, {"sizes": [case.rows, case.columns, case.depth]})
        entry["operations"], entry["epilogue"] = case.operations, case.epilogue
        swept(case, place, entry, time.perf_counter() + share, lambda: save_progress(record, path))
        best = ranked(entry["configurations"])[:1]
        entry["best"] = best[0] if best else None
        save_progress(record, path)
        print(f"{case.name}: {len(entry['configurations'])} configurations, {_shown(entry)}", flush=True)
    return record


def _shown(entry: dict[str, Any]) -> str:
    if not entry["best"]:
        return "nothing measured"
    rate = entry["operations"] / entry["best"]["median_s"] / 1e12
    return f"best {entry['best']['configuration']}: {rate:.0f} TFLOP/s"


def rates(record: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Of a comparison, the rate of the swept template relative to the library's on bare products, by their operations,
    as ``MEASURED`` has it: a rate holds from its operations on until the next. ValueError for a trial run."""
    if not record.get("measured"):
        raise ValueError("a run without a device has measured nothing")
    found = []
    for entry in record["cases"]:
        ours, theirs = (entry["peers"].get(name, {}).get("median_s") for name in ("staxlab, swept", "eager"))
        if entry["case"].startswith("A B") and ours and theirs:
            found.append((float(entry["operations"]), round(theirs / ours, 3)))
    return {"bfloat16": sorted(found)}


# --- Peers ------------------------------------------------------------------------------------------------------------


def peers_of(case: Case, place: Any) -> dict[str, Callable[..., Any]]:
    import staxlab

    found: dict[str, Callable[..., Any]] = {"eager": case.function}
    if place.measured:
        torch._dynamo.reset()
        found["torch_compile"] = torch.compile(case.function)
        found["max_autotune"] = torch.compile(case.function, mode="max-autotune-no-cudagraphs")
        for name in ("library", "template", "template-tma"):
            found[f"staxlab, {name}"] = staxlab.compile(case.function, options={"matmul": name})
    return found


def compare(
    case: Case, place: Any, best: Sequence[int] | None, readings: int, without: Sequence[str] = ()
) -> dict[str, Any]:
    """All peers on one case but those ``without``; with ``best``, also the template in the configuration that a sweep
    has found."""
    entry: dict[str, Any] = {"case": case.name, "operations": case.operations, "peers": {}}
    sets = place.sets(case)
    functions = {name: function for name, function in peers_of(case, place).items() if name not in without}
    inputs = next(sets)
    exact = case.function(*(tensor.double() for tensor in inputs))
    scale = (inputs[0].double().abs() @ inputs[1].double().abs()).max().item()
    runs = {}
    for name, function in functions.items():
        began = time.perf_counter()
        try:
            result = function(*inputs)
        except Exception as error:  # max-autotune fails on some machines; the others are measured all the same
            entry["peers"][name] = {"problem": str(error).split("\n")[0][:160]}
            continue
        if place.measured:
            torch.cuda.synchronize()
        error = ((result.double() - exact).abs().max() / scale).item()
        entry["peers"][name] = {"first_call_s": time.perf_counter() - began, "error_to_scale": error}
        runs[name] = lambda given, function=function: function(*given)
    if best is not None:
        runs["staxlab, swept"] = _swept_runner(case, place, tuple(best))
        entry["peers"]["staxlab, swept"] = {"configuration": list(best)}
    from staxlab.measure.timing import median_interval

    for name, taken in _in_turns(place, runs, sets, readings).items():
        interval = median_interval(taken)
        entry["peers"][name] |= {
            "median_s": statistics.median(taken),
            "interval_s": [interval.low, interval.high],
            "rate": case.operations / statistics.median(taken),
            "readings": len(taken),
        }
    return entry


def _swept_runner(case: Case, place: Any, configuration: tuple[int, ...]) -> Callable[[list[torch.Tensor]], Any]:
    """The kernel alone, with memory for its result made at each call."""
    import staxlab

    inputs = case.inputs(0, place.device)
    compilation = staxlab.explain(case.function, *inputs, target=place.target, options={"matmul": "template"})
    kernel = compilation.kernels[0].tuning.kernel(configuration)
    launch, order = place.load(kernel), {name: k for k, name in enumerate(compilation.schedule.inputs)}
    places = [order.get(a.buffer) for a in kernel.arguments]
    shape = (case.rows, case.columns)

    def run(given: list[torch.Tensor]) -> torch.Tensor:
        out = torch.empty(shape, dtype=torch.bfloat16, device=place.device)
        launch(*(out if k is None else given[k] for k in places))
        return out

    wanted = case.function(*inputs)
    torch.testing.assert_close(run(inputs).float(), wanted.float(), rtol=2e-2, atol=2e-2 * math.sqrt(case.depth))
    return run


# --- The command ------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if everything was measured (or, without a device, ran)."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu_matmul", description=__doc__.split("\n")[0])
    p.add_argument("--sweep", action="store_true", help="configurations instead of peers")
    p.add_argument("--sweep-file", type=Path, help="a sweep whose best configurations take part")
    p.add_argument("--rates", type=Path, help="print what a comparison says of rates, and end")
    p.add_argument("--smoke", action="store_true", help="small sizes without a device, in Triton's interpreter")
    p.add_argument("--only", default="", help="only cases whose name contains this")
    p.add_argument("--seconds", type=float, default=450.0, help="when to stop (default 450)")
    p.add_argument("--without", default="", help="peers to leave out, as max_autotune, which takes a minute to compile")
    p.add_argument("--readings", type=int, default=15)
    p.add_argument("--out", type=Path)
    options = p.parse_args(arguments)
    if options.rates:
        for name, table in rates(json.loads(options.rates.read_text())).items():
            print(f"(90, torch.{name}): {tuple(table)},")
        return 0
    if not options.smoke and not torch.cuda.is_available():
        print("no CUDA device here; --smoke runs small cases in Triton's interpreter")
        return 2
    place: Any = Pretended() if options.smoke else Cuda()
    chosen = [case for case in (small_cases() if options.smoke else cases()) if options.only in case.name]
    # A cache of its own: Triton's directory is set for all threads at once.
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "staxlab-gpu-matmul"))
    if options.sweep:
        sweep(place, chosen, options.out, options.seconds)
        return 0
    return _compared(place, chosen, options)


def _compared(place: Any, chosen: Sequence[Case], options: argparse.Namespace) -> int:
    best = json.loads(options.sweep_file.read_text())["cases"] if options.sweep_file else {}
    record = added_to(options.out, FORMAT, place, {case.name for case in chosen})
    until, left_out = time.perf_counter() + options.seconds, 0
    for case in chosen:
        if time.perf_counter() > until:
            left_out += 1
            continue
        found = (best.get(case.name) or {}).get("best")
        split = case.depth >= 128 * max(case.rows, case.columns)
        swept_best = found["configuration"] if found and not split else None
        entry = compare(case, place, swept_best, options.readings, options.without.split(","))
        record["cases"].append(entry)
        save_progress(record, options.out)
        shown = ", ".join(f"{n} {e['rate'] / 1e12:.0f}" for n, e in entry["peers"].items() if "rate" in e)
        print(f"{case.name} in TFLOP/s: {shown}", flush=True)
    if left_out:
        print(f"the time was up before {left_out} cases; --only names those to run")
    return int(left_out > 0)


if __name__ == "__main__":
    raise SystemExit(main())
