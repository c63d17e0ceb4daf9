"""The pool of memory as a user meets it: what it says of itself, its limit, and tensors that live on in odd ways."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import staxlab
from staxlab import native
from staxlab.native.memory import MemoryStats
from tests.view.reading import read, references, stripped

ROOT = Path(__file__).resolve().parents[2]
checked = os.environ.get("STAXLAB_SANITIZE")  # a process whose allocator is AddressSanitizer's
needs_extension = pytest.mark.skipif(not native.available, reason=f"no extension: {native.reason}")
SIZE = 100_000  # floats: a result that comes from the pool either way


@pytest.fixture(autouse=True)
def clean_pool():
    gc.collect()
    staxlab.clear_memory_pool()
    limit = staxlab.memory_stats(restart=True).limit_bytes
    yield
    staxlab.set_memory_limit(limit)


@pytest.fixture(scope="module")
def add_one():
    compiled = staxlab.compile(lambda x: torch.relu(x) + 1)
    for _ in range(3):
        compiled(torch.ones(SIZE))
    return compiled


def run(code, **variables):
    """A program in a process of its own; its standard output. It must end well."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


# -- what it says ------------------------------------------------------------------------------------------------------


@needs_extension
def test_the_numbers_add_up(add_one):
    results = [add_one(torch.ones(SIZE)) for _ in range(3)]
    now = staxlab.memory_stats()
    block = now.lent_bytes // 3
    assert 4 * SIZE <= block <= 4 * SIZE * 9 // 8 + 64
    assert (now.lent_blocks, now.resting_blocks, now.hits, now.misses) == (3, 0, 0, 3)
    assert now.system_bytes == now.peak_lent_bytes == now.peak_held_bytes == now.held_bytes == 3 * block
    del results
    add_one(torch.ones(SIZE))
    now = staxlab.memory_stats()
    assert (now.lent_bytes, now.resting_blocks, now.hits, now.misses) == (0, 3, 1, 3)
    assert now.reused_bytes == block and now.hit_rate == 0.25 and now.peak_lent_bytes == 3 * block
    assert staxlab.clear_memory_pool() == 3 * block
    now = staxlab.memory_stats(restart=True)
    assert now.held_bytes == 0 and now.returned_bytes == 3 * block
    now = staxlab.memory_stats()
    assert (now.hits, now.misses, now.system_bytes, now.returned_bytes, now.peak_held_bytes) == (0,) * 5


RECORDS = {
    "nothing yet": MemoryStats(limit_bytes=1 << 30),
    "no extension": MemoryStats(missing="it was not built"),
    "some": MemoryStats(
        lent_bytes=3 << 20, lent_blocks=2, resting_bytes=1 << 20, resting_blocks=1, hits=30, misses=10,
        limit_bytes=4 << 20, peak_held_bytes=6 << 20, peak_lent_bytes=6 << 20, emptied=2,
    ),
    "large limit": MemoryStats(lent_bytes=64, lent_blocks=1, limit_bytes=1 << 40, peak_held_bytes=64),
    "no limit": MemoryStats(lent_bytes=64, lent_blocks=1, peak_held_bytes=64),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_it_prints_and_draws(name):
    record = RECORDS[name]
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert bundle["text/plain"] == str(record) and "drawing failed" not in html and references(html) == []
    if record.missing:
        assert "it was not built" in str(record) and "it was not built" in html
        return
    (drawing,) = read(html).find("svg")
    said = drawing.find("desc")[0].text
    assert drawing.find("title") and "memory (bytes)" in drawing.text
    assert f"{record.lent_bytes:,} bytes are lent" in said
    for _, size, _ in record.rows():
        assert size in str(record) and size in read(stripped(html)).text
    assert ("emptied" in str(record)) == bool(record.emptied)


# -- the limit ---------------------------------------------------------------------------------------------------------


@needs_extension
def test_the_limit_can_be_given_as_text_and_taken_back(add_one):
    usual = staxlab.memory_stats().limit_bytes
    for text, count in (("64K", 1 << 16), (123, 123), ("2 GiB", 2 << 30), ("5mb", 5 << 20), (0, 0)):
        staxlab.set_memory_limit(text)
        assert staxlab.memory_stats().limit_bytes == count
    add_one(torch.ones(SIZE))
    assert staxlab.memory_stats().resting_bytes == 0
    staxlab.set_memory_limit(None)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert staxlab.memory_stats().limit_bytes == min(pages // 8, 1 << 30) and usual > 0


@pytest.mark.parametrize("limit", ["much", "-1", -1, "1.5G", "", 1 << 62, True, 2.5])
def test_what_is_no_number_of_bytes_is_refused(limit):
    with pytest.raises(staxlab.OptionError, match="bytes"):
        staxlab.set_memory_limit(limit)


@needs_extension
def test_the_environment_sets_the_limit():
    show = "import staxlab; print(staxlab.memory_stats().limit_bytes)"
    assert run(show, STAXLAB_POOL_BYTES="3M").strip() == str(3 << 20)
    failed = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "STAXLAB_POOL_BYTES": "lots"},
    )  # fmt: skip
    assert failed.returncode and "STAXLAB_POOL_BYTES is 'lots'" in failed.stderr


