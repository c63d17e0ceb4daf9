"""The tests of generated kernels find bugs: each fault planted in a kernel's text must change the result.

A check that cannot fail proves nothing. Here the generator's own output is damaged in one place, the way a slip in the
generator would, and the comparison the other tests rely on has to notice.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from staxlab.codegen import cpp
from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.wrapper import generate_wrapper
from staxlab.options import Options, host_device_spec
from staxlab.provenance import Line
from staxlab.runtime import artifact, build
from staxlab.schedule.dependencies import schedule
from tests.codegen.cpp_support import RUNNABLE, assert_same, expected, pointwise, poisoned, reduction
from tests.codegen.test_cpp_scans import scan

F32, I64 = torch.float32, torch.int64
needs_vectors = pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the texts below are those of 16 lanes")


def padded(shape: tuple[int, ...]) -> torch.Tensor:
    """Random numbers in the middle of memory full of NaN, so that a read beside them shows."""
    count = math.prod(shape)
    storage = torch.full((count + 512,), math.nan)
    storage[256 : 256 + count] = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return storage[256 : 256 + count].view(shape)


def elementwise():
    x, y = padded((5, 37)), padded((5, 37))
    return pointwise(
        {"x": x, "y": y}, (5, 37), F32,
        lambda ops, i: ops.relu(ops.sub(ops.load("x", 37 * i[0] + i[1]), ops.load("y", 37 * i[0] + 36 - i[1]))),
    ), {"x": x, "y": y}  # fmt: skip


def over_rows(kind: str, x: torch.Tensor):
    rows, columns = x.shape

    def compute(ops, i, r):
        return ops.load("x", columns * i[0] + r[0])

    stored = I64 if kind == "argmax" else F32
    return reduction({"x": x}, (rows,), (columns,), kind, stored, F32, compute), {"x": x}


def row_sum():
    return over_rows("sum", padded((6, 167)))


def row_argmax():
    return over_rows("argmax", padded((6, 167)).round())  # many equal values: the first must win


def row_amax():
    return over_rows("amax", -padded((6, 167)).abs())


def column_sum():
    x = padded((300, 1100))

    def compute(ops, i, r):
        return ops.load("x", 1100 * r[0] + i[0])

    return reduction({"x": x}, (1100,), (300,), "sum", F32, F32, compute), {"x": x}


def cut_sum():
    x = padded((70_003,))
    return reduction({"x": x}, (), (70_003,), "sum", F32, F32, lambda ops, i, r: ops.load("x", r[0])), {"x": x}


def turned():
    x = padded((37, 70))
    return pointwise({"x": x}, (70, 37), F32, lambda ops, i: ops.load("x", 70 * i[1] + i[0])), {"x": x}


def row_scan():
    return scan(padded((9, 300)), 1, "sum", accumulate=torch.float64)


def row_extreme():
    return scan(padded((6, 167)), 1, "amax")


def row_position():
    return scan(padded((6, 167)).round(), 1, "argmax")  # many equal values: the last must win


def column_scan():
    return scan(padded((40, 1100)), 0, "sum", accumulate=torch.float64)


PLANTED = {
    "relu forgotten": (elementwise, "relu(t2)", "t2"),
    "operands exchanged": (elementwise, "t0 - t1", "t1 - t0"),
    "wrong row": (elementwise, "37*i0 + i1", "36*i0 + i1"),
    "not reversed": (elementwise, "load_reversed<f32x16>", "load<f32x16>"),
    "tail too short": (elementwise, "first<5>", "first<4>"),
    "accumulator lost": (row_sum, "(acc2 + acc3)", "(acc2 + acc2)"),
    "accumulator not updated": (row_sum, "acc1 = acc1 + element(r0 + 16, all_lanes);", ""),
    "step of the loop": (row_sum, "r0 += 64", "r0 += 128"),
    "loop ends early": (row_sum, "r0 < 128", "r0 < 64"),
    "vector after the loop": (row_sum, "element(144, all_lanes)", "element(128, all_lanes)"),
    "neutral element": (row_sum, "f32x16 acc0 = splat<f32x16>(0.0f)", "f32x16 acc0 = splat<f32x16>(1.0f)"),
    "neutral element of amax": (row_amax, "-__builtin_inff()", "0.0f"),
    "tail of amax": (row_amax, "keep(first<7>", "keep(first<16>"),
    "smallest instead of largest": (row_argmax, "best_lane<true>", "best_lane<false>"),
    "positions": (row_argmax, "iota<i32x16>() * splat<i32x16>((i32)1)", "-iota<i32x16>()"),
    "wrong place in the strip": (column_sum, "= acc[k - begin];", "= acc[0];"),
    "row skipped": (column_sum, "element(16*k, r0 + 3, all_lanes)", "element(16*k, r0 + 2, all_lanes)"),
    "right edge": (column_sum, "first<12>", "first<11>"),
    "piece lost": (column_sum, "piece < 5; ++piece) total", "piece < 4; ++piece) total"),
    "piece too short": (cut_sum, "(piece + 1)*35008", "(piece + 1)*34944"),
    "partial results": (cut_sum, "acc + partial[piece]", "partial[piece]"),
    "tile not turned": (turned, "turned0[row]", "turned0[15 - row]"),
    "tile at the edge": (turned, "first<6>, all_lanes", "first<5>, all_lanes"),
    "every block begins anew": (row_scan, "start + k == 0", "k == 0"),
    "a row's last block": (row_scan, "128 : 300 - start", "128 : 299 - start"),
    "tail of a scan": (row_scan, "first<4>", "first<3>"),
    "rows mixed up": (row_scan, "acc[row] + value", "acc[0] + value"),
    "a row of the rest": (row_scan, "scan_rows(first<1>)", "scan_rows(first<0>)"),
    "a row beside the rest": (row_scan, "i0 + row, start + k", "i0, start + k"),
    "prefix not kept": (row_scan, "block[row][k] = acc[row];", ""),
    "vector passed over": (row_extreme, "if (any(", "if (k == 0 && any("),
    "extreme not kept": (row_extreme, "acc = value[lane];", ""),
    "extreme begins with nothing": (row_extreme, "if (k == 0) acc = value[0];", ""),
    "first of equal elements": (row_position, "is_later_extreme<true, f32>(acc, value[lane])", "value[lane] > acc"),
    "position within the vector": (row_position, "acc_at = k + lane;", "acc_at = lane;"),
    "strip begins anew": (column_scan, "r0 == 0 ? value", "r0 % 2 == 0 ? value"),
    "running vector": (column_scan, "acc[k - begin] + value", "acc[0] + value"),
    "strip too narrow": (column_scan, "strip < 4", "strip < 3"),
    "tail of a strip": (column_scan, "first<4>", "first<3>"),
}


@needs_vectors
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name):
    make, right, wrong = PLANTED[name]
    program, inputs = make()
    device = dataclasses.replace(host_device_spec("avx512"), threads=2)
    scheduled = schedule(program, device, Options())
    (kernel,) = cpp.generate(scheduled, Options(), device)
    assert right in kernel.source, f"the text to damage is not there:\n{kernel.source}"
    wanted = expected(program, inputs)
    exact = wanted.dtype == I64 or make in (elementwise, row_amax, turned, row_scan, row_extreme, column_scan)
    tolerance = {} if exact else {"rtol": 1e-4, "atol": 2e-3}

    def result(lines):
        kernels = KernelSet((dataclasses.replace(kernel, lines=lines),))
        launchers = build.build(kernels, Options(), device)
        loaded = poisoned(artifact.load(generate_wrapper(scheduled, kernels, Options()), launchers))
        return loaded.call(list(inputs.values()))[0]

    assert_same(result(kernel.lines), wanted, **tolerance)
    damaged = tuple(Line(line.text.replace(right, wrong), line.origins) for line in kernel.lines)
    with pytest.raises(AssertionError):
        assert_same(result(damaged), wanted, **tolerance)
