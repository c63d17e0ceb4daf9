"""Which implementation computes an attention, and why (Section 9.10).

There is one template for GPUs, one for decoding, which splits the keys of a few queries over the whole device, one in
C++, and the definition itself on N x M matrices. :func:`choose` looks at the device and the sizes only, so that equal
problems have equal implementations; ``kernel_options={"BACKEND": ...}`` asks for one, and one that is not available is
an error that says why, never another in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import FallbackWarning, OptionError
from ..options import Decision, nearest
from ..provenance import warn_user
from .problem import AttentionProblem

#: What ``kernel_options`` may hold besides BACKEND: numbers, and the least and the largest.
NUMBERS: dict[str, tuple[int, int]] = {
    "BLOCK_M": (1, 1024),
    "BLOCK_N": (1, 1024),
    "num_warps": (1, 32),
    "num_stages": (1, 8),
    "SPLITS": (1, 1024),
}


@dataclass(frozen=True)
class Backend:
    """One implementation. ``refuses`` says why it cannot have a problem ("" if it can), ``forward`` and ``backward``
    build what computes it for a problem and a configuration: a callable with a ``source``."""

    what: str
    refuses: Callable[[AttentionProblem], str]
    forward: Callable[[AttentionProblem, dict[str, Any]], Any]
    backward: Callable[[AttentionProblem, dict[str, Any]], Any]


def _reference_forward(problem: AttentionProblem, configuration: dict[str, Any]) -> Any:
    from .matrix import MatrixForward

    return MatrixForward(problem)


def _reference_backward(problem: AttentionProblem, configuration: dict[str, Any]) -> Any:
    from .matrix import MatrixBackward

    return MatrixBackward(problem)


#: Every implementation by its name in ``kernel_options``, the preferred one first.
BACKENDS: dict[str, Backend] = {
    "reference": Backend(
        "no template fits", lambda problem: "", _reference_forward,
        _reference_backward,
    ),
}  # fmt: skip


def check_options(given: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """``kernel_options`` as sorted pairs. OptionError for a key that is unknown, naming the nearest, or a value that
    the key does not allow."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise OptionError(
            f"kernel_options must be a dict, not {type(given).__name__}", remedy='kernel_options={"BACKEND": "cpp"}'
        )
    for key, value in given.items():
        if key == "BACKEND":
            if value not in BACKENDS:
                raise OptionError(f"unknown BACKEND {value!r} in kernel_options{nearest(str(value), BACKENDS)}")
        elif key not in NUMBERS:
            raise OptionError(f"unknown kernel option {key!r}{nearest(str(key), ('BACKEND', *NUMBERS))}")
        else:
            least, most = NUMBERS[key]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise OptionError(f"kernel option {key}={value!r} must be a whole number from {least} to {most}")
    return tuple(sorted(given.items()))


def choose(problem: AttentionProblem, options: tuple[tuple[str, Any], ...] = ()) -> Decision:
    """The backend of a problem, with the reason and what was against the others. OptionError where the one asked for
    is not available."""
    asked = dict(options).get("BACKEND")
    refusals = {name: backend.refuses(problem) for name, backend in BACKENDS.items()}
    able = [name for name, reason in refusals.items() if not reason]
    inputs = (("queries", problem.queries), ("keys", problem.keys), ("heads", problem.query_heads),
              ("device", problem.device.name))  # fmt: skip
    if asked is not None:
        if refusals[asked]:
            raise OptionError(
                f"kernel_options asks for BACKEND={asked!r}, which is not available: {refusals[asked]}",
                remedy=f"available here: {', '.join(able)}; without BACKEND the fitting one is chosen",
            )
        return Decision("attention-backend", str(problem), asked, "kernel_options asks for it", tuple(able), inputs)
    choice = able[0]
    against = [f"{name}: {reason}" for name, reason in refusals.items() if reason]
    why = BACKENDS[choice].what + (f" ({'; '.join(against)})" if against else "")
    return Decision("attention-backend", str(problem), choice, why, tuple(able), inputs)


def build(problem: AttentionProblem, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    """What computes a problem: the forward pass, or, where the problem needs gradients, the backward pass.

    Warns where only the definition is left, whose memory grows with N M. Raises what :func:`choose` and the builders
    raise: OptionError, BuildError without a compiler.
    """
    decision = choose(problem, options)
    configuration = {key: value for key, value in options if key != "BACKEND"}
    if decision.choice == "reference" and not dict(options).get("BACKEND"):
        warn_user(f"{problem} runs on N x M matrices: {decision.reason}", FallbackWarning)
    backend = BACKENDS[decision.choice]
    return (backend.backward if problem.needs_gradient else backend.forward)(problem, configuration)