def test_without_the_extension_there_is_no_pool_and_nothing_breaks():
    said = run(
        """
        import torch, staxlab
        print(staxlab.compile(lambda x: x.sort()[0] + 1)(torch.zeros(3)).tolist())
        staxlab.set_memory_limit("1G")
        print(staxlab.clear_memory_pool(), staxlab.memory_stats())
        """,
        STAXLAB_NATIVE="0",
    )
    assert said.splitlines() == ["[1.0, 1.0, 1.0]", "0 memory pool: none (STAXLAB_NATIVE=0 turns the extension off)"]


# -- tensors that live on in odd ways ----------------------------------------------------------------------------------


@needs_extension
def test_views_and_gradients_keep_a_block_out(add_one):
    x = torch.randn(SIZE)
    expected = torch.relu(x) + 1
    row = add_one(x).view(100, -1)[7]
    narrow = add_one(x)[5:9].detach()
    assert staxlab.memory_stats().lent_blocks == 2
    for _ in range(10):
        add_one(torch.randn(SIZE))
    assert torch.equal(row, expected.view(100, -1)[7]) and torch.equal(narrow, expected[5:9])
    del row, narrow
    assert staxlab.memory_stats().lent_blocks == 0


@needs_extension
def test_resize_and_set_on_a_result(add_one):
    x = torch.randn(SIZE)
    y, other = add_one(x), torch.from_numpy(torch.randn(SIZE).numpy())
    for tensor in (y, other):  # storages that PyTorch did not allocate cannot grow
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.resize_(2 * SIZE)
    assert y.shape == other.shape
    y.resize_(10)
    assert torch.equal(y, (torch.relu(x) + 1)[:10]) and staxlab.memory_stats().lent_blocks == 1
    y.set_(torch.ones(3).untyped_storage(), 0, (3,))
    assert staxlab.memory_stats().lent_blocks == 0 and y.tolist() == [1, 1, 1]
    y = add_one(x)
    y.data = torch.zeros(4)
    assert staxlab.memory_stats().lent_blocks == 0
    with pytest.raises(RuntimeError):
        torch.add(torch.ones(2 * SIZE), 1, out=add_one(x))


@needs_extension
def test_shared_memory_and_pickling(add_one):
    import copy
    import pickle

    x = torch.randn(SIZE)
    expected = torch.relu(x) + 1
    y = add_one(x)
    assert torch.equal(pickle.loads(pickle.dumps(y)), expected) and torch.equal(copy.deepcopy(y), expected)
    y.share_memory_()  # moves to memory of its own
    assert y.is_shared() and staxlab.memory_stats().lent_blocks == 0
    add_one(torch.zeros(SIZE))
    assert torch.equal(y, expected)


@needs_extension
def test_dlpack_and_numpy_hold_a_result(add_one):
    import numpy

    x = torch.randn(SIZE)
    expected = torch.relu(x) + 1
    exchanged, array = torch.from_dlpack(add_one(x)), numpy.from_dlpack(add_one(x))
    capsule = torch.utils.dlpack.to_dlpack(add_one(x))
    assert staxlab.memory_stats().lent_blocks == 3
    for _ in range(5):
        add_one(torch.zeros(SIZE))
    assert torch.equal(exchanged, expected) and (array == expected.numpy()).all()
    assert torch.equal(torch.from_dlpack(capsule), expected)
    del exchanged, array, capsule
    assert staxlab.memory_stats().lent_blocks == 0


