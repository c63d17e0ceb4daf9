"""Accesses that must not be, planted one by one: what the sanitizers say about each, printed as JSON.

``test_sanitizers.py`` starts this as a process of its own, with the sanitizers' libraries loaded first and the names
of faults as arguments (none: all). Every fault is the smallest there is: one element beside the kernel's memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests import sanitized

if sanitized.EXTENSION:
    sanitized.import_checked_extension()
sanitized.write_undefined_to_log()
sanitized.note_spans()
sanitized.place_arguments()

from staxlab import native  # noqa: E402
from staxlab.codegen import cpp  # noqa: E402
from staxlab.options import Options, host_device_spec  # noqa: E402
from staxlab.provenance import Line  # noqa: E402
from staxlab.runtime import build  # noqa: E402
from staxlab.schedule.dependencies import schedule  # noqa: E402
from tests.codegen.cpp_support import pointwise  # noqa: E402

F32 = torch.float32


def by_hand(statement: str) -> Callable[..., None]:
    """A kernel of one statement over float arrays ``x`` and ``y`` of ``n`` elements."""
    source = f'extern "C" void kernel(const float* x, float* y, long n) {{ {statement} }}'
    kernel = build.build_library(source, "planted")["kernel"]

    def call(x: int, y: int, n: int) -> None:
        import ctypes

        kernel(ctypes.c_void_p(x), ctypes.c_void_p(y), ctypes.c_long(n))

    return call


def over_tensors(statement: str, n: int = 37) -> None:
    x, y = torch.ones(n), torch.zeros(n)
    by_hand(statement)(x.data_ptr(), y.data_ptr(), n)


def generated(old: str, new: str, x: torch.Tensor, instruction_set: str | None = None) -> None:
    """The generated kernel of ``x + 1``, with ``old`` replaced in its text."""
    n = x.numel()
    program = pointwise({"x": x}, (n,), F32, lambda ops, i: ops.add(ops.load("x", i[0]), ops.constant(1.0, F32)))
    device, options = host_device_spec(instruction_set), Options()
    (kernel,) = cpp.generate(schedule(program, device, options), options, device)
    damaged = kernel.source.replace(old, new)
    assert old == new or damaged != kernel.source, kernel.source
    kernel = dataclasses.replace(kernel, lines=tuple(map(Line, damaged.splitlines())))
    launch = build.load_kernel(kernel, build.toolchain.find()).launch
    y = torch.empty(n)
    launch(x.data_ptr(), y.data_ptr())


def middle(n: int) -> torch.Tensor:
    """A piece of a larger tensor: the elements around it are memory like any other."""
    return torch.ones(3 * n)[n : 2 * n]


def in_the_pool(statement: str, kept: bool = True) -> None:
    n = (native.POOLED_FROM >> 2) + 3
    y: Any = native.empty((n,), (1,), F32)
    address = y.data_ptr()
    if not kept:
        del y
    by_hand(statement)(address, address, n)


FAULTS: dict[str, Callable[[], None]] = {
    "nothing": lambda: over_tensors("for (long i = 0; i < n; ++i) y[i] = x[i];"),
    "nothing, generated": lambda: generated("", "", torch.ones(37)),
    "nothing, in the pool": lambda: in_the_pool("y[n - 1] = 1;"),
    "read after an input": lambda: over_tensors("y[0] = x[n];"),
    "read before an input": lambda: over_tensors("y[0] = x[-1];"),
    "write after an output": lambda: over_tensors("y[n] = x[0];"),
    "read after a view, vectors": lambda: generated("in_x + i0", "in_x + i0 + 1", middle(32)),
    "read after a view, masked tail": lambda: generated("in_x + i0", "in_x + i0 + 1", middle(37)),
    "read after a view, scalar": lambda: generated("in_x + i0", "in_x + i0 + 1", middle(37), "scalar"),
    "write after an output, masked tail": lambda: generated("out_out + i0", "out_out + i0 + 1", middle(37)),
    "write after an output, scalar": lambda: generated("out_out + i0", "out_out + i0 + 1", middle(37), "scalar"),
    "write after a block of the pool": lambda: in_the_pool("y[n] = 1;"),
    "write into a block given back to the pool": lambda: in_the_pool("y[0] = 1;", kept=False),
    "shift by more than the width": lambda: over_tensors("y[0] = (float)(1 << (n + (long)x[0]));"),
}


def main() -> None:
    findings, said = sanitized.findings, {}
    for name in sys.argv[1:] or FAULTS:
        findings.new()
        FAULTS[name]()
        said[name] = findings.new()
    print(json.dumps(said))


if __name__ == "__main__":
    assert os.environ["STAXLAB_SANITIZER_LOG"]
    main()
