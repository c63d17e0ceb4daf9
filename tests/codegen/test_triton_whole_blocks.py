"""Whole blocks without a mask: values at every way of ending, widths in PTX, and where a second body buys nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab import options
from staxlab.codegen.kernel import Kernel
from staxlab.codegen.triton import kernel_text
from staxlab.runtime.artifact import load
from tests.codegen.triton_support import SM90

pytest.importorskip("triton")

from staxlab.codegen.triton.addresses import accesses
from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.generate import triton_kernel
from staxlab.codegen.triton.interpreter import interpret
from staxlab.measure.coalescing import instruction_widths

APART = "if xoffset + XBLOCK <= xnumel:"
E = torch.empty


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """A device whose second-level cache holds nothing, so that small tensors show what large ones get."""
    monkeypatch.setitem(options.GPU_SPECS, "sm_90", replace(SM90, l2_bytes=1))


def explained(function, *inputs) -> staxlab.Compilation:
    return staxlab.explain(function, *inputs, target="sm_90", strict_native=True)


def only_kernel(function, *inputs) -> Kernel:
    (kernel,) = explained(function, *inputs).kernels
    return kernel


def results(function, *inputs) -> list[torch.Tensor]:
    compilation = explained(function, *inputs)
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in compilation.kernels}
    return load(compilation.wrapper, launchers).call(list(inputs))


def add(x, y):
    return x + y * 2


def several(x, y):
    return x * y, (x - y).relu()


def gather(table, places):
    return table[places] * 2


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [add, several])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 130, 132, 255, 257, 1001])
def test_values_agree_bit_by_bit_however_the_last_block_ends(function, dtype, n, monkeypatch):
    generator = torch.Generator().manual_seed(n)
    x, y = (torch.randn(n, generator=generator).to(dtype) for _ in range(2))
    apart = any(APART in kernel.source for kernel in explained(function, x, y).kernels)
    constancy = n & -n
    assert apart == (n > 128 and constancy < min(4, 16 // dtype.itemsize))
    found, wanted = results(function, x, y), function(x, y)
    monkeypatch.setattr(kernel_text, "whole_blocks_decision", lambda *args: None)
    masked = results(function, x, y)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other, third in zip(found, wanted, masked, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other) and torch.equal(one, third)


@pytest.mark.parametrize("place", [0, 300], ids=["in a whole block", "in the last"])
def test_subscripts_are_checked_in_both_bodies(place):
    table = torch.randn(7, generator=torch.Generator().manual_seed(0))
    places = torch.arange(301) % 7
    assert APART in only_kernel(gather, table, places).source
    assert torch.equal(results(gather, table, places)[0], gather(table, places))
    places[place] = 7
    with pytest.raises(IndexError, match="out of bounds"):
        results(gather, table, places)


def test_every_point_is_written_once_and_whole_blocks_by_the_body_without_a_mask():
    kernel = only_kernel(add, E(1001), E(1001))
    last = kernel.launch["grid"][0] - 1
    written = []
    for program in range(last + 1):
        found = accesses(kernel, aot_compile(kernel)["ttgir"], (program, 0, 0))
        assert len(found) == 3 and all((access.mask is None) == (program < last) for access in found)
        (store,) = [access for access in found if access.role == "write"]
        written += store.offsets[store.mask].tolist() if program == last else store.offsets.tolist()
    assert sorted(written) == list(range(1001))


# -- what it buys ------------------------------------------------------------------------------------------------------

ACCESS = re.compile(r"\b(ld|st)\.global(\S*)")


def widths(kernel: Kernel, capability: int) -> dict[str, set[str]]:
    """The widths of loads and stores in PTX."""
    found: dict[str, set[str]] = {"ld": set(), "st": set()}
    for operation, modifiers in ACCESS.findall(aot_compile(kernel, capability)["ptx"]):
        found[operation].add(re.search(r"(?:v\d\.)?b\d+$", modifiers)[0])
    return found


@pytest.mark.parametrize("capability", [80, 90], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("dtype", "n", "block", "warps", "narrow", "wide"),
    [
        (torch.float32, 100_001, 512, 4, "b32", "v4.b32"),
        (torch.float32, 100_002, 512, 4, "v2.b32", "v4.b32"),
        (torch.float64, 100_001, 512, 4, "b64", "v2.b64"),
        (torch.bfloat16, 100_001, 512, 4, "b16", "v2.b32"),
        (torch.bfloat16, 100_001, 1024, 4, "b16", "v4.b32"),  # eight elements to a lane
        (torch.bfloat16, 100_004, 1024, 4, "v2.b32", "v4.b32"),
    ],
)
def test_whole_blocks_move_the_widest_vectors(dtype, n, block, warps, narrow, wide, capability):
    compilation = explained(add, E(n, dtype=dtype), E(n, dtype=dtype))
    (node,) = compilation.schedule.nodes
    given = ({"XBLOCK": block}, warps, 1)
    kernel = triton_kernel(compilation.schedule, node, "_given", compilation.device, given)
    assert widths(kernel, capability) == {"ld": {narrow, wide}, "st": {narrow, wide}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_decision_foretells_the_widths(dtype):
    kernel = only_kernel(add, E(1001, dtype=dtype), E(1001, dtype=dtype))
    (decision,) = [decision for decision in kernel.decisions if decision.topic == "mask"]
    found = instruction_widths(kernel, aot_compile(kernel)["ptx"])
    of_bodies = [sorted({width for (line, _), width in found.items() if whole(kernel, line) is body})
                 for body in (True, False)]  # fmt: skip
    free, masked = dtype.itemsize * 4, dtype.itemsize
    assert of_bodies == [[free], [masked]]
    assert len(decision.inputs) == 3 and {text for _, text in decision.inputs} == {f"{free} B instead of {masked}"}
    assert "any element" in str(decision)


def whole(kernel: Kernel, line: int) -> bool:
    """Whether a line stands in the body of whole blocks."""
    texts = [text.text.strip() for text in kernel.lines[:line]]
    return APART in " ".join(texts) and not any(text.startswith("else:") for text in texts)


def test_the_picture_of_sectors_has_both_bodies():
    found = only_kernel(add, E(1001), E(1001)).coalescing()
    assert [access.width for access in found.accesses] == [16] * 3 + [4] * 3 and not found.left_out
    assert all(access.width == access.possible for access in found.accesses)
    assert [access.efficiency for access in found.accesses[:3]] == [1.0] * 3


# -- where there is nothing to win -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(add, (E(1000), E(1000)), id="vectors fit the mask"),
        pytest.param(add, (E(1024), E(1024)), id="no mask"),
        pytest.param(add, (E(127), E(127)), id="one block"),
        pytest.param(lambda x: x.neg_(), (E(2002)[::2],), id="every second element, in place"),
        pytest.param(lambda x, y: x.t() + y, (E(65, 129), E(129, 65)), id="rows of odd length"),
        pytest.param(lambda x: x.softmax(-1), (E(129, 333),), id="rows that are reduced"),
        pytest.param(lambda x, i, v: x.index_add_(0, i, v), (E(9), torch.zeros(333, dtype=torch.int64), E(333)),
                     id="a scatter"),
    ],
)  # fmt: skip
def test_one_body_is_enough(function, inputs):
    for kernel in explained(function, *inputs).kernels:
        assert APART not in kernel.source and not any(d.topic == "mask" for d in kernel.decisions)


def test_what_stays_in_the_cache_keeps_its_mask(monkeypatch):
    monkeypatch.setitem(options.GPU_SPECS, "sm_90", SM90)
    assert APART not in only_kernel(add, E(1001), E(1001)).source


def test_neighbours_that_do_not_begin_at_a_vector_gain_nothing():
    """One element further every vector of four begins inside another; the result begins at one."""
    kernel = only_kernel(lambda x: x[1:] * x[:-1], E(1002))
    (decision,) = [decision for decision in kernel.decisions if decision.topic == "mask"]
    assert dict(decision.inputs)["buf0"] == "16 B instead of 4"
