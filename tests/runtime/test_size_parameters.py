"""Kernels that differ in sizes alone share a library: what is shared, what is not, and that values stay right."""

from __future__ import annotations

import os
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
import staxlab.instances
from staxlab.codegen.kernel import Kernel
from staxlab.options import Options, device_spec
from staxlab.provenance import Line
from staxlab.runtime import build, size_parameters, toolchain


@pytest.fixture(autouse=True)
def forget():
    size_parameters.clear()
    yield
    size_parameters.clear()


def kernel(*lines: str) -> Kernel:
    head = ('#include "staxlab_math.h"', "using namespace stax;", "")
    device = device_spec("cpu", Options())
    written = tuple(Line(text, frozenset({k})) for k, text in enumerate((*head, *lines)))
    return Kernel("op", "cpp", written, (), (), device)


def test_numbers_are_told_from_names_and_fractions():
    text = "f32x8 t0 = load<f32x8>(in_x + 128*i0); t0 * 2.0f; 1e-05f; 3.5; 64; x2.0; b1e5"
    words, numbers = size_parameters.words_and_numbers(kernel(text))
    assert numbers == ("128", "2.0f", "1e-05f", "3.5", "64") and "f32x8" in words and "b1e5" in words


def test_parameters_stand_where_the_numbers_stood_and_lines_keep_their_origins():
    before = kernel("i64 f() { return 10 + 20 * 30; }")
    after = size_parameters.with_parameters(before, (0, 2))
    assert "return stax_sizes[0] + 20 * stax_sizes[1];" in after.source and "i64 stax_sizes[2];" in after.source
    assert after.lines[-1].origins == before.lines[-1].origins


def libraries_compiled(monkeypatch) -> list[str]:
    compiled: list[str] = []
    original = build.compile_kernel

    def counted(kernel, tools, title="", group=None):
        if group is not None:  # without a group it calls itself with one
            compiled.append(title)
        return original(kernel, tools, title, group)

    monkeypatch.setattr(build, "compile_kernel", counted)
    return compiled


def test_the_third_size_compiles_nothing(cache_dir, monkeypatch):
    """The first text is compiled as it is, the second with its sizes as parameters, all others are instances."""
    compiled_now = libraries_compiled(monkeypatch)
    compiled = staxlab.compile(lambda x: torch.softmax(x * 2, -1), dynamic=True, strict_native=True)
    counts = []
    for rows in (64, 80, 96, 640, 65, 127):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
        counts.append(len(compiled_now))
    assert counts == [1, 2, 2, 2, 2, 2]
    found = size_parameters.statistics()
    assert found["with parameters"] == 1 and found["texts that share"] == 5 and found["refused"] == 0


def test_a_mean_divides_by_a_parameter(cache_dir, monkeypatch):
    compiled_now = libraries_compiled(monkeypatch)
    compiled = staxlab.compile(lambda x: x.mean(-1) / x.shape[0], dynamic=True, strict_native=True)
    special = staxlab.compile(lambda x: x.mean(-1) / x.shape[0], strict_native=True, options={"max_versions": 16})
    for rows, columns in ((64, 48), (72, 56), (80, 112), (65, 48), (128, 104), (96, 208)):
        x = torch.randn(rows, columns)
        assert torch.equal(compiled(x), special(x))
    assert size_parameters.statistics()["texts that share"] > 2 and len(compiled.versions) == 1
    assert len(compiled_now) < 2 * 6


def test_a_decimal_that_rounds_twice_is_no_parameter():
    assert size_parameters._exact("0.5f") and size_parameters._exact("0.1") and not size_parameters._exact("0.1f")


def test_shared_kernels_give_the_bits_of_specialized_ones(cache_dir):
    def function(x, w):
        return torch.nn.functional.layer_norm(x + w, (x.shape[-1],)).sum(0), torch.tanh(x).amax(-1)

    dynamic = staxlab.compile(function, dynamic=True, strict_native=True)
    for rows, columns in ((3, 17), (5, 17), (40, 17), (40, 64), (9, 65), (2, 100), (31, 33)):
        x, w = torch.randn(rows, columns), torch.randn(columns)
        special = staxlab.compile(function, strict_native=True)
        for mine, theirs in zip(dynamic(x, w), special(x, w), strict=True):
            assert torch.equal(mine, theirs)


