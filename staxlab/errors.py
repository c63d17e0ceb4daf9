"""Errors of the compiler. Each says what happened, where in the user's source, and what to do about it.

All of them derive from :class:`StaxError`, so ``except staxlab.StaxError`` catches every deliberate refusal and
nothing else: an exception raised by the user's own function passes through untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .provenance import SourceLocation


class StaxError(Exception):
    """Base class. ``what`` happened, ``where`` (the user's source line), and the ``remedy``."""

    def __init__(self, what: str, *, where: SourceLocation | None = None, remedy: str | None = None):
        self.what = what
        self.where = where
        self.remedy = remedy
        parts = [what]
        if where is not None:
            parts.append(f"  at {where}")
        if remedy:
            parts.append(f"  remedy: {remedy}")
        super().__init__("\n".join(parts))


class CaptureError(StaxError):
    """The function cannot be recorded as a graph (Section 3); nothing was compiled."""


class GuardError(StaxError):
    """A specialization key or its guards cannot be built or evaluated (Section 2)."""


class TransformError(StaxError):
    """A rewrite broke an invariant of the graph (Section 4). Always a defect of a rule, never of the user."""


class LoweringError(StaxError):
    """An operator has no native lowering (Section 6) and ``strict_native=True`` forbids the fallback."""


class ScheduleError(StaxError):
    """The loop program cannot be ordered or grouped (Section 7)."""


class CodegenError(StaxError):
    """Source could not be generated for a target (Sections 8 and 9)."""


class BuildError(StaxError):
    """The external compiler is missing or failed (Section 11). Carries the compiler's own words when it spoke."""


class BackendError(StaxError):
    """An outside backend refused a graph, or what it returned breaks its contract (Section 11.3)."""


class ValidationError(StaxError):
    """A generated kernel does not compute what its loops mean (``options={"validate": True}``, Section 6.9). The
    message names kernel, element, both values and the user's lines; ``validation`` is the whole record."""

    def __init__(
        self, what: str, *, where: SourceLocation | None = None, remedy: str | None = None, validation: object = None
    ):
        super().__init__(what, where=where, remedy=remedy)
        self.validation = validation


class ToleranceError(StaxError, AssertionError):
    """Two results differ by more than rounding explains for their data (Sections 11.4 and 13.3)."""


class ConstraintError(StaxError):
    """A declared dimension range or an option contradicts what the program needs (Section 10)."""


class OptionError(StaxError, ValueError):
    """An unknown option, mode, backend or target; the message names the nearest valid one."""


class MissingDependencyError(StaxError, ImportError):
    """An optional package is needed for this feature; the remedy names the extra to install."""


class SubscriptError(StaxError, IndexError, RuntimeError):
    """A subscript that is data is out of range: the message has its value, its position in the index tensor and the
    size it exceeds (:mod:`staxlab.capture.subscripts`). Eager execution raises an IndexError for some operators
    (``x[i]``) and a RuntimeError for others (``gather``); this is both, so that what catches one of them still does."""


class OutOfMemoryError(StaxError, MemoryError):
    """The system has no memory for a result or a temporary of a region, not even once the pool has been emptied."""


class FallbackWarning(UserWarning):
    """Part of a compiled region runs through PyTorch's own operator instead of a generated kernel."""


class GraphWarning(UserWarning):
    """A region launches its kernels one by one where CUDA Graphs were asked for (Section 9.9); the message says why."""


class RecompileWarning(UserWarning):
    """A function keeps missing its specialization cache; the message names the component that keeps changing."""


class SideEffectWarning(UserWarning):
    """A side effect on the Python side (printing, appending to a list) happened while tracing and will not recur."""
