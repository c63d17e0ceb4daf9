"""Threads of a parallel kernel share no memory that one of them writes."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.provenance import Line
from staxlab.runtime import toolchain
from tests.codegen.cpp_support import compile_program
from tests.codegen.test_cpp_templates import product
from tests.runtime.races import example_arguments, races


def rows(x):
    return (x * 2).sum(-1)


def everything(x):
    return (x * x).sum()


def columns(x):
    return x.sum(0)


def pointwise(x):
    return torch.relu(x) * 2 + 1


def turned(x):
    return x.t() + 1.0


def positions(x):
    return x.argmax(-1)


def position_of_all(x):
    return x.argmax()


def softmax(x):
    return F.softmax(x, -1)


def normalized(x):
    return F.layer_norm(x, x.shape[-1:])


def batch_normalized(x):
    return F.batch_norm(x, None, None, training=True)


def gathered(x):
    return x[(x[:, 0] > 0).long()] * 2, x[x[:, 0].long()] * 2  # the second may be out of range: threads report it


def summed_up(x):
    return torch.cumsum(x, 0), torch.cumsum(x, 1)


def scattered(x):
    at = (x > 0).long()
    return torch.zeros_like(x).scatter_add(0, at, x), torch.zeros_like(x).index_add(0, at[:, 0], x)


def any_and_half(x):
    return (x > 3).any(0), x.half() * 2


LARGE = (600, 700)
CASES = (
    pointwise, rows, columns, everything, turned, positions, position_of_all, softmax, normalized, gathered,
    batch_normalized, summed_up, scattered, any_and_half,
)  # fmt: skip
QUICK = {rows, everything}


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tsan")
    (directory / "main.cpp").write_text("int main() {}")
    command = [*toolchain.find().command, "-fsanitize=thread", "main.cpp", "-o", "main"]
    if subprocess.run(command, cwd=directory, capture_output=True).returncode:
        pytest.skip("the compiler has no ThreadSanitizer")


def parallel_kernels(fn, *inputs):
    compilation = staxlab.explain(fn, *inputs)
    return [k for k in compilation.kernels if "-fopenmp" in k.flags], compilation.schedule


@pytest.mark.parametrize("fn", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in CASES])
def test_no_thread_writes_what_another_reads_or_writes(fn, tmp_path, record_property):
    generator = torch.Generator().manual_seed(0)
    kernels, schedule = parallel_kernels(fn, torch.randn(LARGE, generator=generator))
    for position, kernel in enumerate(kernels):
        (tmp_path / str(position)).mkdir()
        found = races(kernel, example_arguments(kernel, schedule), tmp_path / str(position))
        assert found == "", f"{found}\n{kernel.source}"
    record_property("race_checked_kernels", len(kernels))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(300, 200, 260), (40, 70, 60, 50)], ids=["matrices", "batches"])
def test_products_share_no_memory_that_is_written(shape, tmp_path):
    *batch, rows_, depth, columns_ = shape
    program = product({"x": torch.ones(*batch, rows_, depth), "y": torch.ones(*batch, depth, columns_)})
    _, kernels, schedule = compile_program(program, threads=4)
    assert "-fopenmp" in kernels[0].flags
    assert races(kernels[0], example_arguments(kernels[0], schedule), tmp_path) == ""


def test_a_planted_race_is_found(tmp_path):
    """Rows summed in parallel, all written to one place."""
    (kernel,), schedule = parallel_kernels(rows, torch.randn(LARGE))
    store = next(line.text for line in kernel.lines if "store(" in line.text)
    pointer = kernel.arguments[-1].name
    broken = store.replace(f"store({pointer} + i0", f"store({pointer} + i0/600")
    assert broken != store
    lines = tuple(Line(line.text.replace(store, broken)) for line in kernel.lines)
    found = races(dataclasses.replace(kernel, lines=lines), example_arguments(kernel, schedule), tmp_path)
    assert "ThreadSanitizer: data race" in found
