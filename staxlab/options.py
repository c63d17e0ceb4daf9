"""What the user chose, what the machine is, and what the compiler decided: three small immutable records.

``Options`` are passed down explicitly, stage by stage; ``DeviceSpec`` holds every hardware fact a heuristic may ask
for, so code generation for a machine that is not here (``target="sm_90"``) works the same way as for one that is;
a ``Decision`` is what a heuristic returns: the choice together with the alternatives, the reason and the inputs it saw,
so that "why did it do that?" is a lookup and not a debugging session.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .backends import table
from .backends.table import Backend
from .errors import OptionError


@dataclass(frozen=True)
class Decision:
    """One choice of a heuristic.

    ``topic`` is a short stable name ("realize", "persistent-reduction", "vector-width"...), ``subject`` what it is
    about (a buffer or kernel name), ``choice`` what was chosen among ``candidates``, ``reason`` a sentence, and
    ``inputs`` the quantities the rule looked at.
    """

    topic: str
    subject: str
    choice: Any
    reason: str
    candidates: tuple[Any, ...] = ()
    inputs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.inputs)
        return f"{self.topic}({self.subject}) = {self.choice}: {self.reason}" + (f" [{facts}]" if facts else "")


@dataclass(frozen=True)
class DeviceSpec:
    """Facts about a target that heuristics and generators may use. Bandwidth in bytes/s, throughput in FLOP/s.

    ``kind`` is "cpu" or "cuda". CPU fields: ``instruction_set`` in ("avx512", "avx2", "neon", "scalar"),
    ``vector_bytes``, ``threads``, ``bfloat16_tiles`` (a matrix unit for tiles of bfloat16, Intel's AMX). GPU fields:
    ``multiprocessors``, ``warp_size``, ``max_threads_per_multiprocessor``,
    ``max_blocks_per_multiprocessor`` (32 on compute capabilities 8.0 and 9.0),
    ``shared_memory_per_multiprocessor`` and ``compute_capability`` (90 for sm_90).
    """

    kind: str
    name: str
    instruction_set: str = "scalar"
    vector_bytes: int = 16
    threads: int = 1
    cache_line_bytes: int = 64
    last_level_cache_bytes: int = 32 << 20
    compute_capability: int = 0
    multiprocessors: int = 0
    warp_size: int = 32
    max_threads_per_multiprocessor: int = 2048
    max_blocks_per_multiprocessor: int = 32
    shared_memory_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 65536
    l2_bytes: int = 0
    nominal_bandwidth: float = 0.0
    nominal_throughput: float = 0.0
    bfloat16_tiles: bool = False

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"


GPU_SPECS: dict[str, DeviceSpec] = {
    # Nominal values of the data sheets; compute capability names the instruction set Triton compiles for.
    "sm_80": DeviceSpec(
        kind="cuda", name="sm_80", compute_capability=80, multiprocessors=108,
        shared_memory_per_multiprocessor=164 << 10, l2_bytes=40 << 20,
        nominal_bandwidth=1.555e12, nominal_throughput=19.5e12,
    ),
    "sm_90": DeviceSpec(
        kind="cuda", name="sm_90", compute_capability=90, multiprocessors=132,
        shared_memory_per_multiprocessor=228 << 10, l2_bytes=50 << 20,
        nominal_bandwidth=3.35e12, nominal_throughput=67e12,
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def host_instruction_set() -> str:
    """The widest instruction set of this processor that the C++ generator knows, as PyTorch itself detects it."""
    import platform

    import torch

    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return "neon"
    capability = torch.backends.cpu.get_cpu_capability().upper()
    if "AVX512" in capability:
        return "avx512"
    if "AVX2" in capability:
        return "avx2"
    return "scalar"


VECTOR_BYTES = {"avx512": 64, "avx2": 32, "neon": 16, "scalar": 16}


def host_device_spec(instruction_set: str | None = None) -> DeviceSpec:
    """This machine's CPU, with the thread count PyTorch uses now."""
    import torch

    chosen = instruction_set or host_instruction_set()
    if chosen not in VECTOR_BYTES:
        raise OptionError(
            f"unknown instruction set {chosen!r}", remedy=f"choose one of {', '.join(sorted(VECTOR_BYTES))}"
        )
    return DeviceSpec(
        kind="cpu",
        name="cpu",
        instruction_set=chosen,
        vector_bytes=VECTOR_BYTES[chosen],
        threads=torch.get_num_threads(),
        bfloat16_tiles=chosen == "avx512" and _has_bfloat16_tiles(),
    )


@lru_cache(maxsize=1)
def _has_bfloat16_tiles() -> bool:
    """Whether this processor has AMX for bfloat16 and the system lets this process use it: PyTorch asks for that."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    ask = getattr(torch.cpu, "_init_amx", None)
    return bool(supported and ask and supported() and ask())


OTHER_NAMES = {
    "gpu": "cuda", "nvidia": "cuda", "host": "cpu", "native": "cpu", "x86": "cpu", "x86_64": "cpu", "arm": "cpu",
    "a100": "sm_80", "ampere": "sm_80", "h100": "sm_90", "h200": "sm_90", "hopper": "sm_90",
}  # fmt: skip


def device_spec(target: str, options: Options | None = None) -> DeviceSpec:
    """The spec a target string names: "cpu", "cuda" (the GPU that is here), or "sm_80" / "sm_90" (no GPU needed).

    Raises OptionError for an unknown target, or for "cuda" where there is none.
    """
    if not isinstance(target, str):
        raise OptionError(_unknown_target(target))
    if target == "cpu":
        return host_device_spec(options.instruction_set if options else None)
    if target in GPU_SPECS:
        return GPU_SPECS[target]
    if target == "cuda" or target.startswith("cuda:"):
        import torch

        if not torch.cuda.is_available():
            raise OptionError(
                "target 'cuda' needs a GPU and none is visible",
                remedy=f"name an architecture instead, which needs no GPU: {', '.join(GPU_SPECS)}",
            )
        properties = torch.cuda.get_device_properties(torch.device(target))
        return DeviceSpec(
            kind="cuda",
            name=properties.name,
            compute_capability=properties.major * 10 + properties.minor,
            multiprocessors=properties.multi_processor_count,
            warp_size=properties.warp_size,
            max_threads_per_multiprocessor=properties.max_threads_per_multi_processor,
            shared_memory_per_multiprocessor=getattr(properties, "shared_memory_per_multiprocessor", 0),
            l2_bytes=properties.L2_cache_size,
            # Kilohertz, two transfers in each cycle, and bits; 0, which means unknown, where they are not told.
            nominal_bandwidth=2e3
            * getattr(properties, "memory_clock_rate", 0)
            * getattr(properties, "memory_bus_width", 0)
            / 8,
        )
    raise OptionError(_unknown_target(target))


def _unknown_target(target: Any) -> str:
    """Say what is there. An architecture that exists but is not here is no typing error of one that is."""
    valid = ["cpu", "cuda", *GPU_SPECS]
    if not isinstance(target, str):
        return f"a target is a name, not {target!r}; known: {', '.join(valid)}"
    plain = target.strip().lower()
    if plain in OTHER_NAMES:
        return f"unknown target {target!r}; did you mean {OTHER_NAMES[plain]!r}? (known: {', '.join(valid)})"
    if re.fullmatch(r"sm_\d{2,3}[af]?", plain):
        return f"code for {target} is not generated yet; known: {', '.join(valid)}"
    return f"unknown target {target!r}{nearest(plain, valid)}"


def nearest(given: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown name: the valid one it was probably meant to be, and all there are."""
    valid = list(valid)
    close = difflib.get_close_matches(given, valid, n=1)
    known = ", ".join(valid)
    return f"; did you mean {close[0]!r}? (known: {known})" if close else f"; known: {known}"


SEARCH_METHODS = ("candidates", "descent", "random", "halving")  # Section 9.6; the first is what True means
MATMUL = ("rule", "library", "template", "template-tma")
ATTENTION = ("auto", "off", "require")

MODES: dict[str | None, dict[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"autotune": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _at_least(least: int, most: int | None = None) -> tuple[Callable[[Any], bool], str]:
    def allowed(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and least <= value and (most is None or value <= most)

    return allowed, f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"


def _is_budget(value: Any) -> bool:
    """Bytes or a fraction. One byte is no budget, and 1 equals 1.0: two options that are equal must mean the same."""
    if isinstance(value, float):
        return 0 <= value <= 1
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value is None or (whole and value >= 0 and value != 1)


# Option -> (whether a value is allowed, what is, in words).
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "strict_native": (_is_flag, "True or False"),
    "dynamic": (_is_flag, "True or False"),
    "autotune": (
        lambda value: _is_flag(value) or (isinstance(value, str) and value in SEARCH_METHODS),
        "True or False, or one of " + ", ".join(map(repr, SEARCH_METHODS)),
    ),
    "double_backward": (_is_flag, "True or False"),
    "validate": (_is_flag, "True or False"),
    "split_reductions": (_is_flag, "True or False"),
    "fuse": (_is_flag, "True or False"),
    "cuda_graphs": (_is_flag, "True or False"),
    "graph_inputs": (lambda value: value in ("check", "copy"), "'check' or 'copy'"),
    "graph_outputs": (lambda value: value in ("reuse", "copy"), "'reuse' or 'copy'"),
    "matmul": (lambda value: value in MATMUL, "one of " + ", ".join(map(repr, MATMUL))),
    "attention": (lambda value: value in ATTENTION, "one of " + ", ".join(map(repr, ATTENTION))),
    "instruction_set": (
        lambda value: value is None or (isinstance(value, str) and value in VECTOR_BYTES),
        "None (what this processor has) or one of " + ", ".join(map(repr, VECTOR_BYTES)),
    ),
    "accumulators": _at_least(0, 64),
    "max_versions": _at_least(0),
    "max_compilations": _at_least(0),
    "max_rounds": _at_least(1),
    "memory_budget": (
        _is_budget,
        "None (no limit), a number of bytes (2 or more), or a fraction of what saving everything takes (0.0 to 1.0)",
    ),
}


@dataclass(frozen=True)
class Options:
    """Everything that may change what is compiled. Hashable: it is part of every cache key.

    ``strict_native``   raise where an operator has no lowering (library calls, such as matmul and sort, are accepted)
    ``dynamic``         specialize on ranks instead of shapes (Sections 2.2 and 10)
    ``backend``         "stax", a prefix of the pipeline ("eager", "aot_eager"), or another name of
                        ``staxlab.list_backends()``; ``outside`` is then its row, and ``extra`` the options of its own
    ``autotune``        on a GPU, measure launch configurations at the first call (Section 9.6): "candidates" (or True)
                        chooses among a few, "descent" goes on from there, "random" and "halving" draw from the whole
                        space. What a sum rounds to may depend on the configuration; the finding is kept on disk
    ``double_backward`` compile the gradient so that it can be differentiated again (Section 5.7)
    ``instruction_set`` override of the CPU vector instruction set ("avx512", "avx2", "neon", "scalar")
    ``accumulators``    vector accumulators per reduction on CPU (0: let the generator decide)
    ``validate``        run every CPU kernel against the semantics of its loops before it is used (Section 6.9)
    ``max_versions``    specialization versions kept per function
    ``max_compilations``compilations allowed per function in all
    ``split_reductions``on a GPU, cut reductions with few outputs into segments (Section 6.5); CPU kernels never do
    ``fuse``            let nodes share a kernel (Section 7.3); without it every buffer has a kernel of its own
    ``matmul``          how a GPU computes products of matrices (Section 9.8): "rule" (the library, unless the traffic
                        that a template saves is sure to be worth more), "library", "template", or "template-tma"
                        (persistent, on compute capability 9). On a CPU products have a rule of their own
    ``attention``       attention written out, ``softmax(q @ k.mT) @ v`` in any spelling (Section 9.10): "auto" computes
                        it without its matrix of scores where that moves fewer bytes, "require" wherever it means the
                        same, with an error where it does not, "off" never. Rounding differs within the error bound
    ``cuda_graphs``     on a GPU, record a region's launches and replay them (Section 9.9); the modes "reduce-overhead"
                        and "max-autotune" switch it on
    ``graph_inputs``    "check": replay if the inputs are where they were; "copy": copy the others there
    ``graph_outputs``   "reuse": results lie in the graph's memory, which no replay touches while they are held; "copy":
                        they are copied out of it
    ``memory_budget``   what may be saved between forward and backward (Section 5.8): bytes (int), or a fraction (float)
                        of what saving everything takes; None: the minimum cut of Section 5.4, without a limit
    """

    backend: str = "stax"
    mode: str | None = None
    strict_native: bool = False
    dynamic: bool = False
    autotune: bool | str = False
    double_backward: bool = False
    instruction_set: str | None = None
    accumulators: int = 0
    max_versions: int = 8
    max_compilations: int = 256
    max_rounds: int = 16
    split_reductions: bool = True
    fuse: bool = True
    cuda_graphs: bool = False
    graph_inputs: str = "check"
    graph_outputs: str = "reuse"
    matmul: str = "rule"
    attention: str = "auto"
    memory_budget: int | float | None = None
    validate: bool = False
    extra: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    outside: Backend | None = field(default=None, repr=False)

    @property
    def search_method(self) -> str | None:
        """The method that ``autotune`` asks for; None if it asks for none."""
        return SEARCH_METHODS[0] if self.autotune is True else self.autotune or None

    @property
    def last_stage(self) -> str:
        """The last of our stages that the backend runs: "transforms", "operators" or "artifact"."""
        return self.outside.after if self.outside else table.OWN[self.backend].after

    @staticmethod
    def names() -> frozenset[str]:
        """The names that ``options=`` may have, whatever the backend."""
        return frozenset(f.name for f in dataclasses.fields(Options)) - _PARAMETERS

    def __post_init__(self) -> None:
        """Raise OptionError for a value that its option does not allow."""
        if self.outside is None or self.outside.name != self.backend:
            row = table.find(self.backend)
            if row is None:
                raise OptionError(f"unknown backend {self.backend!r}{nearest(str(self.backend), table.names())}")
            object.__setattr__(self, "outside", row if row.is_outside else None)
            if not row.is_outside:
                object.__setattr__(self, "extra", ())
        if self.outside and self.dynamic:
            raise OptionError(
                f"backend {self.backend!r} is given the shapes of one call, and dynamic=True asks for all of a rank",
                remedy="leave dynamic=True out: a version is made for each shape",
            )
        for name, (allowed, words) in _ALLOWED.items():
            if not allowed(value := getattr(self, name)):
                raise OptionError(f"{name}={value!r} is not allowed: {name} must be {words}")

    @staticmethod
    def resolve(
        *,
        backend: str | Callable[..., Any] = "stax",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        dynamic: bool = False,
        strict_native: bool = False,
    ) -> Options:
        """Mode presets first, then ``options`` key by key (Section 11.5). ``backend`` is a name or a backend itself.
        Unknown names raise OptionError, with the nearest known one."""
        if not (mode is None or isinstance(mode, str)) or mode not in MODES:
            raise OptionError(f"unknown mode {mode!r}{nearest(str(mode), [m for m in MODES if m])}")
        if not isinstance(options, Mapping | None):
            raise OptionError(
                f"options must be a dict, not {type(options).__name__}",
                remedy="options={'accumulators': 4}, for example",
            )
        row = table.find(backend) if isinstance(backend, str) else None
        if row is None and callable(backend):
            row = table.of_callable(backend)
        if row is None:
            raise OptionError(f"unknown backend {backend!r}{nearest(str(backend), table.names())}")
        declared, takes_any = row.parameters()
        values, extra = dict(MODES[mode]), {}
        for name, value in (options or {}).items():
            if name in Options.names():
                values[name] = value
            elif isinstance(name, str) and (name in declared or takes_any):
                extra[name] = _hashable(row.name, name, value)
            else:
                raise _unknown_option(name, declared)
        return Options(
            backend=row.name, mode=mode, dynamic=dynamic, strict_native=strict_native,
            extra=tuple(extra.items()), outside=row if row.is_outside else None, **values,
        )  # fmt: skip


_PARAMETERS = frozenset({"backend", "mode", "dynamic", "strict_native", "extra", "outside"})

#: What an option is called elsewhere: the chapter's name (Section 11.5), and those of compilers of the same kind.
ELSEWHERE = {
    "stax.cudagraphs": "cuda_graphs", "stax.cuda_graphs": "cuda_graphs", "triton.cudagraphs": "cuda_graphs",
    "cudagraphs": "cuda_graphs", "stax.max_autotune": "autotune", "stax.autotune": "autotune",
    "max_autotune": "autotune", "stax.fusion": "fuse", "stax.fuse": "fuse",
}  # fmt: skip


def _unknown_option(name: Any, declared: Iterable[str]) -> OptionError:
    if name in ELSEWHERE:
        ours = ELSEWHERE[name]
        return OptionError(f"unknown option {name!r}: here it is called {ours!r}", remedy=f"options={{{ours!r}: ...}}")
    if name in _PARAMETERS - {"extra", "outside"}:
        return OptionError(f"unknown option {name!r}: it is a parameter of its own", remedy=f"compile(f, {name}=...)")
    return OptionError(f"unknown option {name!r}{nearest(str(name), sorted({*Options.names(), *declared}))}")


def _hashable(backend: str, name: str, value: Any) -> Any:
    """``value``, which becomes part of every cache key."""
    try:
        hash(value)
    except TypeError:
        raise OptionError(
            f"option {name!r} of backend {backend!r} has no hash: {type(value).__name__}",
            remedy="pass a number, a string or a tuple of them",
        ) from None
    return value