def test_a_number_that_must_be_constant_is_compiled_as_it_is(cache_dir):
    tools = toolchain.find()

    def compile_text(one):
        return build.compile_kernel(one, tools), "key", False

    def text(lanes: int) -> Kernel:
        return kernel(f'extern "C" void op() {{ Vec<f32, {lanes}> x; (void)x; }}')

    for lanes in (8, 16, 4):
        with pytest.raises(size_parameters.NotShared):
            size_parameters.shared(text(lanes), compile_text, lambda library: build._open(library, "op"))
    assert size_parameters.statistics()["refused"] == 1


def test_without_dynamic_mode_nothing_is_shared(cache_dir):
    compiled = staxlab.compile(lambda x: x * 2 + 1, strict_native=True)
    for n in (5, 6, 7):
        compiled(torch.randn(n, 3))
    assert size_parameters.statistics()["families"] == 0


PROGRAMS = {
    "rows": lambda x: torch.softmax(x, -1) * 3,
    "columns": lambda x: x.sum(0) + 1,
    "both": lambda x: (x - x.mean(0)).relu() + x.amax(-1, keepdim=True),
    "turned": lambda x: x.t().contiguous() + 1,
    "flat": lambda x: x.reshape(-1).cumsum(0),
    "halves": lambda x: torch.cat([x[: x.shape[0] // 2] * 2, x[x.shape[0] // 2 :]]),
    "branch": lambda x: x.exp() if x.shape[1] > 9 else x.sin(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, x.shape[0] % 3)),
}
COMPILED = {name: staxlab.compile(f, dynamic=True, options={"max_versions": 64}) for name, f in PROGRAMS.items()}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(PROGRAMS)), st.integers(0, 70), st.integers(0, 70),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.booleans(),
)  # fmt: skip
def test_random_sizes_agree_with_eager(name, rows, columns, dtype, turned):
    x = (torch.randn(columns, rows).t() if turned else torch.randn(rows, columns)).to(dtype)
    if name == "both" and not columns:
        return  # eager refuses the maximum of nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine, theirs = COMPILED[name](x), PROGRAMS[name](x)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_a_version_lists_its_back_ends(cache_dir):
    compiled = staxlab.compile(lambda x: torch.softmax(x, -1), dynamic=True)
    assert "none yet" in str(staxlab.instances.Instances(lambda inputs: None))
    for rows in (64, 65, 66):
        compiled(torch.randn(rows, 48))
    text = str(compiled.versions[0].compilation)
    assert "64x48: 1 kernel, 1 compiled" in text and "66x48: 1 kernel, 0 compiled" in text


def test_rows_of_any_length_share_libraries(cache_dir, monkeypatch):
    """One for each way in which rows end: a multiple of the vectors walked at once, or 1, 2 or 3 vectors more."""
    compiled_now = libraries_compiled(monkeypatch)
    compiled = staxlab.compile(lambda x: torch.softmax(x * 2, -1), dynamic=True, strict_native=True)
    special = staxlab.compile(lambda x: torch.softmax(x * 2, -1), strict_native=True, options={"max_versions": 64})
    counts = [0]
    for columns in (*range(512, 1024, 64), *range(528, 1024, 64), *range(544, 1024, 64), *range(560, 1024, 64)):
        x = torch.randn(40, columns)
        mine = compiled(x)
        counts.append(len(compiled_now))
        assert torch.equal(mine, special(x))
        del compiled_now[counts[-1] :]
    assert size_parameters.statistics()["refused"] == 0
    assert counts[-1] < (len(counts) - 1) / 2 and counts[-1] == counts[-4]


def test_arrays_are_told_and_made_longer():
    text = kernel("    alignas(64) f32 memory_row_buf1[100];", "    f32* const p = memory_row_buf1;", "    f(100, 7);")
    places = size_parameters.array_places(text)
    assert [size_parameters.words_and_numbers(text)[1][place] for place in places] == ["100"]
    (place,) = places
    made = size_parameters.with_parameters(text, (place, place + 1), {place: 128}).source
    assert "memory_row_buf1[128];" in made and "f(stax_sizes[0], 7)" in made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_does_not_wait_for_a_thread_of_its_parent(cache_dir):
    taken, done = threading.Event(), threading.Event()

    def compiling():
        with size_parameters._lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=compiling)
    thread.start()
    taken.wait(60)
    child = os.fork()
    if child == 0:
        threading.Timer(30, os._exit, (1,)).start()
        size_parameters.statistics()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
