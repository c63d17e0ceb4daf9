"""Matrix templates compiled ahead of time (Section 9.8): which instructions they come to, and what they need."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import staxlab

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.listings import ptx_lines
from staxlab.codegen.triton.templates.configurations import shared_bytes

HALF = torch.bfloat16


def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def kernels(function, *inputs, target: str = "sm_90", **options):
    return staxlab.explain(function, *inputs, target=target, options={"matmul": "template"} | options).kernels


def relu_of_sum(a, b, c):
    return torch.relu(a @ b + c)


@pytest.fixture
def reduced():
    """Float32 products may keep 10 bits of mantissa, for the length of a test."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def counted(kernel) -> dict[str, int]:
    """How often the PTX has the instructions in question, and bytes of local memory."""
    ptx = aot_compile(kernel)["ptx"]
    words = {
        "wgmma": r"wgmma\.mma_async", "mma": r"\bmma\.sync", "bulk": r"cp\.async\.bulk\.tensor",
        "async": r"cp\.async\.c[ag]", "fma": r"fma\.rn\.f32", "local": r"(st|ld)\.local", "atomic": r"\b(red|atom)\.",
    }  # fmt: skip
    return {name: len(re.findall(word, ptx)) for name, word in words.items()}


@pytest.mark.parametrize("dtype", [torch.float16, HALF], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_half_precision_runs_on_the_matrix_units(target, dtype):
    a, b, c = empty(1024, 512, dtype=dtype), empty(512, 1024, dtype=dtype), empty(1024, dtype=dtype)
    (kernel,) = kernels(relu_of_sum, a, b, c, target=target)
    found = counted(kernel)
    assert found["wgmma" if target == "sm_90" else "mma"] and not found["mma" if target == "sm_90" else "wgmma"]
    assert found["async"] and not found["bulk"] and not found["local"] and not found["atomic"]
    assert not found["fma"], "no product is computed by the threads themselves"


def test_the_persistent_template_fetches_with_the_accelerator_and_multiplies_with_warp_groups():
    (kernel,) = kernels(relu_of_sum, empty(1024, 512), empty(512, 1024), empty(1024), matmul="template-tma")
    found = counted(kernel)
    assert kernel.launch["form"] == "persistent-tma"
    assert found["bulk"] and found["wgmma"] and not found["async"] and not found["local"]
    blocks = kernel.launch["constants"]
    tiles = (1024 // blocks["BLOCK_M"]) * (1024 // blocks["BLOCK_N"])
    assert kernel.launch["grid"] == (min(132, tiles), 1, 1)


def test_the_accelerator_may_store_too():
    (kernel,) = kernels(relu_of_sum, empty(1024, 512), empty(512, 1024), empty(1024))
    ptx = aot_compile(kernel.tuning.kernel((128, 128, 64, 8, 4, 8, 3)))["ptx"]
    assert re.search(r"cp\.async\.bulk\.tensor\.2d\.global", ptx) and "st.global" not in ptx


def test_the_loops_of_the_persistent_template_become_one():
    """So that the loads of the next tile are under way during the epilogue of this one."""
    (kernel,) = kernels(relu_of_sum, empty(1024, 512), empty(512, 1024), empty(1024), matmul="template-tma")
    assert aot_compile(kernel)["ttgir"].count("scf.for") == 1
    (tiled,) = kernels(relu_of_sum, empty(1024, 512), empty(512, 1024), empty(1024))
    assert aot_compile(tiled)["ttgir"].count("scf.for") == 1


def test_full_precision_multiplies_and_adds_in_one_rounding():
    """On the threads' own units, as the library does: the matrix units keep 10 bits of float32."""
    a, b, c = (empty(*s, dtype=torch.float32) for s in ((256, 128), (128, 256), (256,)))
    (kernel,) = kernels(relu_of_sum, a, b, c)
    found = counted(kernel)
    assert found["fma"] and not found["mma"] and not found["wgmma"] and kernel.launch["precision"] == "ieee"


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_reduced_precision_is_taken_only_where_it_is_allowed(target, reduced):
    a, b, c = (empty(*s, dtype=torch.float32) for s in ((1024, 512), (512, 1024), (1024,)))
    (kernel,) = kernels(relu_of_sum, a, b, c, target=target)
    found = counted(kernel)
    assert kernel.launch["precision"] == "tf32" and 'input_precision="tf32"' in kernel.source
    assert (found["wgmma"] or found["mma"]) and not found["local"]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_take_the_shared_memory_that_the_formula_says(stages):
    """Of each, ``(B_M + B_N) B_K b`` bytes (Section 9.8); the accelerator's barriers and the store take the rest."""
    (kernel,) = kernels(torch.mm, empty(2048, 512), empty(512, 2048))
    tuning = kernel.tuning
    for template in (1, 2, 4):
        made = tuning.kernel((128, 128, 64, 8, template, 8, stages))
        formula = shared_bytes(made.launch["constants"], stages, 2)
        taken = aot_compile(made)["metadata"].shared
        assert (
            formula == stages * (128 + 128) * 64 * 2 <= taken <= formula + (128 * 128 * 4 if template > 1 else 0) + 256
        )


def test_every_candidate_compiles_without_a_spill():
    (kernel,) = kernels(relu_of_sum, empty(1024, 256), empty(256, 1024), empty(1024))
    from staxlab.measure.candidate_resources import candidate_resources

    found = candidate_resources(kernel)
    assert len(found.entries) == 6 and all(e.resources is not None and e.resources.spills == 0 for e in found.entries)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, HALF], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_what_surrounds_a_product_compiles(target, dtype):
    """Batches, prologues, segments, edges everywhere, several results, 64-bit integers in an epilogue."""
    x, w = empty(3, 33, 17, dtype=dtype), empty(3, 17, 40, dtype=dtype)
    a, b = empty(16, 5000, dtype=dtype), empty(5000, 20, dtype=dtype)
    programs = [
        (lambda x, w: F.gelu(torch.sigmoid(x) @ w), (x, w)),
        (lambda a, b: torch.relu(a @ b) + 1, (a, b)),
        (lambda x, w: ((p := x[0] @ w[0]), p > 0, p.sum(1)), (x, w)),
    ]
    for function, inputs in programs:
        for kernel in kernels(function, *inputs, target=target):
            assert aot_compile(kernel)["cubin"]


def test_instructions_lead_back_to_the_lines_they_come_from():
    (kernel,) = kernels(relu_of_sum, empty(256, 128), empty(128, 256), empty(256))
    lines = ptx_lines(kernel)
    product = next(line.origins for line in kernel.lines if "tl.dot" in line.text)
    multiplied = [line for line in lines if "wgmma.mma_async" in line.text or "mma.sync" in line.text]
    assert multiplied and all(line.origins == product for line in multiplied)
