"""The records code generation delivers: kernels, and the wrapper that calls them.

A :class:`Kernel` is source text whose every line knows its origins, the arguments in calling order, the traffic the
schedule predicts, and the decisions the generator took. Nothing here compiles anything; ``runtime`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..options import Decision, DeviceSpec
from ..provenance import NO_ORIGINS, Line, Origins, source_of

if TYPE_CHECKING:
    from ..schedule.records import ScheduleNode
    from .cpp.plan import LoopPlan

#: What is appended to a C++ kernel's name to name its entry for resident outputs (:mod:`.cpp.streaming`).
RESIDENT = "_resident"


@dataclass(frozen=True)
class KernelArgument:
    """A pointer argument: ``name`` in the source, the ``buffer`` it points to, a ``role`` (input, output, inout).
    ``shared``: another argument may point to the same memory, which the kernel overwrites in place."""

    name: str
    buffer: str
    role: str
    dtype: torch.dtype
    shared: bool = False


@dataclass(frozen=True)
class PlannedLoops:
    """A schedule node as a kernel executes it, with the loops decided for it (``plan``, a
    :class:`~staxlab.codegen.cpp.plan.LoopPlan`). A fused kernel has one for each member, over one row."""

    node: ScheduleNode
    plan: LoopPlan


@dataclass(frozen=True)
class Kernel:
    """One generated kernel, or one extern call.

    ``language`` is "cpp", "triton" or "extern" (``source`` is then the call, in words, and after it, where the operator
    is the compiler's own, the text of its kernels, ``written_in`` C++ or Triton; ``inner`` are they, and ``embedded``
    the user's functions in them). ``nodes`` are the schedule nodes it executes. ``flags`` are the compiler flags the
    source needs (C++). ``launch`` holds what the launcher needs to know: for Triton the grid expression, ``constants``
    and ``num_warps``; for C++ ``vector_lanes``, ``accumulators``, ``parallel`` and so on. Traffic in bytes,
    ``operations`` in scalar operations. ``planned`` are the loops of a C++ kernel, as its writer followed them;
    ``tuning`` is what a search for a launch configuration may vary in a Triton kernel
    (:class:`~staxlab.codegen.triton.candidates.KernelTuning`).
    """

    name: str
    language: str
    lines: tuple[Line, ...]
    arguments: tuple[KernelArgument, ...]
    nodes: tuple[str, ...]
    device: DeviceSpec
    origins: Origins = NO_ORIGINS
    flags: tuple[str, ...] = ()
    launch: dict[str, Any] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    operations: int = 0
    decisions: tuple[Decision, ...] = ()
    is_fallback: bool = False
    planned: tuple[PlannedLoops, ...] = field(default=(), repr=False, compare=False)
    tuning: Any = field(default=None, repr=False, compare=False)
    written_in: str | None = None
    inner: tuple[Kernel, ...] = field(default=(), repr=False, compare=False)
    embedded: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def source(self) -> str:
        return source_of(self.lines)

    @property
    def is_generated(self) -> bool:
        """Whether there is machine code of the compiler's own: a kernel, or a call of kernels that are."""
        return self.language != "extern" or bool(self.inner)

    def assembly(self, kind: str | None = None) -> Assembly:
        """What the compiler made of this kernel, with origins per line: "asm" for C++; for Triton "ptx" (the default),
        "sass", or the representations before them, "ttir", "ttgir" and "llir".

        Compiles if need be. Raises BuildError without a compiler, MissingDependencyError without Triton.
        """
        from ..runtime.assembly import disassemble

        return disassemble(self, kind)

    def inner_loop(self, machine: str | None = None) -> Any:
        """The hottest loop of the machine code (:mod:`staxlab.measure.inner_loop`): instructions by kind, bytes and
        elements per iteration, and the bounds of ports, front end and dependences. ``machine`` names a port model.

        Compiles if need be. Raises OptionError for a kernel that is not C++, or that has no loop.
        """
        from ..measure.inner_loop import inner_loop

        return inner_loop(self, machine)

    def lanes(self, member: str | None = None) -> Any:
        """How a reduction fills lanes and accumulators and merges them (:mod:`.cpp.lanes`); ``member`` names a node of
        a fused kernel, by default the first that accumulates along a row. OptionError where there is none."""
        from .cpp.lanes import lane_reduction

        return lane_reduction(self, member)

    def cache_lines(self, member: str | None = None) -> Any:
        """Which cache lines the loops touch, as planned and in other orders (:mod:`.cpp.cache_lines`); ``member`` names
        a node of a fused kernel, by default the first. OptionError where there are no loops."""
        from .cpp.cache_lines import cache_lines

        return cache_lines(self, member)

    def occupancy(self, capability: int | None = None) -> Any:
        """How many warps of a Triton kernel a multiprocessor holds, what limits them, and the bytes they keep in flight
        (:mod:`staxlab.measure.occupancy`), for ``capability`` (90 for sm_90; default: the kernel's own).

        Compiles if need be. Raises CodegenError for other languages, OptionError for an unknown capability."""
        from ..measure.occupancy import occupancy

        return occupancy(self, capability)

    def coalescing(self, capability: int | None = None) -> Any:
        """Which 32-byte sectors each load and store of a Triton kernel's warps touches, from the compiled layout of
        threads (:mod:`staxlab.measure.coalescing`), for ``capability`` (90 for sm_90; default: the kernel's own).

        Compiles if need be. Raises CodegenError for other languages, or where the grid is empty."""
        from ..measure.coalescing import coalescing

        return coalescing(self, capability)

    def lowering_steps(self, capability: int | None = None) -> Any:
        """Every step of Triton's compiler (TTIR, TTGIR, LLVM IR, PTX, SASS) in counts, and which of its lines each line
        of the kernel became (:mod:`staxlab.measure.lowering_steps`). CodegenError for other languages."""
        from ..measure.lowering_steps import lowering_steps

        return lowering_steps(self, capability)

    def sharing(self) -> Any:
        """How loops are shared among threads (Algorithm 8.1, :mod:`.cpp.sharing`). OptionError for other languages."""
        from .cpp.sharing import sharing

        return sharing(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class Assembly:
    """A listing of what a compiler made; ``kind`` is "asm", or "ttir", "ttgir", "llir", "ptx", "sass". Lines carry
    origins through the compiler's own tables."""

    kernel: str
    kind: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return source_of(self.lines)

    __str__ = text.fget

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class KernelSet:
    """The kernels of a region in execution order. Indexable and iterable."""

    kernels: tuple[Kernel, ...]

    def __iter__(self) -> Any:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __getitem__(self, position: int) -> Kernel:
        return self.kernels[position]

    @property
    def fallbacks(self) -> tuple[Kernel, ...]:
        """Kernels that run an operator the compiler has no lowering for."""
        return tuple(kernel for kernel in self.kernels if kernel.is_fallback)

    @property
    def bytes_moved(self) -> int:
        """Modelled traffic of the region: bytes read plus bytes written, over all kernels."""
        return sum(kernel.bytes_read + kernel.bytes_written for kernel in self.kernels)

    def format(self) -> str:
        return "\n".join(
            f"{k.name} ({k.language}{', fallback' if k.is_fallback else ''}): "
            f"reads {k.bytes_read} B, writes {k.bytes_written} B\n{k.source}"
            for k in self.kernels
        )

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class Wrapper:
    """The generated Python module (Section 8.5): ``call(inputs)`` allocates, calls the kernels and returns the flat
    outputs as a tuple. ``globals`` holds objects the source refers to that have no literal spelling (operators, dtypes,
    layouts of views); kernels are added by the runtime under their own names."""

    lines: tuple[Line, ...]
    globals: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return source_of(self.lines)

    def __str__(self) -> str:
        return self.source

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
