"""Building and loading kernels: keys, hits, faults of the disk, concurrency, and one pool of threads."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading

import pytest
import torch

import staxlab
from staxlab.errors import BuildError
from staxlab.options import Options, host_device_spec
from staxlab.provenance import Line
from staxlab.runtime import build, toolchain
from tests.codegen.cpp_support import compile_program, pointwise, reduction

F32 = torch.float32


def add_program(n: int = 37, constant: float = 1.0):
    inputs = {"x": torch.arange(float(n))}
    program = pointwise(inputs, (n,), F32, lambda ops, i: ops.add(ops.load("x", i[0]), ops.constant(constant, F32)))
    return program, inputs


@pytest.fixture(autouse=True)
def fresh(cache_dir):
    build.clear()
    yield cache_dir
    build.clear()


def compiled(constant: float = 1.0):
    program, inputs = add_program(constant=constant)
    artifact, kernels, _ = compile_program(program)
    return artifact, list(inputs.values()), kernels[0]


def test_hits_and_timings_are_reported(fresh):
    artifact, inputs, kernel = compiled()
    assert artifact.cache_hits == {kernel.name: False} and artifact.timings[kernel.name] > 0
    build.clear()
    artifact, inputs, kernel = compiled()
    assert artifact.cache_hits == {kernel.name: True}
    assert torch.equal(artifact.call(inputs)[0], inputs[0] + 1)


@pytest.mark.parametrize("fault", ["delete all", "truncate", "flip", "empty", "garbage"])
def test_faults_of_the_disk_between_calls(fresh, fault):
    """The loaded kernel keeps working, and the next build repairs what is broken."""
    artifact, inputs, _ = compiled()
    expected = inputs[0] + 1
    for path in [p for p in fresh.rglob("*") if p.is_file() and p.parent.name != "locks"]:
        data = path.read_bytes()
        if fault == "delete all":
            path.unlink()
            continue
        with open(path, "r+b") as file:  # in place: the same inode that was read
            if fault == "flip":
                file.seek(len(data) // 2)
                file.write(bytes([data[len(data) // 2] ^ 64]))
            else:
                file.truncate({"truncate": len(data) // 2, "empty": 0, "garbage": 0}[fault])
                if fault == "garbage":
                    file.write(b"\x7fELF" + b"garbage" * 500)
    assert torch.equal(artifact.call(inputs)[0], expected)
    build.clear()
    toolchain.clear()
    again, inputs, kernel = compiled()
    assert again.cache_hits == {kernel.name: False}
    assert torch.equal(again.call(inputs)[0], expected) and torch.equal(artifact.call(inputs)[0], expected)
    build.clear()
    repaired, inputs, kernel = compiled()
    assert repaired.cache_hits == {kernel.name: True}


def test_a_library_that_cannot_be_loaded_is_built_again(fresh):
    """A verified entry that is no library of this machine (a cache copied from another architecture)."""
    from staxlab.runtime import cache

    artifact, inputs, kernel = compiled()
    key = build.key_of(build.anonymous(kernel), toolchain.find())
    cache.write_verified(key, b"\x7fELF but of another machine")
    build.clear()
    again, inputs, kernel = compiled()
    assert again.cache_hits == {kernel.name: False}
    assert torch.equal(again.call(inputs)[0], inputs[0] + 1)


def test_the_key_covers_what_determines_the_artifact():
    _, _, kernel = compiled()
    tools = toolchain.find()
    keys = {build.key_of(kernel, tools)}
    other = dataclasses.replace(kernel, lines=(*kernel.lines, Line("// another line")))
    keys.add(build.key_of(other, tools))
    keys.add(build.key_of(dataclasses.replace(kernel, flags=(*kernel.flags, "-DX")), tools))
    keys.add(build.key_of(kernel, dataclasses.replace(tools, version="another compiler")))
    keys.add(build.key_of(dataclasses.replace(kernel, flags=(*kernel.flags, "-fopenmp")), tools))
    assert len(keys) == 5


def test_the_key_covers_the_headers(monkeypatch, tmp_path):
    _, _, kernel = compiled()
    before = build.key_of(kernel, toolchain.find())
    for name in build.HEADERS:
        (tmp_path / name).write_bytes((build.HEADER_DIRECTORY / name).read_bytes())
    monkeypatch.setattr(build, "HEADER_DIRECTORY", tmp_path)
    build.clear()
    assert build.key_of(kernel, toolchain.find()) == before, "the same headers elsewhere are the same headers"
    (tmp_path / build.HEADERS[0]).write_bytes(b"// changed\n" + (tmp_path / build.HEADERS[0]).read_bytes())
    build.clear()
    assert build.key_of(kernel, toolchain.find()) != before


def test_a_refused_kernel_shows_the_compilers_words():
    _, _, kernel = compiled()
    broken = dataclasses.replace(kernel, lines=(*kernel.lines, Line("this is no C++;")))
    with pytest.raises(BuildError) as caught:
        build.load_kernel(broken, toolchain.find())
    assert "this is no C++" in str(caught.value) and kernel.name in str(caught.value)


def test_several_kernels_are_built_side_by_side():
    from staxlab.codegen.kernel import KernelSet

    kernels = []
    for number in range(4):
        _, made, _ = compile_program(add_program(constant=10.0 + number)[0])
        kernels.append(dataclasses.replace(made[0], name=made[0].name))
    build.clear()
    renamed = [
        dataclasses.replace(
            k, name=f"kernel_{n}", lines=tuple(Line(x.text.replace(k.name, f"kernel_{n}"), x.origins) for x in k.lines)
        )
        for n, k in enumerate(kernels)
    ]
    launchers = build.build(KernelSet(tuple(renamed)), Options(), host_device_spec())
    x, out = torch.zeros(37), torch.empty(37)
    for number in range(4):
        launchers[f"kernel_{number}"](x.data_ptr(), out.data_ptr())
        assert torch.equal(out, torch.full((37,), 10.0 + number))


def test_threads_that_want_the_same_kernel_compile_it_once(monkeypatch):
    _, kernels, _ = compile_program(add_program(constant=77.0)[0])
    build.clear()
    from staxlab.runtime import cache

    cache.clear()
    runs = []
    original = build.compile_kernel

    def counting(kernel, *rest):
        runs.append(kernel.name)
        return original(kernel, *rest)

    monkeypatch.setattr(build, "compile_kernel", counting)
    tools = toolchain.find()
    threads = [threading.Thread(target=build.load_kernel, args=(kernels[0], tools)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1


WORKER = """
import sys
sys.path.insert(0, {root!r})
from tests.runtime.test_build import compiled
import torch
artifact, inputs, kernel = compiled(5.0)
assert torch.equal(artifact.call(inputs)[0], inputs[0] + 5)
print(int(artifact.cache_hits[kernel.name]))
"""


def test_processes_that_want_the_same_kernel_compile_it_once(fresh, repository):
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(fresh)}
    program = WORKER.format(root=str(repository))
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    hits = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(hits) == ["0", "1"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts mapped files")
def test_there_is_one_openmp_runtime_after_a_parallel_kernel():
    n = 500_000
    x = torch.ones(n)
    program = reduction({"x": x}, (), (n,), "sum", F32, F32, lambda ops, i, r: ops.load("x", r[0]))
    artifact, kernels, _ = compile_program(program, threads=2)
    assert kernels[0].launch["parallel"] and "-fopenmp" in kernels[0].flags
    assert artifact.call([x])[0].item() == n
    with open("/proc/self/maps") as maps:
        files = {line.split()[-1] for line in maps if "/" in line}
    runtimes = {os.path.realpath(f) for f in files if os.path.basename(f).startswith(("libgomp", "libomp", "libiomp"))}
    assert len(runtimes) == 1


FORKED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import torch
from tests.codegen.cpp_support import compile_program, reduction
n = 500_000
x = torch.ones(n)
program = reduction({{"x": x}}, (), (n,), "sum", torch.float32, torch.float32, lambda ops, i, r: ops.load("x", r[0]))
artifact, kernels, _ = compile_program(program, threads=2)
assert artifact.call([x])[0].item() == n
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if artifact.call([x])[0].item() == n else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_run_what_its_parent_compiled(fresh, repository):
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(fresh)}
    program = FORKED.format(root=str(repository))
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


def test_a_missing_vector_function_is_an_error_not_a_crash():
    program, _ = add_program()
    _, kernels, _ = compile_program(program)
    bad = dataclasses.replace(
        kernels[0],
        lines=(*kernels[0].lines, Line('extern "C" { void (*sleef_none)(); }')),
        launch={**kernels[0].launch, "imports": ("Sleef_none",)},
    )
    with pytest.raises(BuildError, match="Sleef_none"):
        build.load_kernel(bad, toolchain.find())


def test_kernels_that_differ_in_names_alone_are_compiled_once(fresh, monkeypatch):
    import staxlab

    commands = []
    compile_kernel = build.compile_kernel
    monkeypatch.setattr(build, "compile_kernel", lambda *a: commands.append(a) or compile_kernel(*a))

    def layers(x, a, b, c):
        for w in (a, b, c):
            x = torch.tanh(x @ w)
        return x

    given = [torch.randn(64, 64) for _ in range(4)]  # products that are PyTorch's
    compiled = staxlab.compile(layers)
    torch.testing.assert_close(compiled(*given), layers(*given))
    kernels = compiled.versions[0].compilation.kernels
    assert sum(kernel.language == "cpp" for kernel in kernels) == 3 and len(commands) == 1
    names = [kernel.name for kernel in kernels if kernel.language == "cpp"]
    assert len(set(names)) == 3 and all(name in str(compiled.versions[0].compilation.artifact) for name in names)


def smoothed(x, w):
    for _ in range(4):
        x = torch.cumsum(torch.softmax(x * w, -1) + x, 0)
    return x


def test_steps_of_a_loop_share_code_whatever_their_rows_are_called():
    """A row that members of a kernel pass on has its buffer's name, which is another one in each step."""
    inputs = torch.randn(16, 200, generator=torch.Generator().manual_seed(0)), torch.ones(200) / 9
    kernels = [k for k in staxlab.explain(smoothed, *inputs).kernels if "memory_row_" in k.source]
    assert len(kernels) == 4 and len({kernel.source for kernel in kernels}) == 4
    first, *others = [build.anonymous(kernel) for kernel in kernels]
    assert len({kernel.source for kernel in others}) == 1 and "row_buf" not in others[0].source
    assert first.source != others[0].source  # which reads what nothing else reads
    torch.testing.assert_close(staxlab.compile(smoothed)(*inputs), smoothed(*inputs))


def test_a_kernel_that_has_names_of_ours_already_is_left_alone():
    compilation = staxlab.explain(smoothed, torch.ones(16, 200), torch.ones(200))
    kernel = next(k for k in compilation.kernels if "memory_row_" in k.source)
    text = kernel.lines[-1].text + " // passed_on_0"
    assert build.anonymous(dataclasses.replace(kernel, lines=(*kernel.lines[:-1], Line(text)))).name == "kernel"
    taken = dataclasses.replace(kernel, lines=(*kernel.lines, Line("int passed_on_0;")))
    assert build.anonymous(taken) is taken


def test_kernels_that_share_code_keep_their_checks():
    import staxlab

    def two(x, i, j):
        return x[i] * 2 @ torch.ones(4, 4), x[j] * 2

    x, good, bad = torch.ones(4, 4), torch.zeros(4, dtype=torch.int64), torch.full((4,), 7)
    compiled = staxlab.compile(two)
    torch.testing.assert_close(compiled(x, good, good), two(x, good, good))
    for arguments in ((x, bad, good), (x, good, bad)):
        with pytest.raises(IndexError, match=r"index 7 at position \(0,\) .* for dimension 0 with size 4"):
            compiled(*arguments)
