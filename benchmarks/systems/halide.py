"""Halide: what is computed and in which order, written apart (Section 12.3).

An *algorithm* makes the stages of one of the compared functions: each is a function from coordinates to values, and
says nothing about loops. A *schedule* then decides loops, memory and threads, and cannot change a value (but for the
order of additions, where it is asked to). There are two for every algorithm:

``stage by stage``   every stage is computed whole before the next begins, as eager PyTorch runs its operators
``by rows``          a row (or a tile) goes through all stages while it is in the cache; vectors inside, threads outside
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

name, title = "halide", "Halide"
STAGES, ROWS = "stage by stage", "by rows"
SCHEDULES = (STAGES, ROWS)
TILE = 16


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


@dataclass
class Pipeline:
    """The stages of a function. ``result`` has the coordinates ``row`` and, unless it is summed away, ``column``;
    ``sums`` are the stages that add up or compare along ``along``; ``between`` the others before the result."""

    inputs: tuple[Any, ...]
    result: Any
    row: Any
    column: Any
    along: Any = None
    sums: tuple[Any, ...] = ()
    between: tuple[Any, ...] = ()
    shape: Callable[[int, int], list[int]] = field(default=lambda rows, columns: [columns, rows])


# --- Algorithms -------------------------------------------------------------------------------------------------------


def example_1_1() -> Pipeline:
    import halide as hl

    x, w = (hl.ImageParam(hl.Float(32), 2, name) for name in "xw")
    i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, x.width())], "k")
    h, s = hl.Func("h"), hl.Func("s")
    h[j, i] = hl.max(x[j, i] + w[j, i], 0.0) * 2.0
    s[i] = 0.0
    s[i] += h[k.x, i]
    return Pipeline((x, w), s, i, j, k.x, (s,), (h,), lambda rows, columns: [rows])


def softmax() -> Pipeline:
    import halide as hl

    x = hl.ImageParam(hl.Float(32), 2, "x")
    i, j, k = hl.Var("i"), hl.Var("j"), hl.RDom([(0, x.width())], "k")
    m, e, s, p = (hl.Func(name) for name in "mesp")
    m[i] = hl.f32(float("-inf"))
    m[i] = hl.max(m[i], x[k.x, i])
    e[j, i] = hl.exp(x[j, i] - m[i])
    s[i] = 0.0
    s[i] += e[k.x, i]
    p[j, i] = e[j, i] / s[i]
    return Pipeline((x,), p, i, j, k.x, (m, s), (e,))


def transpose_add() -> Pipeline:
    import halide as hl

    x, w = (hl.ImageParam(hl.Float(32), 2, name) for name in "xw")
    i, j = hl.Var("i"), hl.Var("j")
    t, a = hl.Func("t"), hl.Func("a")
    t[j, i] = w[i, j]
    a[j, i] = x[j, i] + t[j, i]
    return Pipeline((x, w), a, i, j, between=(t,))


ALGORITHMS: Mapping[str, Callable[[], Pipeline]] = {
    "example_1_1": example_1_1, "softmax_five_operators": softmax, "transpose_add": transpose_add,
}  # fmt: skip


# --- Schedules --------------------------------------------------------------------------------------------------------


def stage_by_stage(pipeline: Pipeline) -> None:
    """Nothing but what keeps a stage from being computed again for every use."""
    for stage in (*pipeline.between, *pipeline.sums):
        stage.compute_root()


def by_rows(pipeline: Pipeline) -> None:
    """One row, or one tile, at a time through all stages."""
    import halide as hl

    width = target().natural_vector_size(hl.Float(32))
    row, column, result = pipeline.row, pipeline.column, pipeline.result
    if pipeline.along is None:
        (moved,) = pipeline.between
        outer_row, outer_column = hl.Var("io"), hl.Var("jo")
        result.tile(column, row, outer_column, outer_row, column, row, TILE, TILE).vectorize(column, width)
        result.parallel(outer_row)
        moved.compute_at(result, outer_column).vectorize(row, width)
        return
    for stage in pipeline.sums:
        outer, inner, lane = hl.RVar("ko"), hl.RVar("ki"), hl.Var("lane")
        partial = stage.update().split(pipeline.along, outer, inner, 4 * width).rfactor(inner, lane)
        if stage is result:
            result.update().parallel(row)
            partial.compute_at(result, row)
        else:
            partial.compute_at(result, row)
            stage.compute_at(result, row)
        partial.vectorize(lane, width).update().vectorize(lane, width)
    if pipeline.sums != (result,):
        result.vectorize(column, width).parallel(row)
        for stage in pipeline.between:
            stage.compute_at(result, row).vectorize(column, width)


HOW: Mapping[str, Callable[[Pipeline], None]] = {STAGES: stage_by_stage, ROWS: by_rows}


def scheduled(case: str, schedule: str) -> Pipeline:
    """The algorithm of a compared function under one of :data:`SCHEDULES`. KeyError for others."""
    pipeline = ALGORITHMS[case]()
    HOW[schedule](pipeline)
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
            "schedules": {schedule: inspect.getsource(HOW[schedule]) for schedule in SCHEDULES},
            "loops": {schedule: loop_nest(pipeline) for schedule, pipeline in pipelines.items()},
            "lowered": {schedule: lowered(pipeline) for schedule, pipeline in pipelines.items()},
        }
    return found
