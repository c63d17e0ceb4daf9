"""Halide: what is computed and in which order, written apart (Section 12.3).

An *algorithm* makes the stages of one of the compared functions: each is a function from coordinates to values, and
says nothing about loops. A *schedule* then decides loops, memory and threads, and cannot change a value (but for the
order of additions, where it is asked to). There are two for every algorithm:

``stage by stage``   every stage is computed whole before the next begins, as eager PyTorch runs its operators
``piece by piece``   a row, or a tile, goes through all stages while it is in the cache; vectors inside, threads outside
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

name, title = "halide", "Halide"
STAGES, PIECES = "stage by stage", "piece by piece"
SCHEDULES = (STAGES, PIECES)


def missing() -> str | None:
    return None if importlib.util.find_spec("halide") else "halide is not installed"


def target() -> Any:
    """This processor as Halide names it, by the flags that the system reports: Halide's own guess goes by the
    processor's family, and names instructions that a virtual machine may not have."""
    import halide as hl

    host = hl.get_host_target()
    try:
        flags = set(re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    except (OSError, AttributeError):
        return host  # another system than Linux, or another processor
    names = {"sse4_1": "sse41", "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c"}
    features = [text for flag, text in names.items() if flag in flags]
    if {"avx512f", "avx512cd", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        features += ["avx512", "avx512_skylake"]
    return hl.Target("-".join(["x86-64-linux", *features]))


@dataclass(frozen=True)
class Pipeline:
    """An algorithm: its inputs, its stages from the first to the result, what its variables are called in a schedule,
    and whether columns are summed away."""

    inputs: tuple[Any, ...]
    stages: tuple[Any, ...]
    names: SimpleNamespace
    sums_columns: bool = False

    @property
    def result(self) -> Any:
        return self.stages[-1]

    def extents(self, rows: int, columns: int) -> list[int]:
        """Of the result, the contiguous dimension first, as Halide counts them."""
        return [rows] if self.sums_columns else [columns, rows]


# --- Algorithms -------------------------------------------------------------------------------------------------------


def example_1_1() -> Pipeline:
    import halide as hl

    x, w = (hl.ImageParam(hl.Float(32), 2, name) for name in "xw")
    i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, x.width())], "k").x
    h, s = hl.Func("h"), hl.Func("s")
    h[j, i] = hl.max(x[j, i] + w[j, i], 0.0) * 2.0
    s[i] = 0.0
    s[i] += h[k, i]
    return Pipeline((x, w), (h, s), SimpleNamespace(i=i, k=k, s=s), sums_columns=True)


def softmax() -> Pipeline:
    import halide as hl

    x = hl.ImageParam(hl.Float(32), 2, "x")
    i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, x.width())], "k").x
    m, e, s, p = (hl.Func(name) for name in "mesp")
    m[i] = hl.f32(float("-inf"))
    m[i] = hl.max(m[i], x[k, i])
    e[j, i] = hl.exp(x[j, i] - m[i])
    s[i] = 0.0
    s[i] += e[k, i]
    p[j, i] = e[j, i] / s[i]
    return Pipeline((x,), (m, e, s, p), SimpleNamespace(i=i, j=j, k=k, m=m, e=e, s=s, p=p))


def transpose_add() -> Pipeline:
    import halide as hl

    x, w = (hl.ImageParam(hl.Float(32), 2, name) for name in "xw")
    i, j = hl.Var("i"), hl.Var("j")
    t, a = hl.Func("t"), hl.Func("a")
    t[j, i] = w[i, j]
    a[j, i] = x[j, i] + t[j, i]
    return Pipeline((x, w), (t, a), SimpleNamespace(i=i, j=j, t=t, a=a))


ALGORITHMS: Mapping[str, Callable[[], Pipeline]] = {
    "example_1_1": example_1_1, "softmax_five_operators": softmax, "transpose_add": transpose_add,
}  # fmt: skip


# --- Schedules --------------------------------------------------------------------------------------------------------


