"""Looking for data races in generated kernels with ThreadSanitizer, without false alarms.

ThreadSanitizer (Serebryany, Iskhodzhanov, 2009, "ThreadSanitizer: data race detection in practice") must see every
synchronization there is. GNU's OpenMP runtime synchronizes in ways it does not see, so a Python process that calls
kernels would report races that are none. Here a kernel becomes a program of its own instead: a ``main`` that calls it
on given arguments, and, in place of the OpenMP runtime, the few functions a kernel's loops call, written with POSIX
threads, which ThreadSanitizer knows. What it reports then is a race of the kernel.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from staxlab.codegen.anonymous import ENTRY
from staxlab.codegen.kernel import Kernel
from staxlab.runtime import build, toolchain
from staxlab.schedule.records import Schedule

THREADS = 4

RUNTIME = """
#include <pthread.h>
#include <cstdio>
#include <cstdlib>
enum { THREADS = %d };
static thread_local int thread_number = 0, threads = 1;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t everybody;
struct Task { void (*function)(void*); void* data; int number; };
static void* run(void* pointer) {
    Task* task = (Task*)pointer;
    thread_number = task->number;
    threads = THREADS;
    task->function(task->data);
    thread_number = 0;
    threads = 1;
    return nullptr;
}
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned, unsigned) {
    pthread_t thread[THREADS];
    Task task[THREADS];
    pthread_barrier_init(&everybody, nullptr, THREADS);
    for (int k = 0; k < THREADS; ++k) task[k] = {function, data, k};
    for (int k = 1; k < THREADS; ++k) pthread_create(&thread[k], nullptr, run, &task[k]);
    run(&task[0]);
    for (int k = 1; k < THREADS; ++k) pthread_join(thread[k], nullptr);
    pthread_barrier_destroy(&everybody);
}
int omp_get_thread_num() { return thread_number; }
int omp_get_num_threads() { return threads; }
int omp_get_max_threads() { return THREADS; }
void GOMP_barrier() { pthread_barrier_wait(&everybody); }
void GOMP_critical_start() { pthread_mutex_lock(&one_at_a_time); }
void GOMP_critical_end() { pthread_mutex_unlock(&one_at_a_time); }
void GOMP_atomic_start() { pthread_mutex_lock(&one_at_a_time); }
void GOMP_atomic_end() { pthread_mutex_unlock(&one_at_a_time); }
%s
}
int main(int, char** argument) {
    FILE* file = fopen(argument[1], "rb");
    void* block[%d];
    for (void*& b : block) {
        long long bytes;
        if (fread(&bytes, 8, 1, file) != 1) return 3;
        b = malloc(bytes);
        if ((long long)fread(b, 1, bytes, file) != bytes) return 3;
    }
    kernel(%s);
    puts("done");
    return 0;
}
"""

_IMPORT = re.compile(r'extern "C" \{ (\w+) \(\*(\w+)\)\(([^)]*)\); \}')


def _bound(source: str) -> str:
    """A kernel's source, its pointers to SLEEF's functions set to one that does nothing: values do not matter here."""
    lines = []
    for result, pointer, parameters in _IMPORT.findall(source):
        named = ", ".join(f"{kind.strip()} x{place}" for place, kind in enumerate(parameters.split(",")))
        lines.append(
            f"static {result} nothing_{pointer}({named}) {{ return x0; }}\n"
            f"__attribute__((constructor)) static void bind_{pointer}() {{ {pointer} = nothing_{pointer}; }}"
        )
    return "\n".join([source, *lines])


def example_arguments(kernel: Kernel, schedule: Schedule) -> list[bytes]:
    """Memory for each argument: numbers for values, small numbers for subscripts."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for argument in kernel.arguments:
        layout = schedule.layouts[argument.buffer]
        if layout.dtype.is_floating_point:
            values = torch.randn(layout.storage_elements, generator=generator).to(layout.dtype)
        else:
            values = (torch.arange(layout.storage_elements) % 2).to(layout.dtype)
        found.append(values.contiguous().view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return found


def races(kernel: Kernel, arguments: Sequence[bytes], directory: Path) -> str:
    """What ThreadSanitizer reports about one call of a kernel by :data:`THREADS` threads; empty if nothing.

    Raises BuildError (from the compiler) or AssertionError if the program does not run to its end.
    """
    tools = toolchain.find()
    plain = build.anonymous(kernel)
    assert plain.name == ENTRY, "an argument of the kernel has one of the names used here"
    (directory / "kernel.cpp").write_text(_bound(plain.source))
    pointers = ", ".join(["void*"] * len(arguments))
    given = ", ".join(f"block[{k}]" for k in range(len(arguments)))
    declaration = f"void kernel({pointers});"  # a result, if it has one, is not looked at
    (directory / "main.cpp").write_text(RUNTIME % (THREADS, declaration, len(arguments), given))
    with open(directory / "arguments", "wb") as file:
        for argument in arguments:
            file.write(struct.pack("<q", len(argument)) + argument)
    checks = ("-fsanitize=thread", "-O1", "-g1")
    flags = [flag for flag in build.command_flags(kernel, tools) if not flag.startswith("-fsanitize")]
    include = f"-I{build.HEADER_DIRECTORY}"
    for command in (
        [*tools.command, *flags, *checks, include, "-c", "kernel.cpp", "-o", "kernel.o"],
        [*tools.command, *checks, "main.cpp", "kernel.o", "-o", "program", "-lpthread"],
    ):
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if done.returncode:
            raise build.BuildError(f"{' '.join(command)}:\n{done.stderr[:4000]}\n{plain.source}")
    done = subprocess.run(
        [*_fixed_addresses(), "./program", "arguments"], cwd=directory, capture_output=True, text=True
    )
    assert "done" in done.stdout, f"status {done.returncode}:\n{done.stderr[:4000]}\n{plain.source}"
    return done.stderr


def _fixed_addresses() -> list[str]:
    """Older versions of the library cannot start where the system spreads addresses widely."""
    import platform
    import shutil

    return ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
