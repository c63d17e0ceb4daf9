"""Ahead of time: a kernel from Triton source to PTX and machine code, with no GPU in the machine (Sections 9.1, 11.1).

Triton lowers in steps, each kept: its own tensor IR (``ttir``), the same with a layout of threads (``ttgir``), LLVM IR
(``llir``), PTX, and the machine code of one architecture (``cubin``). The result is a function of the text, the launch
configuration and the architecture alone, so it is cached by content, in memory here and on disk by Triton.

Both listings know where they come from. PTX carries ``.loc file line column`` directives, machine code a line table
that ``nvdisasm`` prints; a line of the kernel text carries origins; so every instruction gets the captured nodes it
stems from. An instruction inlined from a library function (``tl.sum``) belongs to the line that called it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import BuildError
from ..kernel import Kernel
from .ahead import capability_of, compiler_options, listing_job, note, signature
from .source_files import compiler_cache, jit_function, require_triton, source_hash, source_path
from .worker import compile_ahead

STEPS = ("ttir", "ttgir", "llir", "ptx", "cubin")
_compiled: dict[tuple, dict[str, Any]] = {}


def clear() -> None:
    """Forget compiled kernels (Triton's own disk cache stays)."""
    _compiled.clear()


def aot_compile(kernel: Kernel, capability: int | None = None) -> dict[str, Any]:
    """Compile for compute capability ``capability`` (90 for sm_90; default: the kernel's device).

    Returns ``{"ttir", "ttgir", "llir", "ptx"}`` as text, ``"cubin"`` as bytes, and ``"metadata"`` (registers are in the
    cubin; shared memory, warps and the entry name here). Pointers are taken to be 16-byte aligned, as the
    allocations of PyTorch are. Raises CodegenError for a kernel that is not Triton's, MissingDependencyError without
    Triton, BuildError with the compiler's words if it fails.
    """
    capability = capability_of(kernel, capability)
    # The same text compiles differently for pointers to other types of elements.
    key = (source_hash(kernel), capability, _configuration(kernel), tuple(signature(kernel).items()))
    if key not in _compiled:
        _compiled[key] = _compile(kernel, capability)
    return _compiled[key]


def _configuration(kernel: Kernel) -> tuple:
    launch = kernel.launch
    flat = (*launch["constants"].items(), *launch["options"].items())
    return (*flat, launch["num_warps"], launch["num_stages"])


def assemble(kernel: Kernel, ptx: str, capability: int) -> bytes:
    """Machine code for a PTX text, with exactly the assembler and flags that Triton uses for this kernel."""
    require_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", capability, 32))
    return backend.make_cubin(ptx, {}, backend.parse_options(compiler_options(kernel)), capability)


def tool(name: str) -> str:
    """A disassembler that ships with Triton ("nvdisasm", "cuobjdump"). BuildError if it is not there."""
    triton = require_triton()
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.exists():
        raise BuildError(f"this Triton has no {name}", remedy="install the triton wheel for Linux")
    return str(path)


def _compile(kernel: Kernel, capability: int) -> dict[str, Any]:
    require_triton()
    job = listing_job(kernel, capability)
    try:
        with compiler_cache():
            result = compile_ahead(jit_function(kernel), job)
    except Exception as error:  # the compiler raises many kinds
        raise BuildError(
            f"Triton could not compile {kernel.name} for sm_{capability}: {error}",
            remedy=f"the source is in {source_path(kernel)}",
        ) from error
    note(job, result.hash)
    return {step: result.asm[step] for step in STEPS} | {"metadata": result.metadata}
