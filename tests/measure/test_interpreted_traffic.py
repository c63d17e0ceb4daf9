"""Loads and stores counted in Triton's interpreter: of a small kernel by hand, and of attention beside its model."""

from __future__ import annotations

import pytest
import torch

from tests.attention.variants import VARIANTS, Variant

pytest.importorskip("triton")

import staxlab
from staxlab import view
from staxlab.codegen.triton.attention.configurations import AttentionConfiguration
from staxlab.codegen.triton.attention.decoding import build_decoding
from staxlab.codegen.triton.attention.forward import build_forward
from staxlab.codegen.triton.interpreter import interpret
from staxlab.measure.interpreted_traffic import OTHERS, counted_accesses, counted_attention, model_of
from tests.codegen.triton_attention import setup


def test_a_kernel_counted_by_hand():
    x, y, out = torch.randn(5, 100), torch.randn(100), torch.empty(5, 100)
    (kernel,) = staxlab.explain(lambda x, y: x + y, x, y, target="sm_90").kernels
    with counted_accesses({"x": x, "y": y}) as found:
        interpret(kernel, [x, y, out])
    assert found.read["x"] == 500 and found.written == {OTHERS: 500} and OTHERS not in found.read
    assert 100 <= found.read["y"] <= 500, "a row for each load, whichever block it belongs to"
    assert torch.equal(out, x + y)
    before = dict(found.read)
    interpret(kernel, [x, y, out])
    assert found.read == before, "what runs afterwards is not counted"


def test_counting_ends_with_an_error_too():
    from triton.runtime import interpreter

    with pytest.raises(ZeroDivisionError), counted_accesses({}):
        raise ZeroDivisionError
    assert not {"create_masked_load", "create_masked_store"} & set(vars(interpreter.interpreter_builder))


def agrees(variant: Variant, tile: tuple[int, int] = (16, 16), block: int = 32):
    made = setup(variant, block=block)
    run = build_forward(made.problem, AttentionConfiguration(*tile, 4, 1))
    found = counted_attention(run, *made.inputs, made.block_mask, made.captured)
    assert found.agrees, str(found)
    return found


@pytest.mark.parametrize("variant", VARIANTS[::4], ids=lambda v: v.name)
def test_the_model_counts_what_the_kernel_does(variant):
    agrees(variant)


@pytest.mark.slow
@pytest.mark.parametrize("tile", [(16, 32), (32, 16)])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_the_model_counts_what_every_kernel_does(variant, tile):
    agrees(variant, tile)


@pytest.mark.parametrize("splits", [1, 3])
def test_decoding_reads_every_key_once_for_a_group(splits):
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(
        torch.randn(2, heads, n, 16, generator=generator) for heads, n in ((4, 1), (2, 70), (2, 70))
    )  # fmt: skip
    made = setup(VARIANTS[0], inputs=inputs)
    configuration = AttentionConfiguration(16, 16, 4, 1, splits=splits)
    run = build_decoding(made.problem, configuration)
    with counted_accesses(dict(zip("QKV", inputs, strict=True))) as found:
        run(*inputs, None, ())
    flows = {flow.name: flow for flow in model_of(made.problem, configuration).flows}
    assert found.read["K"] == flows["K"].read == 2 * 2 * 70 * 16 and found.read["V"] == flows["V"].read
    assert found.read["Q"] == flows["Q"].read == splits * 2 * 4 * 16


def test_a_model_that_is_wrong_is_told():
    made = setup(VARIANTS[0])
    run = build_forward(made.problem, AttentionConfiguration(16, 16, 4, 1))
    found = counted_attention(run, *made.inputs)
    assert found.agrees and "counted as the model has it" in str(found)
    wrong = type(found)(found.described, (("K read", 1, 2), *found.rows))
    assert not wrong.agrees and "not as the model has it: K read" in str(wrong)
    assert "drawing failed" not in view.html(found)
