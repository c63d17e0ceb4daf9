"""Proposition 9.4: the numbering of kernels, of the model and of Triton; windows of any size; the cache."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.codegen.triton.numbering import GROUPED_LINES, block_coordinates
from staxlab.errors import OptionError
from staxlab.measure.grouped_numbering import aligned_reads, best_group, l2_traffic, numbering
from tests.measure.matrix_kernels import coordinates

grids = st.integers(1, 12)


def by_hand(grid_m, grid_n, group):
    """Down the rows of a group, then one column to the right; group by group."""
    found = []
    for first in range(0, grid_m, group):
        rows = range(first, min(first + group, grid_m))
        found += [(row, column) for column in range(grid_n) for row in rows]
    return found


@given(grids, grids, st.integers(1, 14))
def test_it_goes_down_and_then_right_and_meets_every_block_once(grid_m, grid_n, group):
    order = numbering(grid_m, grid_n, group, 1).order
    assert list(order) == by_hand(grid_m, grid_n, group)
    assert len(set(order)) == grid_m * grid_n


@given(grids, grids, st.integers(1, 14))
def test_the_lines_of_kernels_are_the_function(grid_m, grid_n, group):
    for pid in range(grid_m * grid_n):
        names = {"tile": pid, "grid_m": grid_m, "grid_n": grid_n, "GROUP_M": group, "min": min}
        exec("\n".join(GROUPED_LINES), {"__builtins__": {}}, names)
        assert (names["tile_m"], names["tile_n"]) == block_coordinates(pid, grid_m, grid_n, group)


@pytest.mark.parametrize(("grid_m", "grid_n", "group"), [(6, 6, 2), (7, 5, 3), (5, 3, 8), (4, 7, 1), (1, 1, 4)])
def test_a_triton_kernel_has_the_same_coordinates(grid_m, grid_n, group):
    pytest.importorskip("triton")
    from staxlab.codegen.triton.interpreter import interpret

    rows, columns = (torch.full((grid_m * grid_n,), -1) for _ in range(2))
    interpret(coordinates(grid_m, grid_n, group), [rows, columns])
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == list(numbering(grid_m, grid_n, group, 1).order)


@given(grids, grids, st.integers(1, 14), st.data())
def test_the_closed_form_is_what_the_first_window_reads(grid_m, grid_n, group, data):
    window = data.draw(st.integers(1, grid_m * grid_n))
    reads = numbering(grid_m, grid_n, group, window).reads()
    assert aligned_reads(grid_m, grid_n, group, window) == (len(reads.rows), len(reads.columns))


@given(grids, grids, st.data())
def test_proposition_9_4(grid_m, grid_n, data):
    window = data.draw(st.integers(1, grid_m * grid_n))
    rows, columns = aligned_reads(grid_m, grid_n, 1, window)
    assert (rows, columns) == (-(-window // grid_n), min(window, grid_n))
    for group in range(1, grid_m + 1):
        if window % group == 0 and window // group <= grid_n:
            assert aligned_reads(grid_m, grid_n, group, window) == (group, window // group)
        total = sum(aligned_reads(grid_m, grid_n, group, window))
        assert total >= 2 * math.sqrt(window) - 1e-9
        assert total >= sum(aligned_reads(grid_m, grid_n, best_group(grid_m, grid_n, window).choice, window))


def test_the_numbers_of_the_section():
    figure = numbering(6, 6, 2, 8)
    assert (len(figure.reads().rows), len(figure.reads().columns)) == (2, 4)
    assert (len(figure.row_major.reads().rows), len(figure.row_major.reads().columns)) == (2, 6)
    assert aligned_reads(32, 32, 1, 128) == (4, 32) and aligned_reads(32, 32, 8, 128) == (8, 16)
    assert [sum(aligned_reads(16, 16, group, 24)) for group in (1, 4, 8)] == [18, 10, 11]


def test_it_prints_both_grids():
    text = numbering(6, 6, 2, 8).format()
    assert "row-major" in text and "groups of 2" in text and " 0*  2*  4*  6*  8  10" in text
    assert "12*" not in text
    assert "\n\n" not in numbering(40, 40, 8, 128).format(), "a grid that does not fit a terminal is left out"


def test_waves_cover_everything():
    one = numbering(7, 5, 3, 8)
    assert len(one.waves) == 5 and set().union(*(wave.rows for wave in one.waves)) == set(range(7))
    assert one.reads(5, 30).total == numbering(7, 5, 3, 35).reads(5, 30).total


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 36), st.integers(2, 80))
def test_the_cache_is_bounded_on_both_sides(grid_m, grid_n, steps, window, blocks):
    window = min(window, grid_m * grid_n)
    found = l2_traffic(grid_m, grid_n, steps, window=window, capacity=blocks, bytes_a=1, bytes_b=1, groups=(1, 2, 3))
    for run in found.runs:
        assert run.loads == 2 * grid_m * grid_n * steps
        assert run.first == steps * (grid_m + grid_n) <= run.misses <= run.loads
        if blocks >= run.first:
            assert run.misses == run.first and found.nbytes(run) == found.least_bytes


def test_a_wave_that_fits_misses_what_it_reads():
    """If a step of a wave fits in the cache but a wave does not, every wave misses its rows and columns, each step."""
    steps = 50
    found = l2_traffic(16, 16, steps, window=64, capacity=40, bytes_a=1, bytes_b=1, groups=(1, 8))
    for run in found.runs:
        waves = numbering(16, 16, run.group, 64).waves
        assert run.misses == steps * sum(wave.total for wave in waves)
    assert found.nbytes(found.of(8)) < found.nbytes(found.of(1))


def test_groups_help_only_where_the_cache_is_small():
    large = l2_traffic(8, 8, 4, window=16, capacity=1 << 20, bytes_a=16, bytes_b=16, groups=(1, 4))
    assert large.of(1).misses == large.of(4).misses
    with pytest.raises(KeyError):
        large.of(2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: numbering(0, 4), lambda: numbering(4, 4, 0), lambda: numbering(4, 4, 2, 17),
        lambda: numbering(4, 4, 2, 0), lambda: numbering(4, 4, 1.5), lambda: numbering(4, 4, 2, 1.5),
        lambda: best_group(4, 4, 4, [float("nan")]),
        lambda: numbering(4, 4, 2, 4).reads(4, 13), lambda: numbering(4, 4, 2, 4).reads(0),
        lambda: block_coordinates(16, 4, 4, 2), lambda: best_group(4, 4, 4, ()), lambda: best_group(4, 4, 99),
        lambda: l2_traffic(4, 4, 0, window=4, capacity=9, bytes_a=1, bytes_b=1),
        lambda: l2_traffic(4, 4, 1, window=4, capacity=1, bytes_a=1, bytes_b=1),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call):
    with pytest.raises(OptionError) as caught:
        call()
    assert caught.value.remedy
