"""Attention templates compiled ahead of time: which instructions they come to and what they need (Section 9.10)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from staxlab.attention.block_mask import causal
from staxlab.attention.modification import modification
from staxlab.attention.problem import AttentionProblem, BlockGeometry
from staxlab.options import GPU_SPECS

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.configurations import (
    MOST_CANDIDATES,
    AttentionConfiguration,
    candidates,
    decoding_candidates,
    decoding_configuration,
    default_configuration,
    shared_bytes,
    tile_registers,
)
from staxlab.codegen.triton.attention.decoding import decoding_kernels
from staxlab.codegen.triton.attention.forward import forward_kernel
from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.resources import resource_usage

HALF = torch.bfloat16


def alibi(score, b, h, q_idx, kv_idx):
    return score - torch.exp2(-(h + 1).to(torch.float32)) * (q_idx - kv_idx)


def problem(
    score=None, mask=None, queries: int = 1024, keys: int = 1024, size: int = 128, heads: tuple[int, int] = (16, 16),
    dtype: torch.dtype = HALF, target: str = "sm_90",
) -> AttentionProblem:  # fmt: skip
    """Contiguous queries, keys and values of a batch of 4, with blocks of 128."""
    sizes = (4, heads[0], queries, keys)
    traced = [modification(f, kind, sizes) if f else None for f, kind in ((score, "score"), (mask, "mask"))]

    def strides(count: int, rows: int) -> tuple[int, int, int, int]:
        return count * rows * size, rows * size, size, 1

    return AttentionProblem(
        4, *heads, queries, keys, size, size, dtype, size**-0.5, strides(heads[0], queries), strides(heads[1], keys),
        strides(heads[1], keys), *traced, BlockGeometry(128, 128, False, False) if mask else None, False,
        GPU_SPECS[target],
    )  # fmt: skip


def counted(kernel) -> dict[str, int]:
    """How often the PTX has the instructions in question."""
    ptx = aot_compile(kernel)["ptx"]
    words = {
        "wgmma": r"wgmma\.mma_async", "mma": r"\bmma\.sync", "bulk": r"cp\.async\.bulk\.tensor",
        "async": r"cp\.async\.c[ag]", "exp2": r"ex2\.approx\.ftz", "exp2 with denormals": r"ex2\.approx\.f32",
    }  # fmt: skip
    return {name: len(re.findall(word, ptx)) for name, word in words.items()}


#: Bytes of a thread that the rule for heads of 128 keeps in memory on compute capability 9. Beside 192 registers of
#: scores and results there is no room for all addresses, counts and positions of a loop over partial blocks; without a
#: mask nothing is spilled. On an H200 this is the fastest configuration all the same: two instances share a
#: multiprocessor. Causal ALiBi spills 120 bytes with Triton 3.6, 144 with 3.9.
SPILLED = 160


@pytest.mark.parametrize("target, size, spills", [("sm_90", 128, SPILLED), ("sm_90", 64, 0), ("sm_80", 64, 0)])
def test_the_rule_runs_on_the_matrix_units_and_spills_little(target, size, spills):
    kernel = forward_kernel(problem(alibi, causal, size=size, target=target))
    found, needs = counted(kernel), resource_usage(kernel)
    assert needs.spills <= spills and needs.shared <= GPU_SPECS[target].shared_memory_per_multiprocessor - 1024
    assert found["wgmma" if target == "sm_90" else "mma"] and not found["mma" if target == "sm_90" else "wgmma"]
    assert bool(found["bulk"]) == (target == "sm_90") and bool(found["async"]) == (target == "sm_80")
    assert found["exp2"] and not found["exp2 with denormals"], "one instruction each"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [HALF, torch.float32], ids=str)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_no_rule_spills(size, dtype, target):
    """A word or two of a thread aside, where tiles fill all registers, and :data:`SPILLED`."""
    for mask in (None, causal):
        kernel = forward_kernel(problem(alibi, mask, size=size, dtype=dtype, target=target))
        for one in (kernel, *([kernel.launch["unaligned"]] if "unaligned" in kernel.launch else [])):
            large = one is kernel and mask and (target, size, dtype) == ("sm_90", 128, HALF)
            assert resource_usage(one).spills <= (SPILLED if large else 8), f"{one.name} with {mask}"


@pytest.mark.parametrize("lazy", [False, True])
def test_two_instances_share_a_multiprocessor_where_they_are_asked_to(lazy):
    """Four warps of at most 255 registers and two stages: while one multiplies, the other exponentiates."""
    kernel = forward_kernel(problem(mask=causal), replace(AttentionConfiguration(128, 64, 4, 2, fetch=True), lazy=lazy))
    assert default_configuration(problem(mask=causal)) == AttentionConfiguration(128, 64, 4, 2, fetch=True)
    needs, device = resource_usage(kernel), GPU_SPECS["sm_90"]
    assert needs.spills <= SPILLED
    assert 2 * needs.threads * 256 <= device.registers_per_multiprocessor
    assert 2 * (needs.shared + 1024) <= device.shared_memory_per_multiprocessor


def test_decoding_reads_ahead_with_matrix_units():
    kernel, merge = decoding_kernels(problem(alibi, queries=1, keys=8192, heads=(32, 8)))
    found, needs = counted(kernel), resource_usage(kernel)
    assert found["mma"] and found["async"] and needs.spills == 0
    assert 2 * (needs.shared + 1024) <= GPU_SPECS["sm_90"].shared_memory_per_multiprocessor
    assert resource_usage(merge).spills == 0


def test_candidates_fit_and_begin_with_the_rule():
    for made in (problem(), problem(alibi, causal), problem(size=256), problem(dtype=torch.float32, target="sm_80")):
        found = candidates(made)
        assert found[0] == default_configuration(made) and 5 <= len(set(found)) == len(found) <= MOST_CANDIDATES
        assert all(tile_registers(made, c) <= 224 for c in found)
        limit = GPU_SPECS[made.device.name].shared_memory_per_multiprocessor
        assert all(shared_bytes(made, c) < limit for c in found)
        for chosen in found:
            assert forward_kernel(made, chosen).source
    assert any(c.lazy for c in candidates(problem())) and not candidates(problem())[0].lazy
    assert candidates(problem())[0].fetch and not all(c.heaviest_first for c in candidates(problem(mask=causal)))
    assert not any(c.fetch for c in candidates(problem(target="sm_80")))


def test_candidates_of_decoding_begin_with_the_rule_and_have_other_shares():
    few = problem(alibi, queries=1, keys=8192, heads=(32, 8))
    found = decoding_candidates(few)
    assert found[0] == decoding_configuration(few) and len(found) <= MOST_CANDIDATES
    assert len({c.splits for c in found}) > 4 and len({c.block_n for c in found}) == 3
    assert all(shared_bytes(few, c) < GPU_SPECS["sm_90"].shared_memory_per_multiprocessor for c in found)
