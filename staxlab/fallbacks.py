"""When a region does not become kernels: why, what the user can do about it, and how it is said (Section 11.4).

A :class:`~staxlab.compilation.Fallback` is visible in every case: a warning that names the line and the remedy, a note
on the record and in the explorer. What only the user can mend (no compiler, a setting that does not exist) is no
fallback but an error, which the pipeline lets through.
"""

from __future__ import annotations

from typing import Any

from . import logs
from .capture.autograd import autograd_obstacle
from .capture.values import memory_obstacle
from .compilation import Compilation, Fallback, Stage
from .errors import FallbackWarning, LoweringError, StaxError
from .instances import draws_by_generators
from .provenance import warn_user
from .specialize.signature import is_pending

REMEDIES = {
    "pending": "pass x.resolve_conj().resolve_neg(), which carries it out in memory",
    "requires-grad": "make it outside the compiled function and pass it, or leave requires_grad=True out",
    "gradient-write": "write into a copy (.clone()), or where no gradient is needed under torch.no_grad()",
    "phase": "return the eigenvalues or singular values alone, or differentiate outside the compiled function",
    "saved-write": "use the operation that returns a new tensor: y = y + 1 for y.add_(1)",
    "inference": "enter torch.inference_mode() around the call, or use torch.no_grad() inside",
    "detached": "detach it outside the compiled function, or return a copy (.detach().clone())",
    "device": "move the tensors to the CPU or to a CUDA device",
    "opaque": "use operators that leave the decision in the data: torch.where, masks, staxlab.gate",
    "mutation": "rewrite the operation without mutation: x = x + 1 in the place of x.add_(1)",
    "overlap": "write into a copy (.clone()), or through a view that shows every element once",
    "written-twice": "write the tensors one after the other, each in a call of its own",
    "shared-input": "pass copies (.clone()), or pass the tensor that holds them all and take the views inside",
    "outside": "take the view with slices, or with as_strided inside the elements of a tensor made in the function",
    "reshaped": "use the operation that returns another tensor: x.t() for x.t_(), x.unsqueeze(0) for x.unsqueeze_(0)",
    "constant": "pass the tensor as an argument, or register it as a buffer of the module",
    "random-layout": "draw into a contiguous tensor and copy it: x.copy_(torch.rand(x.shape)) for x.uniform_()",
    "uninitialized": "fill the memory: torch.zeros in the place of torch.empty",
    "data-dependent": "keep the value a tensor instead of reading it into Python: torch.where, masks, staxlab.gate",
    "dynamic-shape": "use an operator whose result has a shape known beforehand, such as torch.where for a selection",
    "unknown-tensor": "pass the tensor as an argument, or make it inside the function with torch's own operators",
    "unsupported-tensor": "convert it to an ordinary tensor first: .to_dense(), .dequantize()",
}


def failure(stage: Stage, error: Exception) -> Fallback:
    """What a stage that raised makes of the region. Only an error that is not ours is called a defect."""
    where = "the outside backend: " if stage.name == "outside" else f"stage {stage.name!r}: "
    if isinstance(error, StaxError):
        return Fallback(where + error.what.replace("\n", "; "), error.remedy, error.where)
    text = str(error).replace("\n", "; ")
    missing = isinstance(error, NotImplementedError) or "is not implemented" in text  # a derivative PyTorch lacks
    remedy = None if missing else "this is a defect of the compiler, please report it"
    return Fallback(f"{where}{type(error).__name__}: {text}", remedy)


