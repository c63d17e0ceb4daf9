"""Launching kernels that write descriptors into memory of their own (Section 9.8), and what runs where pointers are not
aligned: without a device, with Triton's launcher objects made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import staxlab

pytest.importorskip("triton")

from staxlab.codegen.triton import launcher

GRID, REST, POINTERS = (3, 1, 1), (8, 16), [64, 128]
COMPILED = SimpleNamespace(function="function", packed_metadata="metadata")


class Object:
    """What compiled.run is in Triton: callable, with the sizes of scratch memory."""

    num_ctas, launch_cooperative_grid, launch_pdl = 1, False, True

    def __init__(self, scratch: int, profile: int = 0):
        self.global_scratch_size, self.profile_scratch_size = scratch, profile
        self.direct: list[tuple] = []
        self.called: list[tuple] = []

    def launch(self, *arguments) -> None:
        self.direct.append(arguments)

    def __call__(self, *arguments) -> None:
        self.called.append(arguments)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """The sizes of scratch memory that were asked for."""
    sizes: list[int] = []

    def scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.int8)

    monkeypatch.setattr(launcher, "_scratch", scratch)
    return sizes


def pretended(monkeypatch, version: str) -> list:
    allocators: list = []
    made = SimpleNamespace(__version__=version, set_allocator=allocators.append)
    monkeypatch.setattr(launcher, "require_triton", lambda: made)
    return allocators


@pytest.mark.parametrize("scratch", [0, 256])
def test_version_3_6_is_launched_directly(monkeypatch, asked, scratch):
    pretended(monkeypatch, "3.6.0")
    run = Object(scratch)
    launcher._launch_function(COMPILED, run, GRID, REST)(7, POINTERS)
    (arguments,) = run.direct
    assert arguments[:7] == (3, 1, 1, 7, "function", False, True) and arguments[8:13] == (
        None,
        "metadata",
        None,
        None,
        None,
    )
    assert arguments[13:] == (*POINTERS, *REST) and not run.called
    assert asked == ([3 * 256] if scratch else [])
    assert (arguments[7] is None) == (scratch == 0)


def test_other_versions_are_given_an_allocator_by_each_thread(monkeypatch, asked):
    allocators = pretended(monkeypatch, "3.9.0")
    run = Object(256)
    launch = launcher._launch_function(COMPILED, run, GRID, REST)
    launch(7, POINTERS)
    launch(7, POINTERS)
    assert len(allocators) == len(run.called) == 2 and allocators[0] is launcher._scratch
    assert run.called[0] == (3, 1, 1, 7, "function", "metadata", None, None, None, *POINTERS, *REST)


def test_without_scratch_nothing_is_set(monkeypatch):
    allocators = pretended(monkeypatch, "3.9.0")
    run = Object(0)
    launcher._launch_function(COMPILED, run, GRID, REST)(7, POINTERS)
    assert not allocators and len(run.called) == 1


def test_a_misaligned_pointer_is_the_other_kernels(monkeypatch):
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    (kernel,) = staxlab.explain(torch.mm, a, b, target="sm_90", options={"matmul": "template-tma"}).kernels
    assert kernel.launch["form"] == "persistent-tma" and kernel.launch["unaligned"].launch["form"] == "tiled"
    loaded = launcher.load(kernel)
    prepared: list[str] = []
    monkeypatch.setattr(
        launcher.TritonLauncher, "_compile", lambda self, tensors: prepared.append(self.kernel.name) or Object(0)
    )
    monkeypatch.setattr(launcher, "_launch_function", lambda compiled, run, grid, rest: grid)
    monkeypatch.setattr(Object, "run", None, raising=False)
    monkeypatch.setattr(Object, "hash", "of what was compiled", raising=False)
    noted: list[str] = []
    monkeypatch.setattr(launcher, "note", lambda job, result: noted.append(result))
    monkeypatch.setattr(torch.cuda, "device", lambda device: __import__("contextlib").nullcontext())
    off = torch.zeros(64 * 64 + 1)[1:].view(64, 64)
    assert off.data_ptr() % 16
    for tensors in ((a, b, b), (off, b, b), (a, b, off)):
        loaded._prepare(tensors, 0)
    assert prepared == [kernel.name, f"{kernel.name}_unaligned", f"{kernel.name}_unaligned"]
    assert noted == ["of what was compiled"]  # what serves aligned pointers: workers compile nothing else
