"""The pool and programs: memory comes back, is never lent twice, and stays within its limit."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch

import staxlab
from staxlab import native

pytestmark = pytest.mark.skipif(not native.available, reason=f"no extension: {native.reason}")


@pytest.fixture(autouse=True)
def clean_pool():
    gc.collect()
    native.clear()
    limit = native.pool_statistics()["limit"]
    yield
    native._extension.pool_limit(limit)


def compiled_relu(size):
    compiled = staxlab.compile(lambda x: torch.relu(x) + 1, strict_native=True)
    for _ in range(3):
        compiled(torch.ones(size))
    assert compiled.last_level == 1 and not compiled.versions[0].compilation.artifact.interpreted
    return compiled


def test_a_dead_result_lends_its_memory_to_the_next():
    compiled = compiled_relu(1000)
    x = torch.randn(1000)
    first = compiled(x)
    address, kept = first.data_ptr(), first.clone()
    second = compiled(x + 1)
    assert second.data_ptr() != address and torch.equal(first, kept)  # the first is alive: not touched
    view = first[10:]
    del first
    third = compiled(x + 2)
    assert third.data_ptr() != address and torch.equal(view, kept[10:])  # a view keeps the memory
    del view
    assert compiled(x + 3).data_ptr() == address


def test_storage_numpy_and_autograd_keep_the_memory():
    compiled = compiled_relu(64)
    x = torch.randn(64)
    expected = torch.relu(x) + 1
    array = compiled(x).numpy()
    weight = torch.ones(64, requires_grad=True)
    product = compiled(x) * weight
    storage = compiled(x).untyped_storage()
    for _ in range(20):
        compiled(torch.randn(64))
    assert (torch.from_numpy(array) == expected).all()
    product.sum().backward()
    assert torch.equal(weight.grad, expected)
    assert torch.equal(torch.empty(0).set_(storage, 0, (64,)), expected)


def test_results_behave_like_any_tensor():
    y = compiled_relu(16)(torch.randn(16))
    assert y.is_contiguous() and y.storage_offset() == 0 and not y.requires_grad and y._version == 0
    assert y.untyped_storage().nbytes() == 64
    y.add_(1)
    assert y._version == 1
    y.requires_grad_()
    (y * 2).sum().backward()
    assert y.grad is not None
    import copy
    import pickle

    assert torch.equal(pickle.loads(pickle.dumps(y.detach())), y.detach())
    assert torch.equal(copy.deepcopy(y.detach()), y.detach())
    assert y.data_ptr() % 64 == 0


def test_statistics_add_up_and_clear_returns_everything():
    compiled = compiled_relu(5000)
    results = [compiled(torch.ones(5000)) for _ in range(4)]
    lent = native.pool_statistics()["lent_bytes"]
    assert lent >= 4 * 20_000
    del results
    statistics = native.pool_statistics()
    assert statistics["lent_bytes"] == 0 and statistics["resting_bytes"] >= 4 * 20_000
    native.clear()
    statistics = native.pool_statistics()
    assert statistics["resting_bytes"] == statistics["resting_blocks"] == 0


def test_the_limit_holds_and_the_longest_at_rest_go_first():
    native._extension.pool_limit(100_000)
    small, large = compiled_relu(100), compiled_relu(20_000)
    native.clear()
    del small
    kept = [large(torch.ones(20_000)) for _ in range(3)]  # 80 kB each
    del kept
    statistics = native.pool_statistics()
    assert 0 < statistics["resting_bytes"] <= 100_000 and statistics["resting_blocks"] == 1
    native._extension.pool_limit(0)
    assert native.pool_statistics()["resting_bytes"] == 0
    large(torch.ones(20_000))
    assert native.pool_statistics()["resting_bytes"] == 0
    with pytest.raises(ValueError, match="negative"):
        native._extension.pool_limit(-1)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 1000, 4096, 65_537, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_every_size_fits_into_its_class(size):
    """A class that is too small would let a kernel write past the end; one that is too large would waste memory."""
    compiled = compiled_relu(size)
    native.clear()
    y = compiled(torch.full((size,), 2.0))
    lent = native.pool_statistics()["lent_bytes"]
    assert 4 * size <= lent <= max(1.13 * 4 * size, 4 * size + 64)
    assert (y == 3).all()


def test_threads_never_share_a_block():
    compiled = compiled_relu(256)
    wrong = []

    def work(value):
        kept = []
        for _ in range(300):
            kept.append(compiled(torch.full((256,), value)))
            if len(kept) > 5:
                kept.pop(0)
            if any(not (y == value + 1).all() for y in kept):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(k + 1),)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert native.pool_statistics()["lent_bytes"] == 0


def test_intermediates_return_before_the_end():
    def f(x):
        a = x.sum(0)
        b = (x - a).sum(0)
        return (x - b).sum(0)

    compiled = staxlab.compile(f, strict_native=True, options={"fuse": False})
    x = torch.randn(32, 16)
    for _ in range(3):
        compiled(x)
    compilation = compiled.versions[0].compilation
    assert len(compilation.kernels) == 3 and not compilation.artifact.interpreted
    native.clear()
    y = compiled(x)
    torch.testing.assert_close(y, f(x))
    # What nobody reads any more makes room: the call never holds all its buffers at once.
    statistics = native.pool_statistics()
    needed = sum(compilation.schedule.memory.placements[b].bytes for n in compilation.schedule.nodes for b in n.buffers)
    assert statistics["lent_bytes"] == 64 and 64 <= statistics["lent_bytes"] + statistics["resting_bytes"] < needed


def test_large_results_of_a_python_wrapper_come_from_the_pool():
    compiled = staxlab.compile(lambda x: (x + 1).t(), strict_native=True)
    x = torch.randn(300, 400)
    compilation = _after(compiled, x).versions[0].compilation
    assert "pooled((300, 400)" in str(compilation.wrapper)
    before = native.pool_statistics()["taken"]
    (y,) = compilation.artifact.wrapper_call([x])
    assert torch.equal(y, (x + 1).t()) and y.stride() == (1, 400)
    assert native.pool_statistics()["taken"] == before + 1
    small = _after(staxlab.compile(lambda x: (x + 1).t()), torch.randn(3, 4))
    assert "pooled" not in str(small.versions[0].compilation.wrapper)


def _after(compiled, *args):
    compiled(*args)
    return compiled


@pytest.mark.parametrize("dtype", list(native.DLPACK_TYPES))
@pytest.mark.parametrize(
    "shape, stride", [((70_000, 8), (8, 1)), ((8, 70_000), (1, 8)), ((3,), (1,)), ((), ()), ((0, 9), (9, 1))]
)
def test_an_empty_tensor_is_what_was_asked_for(dtype, shape, stride):
    y = native.empty(shape, stride, dtype)
    assert (tuple(y.shape), y.dtype) == (shape, dtype) and y.device.type == "cpu"
    assert y.stride() == stride or y.numel() == 0


def test_a_returned_input_is_the_input():
    compiled = staxlab.compile(lambda x: (x, x + 1))
    x = torch.randn(4)
    for _ in range(4):
        same, other = compiled(x)
        assert same is x and torch.equal(other, x + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_go_on():
    compiled = compiled_relu(64)
    y = compiled(torch.ones(64))
    child = os.fork()
    if child == 0:
        ok = (compiled(torch.full((64,), 3.0)) == 4).all() and (y == 2).all()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (y == 2).all()
