"""Addresses worked out from TTGIR text: one operation at a time, loops, branches, and what nobody knows beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from staxlab.codegen.kernel import Kernel
from staxlab.codegen.triton.addresses import accesses
from staxlab.options import GPU_SPECS

LAYOUT = "#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>\n"


def run(body, program=(0, 0, 0), grid=(4, 1, 1), sizes=None):
    """The accesses of a kernel with one pointer ``%p`` and one size ``%n``, whose body is given line by line."""
    text = "\n".join(
        [LAYOUT, "module {", "  tt.func public @k(%p: !tt.ptr<f32>, %q: !tt.ptr<i32>, %n: i32) {",
         "    %r = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32, #b>",
         "    %pp = tt.splat %p : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>, #b>", *(f"    {line}" for line in body),
         "    tt.return", "  }", "}"]
    )  # fmt: skip
    kernel = Kernel("k", "triton", (), (), (), GPU_SPECS["sm_90"], launch={"sizes": sizes or {"n": 100}, "grid": grid})
    return accesses(kernel, text, program)


def offsets(expression):
    """What a load touches whose offset is the result of an operation."""
    (found,) = run(
        [f"%o = {expression}",
         "%a = tt.addptr %pp, %o : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
         "%v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>"]
    )  # fmt: skip
    return None if found.offsets is None else found.offsets.tolist()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("arith.addi %r, %r : tensor<8xi32, #b>", [0, 2, 4, 6, 8, 10, 12, 14]),
        ("arith.muli %r, %r : tensor<8xi32, #b>", [0, 1, 4, 9, 16, 25, 36, 49]),
        ("ttg.convert_layout %r : tensor<8xi32, #b> -> tensor<8xi32, #b>", list(range(8))),
        ("arith.extsi %r : tensor<8xi32, #b> to tensor<8xi64, #b>", list(range(8))),
        ("math.absf %r : tensor<8xf32, #b>", None),
    ],
)
def test_operations(expression, expected):
    assert offsets(expression) == expected


def constant_then(operation, value):
    found = run(
        [f"%c = arith.constant dense<{value}> : tensor<8xi32, #b>", f"%o = {operation} : tensor<8xi32, #b>",
         "%a = tt.addptr %pp, %o : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
         "%v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>"]
    )  # fmt: skip
    return found[0].offsets.tolist()


@pytest.mark.parametrize(
    ("operation", "value", "expected"),
    [
        ("arith.divsi %r, %c", 3, [0, 0, 0, 1, 1, 1, 2, 2]),
        ("arith.remsi %r, %c", 3, [0, 1, 2, 0, 1, 2, 0, 1]),
        ("arith.divsi %c, %c", -7, [1] * 8),
        ("arith.shli %r, %c", 2, [0, 4, 8, 12, 16, 20, 24, 28]),
        ("arith.xori %r, %c", 1, [1, 0, 3, 2, 5, 4, 7, 6]),
        ("arith.subi %r, %c", 5, [-5, -4, -3, -2, -1, 0, 1, 2]),
    ],
)
def test_operations_with_constants(operation, value, expected):
    assert constant_then(operation, value) == expected


def test_signed_division_rounds_towards_zero():
    body = [
        "%c = arith.constant dense<-7> : tensor<8xi32, #b>", "%d = arith.constant dense<2> : tensor<8xi32, #b>",
        "%x = arith.divsi %c, %d : tensor<8xi32, #b>", "%y = arith.remsi %c, %d : tensor<8xi32, #b>",
        "%a = tt.addptr %pp, %x : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
        "%b = tt.addptr %pp, %y : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
        "%v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>", "%w = tt.load %b : tensor<8x!tt.ptr<f32>, #b>",
    ]  # fmt: skip
    first, second = run(body)
    assert set(first.offsets.tolist()) == {-3} and set(second.offsets.tolist()) == {-1}


def test_a_program_knows_its_number_the_grid_and_the_sizes():
    body = [
        "%i = tt.get_program_id x : i32", "%g = tt.get_num_programs x : i32", "%s = arith.muli %i, %g : i32",
        "%t = arith.addi %s, %n : i32", "%b = tt.splat %t : i32 -> tensor<8xi32, #b>",
        "%a = tt.addptr %pp, %b : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
        "%v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>",
    ]  # fmt: skip
    (found,) = run(body, program=(3, 0, 0))
    assert set(found.offsets.tolist()) == {3 * 4 + 100}


def test_masks_and_truth_values():
    body = [
        "%c = arith.constant dense<5> : tensor<8xi32, #b>",
        "%m = arith.cmpi slt, %r, %c : tensor<8xi32, #b>",
        "%e = arith.extui %m : tensor<8xi1, #b> to tensor<8xi32, #b>",
        "%o = arith.addi %e, %e : tensor<8xi32, #b>",
        "%a = tt.addptr %pp, %o : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
        "%v = tt.load %a, %m : tensor<8x!tt.ptr<f32>, #b>", "tt.store %a, %v, %m : tensor<8x!tt.ptr<f32>, #b>",
        "tt.store %a, %v : tensor<8x!tt.ptr<f32>, #b>",
    ]  # fmt: skip
    load, masked, whole = run(body)
    assert load.offsets.tolist() == [2, 2, 2, 2, 2, 0, 0, 0] and load.mask.sum() == masked.mask.sum() == 5
    assert whole.mask is None and whole.mask_known and (load.role, masked.role) == ("read", "write")


LOOP = [
    "%z = arith.constant 0 : i32", "%h = arith.constant 80 : i32", "%s = arith.constant 8 : i32",
    "%u = scf.for %k = %z to %h step %s iter_args(%acc = %r) -> (tensor<8xi32, #b>)  : i32 {",
    "  %kk = tt.splat %k : i32 -> tensor<8xi32, #b>", "  %o = arith.addi %kk, %r : tensor<8xi32, #b>",
    "  %a = tt.addptr %pp, %{which} : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
    "  %v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>", "  %next = arith.addi %acc, %r : tensor<8xi32, #b>",
    "  scf.yield %next : tensor<8xi32, #b>", "}",
    "%after = tt.addptr %pp, %u : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
    "%w = tt.load %after : tensor<8x!tt.ptr<f32>, #b>",
]  # fmt: skip


def test_the_first_second_and_last_iteration_of_a_loop():
    found = run([line.replace("{which}", "o") for line in LOOP])
    assert [int(access.offsets[0]) for access in found[:3]] == [0, 8, 72]
    assert len(found) == 4 and found[3].offsets is None  # what a loop leaves is not followed


def test_values_that_a_loop_carries_along():
    found = run([line.replace("{which}", "acc") for line in LOOP])
    assert [int(access.offsets[1]) for access in found[:3]] == [1, 2, 10]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("%t = arith.constant true", ["read", "read"]),
        ("%t = arith.constant false", ["write", "read"]),
        ("%t = tt.load %q : !tt.ptr<i32>", ["read", "read", "write", "read"]),  # data: nobody knows which it will be
    ],
)
def test_the_branch_that_is_taken_is_looked_at_and_both_where_nobody_knows(condition, expected):
    body = [
        condition, "scf.if %t {", "  %v = tt.load %pp : tensor<8x!tt.ptr<f32>, #b>", "} else {",
        "  tt.store %pp, %r : tensor<8x!tt.ptr<f32>, #b>", "}", "%w = tt.load %p : !tt.ptr<f32>",
    ]  # fmt: skip
    assert [access.role for access in run(body)] == expected


def test_a_branch_that_is_not_taken_and_has_no_other():
    body = ["%t = arith.constant false", "scf.if %t {", "  %v = tt.load %p : !tt.ptr<f32>", "}",
            "%w = tt.load %q : !tt.ptr<i32>"]  # fmt: skip
    assert [access.argument for access in run(body)] == ["q"]


def test_what_depends_on_data_is_not_known():
    body = [
        "%qq = tt.splat %q : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>",
        "%i = tt.load %qq : tensor<8x!tt.ptr<i32>, #b>",
        "%a = tt.addptr %pp, %i : tensor<8x!tt.ptr<f32>, #b>, tensor<8xi32, #b>",
        "%m = arith.cmpi slt, %i, %r : tensor<8xi32, #b>", "%v = tt.load %a : tensor<8x!tt.ptr<f32>, #b>",
        "%w = tt.load %pp, %m : tensor<8x!tt.ptr<f32>, #b>",
        "%x = tt.atomic_rmw fadd, relaxed, gpu, %a, %v, %m : (tensor<8x!tt.ptr<f32>, #b>, tensor<8xf32, #b>, "
        "tensor<8xi1, #b>) -> tensor<8xf32, #b>",
    ]  # fmt: skip
    index, gathered, masked, atomic = run(body)
    assert index.offsets is not None and index.argument == "q"
    assert gathered.offsets is None and gathered.argument == "p"
    assert masked.offsets is not None and not masked.mask_known
    assert (atomic.role, atomic.argument, atomic.shape) == ("atomic", "p", (8,))


def test_a_copy_to_shared_memory_is_a_read():
    body = [
        "%c = arith.constant dense<true> : tensor<8xi1, #b>",
        "%t = ttg.async_copy_global_to_local %pp, %s mask %c other %z {contiguity = 4 : i32} : "
        "tensor<8x!tt.ptr<f32>, #b> -> <8xf32, #shared, #smem, mutable>",
    ]
    (found,) = run(body)
    assert (found.role, found.shape, found.layout) == ("read", (8,), "#b") and np.all(found.mask)