@needs_extension
def test_two_threads_call_one_artifact_ten_thousand_times_and_results_die_elsewhere():
    import queue

    compiled = staxlab.compile(lambda x: (torch.sort(x + 1)[0] * 2, (x - 1).t()))
    for _ in range(3):
        compiled(torch.ones(8, 8))
    pending: queue.Queue = queue.Queue(64)
    wrong = []

    def work(value):
        x = torch.full((8, 8), float(value))
        for _ in range(5_000):
            pending.put((value, compiled(x)))

    def check():
        while (item := pending.get()) is not None:
            value, (a, b) = item
            if not ((a == 2 * value + 2).all() and (b == value - 1).all()):
                wrong.append(value)

    workers = [threading.Thread(target=work, args=(k,)) for k in (1, 2)]
    checker = threading.Thread(target=check)
    for thread in (checker, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    pending.put(None)
    checker.join()
    assert not wrong
    gc.collect()
    assert staxlab.memory_stats().lent_blocks == 0


@needs_extension
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_other_threads_use_the_pool_leaves_it_usable():
    """Were the pool's lock held by another thread at that moment, the child would wait for it forever."""
    said = run(
        """
        import os, threading, torch, staxlab
        compiled = staxlab.compile(lambda x: x * 2 + 1)
        x = torch.ones(64)
        for _ in range(3):
            compiled(x)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                compiled(x)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(40):
            child = os.fork()
            if child == 0:
                y = [compiled(x) for _ in range(10)]
                good = all((r == 3).all() for r in y) and staxlab.memory_stats().lent_blocks >= 10
                staxlab.clear_memory_pool()
                os._exit(0 if good else 1)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        for thread in threads:
            thread.join()
        print(set(statuses))
        """
    )
    assert said.strip() == "{0}"


@needs_extension
def test_tensors_may_outlive_the_interpreter():
    """Results in globals, in a cycle, in a thread that never ends, and in C++ objects that die with the process."""
    said = run(
        """
        import atexit, sys, threading, time, torch, staxlab
        compiled = staxlab.compile(lambda x: (x * 2 + 1, x.sort()[0]))
        kernels_only = staxlab.compile(lambda x: x.sum(0) + x)
        x, large = torch.ones(1000), torch.ones(300, 300)
        for _ in range(3):
            kept = compiled(x), kernels_only(large)
        cycle = [kept]; cycle.append(cycle)
        sys.modules["kept_forever"] = compiled(x)
        weight = torch.ones(1000, requires_grad=True)
        graph = (compiled(x)[0] * weight).sum()
        def forever():
            while True:
                kernels_only(large)
        threading.Thread(target=forever, daemon=True).start()
        atexit.register(lambda: print(compiled(x)[0].sum().item()))
        time.sleep(0.05)
        """
    )
    assert said.strip() == "3000.0"


@needs_extension
@pytest.mark.skipif(bool(checked), reason="AddressSanitizer reserves more addresses than the limit allows")
def test_out_of_memory_empties_the_pool_and_tries_again_before_it_says_so():
    said = run(
        """
        import resource, torch, staxlab
        big = staxlab.compile(lambda x: x[:, None] + x)
        a, b = torch.ones(7000), torch.ones(7300)
        for _ in range(3):
            big(a), big(b)
        staxlab.clear_memory_pool(); staxlab.memory_stats(restart=True)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
        big(a)                                         # 187 MiB that rest afterwards
        assert staxlab.memory_stats().resting_bytes > 180 << 20 and staxlab.memory_stats().emptied == 0
        y = big(b)                                     # 203 MiB: only there if what rests is returned
        assert (y[::100] == 2).all() and staxlab.memory_stats().emptied == 1
        print(staxlab.memory_stats().resting_bytes)
        try:
            big(a)                                     # not beside the other
        except MemoryError as error:
            assert isinstance(error, staxlab.StaxError)
            print(error)
        del y
        print((big(a)[::100] == 2).all().item())
        """
    )
    lines = said.splitlines()
    assert lines[0].isdigit() and int(lines[0]) < 1 << 20
    assert lines[1].startswith("no memory for a result of 196,000,000 bytes") and "remedy" in lines[2]
    assert lines[-1] == "True"


@needs_extension
def test_sizes_beyond_any_machine_are_refused():
    for size in ((1 << 56) + 1, (1 << 62) - 1, (1 << 63) - 1):
        with pytest.raises(MemoryError, match="no memory"):
            native._extension.pool_empty(size, (2, 32), (1,), (1,))


# -- threads without an interpreter ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_pool_alone_under_a_sanitizer(sanitizer, tmp_path):
    import shutil

    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    source, pool = Path(__file__).with_name("pool_stress.c"), ROOT / "staxlab" / "native"
    flags = ["-std=c11", "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{pool}"]
    command = [compiler, *flags, str(source), str(pool / "pool.c"), "-o", str(tmp_path / "stress"), "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and ("cannot find" in built.stderr or "unsupported" in built.stderr):
        pytest.skip(f"the compiler has no such sanitizer: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    outside = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    options = {"TSAN_OPTIONS": "exitcode=66", "ASAN_OPTIONS": "detect_leaks=1:exitcode=67"}
    done = subprocess.run(
        [str(tmp_path / "stress")], capture_output=True, text=True, timeout=300, env={**outside, **options}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == "wrong 0 lent 0 blocks 0 resting 0".split()
