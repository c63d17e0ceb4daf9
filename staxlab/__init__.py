"""staxlab: a deep-learning compiler you can stand inside.

``staxlab.compile(fn)`` compiles, ``staxlab.explain(fn, *args)`` shows every stage of a compilation, and
``staxlab.learn`` holds the exercises. Importing the package loads PyTorch and light modules only; everything heavy is
imported when it is first used.
"""

from __future__ import annotations

from . import errors
from .api import compile, explain, trace
from .backends.table import list_backends, register_backend
from .capture.gates import gate
from .compilation import Compilation
from .errors import (
    BackendError,
    BuildError,
    CaptureError,
    CodegenError,
    ConstraintError,
    FallbackWarning,
    GraphWarning,
    GuardError,
    LoweringError,
    MissingDependencyError,
    OptionError,
    OutOfMemoryError,
    RecompileWarning,
    ScheduleError,
    StaxError,
    SubscriptError,
    TransformError,
)
from .native.memory import clear_memory_pool, memory_stats, set_memory_limit
from .options import Decision, DeviceSpec, Options

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BlockMask",
    "Buckets",
    "BuildError",
    "CaptureError",
    "CodegenError",
    "Compilation",
    "ConstraintError",
    "Decision",
    "DeviceSpec",
    "Dim",
    "FallbackWarning",
    "GraphWarning",
    "GuardError",
    "LoweringError",
    "MissingDependencyError",
    "OptionError",
    "Options",
    "OutOfMemoryError",
    "RecompileWarning",
    "ScheduleError",
    "StaxError",
    "SubscriptError",
    "TransformError",
    "bucketed",
    "clear_memory_pool",
    "compile",
    "create_block_mask",
    "errors",
    "explain",
    "export",
    "gate",
    "hvp",
    "jvp",
    "list_backends",
    "load_exported",
    "locate_error",
    "memory_stats",
    "omni_attention",
    "register_backend",
    "register_lowering",
    "set_memory_limit",
    "trace",
]


_LOADED_LATER = {
    "BlockMask": ".attention.block_mask",
    "Buckets": ".shapes.bucketing",
    "Dim": ".exporting",
    "bucketed": ".shapes.bucketed",
    "create_block_mask": ".attention.block_mask",
    "export": ".exporting",
    "hvp": ".derivatives",
    "jvp": ".derivatives",
    "load_exported": ".exporting",
    "locate_error": ".locate",
    "omni_attention": ".attention.omni",
    "register_lowering": ".loops.lowering",
}


def __getattr__(name: str):
    # Subpackages load when first touched; `register_lowering` pulls in the lowering rules. A function that is being
    # recorded may be the first to touch one, and what modules compute while they load is no part of it.
    import importlib

    from .specialize.ambient import unrecorded

    if name in ("attention", "measure", "learn", "view"):
        return unrecorded(lambda: importlib.import_module(f".{name}", __name__))
    if name in _LOADED_LATER:
        return getattr(unrecorded(lambda: importlib.import_module(_LOADED_LATER[name], __name__)), name)
    raise AttributeError(f"module 'staxlab' has no attribute {name!r}")