def obstacle(compilation: Compilation, stage: str) -> Fallback | None:
    """Why the region must run as a captured graph instead of as kernels, or None."""
    options = compilation.options
    if stage == "transforms" and options.dynamic and draws_by_generators(compilation.transforms.final.graph):
        return Fallback("it draws from a generator of its own, which planning for new sizes would move on")
    if stage == "capture":
        fallback = autograd_obstacle(compilation.graph, trains=compilation.trains)
        fallback = fallback or memory_obstacle(compilation.graph)
        if fallback is not None:
            reason, kind, node = fallback
            return Fallback(reason, REMEDIES[kind], node.location)
    if stage == "capture" and any(map(is_pending, compilation.sample)):
        reason = "an input has a pending negation or conjugation, which kernels would not see"
        return Fallback(reason, REMEDIES["pending"])
    if stage == "capture" and compilation.capture.opaque_nodes:
        node = compilation.capture.opaque_nodes[0]
        reason = f"{node.target_name()} decides by the data it reads inside"
        return Fallback(reason, REMEDIES["opaque"], node.location)
    if stage in ("joint", "operators") and compilation.records[stage].obstacles:
        first = compilation.records[stage].obstacles[0]
        return Fallback(f"%{first.node}: {first.reason}", REMEDIES.get(first.kind), first.location)
    return None


def announce(compilation: Compilation, fallback: Fallback, warned: dict | None) -> None:
    """Let the region run as a captured graph: keep the reason and warn, once for each place named in ``warned``.

    Raises LoweringError where that must not happen: for a derivative, and with ``strict_native``.
    """
    if compilation.derivative and compilation.operators is None:
        raise LoweringError(
            f"the {compilation.name} cannot be compiled: {fallback.reason}",
            where=fallback.where,
            remedy=fallback.remedy or "use torch.func on the function itself",
        )
    if compilation.options.strict_native:
        otherwise = "without strict_native the region runs operator by operator"
        raise LoweringError(
            f"{compilation.name} cannot be compiled to native kernels: {fallback.reason}",
            where=fallback.where,
            remedy=f"{fallback.remedy}; {otherwise}" if fallback.remedy else otherwise,
        )
    compilation.fallback = fallback
    logs.say("fallbacks", lambda: f"{compilation.name} runs operator by operator: {fallback}")
    remedy = f"\n  remedy: {fallback.remedy}" if fallback.remedy else ""
    warn_user(f"{compilation.name} runs operator by operator: {fallback}{remedy}", FallbackWarning, warned)


def extern_buffers(compilation: Compilation) -> list[Any]:
    """What PyTorch's own routines compute, library calls and fallbacks."""
    if compilation.plan is not None:
        return [*compilation.plan.externs]
    from .loops.ir import ExternBuffer

    return [buffer.data for buffer in compilation.loops.buffers if isinstance(buffer, ExternBuffer)]


def _by_pytorch(extern: Any) -> str:
    why = "; ".join(filter(None, (extern.cause, f"at {extern.location}" if extern.location else "")))
    return f"{extern.operator} runs through PyTorch ({extern.reason}){': ' if why else ''}{why}"


MOST_NAMED = 4  # operators that one warning names


def warn_about_fallbacks(compilation: Compilation, warned: dict | None) -> None:
    """One warning for the operators of a region that have no kernel: which, on what line, and why."""
    if compilation.compiled_kernels is None or compilation.fallback:
        return
    externs = extern_buffers(compilation)
    for said in dict.fromkeys(map(_by_pytorch, externs)) if logs.enabled("fallbacks") else ():
        logs.say("fallbacks", f"{compilation.name}: {said}")
    lines = dict.fromkeys(
        f"\n  {extern.cause}" + (f", at {extern.location}" if extern.location else "")
        for extern in externs
        if extern.reason == "fallback"
    )
    if not lines:
        return
    named = [*lines][:MOST_NAMED]
    more = len(lines) - len(named)
    if more:
        named.append(f"\n  and {more} more: compilation.kernels.fallbacks has them all")
    what = "an operator runs" if len(lines) == 1 else "some operators run"
    lacking = all("has no lowering" in line for line in lines)
    remedy = "staxlab.register_lowering adds a rule" if lacking else "another dtype or layout may have a kernel"
    text = f"{compilation.name}: {what} through PyTorch and not in a generated kernel:{''.join(named)}"
    text += f"\n  remedy: none is needed for the values, which are eager's; for speed, {remedy}"
    warn_user(text, FallbackWarning, warned)
