"""The whole pipeline, memoized: what a region's stages came to, kept on disk (Sections 11.1 and 13.4).

The store of compiled kernels spares the external compiler; what remains of a warm start is the compiler's own work,
and most of that is lowering, scheduling and generation. A :class:`Plan` is what is left of them once a region runs: the
kernels' text, the wrapper's, and the recipe of the program in C. A process that meets a graph, options and a device
that some process has met before (:mod:`.plan_key` has what exactly) reads the plan, and neither runs those stages nor
loads them. Proposition 11.1 then holds for the composition of all of them, since each is a function of what the key
covers.

A plan is data (:mod:`.plan_encoding`), verified when read (:mod:`.cache`); one that cannot be read is made anew.
Kernels keep the origins of their lines. What a plan leaves out (loop programs, decisions, predicted traffic) is made
again from the same graph when somebody looks, by the same stages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from .. import logs
from ..codegen.kernel import Kernel, KernelArgument, KernelSet, Wrapper
from ..errors import BuildError
from ..operators.graph import OperatorGraph
from ..options import DeviceSpec, Options
from ..provenance import Line, SourceLocation
from . import cache, plan_basis, plan_sources
from .plan_encoding import NotEncodable, decode, encode
from .plan_key import ambient, key_of
from .program import Recipe

#: What of a kernel's ``launch`` says how it came about, and is read by views and models alone.
DESCRIPTIVE = frozenset({"accumulation", "accumulations", "form"})

#: What lowering says of an operator whose rule raised something unforeseen.
RULE_FAILED = "where its rule failed"

_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class ExternCall:
    """An operator that PyTorch runs, as far as warnings and executors ask: see :class:`staxlab.loops.ir.Extern`."""

    operator: torch._ops.OpOverload
    reason: str
    cause: str
    location: SourceLocation | None


@dataclass(frozen=True)
class Plan:
    """What runs of a region, before kernels are loaded.

    ``kernels`` are at least those that were generated; ``recipe`` is a reason where the region runs through its Python
    ``wrapper``. ``inputs`` are the names of its inputs, tensor constants last; ``externs`` what PyTorch runs. ``key``
    is the name it is kept under, "" if it is not; ``ambient`` the settings it was made under.
    """

    kernels: KernelSet
    wrapper: Wrapper
    recipe: Recipe | str
    inputs: tuple[str, ...]
    externs: tuple[ExternCall, ...]
    key: str = ""
    ambient: tuple[Any, ...] = ()

    def require_same(self, kernels: KernelSet, region: str) -> None:
        """BuildError unless ``kernels``, generated anew, have the text of those that run."""
        anew = {kernel.name: kernel.source for kernel in kernels}
        for kernel in self.kernels:
            if anew.get(kernel.name) != kernel.source:
                raise BuildError(
                    f"{region} was restored from the cache ({self.key}), and what its stages give now differs in "
                    f"kernel {kernel.name}",
                    remedy="rules or settings may have changed since it was compiled: compile it again; if that does "
                    "not help, `staxlab cache clear`",
                )


def name_of(operators: OperatorGraph, options: Options, device: DeviceSpec, owned: frozenset[str], title: str) -> str:
    """The name of a region's plan in the cache, "" where none is kept: plans are switched off, the rules are not the
    package's own, options ask for what a plan leaves out, or something has no portable text."""
    if options.search_method or options.validate or options.dynamic:
        return ""
    sources = plan_sources.digest()
    if sources is None:
        return ""
    if not plan_basis.is_own():
        logs.say("cache", lambda: f"no plan of {title}: rules have been registered")
        return ""
    try:
        return key_of(operators, options, device, owned, plan_basis.digest(), sources)
    except Exception as reason:  # NotEncodable as a rule; a region without a key is compiled all the same
        said = str(reason)
        logs.say("cache", lambda: f"no plan of {title}: {said}")
        return ""


def made(
    operators: OperatorGraph, loops: Any, schedule: Any, kernels: KernelSet, wrapper: Wrapper, key: str = ""
) -> Plan:
    """The plan that stages came to."""
    from ..loops.ir import ExternBuffer
    from .recipe import recipe_of

    calls = [buffer.data for buffer in loops.buffers if isinstance(buffer, ExternBuffer)]
    externs = tuple(ExternCall(call.operator, call.reason, call.cause, call.location) for call in calls)
    inputs = tuple(buffer.name for buffer in loops.inputs)
    return Plan(kernels, wrapper, recipe_of(schedule, kernels), inputs, externs, key, ambient())


def keep(plan: Plan, operators: OperatorGraph, device: DeviceSpec, title: str) -> bool:
    """Write a plan to the cache under its key, if it has one and can be written. Whether it was."""
    if not plan.key:
        return False
    if any(RULE_FAILED in call.cause for call in plan.externs):
        logs.say("cache", lambda: f"no plan of {title}: a rule failed, which may have been for want of memory")
        return False
    try:
        text = json.dumps(_encoded(plan, operators, device), separators=(",", ":"), allow_nan=False)
    except NotEncodable as reason:
        said = str(reason)
        logs.say("cache", lambda: f"no plan of {title}: it holds {said}")
        return False
    cache.write_verified(plan.key, text.encode(), title=title)
    return True