def stage_by_stage(pipeline: Pipeline) -> None:
    for stage in pipeline.stages[:-1]:
        stage.compute_root()


def example_1_1_by_rows(n: SimpleNamespace) -> None:
    n.s.update().parallel(n.i)
    in_lanes(n.s, n.k).compute_at(n.s, n.i)


def softmax_by_rows(n: SimpleNamespace) -> None:
    n.p.vectorize(n.j, vector()).parallel(n.i)
    n.e.compute_at(n.p, n.i).vectorize(n.j, vector())
    for stage in (n.m, n.s):
        in_lanes(stage, n.k).compute_at(n.p, n.i)
        stage.compute_at(n.p, n.i)


def transpose_add_by_tiles(n: SimpleNamespace) -> None:
    import halide as hl

    outer_i, outer_j = hl.Var("io"), hl.Var("jo")
    n.a.tile(n.j, n.i, outer_j, outer_i, n.j, n.i, 16, 16).vectorize(n.j, vector()).parallel(outer_i)
    n.t.compute_at(n.a, outer_j).vectorize(n.i, vector())


def in_lanes(stage: Any, k: Any) -> Any:
    """Several running results side by side, in vectors: a stage that is then merged into ``stage``."""
    import halide as hl

    outer, inner, lane = hl.RVar("ko"), hl.RVar("ki"), hl.Var("lane")
    running = stage.update().split(k, outer, inner, 4 * vector()).rfactor(inner, lane)
    running.vectorize(lane, vector()).update().vectorize(lane, vector())
    return running


def vector() -> int:
    """Elements of a vector of float32."""
    import halide as hl

    return target().natural_vector_size(hl.Float(32))


BY_PIECES: Mapping[str, Callable[[SimpleNamespace], None]] = {
    "example_1_1": example_1_1_by_rows, "softmax_five_operators": softmax_by_rows,
    "transpose_add": transpose_add_by_tiles,
}  # fmt: skip


def scheduled(case: str, schedule: str) -> Pipeline:
    """The algorithm of a compared function under one of :data:`SCHEDULES`. KeyError for another function."""
    pipeline = ALGORITHMS[case]()
    if schedule == STAGES:
        stage_by_stage(pipeline)
    else:
        BY_PIECES[case](pipeline.names)
    return pipeline


# --- What it makes of them --------------------------------------------------------------------------------------------


def loop_nest(pipeline: Pipeline) -> str:
    """The loops of a schedule in Halide's own short form."""
    return _written_to_stderr(pipeline.result.print_loop_nest)


def lowered(pipeline: Pipeline) -> str:
    """The program that goes to the code generator, from the first loop on: what precedes are checks of buffers."""
    import halide as hl

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lowered.stmt"
        inputs = list(pipeline.inputs)
        pipeline.result.compile_to_lowered_stmt(str(path), inputs, hl.StmtOutputFormat.Text, target())
        lines = path.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.lstrip().startswith(("produce", "allocate", "parallel")))
    return "\n".join(line for line in lines[begin:] if not line.lstrip().startswith("assert(")) + "\n"


def _written_to_stderr(action: Callable[[], Any]) -> str:
    """What a C++ library writes to file descriptor 2 in the meantime."""
    with tempfile.TemporaryFile("w+") as file:
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            action()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read()


def structure(rows: int, columns: int) -> dict[str, Any]:
    """Every function as it is written here, and its loops under both schedules: the same whatever the size."""
    found: dict[str, Any] = {}
    for case, algorithm in ALGORITHMS.items():
        pipelines = {schedule: scheduled(case, schedule) for schedule in SCHEDULES}
        found[case] = {
            "algorithm": inspect.getsource(algorithm),
            "schedules": {STAGES: inspect.getsource(stage_by_stage), PIECES: inspect.getsource(BY_PIECES[case])},
            "loops": {schedule: loop_nest(pipeline) for schedule, pipeline in pipelines.items()},
            "lowered": {schedule: lowered(pipeline) for schedule, pipeline in pipelines.items()},
        }
    return found
