"""TVM as a backend: the same algorithm, scheduled by somebody else (Section 12.3).

Stax takes its schedules from fixed heuristics; TVM separates them from the algorithm. With this backend both start from
the same compute functions: the operator graph is lowered to loops as always (Section 6), each buffer becomes a
``te.compute`` (:mod:`.tvm_description`), and from there everything is TVM's: which stages are inlined, the order and
shape of loops (:mod:`.tvm_schedule`), and machine code by LLVM. What differs in a measurement is the second half of
the pipeline and nothing else: a control for two sources of schedules.

Signed integers that overflow are undefined in TVM's code, where PyTorch's wrap around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture.graph import TensorMeta
from ..capture.module import GraphModule
from ..compilation import Compilation
from ..errors import BackendError, MissingDependencyError, OptionError
from ..loops.ir import ExternBuffer, Template
from ..operators.structure import flatten
from ..options import Options, host_device_spec, host_instruction_set
from .smaller_basis import unsupported

ALIGNMENT = 64  # bytes, which TVM's code may assume of every tensor


def tvm(graph_module: GraphModule, example_inputs: Sequence[torch.Tensor], *, schedule: str = "rules") -> Lowered:
    """Give a graph to TVM and return its code.

    ``schedule``: "rules" (those TVM has for CPUs) or "none" (loops as they are described; LLVM makes the most of them).

    Raises MissingDependencyError without apache-tvm, BackendError for what has no description, naming the line, and
    OptionError for an unknown schedule.
    """
    _library()
    _check_schedule(schedule)
    from ..loops.lowering import basis, lower
    from ..operators.record import record

    for node in graph_module.graph:
        for leaf in flatten(node.val):
            if isinstance(leaf, TensorMeta) and leaf.device.type != "cpu":
                raise unsupported(node, "TVM", f"the value is on {leaf.device}, and the build is a CPU's")
    # Our rule for GELU is a piecewise formula for the sake of vectors. TVM has its own idea of erf: the C library's.
    known = frozenset(basis()) - {torch.ops.aten.gelu.default, torch.ops.aten.gelu_backward.default}
    operators = record(graph_module, [*example_inputs], basis=known)
    program = lower(operators, host_device_spec(), Options())
    return _lowered(program, operators, schedule)


def lowered_text(compilation: Compilation, schedule: str = "rules") -> str:
    """TVM's loops for a compilation, in the script form of TensorIR: those of backend "tvm", or, for one of our own
    (``staxlab.explain(fn, x)``), those TVM would run for the same loop program.

    Raises as :func:`tvm`; BackendError for a compilation without loops.
    """
    if isinstance(compilation.outside and compilation.outside.function, Lowered):
        return compilation.outside.function.format()
    _library()
    _check_schedule(schedule)
    if compilation.loops is None:
        raise BackendError(f"{compilation.name} has no loop program", remedy="explain it with backend='stax'")
    return _lowered(compilation.loops, compilation.operators, schedule).format()


@dataclass(frozen=True)
class Lowered:
    """A region in TVM's hands. Called with flat tensors. ``module`` is the scheduled ``IRModule`` (None where no result
    has elements), ``description`` what it was made from."""

    description: Any
    module: Any
    run: Any = field(repr=False)

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        found = self.description
        storages = dict(zip(self._inputs, tensors, strict=True))
        given = [_storage(storages[name], found.places[name]) for name in found.inputs]
        made = {name: torch.empty(found.places[name].shape, dtype=found.dtypes[name]) for name in found.made}
        if self.run is not None:
            self.run(*given, *made.values())
        results = []
        for out in found.results:
            layout = out.layout
            if layout.numel == 0:
                results.append(torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype))
                continue
            source = made[out.name] if out.name in made else storages[out.name]
            results.append(source.as_strided(layout.shape, layout.stride, source.storage_offset() + layout.offset))
        return results

    _inputs: tuple[str, ...] = ()

    def format(self) -> str:
        """The scheduled loops as TensorIR script."""
        if self.module is None:
            return "no result has elements"
        return self.module["main"].script()


def _lowered(program: Any, operators: Any, schedule: str) -> Lowered:
    from .tvm_description import describe
    from .tvm_schedule import scheduled

    description = describe(program, operators)
    names = tuple(buffer.name for buffer in program.inputs)
    if description.function is None:
        return Lowered(description, None, None, names)
    import tvm as library

    target = _target()
    by_rows = not any(
        isinstance(buffer, ExternBuffer) or isinstance(buffer.data, Template) for buffer in program.buffers
    )
    module = scheduled(description.function, target, schedule, by_rows)
    return Lowered(description, module, library.compile(module, target=target)["main"], names)


def _storage(x: torch.Tensor, place: Any) -> torch.Tensor:
    """The memory of an input as TVM sees it, copied only where it does not start at a multiple of 64 bytes."""
    seen = x.detach().as_strided(place.shape, place.strides)
    return seen if seen.data_ptr() % ALIGNMENT == 0 else seen.clone()


#: Processors whose instructions an instruction set of ours has. LLVM's guess at the processor's name is not used: a
#: virtual machine may hide instructions that the processor of that name has.
PROCESSORS = {"avx512": "skylake-avx512", "avx2": "haswell", "scalar": "x86-64"}


def _target() -> Any:
    """This processor, with as many threads as PyTorch has now."""
    from tvm.target import Target

    kind: dict[str, Any] = {"kind": "llvm", "num-cores": torch.get_num_threads()}
    if (instructions := host_instruction_set()) in PROCESSORS:
        kind["mcpu"] = PROCESSORS[instructions]
    return Target(kind)


def _library() -> None:
    try:
        import tvm  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"backend 'tvm' needs the package apache-tvm ({error})", remedy="pip install 'staxlab[tvm]'"
        ) from error


def _check_schedule(schedule: Any) -> None:
    from .tvm_schedule import SCHEDULES

    if schedule not in SCHEDULES:
        raise OptionError(f"schedule={schedule!r} is not allowed: one of {', '.join(map(repr, SCHEDULES))}")
