"""Threads of the C++ attention kernels share no memory that one of them writes, checked by ThreadSanitizer."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from staxlab.codegen.cpp.attention import forward_source
from staxlab.codegen.cpp.attention_backward import backward_source
from staxlab.provenance import Line
from staxlab.runtime import toolchain
from tests.attention.test_cpp import Case, causal
from tests.attention.variants import VARIANTS, Sizes, Variant
from tests.runtime.races import races

pytestmark = pytest.mark.skipif(toolchain.find().openmp != "gnu", reason="the program's runtime answers GNU's calls")

SIZES = Sizes(1, 4, 2, 70, 600, 16, 16)
LEARNED = next(v for v in VARIANTS if v.name == "learned bias of heads").score


def arguments(case, made, count):
    """Memory for every argument of a kernel, as bytes; ``count`` says how many elements those without a tensor have."""
    q, k, v = case.inputs
    sizes = dict(made.workspace) | count
    given = {"query_tensor": q, "key_tensor": k, "value_tensor": v}
    given |= {f"captured{number}": tensor for number, tensor in enumerate(case.captured)}
    given |= {name: getattr(case.block_mask, name) for name in made.lists}
    given |= {f"slots{number}": torch.zeros(made.slots * size, dtype=torch.float64) for number, size in made.gradients}
    found = []
    for argument in made.kernel.arguments:
        tensor = given.get(argument.name)
        if tensor is None:
            tensor = torch.ones(sizes[argument.name], dtype=argument.dtype)
        found.append(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found


def rows_and_results(case):
    q, k, v = case.inputs
    rows = case.variant.sizes
    count = rows.batch * rows.heads * rows.queries
    out = count * rows.value_size
    given = {"out": out, "result": out, "d_result": out, "lse": count, "d_lse": count}
    return given | {"d_query": q.numel(), "d_key": k.numel(), "d_value": v.numel()}


@pytest.mark.parametrize("masked", [False, True])
def test_no_races(masked, tmp_path):
    """Shared panels, pieces of keys that are merged, slots of a learned tensor, and lists of blocks."""
    case = Case(Variant("races", LEARNED, causal().mask if masked else None, SIZES), block_size=64)
    forward = forward_source(case.problem, {"BLOCK_M": 24, "SPLITS": 3})
    backward = backward_source(case.problem, {"BLOCK_M": 24, "SPLITS": 3}, lse_gradient=True)
    assert forward.plan.pieces == backward.plan.pieces == 3 and forward.plan.shared_panels
    for made in (forward, backward):
        directory = tmp_path / made.kernel.name
        directory.mkdir()
        assert not races(made.kernel, arguments(case, made, rows_and_results(case)), directory)


def test_a_planted_race_is_found(tmp_path):
    """All tasks in one slot of the learned tensor's gradient."""
    case = Case(Variant("races", LEARNED, None, SIZES))
    made = backward_source(case.problem, {"SPLITS": 3})
    lines = tuple(Line(line.text.replace("* slot;", "* 0;"), line.origins) for line in made.kernel.lines)
    assert lines != made.kernel.lines
    broken = dataclasses.replace(made.kernel, lines=lines)
    assert "data race" in races(broken, arguments(case, made, rows_and_results(case)), tmp_path)
