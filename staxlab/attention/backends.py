"""Which implementation computes an attention, and why (Section 9.10).

There is one template for GPUs, one for decoding, which splits the keys of a few queries over the whole device, one in
C++, and the definition itself on N x M matrices. :func:`choose` looks at the device and the sizes only, so that equal
problems have equal implementations; ``kernel_options={"BACKEND": ...}`` asks for one, and one that is not available is
an error that says why, never another in its place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from ..codegen.extern import Description
from ..errors import FallbackWarning, OptionError, StaxError
from ..options import Decision, nearest
from ..provenance import Line, warn_user
from .problem import LARGEST_HEAD, AttentionProblem

#: What ``kernel_options`` may hold besides BACKEND: whole numbers, of which each template takes some, and settings that
#: are on or off: FETCH of the Triton template, and INTERPRET, which runs it on a CPU, slowly.
NUMBERS = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "SPLITS")
FLAGS = ("FETCH", "INTERPRET")

#: A key of this many queries each: what decoding is for. More of them keep the device busy without splitting the keys.
FEW_QUERIES = 16


@dataclass(frozen=True)
class Backend:
    """One implementation. ``refuses`` says why it cannot have a problem ("" if it can), ``build`` makes what computes
    it, for a configuration, and ``describe`` says what that is, without a device or a compiler at hand."""

    what: str
    refuses: Callable[[AttentionProblem], str]
    build: Callable[[AttentionProblem, dict[str, Any]], Any]
    describe: Callable[[AttentionProblem, dict[str, Any]], Description]


def _too_large(problem: AttentionProblem) -> str:
    largest = max(problem.head_size, problem.value_size)
    if largest > LARGEST_HEAD:
        return f"rows of {largest} elements do not stay on the chip: {LARGEST_HEAD} at most"
    return "" if problem.value_size else "values have no elements"


# -- Triton ------------------------------------------------------------------------------------------------------------


def _refuses_triton(problem: AttentionProblem) -> str:
    from ..codegen.triton.attention.pieces import why_not

    if find_spec("triton") is None:
        return "Triton is not installed"
    return _too_large(problem) or why_not(problem)


def _refuses_decoding(problem: AttentionProblem) -> str:
    from ..codegen.triton.attention.configurations import why_not_decoding

    return _refuses_triton(problem) or why_not_decoding(problem)


def _triton(problem: AttentionProblem, configuration: dict[str, Any], decoding: bool = False) -> Any:
    if problem.needs_gradient:
        from ..codegen.triton.attention.backward import build_backward

        return build_backward(problem)
    from ..codegen.triton.attention.configurations import configured

    chosen = configured(problem, configuration, decoding)
    if decoding:
        from ..codegen.triton.attention.decoding import build_decoding

        return build_decoding(problem, chosen)
    from ..codegen.triton.attention.forward import build_forward

    return build_forward(problem, chosen)


def _decoding(problem: AttentionProblem, configuration: dict[str, Any]) -> Any:
    return _triton(problem, configuration, decoding=True)


def _describe_triton(problem: AttentionProblem, configuration: dict[str, Any]) -> Description:
    return _described_triton(_triton(problem, configuration))


def _describe_decoding(problem: AttentionProblem, configuration: dict[str, Any]) -> Description:
    return _described_triton(_decoding(problem, configuration))


def _described_triton(made: Any) -> Description:
    kernels = made.kernels() if callable(made.kernels) else made.kernels
    lines = [line for kernel in kernels for line in (*kernel.lines, Line(""))]
    return Description("triton", tuple(lines), tuple(kernels), tuple(d for kernel in kernels for d in kernel.decisions))


# -- C++ ---------------------------------------------------------------------------------------------------------------


def _refuses_cpp(problem: AttentionProblem) -> str:
    return "the tensors are on a GPU" if problem.device.is_gpu else _too_large(problem)


def _cpp(problem: AttentionProblem, configuration: dict[str, Any]) -> Any:
    from ..runtime import attention_cpu

    return (attention_cpu.build_backward if problem.needs_gradient else attention_cpu.build_forward)(
        problem, configuration
    )


def _describe_cpp(problem: AttentionProblem, configuration: dict[str, Any]) -> Description:
    from ..codegen.cpp import attention, attention_backward

    source = attention_backward.backward_source if problem.needs_gradient else attention.forward_source
    kernel = source(problem, configuration).kernel
    return Description("cpp", kernel.lines, (kernel,), kernel.decisions)


# -- matrices ----------------------------------------------------------------------------------------------------------


def _matrix(problem: AttentionProblem, configuration: dict[str, Any]) -> Any:
    from .matrix import MatrixBackward, MatrixForward

    return (MatrixBackward if problem.needs_gradient else MatrixForward)(problem)


def _describe_matrix(problem: AttentionProblem, configuration: dict[str, Any]) -> Description:
    return Description("text", tuple(map(Line, _matrix(problem, configuration).source.splitlines())))


#: Every implementation by its name in ``kernel_options``.
BACKENDS: dict[str, Backend] = {
    "triton": Backend("the general template", _refuses_triton, _triton, _describe_triton),
    "decode": Backend("few queries: the keys are split", _refuses_decoding, _decoding, _describe_decoding),
    "cpp": Backend("the template for CPUs", _refuses_cpp, _cpp, _describe_cpp),
    "reference": Backend("no template fits", lambda problem: "", _matrix, _describe_matrix),
}


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
            if not isinstance(value, str) or value not in BACKENDS:
                raise OptionError(f"unknown BACKEND {value!r} in kernel_options{nearest(str(value), BACKENDS)}")
        elif key not in NUMBERS + FLAGS:
            raise OptionError(f"unknown kernel option {key!r}{nearest(str(key), ('BACKEND', *NUMBERS, *FLAGS))}")
        elif key in FLAGS and not isinstance(value, bool):
            raise OptionError(f"kernel option {key}={value!r} must be True or False")
        elif key in NUMBERS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise OptionError(f"kernel option {key}={value!r} must be a whole number, 1 at least")
    return tuple(sorted(given.items()))


def _refusals(problem: AttentionProblem, options: dict[str, Any]) -> dict[str, str]:
    """Why each backend cannot have a problem; "" where it can."""
    found = {name: backend.refuses(problem) for name, backend in BACKENDS.items()}
    if not problem.device.is_gpu and not options.get("INTERPRET"):
        for name in ("triton", "decode"):
            found[name] = "the tensors are on a CPU (INTERPRET=True runs it in Triton's interpreter, slowly)"
    return found


def choose(problem: AttentionProblem, options: tuple[tuple[str, Any], ...] = ()) -> Decision:
    """The backend of a problem, with the reason and what is against the others. OptionError where the one asked for
    is not available."""
    asked = dict(options).get("BACKEND")
    refusals = _refusals(problem, dict(options))
    able = tuple(name for name, reason in refusals.items() if not reason)
    inputs = (("queries", problem.queries), ("keys", problem.keys), ("heads", problem.query_heads),
              ("device", problem.device.name))  # fmt: skip
    if asked is not None:
        if refusals[asked]:
            raise OptionError(
                f"kernel_options asks for BACKEND={asked!r}, which is not available: {refusals[asked]}",
                remedy=f"available here: {', '.join(able)}; without BACKEND the fitting one is chosen",
            )
        return Decision("attention-backend", str(problem), asked, "kernel_options asks for it", able, inputs)
    preferred = ["triton", "cpp", "reference"]
    if problem.queries <= FEW_QUERIES and not problem.needs_gradient:
        preferred.insert(0, "decode")
    choice = next(name for name in preferred if name in able)
    against = [f"{name}: {reason}" for name, reason in refusals.items() if reason]
    why = BACKENDS[choice].what + (f" ({'; '.join(against)})" if against else "")
    return Decision("attention-backend", str(problem), choice, why, able, inputs)


def build(problem: AttentionProblem, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    """What computes a problem: the forward pass, or, where the problem needs gradients, the backward pass.

    Warns where only the definition is left, whose memory grows with N M. Raises what :func:`choose` and the builders
    raise: OptionError, BuildError without a compiler; StaxError where algorithms are to be deterministic and are not.
    """
    decision = choose(problem, options)
    if decision.choice == "reference" and dict(options).get("BACKEND") is None:
        warn_user(f"{problem} runs on N x M matrices: {decision.reason}", FallbackWarning)
    learns = problem.needs_gradient and any(tensor.requires_grad for tensor in problem.captured)
    if learns and decision.choice == "triton" and torch.are_deterministic_algorithms_enabled():
        raise StaxError(
            "gradients of what a score_mod captures are summed by atomic operations, in no fixed order, which "
            "torch.use_deterministic_algorithms(True) forbids",
            remedy='kernel_options={"BACKEND": "reference"} for short sequences, or detach the captured tensors',
        )
    return BACKENDS[decision.choice].build(problem, _configuration(options))


@functools.lru_cache(maxsize=256)
def describe(problem: AttentionProblem, options: tuple[tuple[str, Any], ...] = ()) -> Description:
    """What :func:`build` makes, as text, with the decision for it; made once for the layers of a model."""
    decision = choose(problem, options)
    found = BACKENDS[decision.choice].describe(problem, _configuration(options))
    embedded = [part for part in (problem.score, problem.mask) if part]
    if problem.needs_gradient and problem.score:
        embedded.append(problem.score.adjoint)
    return Description(found.language, found.lines, found.kernels, (decision, *found.decisions), tuple(embedded))


def _configuration(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {key: value for key, value in options if key not in ("BACKEND", "INTERPRET")}


__all__ = ["BACKENDS", "FLAGS", "NUMBERS", "Backend", "build", "check_options", "choose", "describe"]
