"""Kernels that walk over a working set: they touch what they should, as often as they are told."""

from __future__ import annotations

import pytest
import torch

from staxlab.errors import OptionError
from staxlab.measure import bandwidth_kernels
from staxlab.measure.bandwidth_kernels import GPU_BLOCK, CpuKernels, GpuKernels, gpu_kernel, kernels_for, passes_for
from staxlab.measure.roofline_probes import NATIVE_PROBES, call
from staxlab.options import device_spec


@pytest.fixture(scope="module")
def kernels():
    return CpuKernels(1 << 16)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_pass_of_every_thread_is_made(kernels, threads, far):
    count = 128 * 12
    source, target = kernels.source[:count].clone(), kernels.target[:count]
    source.copy_(torch.arange(count) % 3)
    total = int(source.sum())
    assert call(kernels.entry, "read", target, source, count, threads, 1, far)[0] == total
    read = call(kernels.entry, "read", target, source, count, threads, 5, far)[0]
    assert read == 6 * total, "five passes, and one to warm up"
    for name in ("copy", "streaming copy"):
        kernels.target.zero_()
        call(kernels.entry, name, target, source, count, threads, 4, far)
        assert torch.equal(target, source) and not kernels.target[count:].any(), name
    for name, value in (("write", 2.0), ("streaming write", 3.0)):
        kernels.target.zero_()
        call(kernels.entry, name, target, source, count, threads, 4, far)
        assert bool((target == value).all()) and not kernels.target[count:].any(), name


def test_the_bytes_of_a_reading_are_those_of_the_working_set(kernels, monkeypatch):
    seen = []

    def spy(entry, probe, target, source, count, threads, passes, far):
        seen.append((probe, 4 * count, threads, passes))
        return 0, 1, 1e-6

    monkeypatch.setattr(bandwidth_kernels, "call", spy)
    assert kernels.bandwidth("read", 16 << 10, 2) == pytest.approx((16 << 10) / 1e-6)
    assert kernels.bandwidth("copy", 16 << 10, 1) == pytest.approx((16 << 10) / 1e-6), "both halves are counted"
    assert kernels.bandwidth("write", 700, 2) == pytest.approx(1024 / 1e-6), "a block for each thread"
    traffic = bandwidth_kernels.CPU_TRAFFIC
    assert seen == [
        ("read", 16 << 10, 2, 2 * traffic >> 14),
        ("copy", 8 << 10, 1, traffic >> 14),
        ("write", 1024, 2, 2 * traffic >> 10),
    ]
    with pytest.raises(OptionError, match="does not fit"):
        kernels.bandwidth("read", 1 << 21, 1)


def test_readings_begin_on_different_pages_inside_the_buffers(kernels, monkeypatch):
    starts = []

    def spy(entry, probe, target, source, count, threads, passes, far):
        starts.append(source.data_ptr() - kernels.source.data_ptr())
        assert target.data_ptr() - kernels.target.data_ptr() == starts[-1]
        assert min(source.numel(), target.numel()) >= count
        return 0, 1, 1e-6

    monkeypatch.setattr(bandwidth_kernels, "call", spy)
    for _ in range(8):
        kernels.bandwidth("copy", 16 << 10, 1)
    assert len(set(starts)) == 8 and all(start % 4096 == 0 for start in starts)
    starts.clear()
    kernels.bandwidth("read", 4 * kernels.source.numel(), 1)
    assert starts == [0], "no room to move"


def test_passes_do_not_depend_on_the_clock():
    assert (passes_for(1 << 10, 1 << 20), passes_for(1 << 21, 1 << 20), passes_for(0, 8)) == (1024, 1, 8)


def test_the_buffers_do_not_begin_at_the_same_place_of_a_page(kernels):
    assert kernels.target.data_ptr() % 64 == kernels.source.data_ptr() % 64 == 0
    large = CpuKernels(8 << 20)
    assert (large.target.data_ptr() - large.source.data_ptr()) % 4096 not in range(-256, 256)


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_gpu_kernels_do_what_their_names_say(programs):
    pytest.importorskip("triton")
    from staxlab.codegen.triton.interpreter import interpret

    blocks, passes, device = 5, 3, device_spec("sm_90")
    source = (torch.arange((blocks + 1) * GPU_BLOCK) % 3).float()
    beyond = blocks * GPU_BLOCK
    for probe in GpuKernels.probes:
        target, sums = torch.full_like(source, -1.0), torch.zeros(programs)
        interpret(gpu_kernel(probe, blocks, passes, programs, device), [source, target, sums])
        assert float(sums.sum()) == (passes * float(source[:beyond].sum()) if probe == "read" else 0.0)
        expected = {"read": torch.full_like(source[:beyond], -1.0), "copy": source[:beyond],
                    "write": torch.full_like(source[:beyond], passes - 1.0)}[probe]  # fmt: skip
        assert torch.equal(target[:beyond], expected) and bool((target[beyond:] == -1).all()), probe


@pytest.mark.slow
def test_the_loads_of_a_gpu_kernel_stay_in_the_loop_and_go_past_the_first_level():
    pytest.importorskip("triton")
    text = gpu_kernel("read", 8, 3, 2, device_spec("sm_90")).assembly("ptx").text
    body = text[text.index("LBB") :]
    assert body.index("ld.global.cg") < body.rindex("bra") and "ld.global.cg.v4" in text


def test_unknown_and_absent_devices():
    with pytest.raises(OptionError, match="unknown device"):
        kernels_for("tpu", 1 << 12)
    assert tuple(kernels_for("cpu", 1 << 12).probes) == NATIVE_PROBES
    if not torch.cuda.is_available():
        with pytest.raises(OptionError, match="no CUDA device"):
            kernels_for("cuda", 1 << 12)


@pytest.mark.gpu
def test_a_gpu_reads_its_cache_faster_than_its_memory():
    kernels = kernels_for("cuda", 1 << 28)
    assert kernels.bandwidth("read", kernels.spec.l2_bytes // 4) > 0 < kernels.bandwidth("copy", 1 << 28)
