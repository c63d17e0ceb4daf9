"""A process that compiles Triton kernels and nothing else (Section 11.2).

A good part of compiling a Triton kernel is Python, so threads would take turns at the interpreter's lock: processes are
needed. This file is what such a process runs. It is started by its path and imports Triton alone, neither PyTorch nor
this package, so it is ready in a quarter of a second and takes a fraction of the memory.

A *job* is a dictionary of plain values (:mod:`.ahead` makes it). What is compiled goes into Triton's store on disk
under Triton's own key, where the parent then finds it; what is sent back is the key. A launch is compiled as the
parent's launcher would do it: through the same function, with stand-ins for the tensors, whose pointers are multiples
of 16, and a stand-in for the device, which is only asked for its architecture.

Jobs and answers travel over pipes, as a length and a pickle. The end of the pipe is the end of the parent: the process
then kills its whole group, an assembler it may have started included.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import linecache
import os
import pickle
import signal
import struct
import sys
import threading
from typing import Any, BinaryIO

FRAME = struct.Struct("<Q")  # the length of what follows, in bytes


class Pointer:
    """Stands in for a tensor: a type of elements, and an address that is a multiple of 16."""

    class Type(str):
        __slots__ = ()

    def __init__(self, name: str):
        self.dtype = Pointer.Type(f"torch.{name}")

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


class Device:
    """Stands in for a driver: all that a compiler asks of it is the architecture."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


def compile_ahead(function: Any, job: dict[str, Any]) -> Any:
    """Compile a ``JITFunction`` for an architecture, given the types of its parameters; Triton's compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {(function.arg_names.index(name),): value for name, value in job["constants"].items()}
    aligned = {(position,): [["tt.divisibility", 16]] for position in range(job["pointers"])}
    source = ASTSource(fn=function, signature=job["signature"], constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", job["capability"], 32), options=job["options"])


def compile_launch(function: Any, job: dict[str, Any]) -> Any:
    """Compile a ``JITFunction`` as the first launch on aligned tensors would, without any; its compiled kernel."""
    from triton.runtime.driver import driver

    driver.set_active(Device(job["capability"]))
    function.device_caches.clear()
    arguments = [*(Pointer(name) for name in job["types"]), *job["rest"]]
    return function.run(*arguments, grid=job["grid"], warmup=True, **job["options"])


def perform(job: dict[str, Any]) -> str:
    """Do a job in this process; the key of what was compiled in Triton's store."""
    from triton import knobs

    os.environ.update(job["environment"])
    if job["store"] is not None:
        store = _beside("verified_store")
        store.SHARED = job["shared"]
        knobs.cache.dir, knobs.cache.manager_class = job["store"], store.manager()
    source, path = job["source"], job["path"]
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    namespace: dict[str, Any] = {"__name__": job["module"], "__file__": path}
    exec(compile(source, path, "exec"), namespace)
    work = compile_launch if job["launch"] else compile_ahead
    return work(namespace[job["name"]], job).hash


@functools.lru_cache(maxsize=1)
def _beside(name: str) -> Any:
    """A module of this directory, which is not on the path: its files have names that others have, too."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_frame(stream: BinaryIO) -> Any:
    """The next object of a stream. EOFError at its end."""
    return pickle.loads(_exactly(stream, *FRAME.unpack(_exactly(stream, FRAME.size))))


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Send an object, whole: a pipe may take less than it is given."""
    data = pickle.dumps(value)
    left = memoryview(FRAME.pack(len(data)) + data)
    while left:
        left = left[stream.write(left) :]
    stream.flush()


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def serve() -> None:
    """Answer jobs until the parent is gone."""
    jobs, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the compiler prints is no answer
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    given: list[Any] = []
    arrived = threading.Semaphore(0)

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                given.append(read_frame(jobs))
                arrived.release()
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        arrived.acquire()
        try:
            answer = {"key": perform(given.pop(0))}
        except BaseException as error:  # the compiler raises many kinds
            answer = {"error": f"{error}" or type(error).__name__, "kind": type(error).__name__}
        write_frame(answers, answer)


if __name__ == "__main__":
    sys.exit(serve())
