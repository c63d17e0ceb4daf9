"""The cases of the GPU benchmark, without a GPU: what they move, and that each is the kernels its name says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import staxlab
from benchmarks import gpu
from benchmarks.gpu_cases import (
    all_cases,
    cross_entropy_case,
    every_case,
    fused_cases,
    more_cases,
    norm_case,
    rms_case,
    small,
)  # fmt: skip


@pytest.mark.parametrize("case", fused_cases(), ids=lambda case: case.title)
def test_reductions_share_a_kernel_that_moves_the_least(case):
    rows, columns = 512, case.shapes[0][1]
    again = {"layer_norm": norm_case, "rms_norm": rms_case}.get(case.name)
    if again is not None:
        small = again((rows, columns), case.dtype)
    elif case.labels:
        small = cross_entropy_case((rows, columns))
    else:
        share = case.elements / case.shapes[0][0]
        small = dataclasses.replace(case, shapes=((rows, columns),), elements=int(share * rows))
    inputs = small.inputs(0, "cpu")
    compilation = staxlab.explain(small.function, *inputs, target="sm_90", strict_native=True)
    (kernel,) = compilation.kernels
    assert kernel.bytes_read + kernel.bytes_written == small.least_bytes


def test_the_head_of_a_case_is_its_first_rows_in_double_precision():
    case = cross_entropy_case((600, 40))
    x, labels = case.head(case.inputs(0, "cpu"), 5)
    assert x.shape == (5, 40) and x.dtype == torch.float64 and labels.shape == (5,) and labels.dtype == torch.int64
    x, weight, bias = norm_case((600, 40)).head(norm_case((600, 40)).inputs(0, "cpu"), 5)
    assert x.shape == (5, 40) and weight.shape == bias.shape == (40,)


def test_every_case_has_a_title_of_its_own():
    for cases in (all_cases(), fused_cases(), more_cases(), every_case()):
        assert len({case.title for case in cases}) == len(cases)
    assert {case.title for case in (*all_cases(), *fused_cases(), *more_cases())} == {c.title for c in every_case()}


def test_the_tables_of_the_course_are_among_the_cases():
    from benchmarks.cases import CASES

    names = {case.name for case in every_case()}
    assert {case.name for case in CASES if case.table in ("13.1", "13.2")} <= names
    sizes = {(case.name, case.shapes[0]) for case in every_case()}
    assert ("softmax_library", (16384, 8192)) in sizes and {"cumsum_rows", "cumsum_columns"} <= names


def test_small_cases_keep_what_is_equal():
    case = small(norm_case((4096, 16384)))
    (rows, columns), *vectors = case.shapes
    assert vectors == [(columns,)] * 2 and rows != columns and max(rows, columns) < 100


def test_what_the_least_bytes_are_of_the_added_cases():
    for case in map(small, more_cases()):
        inputs = case.inputs(0, "cpu")
        compilation = staxlab.explain(case.function, *inputs, target="sm_90", strict_native=True)
        from staxlab.measure import traffic_model

        rows, columns = case.shapes[0][0], case.shapes[0][-1]
        per_element = {"three_orders": 4, "gelu_backward": 3, "var_mean": 1, "add": 3}.get(case.name, 2)
        elements = per_element * (rows * columns * (rows if len(case.shapes[0]) == 3 else 1))
        bound = traffic_model(compilation).bound.nbytes / case.dtype.itemsize
        assert abs(bound - elements) <= 2 * (rows + columns), case.title


def test_every_case_runs_without_a_device(capsys):
    assert gpu.main(["--all", "--smoke", "--only", "softmax"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("right, kernels: 1") == printed.count("softmax") >= 5


def test_a_record_is_summed_up():
    def case(title, ratio, share, nbytes):
        return {"title": title, "ratio_to_torch_compile": ratio, "least_bytes": nbytes,
                "peers": {"staxlab": {"share_of_copy": share}}}  # fmt: skip

    record = {"l2_bytes": 100, "cases": [case("a", 2.0, 0.9, 1000), case("b", 0.5, 0.95, 500), case("c", 1.0, 0.2, 50)]}
    found = gpu.summary(record)
    assert found["geometric_mean"] == pytest.approx(1.0) and found["least_ratio"] == ("b", 0.5)
    assert found["least_share_of_copy"] == ("a", 0.9), "what fits into the cache is no matter of bandwidth"
    assert gpu.summary({"l2_bytes": 100, "cases": []}) == {"cases": 0}