def restored(key: str, operators: OperatorGraph, device: DeviceSpec, title: str) -> Plan | None:
    """The plan kept under ``key``, for the graph and device that the key was made of; None if there is none."""
    content = cache.read_verified(key) if key else None
    if content is None:
        return None
    try:
        plan = _decoded(json.loads(content), operators, device, key)
    except _UNREADABLE as error:
        said = f"{type(error).__name__}: {error}"
        logs.say("cache", lambda: f"the plan of {title} cannot be read ({said}): its stages run")
        return None
    logs.say("cache", lambda: f"{title}: its stages from lowering on are restored ({key})")
    return plan


# -- as text -----------------------------------------------------------------------------------------------------------


def _encoded(plan: Plan, operators: OperatorGraph, device: DeviceSpec) -> dict[str, Any]:
    places = {id(node.location): node.name for node in operators.graph if node.location is not None}
    recipe = plan.recipe
    if isinstance(recipe, Recipe):
        recipe = (recipe.inputs, recipe.arena, recipe.values, recipe.steps, recipe.outputs)
    return {
        "kernels": [_kernel(kernel, device) for kernel in plan.kernels if kernel.language != "extern"],
        "wrapper": {"lines": _lines(plan.wrapper.lines), "globals": encode(plan.wrapper.globals)},
        "recipe": encode(recipe),
        "inputs": list(plan.inputs),
        "externs": [_extern(call, places) for call in plan.externs],
    }


def _decoded(text: dict[str, Any], operators: OperatorGraph, device: DeviceSpec, key: str) -> Plan:
    recipe = decode(text["recipe"])
    wrapper = Wrapper(_lines_of(text["wrapper"]["lines"]), decode(text["wrapper"]["globals"]))
    located = {node.name: node.location for node in operators.graph} if text["externs"] else {}
    externs = tuple(
        ExternCall(decode(operator), reason, cause, None if place is None else located[place])
        for operator, reason, cause, place in text["externs"]
    )
    return Plan(
        KernelSet(tuple(_kernel_of(kernel, device) for kernel in text["kernels"])),
        wrapper,
        recipe if isinstance(recipe, str) else Recipe(*recipe),
        tuple(text["inputs"]),
        externs,
        key,
        ambient(),
    )


def _extern(call: ExternCall, places: dict[int, str]) -> list[Any]:
    """The user's line is that of a node, whose line now is another where the program has moved in its file."""
    if call.location is not None and id(call.location) not in places:
        raise NotEncodable(f"a call of {call.operator} on a line of no node")
    place = None if call.location is None else places[id(call.location)]
    return [encode(call.operator), call.reason, call.cause, place]


#: Fields of a kernel that are kept as they are: whole numbers, text, sets, and tuples of text.
_PLAIN = (
    "name", "language", "nodes", "origins", "flags", "bytes_read", "bytes_written", "operations", "is_fallback",
)  # fmt: skip


def _kernel(kernel: Kernel, device: DeviceSpec) -> dict[str, Any]:
    if kernel.device != device or kernel.inner or kernel.embedded or kernel.written_in is not None:
        raise NotEncodable(f"{kernel.name}, a kernel with more to it than its text")
    launch = {name: value for name, value in kernel.launch.items() if name not in DESCRIPTIVE}
    inner = {name: launch.pop(name) for name, value in [*launch.items()] if isinstance(value, Kernel)}
    return {
        "plain": [encode(getattr(kernel, name)) for name in _PLAIN],
        "lines": _lines(kernel.lines),
        "arguments": [[a.name, a.buffer, a.role, encode(a.dtype), a.shared] for a in kernel.arguments],
        "launch": encode(launch),
        "inner": {name: _kernel(value, device) for name, value in inner.items()},
    }


def _kernel_of(text: dict[str, Any], device: DeviceSpec) -> Kernel:
    arguments = tuple(
        KernelArgument(name, buffer, role, decode(dtype), shared)
        for name, buffer, role, dtype, shared in text["arguments"]
    )
    launch = decode(text["launch"]) | {name: _kernel_of(inner, device) for name, inner in text["inner"].items()}
    plain = dict(zip(_PLAIN, map(decode, text["plain"]), strict=True))
    return Kernel(lines=_lines_of(text["lines"]), arguments=arguments, device=device, launch=launch, **plain)


def _lines(lines: tuple[Line, ...]) -> list[Any]:
    """All text, the sets of origins that occur, and for each line the number of its set."""
    sets = {origins: place for place, origins in enumerate(dict.fromkeys(line.origins for line in lines))}
    if any("\n" in line.text for line in lines):
        raise NotEncodable("a line that is several")
    text = "\n".join(line.text for line in lines)
    return [text, [sorted(one) for one in sets], [sets[line.origins] for line in lines]]


def _lines_of(text: list[Any]) -> tuple[Line, ...]:
    joined, sets, numbers = text
    origins = [*map(frozenset, sets)]
    texts = joined.split("\n") if numbers else ()
    return tuple(Line(line, origins[number]) for line, number in zip(texts, numbers, strict=True))
