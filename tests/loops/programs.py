"""Small loop programs the tests of several stages share."""

from __future__ import annotations

import torch

from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Reduction

FLOAT = torch.float32


def contiguous(*shape: int, dtype: torch.dtype = FLOAT) -> Layout:
    return Layout.contiguous(shape, dtype, "cpu")


def example_1_1(rows: int = 64, columns: int = 128) -> LoopProgram:
    """(relu(x + w) * 2).sum(-1), with origins 0 (x), 1 (w), 2 (add), 3 (relu), 4 (mul), 5 (sum)."""

    def compute(ops, i, r):
        def at(origin):
            return ops.tagged(frozenset({origin}))

        total = at(2).add(at(0).load("x", columns * i[0] + r[0]), at(1).load("w", columns * i[0] + r[0]))
        return at(4).mul(at(3).relu(total), at(4).constant(2, FLOAT))

    layout = contiguous(rows, columns)
    data = Reduction((rows,), (columns,), "sum", FLOAT, FLOAT, compute, frozenset({5}))
    out = ComputedBuffer("buf0", contiguous(rows), data, frozenset({5}))
    inputs = (InputBuffer("x", layout, frozenset({0})), InputBuffer("w", layout, frozenset({1})))
    return LoopProgram(inputs, (out,), (OutputReference("buf0", out.layout, origins=frozenset({5})),))


def pointwise(inputs: dict[str, Layout], shape: tuple[int, ...], compute, dtype: torch.dtype = FLOAT) -> LoopProgram:
    """One pointwise buffer ``out`` of the given shape."""
    out = ComputedBuffer("out", Layout.contiguous(shape, dtype, "cpu"), Pointwise(shape, dtype, compute))
    return LoopProgram(
        tuple(InputBuffer(name, layout) for name, layout in inputs.items()),
        (out,),
        (OutputReference("out", out.layout),),
    )


def reduction(
    layout: Layout, outer: tuple[int, ...], inner: tuple[int, ...], kind: str, compute, dtype=FLOAT, accumulate=FLOAT
) -> LoopProgram:
    """One reduction buffer ``out`` over input ``x``."""
    data = Reduction(outer, inner, kind, dtype, accumulate, compute)
    out = ComputedBuffer("out", Layout.contiguous(outer, dtype, "cpu"), data)
    return LoopProgram((InputBuffer("x", layout),), (out,), (OutputReference("out", out.layout),))
