"""Which regions may be recorded as a CUDA graph (Section 9.9, conditions 1 and 3), decided before anything runs.

A recording holds a fixed sequence of launches: kernel, grid and arguments of each. Replaying it is running the program
again only if the program would launch the same sequence on the new input. Two of the conditions for that can be read
off the compiled region:

* condition 1: neither control flow nor shapes depend on data. Whatever reads a value back to the host, or makes a
  result whose size is data, breaks it;
* condition 3: everything happens on one GPU. A tensor on the CPU, or on another card, breaks it.

Condition 2, the addresses, changes from call to call and is looked at in every call (:mod:`.graphs`).

Random numbers do not stand in the way. While PyTorch records, kernels get the generator's seed and offset from device
memory, and every replay moves the offset on, so a replay draws what the same kernels would have drawn. PyTorch sees to
that for the default generator by itself, and for another one if it is registered with the graph. A generator of the CPU
cannot be: its numbers are drawn on the host and copied.

The check knows the operators of PyTorch that are certain to wait for the device. It need not know all of them: one that
is missing here makes the recording fail, and the region then runs as it is (:class:`.graphs.GraphedRegion`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..capture.failing import is_foreign
from ..loops.ir import BufferArgument
from ..operators.basis import is_random
from ..options import Decision
from ..provenance import SourceLocation

#: Operators of PyTorch that make the host wait for the device although their schema does not say so, and why.
SYNCHRONIZING: dict[str, str] = {
    "_local_scalar_dense": "reads a value back to the host",
    "item": "reads a value back to the host",
    "equal": "reads the answer back to the host",
    "is_nonzero": "reads the answer back to the host",
    "allclose": "reads the answer back to the host",
    "_linalg_check_errors": "reads error codes back to the host",
    "linalg_eig": "computes on the host",
    "linalg_eigvals": "computes on the host",
    "_linalg_eigh": "reads error codes back to the host",
    "_linalg_svd": "reads error codes back to the host",
    "linalg_lstsq": "reads error codes back to the host",
    "geqrf": "may compute on the host",
    "bincount": "reads the largest value back to size its result",
    "histc": "reads the range of its input back to the host",
    "segment_reduce": "reads lengths back to the host",
    "_ctc_loss": "reads lengths back to the host",
    "multinomial": "checks its weights on the host",
    "_fused_sdp_choice": "decides on the host",
}

REMEDIES = {
    "data": "keep the value a tensor, and use an operator whose result has a shape known beforehand (torch.where)",
    "device": "move the tensors to one CUDA device before the call",
    "generator": "use a generator of the same CUDA device, or the default one",
    "foreign": "leave the operator outside the compiled function, or compile with options={'cuda_graphs': False}",
    "dynamic": "compile without dynamic=True",
    "fallback": "see compilation.fallback_remedy",
    "target": "CUDA Graphs are for CUDA devices; on a CPU there is nothing to do",
}


@dataclass(frozen=True)
class Obstacle:
    """Why a region is not recorded. ``condition`` is the number in Section 9.9 (0: not a matter of these), ``node`` the
    name of the operator's result or of the tensor, ``where`` the user's line, ``advice`` what to do where that is known
    better than from the kind."""

    condition: int
    reason: str
    kind: str
    node: str = ""
    where: SourceLocation | None = None
    advice: str = ""

    @property
    def remedy(self) -> str:
        return self.advice or REMEDIES[self.kind]

    def __str__(self) -> str:
        named = f"%{self.node}: " if self.node else ""
        return f"{named}{self.reason}" + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class GraphCheck:
    """What the static check found: all obstacles, and generators that have to be registered with a recording.
    ``looked_at`` are the conditions that were checked at all: where one obstacle is enough, the others are left."""

    subject: str
    obstacles: tuple[Obstacle, ...] = ()
    generators: tuple[torch.Generator, ...] = ()
    draws: bool = False
    looked_at: tuple[int, ...] = (1, 3)

    @property
    def allowed(self) -> bool:
        return not self.obstacles

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision for each condition that can be checked beforehand, and the outcome."""
        found = [self._condition(1, "control flow and shapes do not depend on data")]
        found.append(self._condition(3, "everything happens on one GPU"))
        if self.draws:
            drawn = "it draws random numbers; a replay moves the generator on as the same kernels would have"
            found.append(Decision("cuda-graph-randomness", self.subject, "registered", drawn))
        choice = "record" if self.allowed else "run as it is"
        known = "conditions 1 and 3 hold" if self.looked_at == (1, 3) else "nothing is known that forbids it"
        why = f"{known}; condition 2, the addresses, is checked in every call"
        reason = why if self.allowed else str(self.obstacles[0])
        found.append(Decision("cuda-graph", self.subject, choice, reason, ("record", "run as it is")))
        return tuple(found)

    def _condition(self, number: int, holds: str) -> Decision:
        broken = [obstacle for obstacle in self.obstacles if obstacle.condition == number]
        facts = tuple((f"%{o.node}" if o.node else "region", o.reason) for o in broken)
        choice, reason = ("broken", str(broken[0])) if broken else ("holds", holds)
        if not broken and number not in self.looked_at:
            choice, reason = "not checked", "the check ended before it"
        candidates = ("holds", "broken", "not checked")
        return Decision(f"cuda-graph-condition-{number}", self.subject, choice, reason, candidates, facts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.decisions))


def check_region(compilation: Any) -> GraphCheck:
    """The static check of a compilation's records (a :class:`staxlab.compilation.Compilation` or half of one). Works
    for any target; a sample on the CPU stands for the target's one device."""
    subject = compilation.name
    if not compilation.device.is_gpu:
        return GraphCheck(subject, (Obstacle(3, "the kernels run on the CPU", "target"),), looked_at=(3,))
    if compilation.options.dynamic:
        return GraphCheck(subject, (Obstacle(1, "shapes are not fixed (dynamic=True)", "dynamic"),), looked_at=(1,))
    if compilation.fallback is not None:
        reason = f"the region runs operator by operator: {compilation.fallback.reason}"
        where, advice = compilation.fallback.where, compilation.fallback.remedy or ""
        obstacle = Obstacle(1, reason, "fallback", where=where, advice=advice)
        return GraphCheck(subject, (obstacle,), looked_at=(1,))
    if compilation.schedule is None:
        return GraphCheck(subject, (Obstacle(0, "the region has no kernels", "fallback"),), looked_at=())
    return check_schedule(subject, compilation.schedule)


def check_schedule(subject: str, schedule: Any) -> GraphCheck:
    """The static check of a :class:`~staxlab.schedule.records.Schedule`. O(nodes + buffers)."""
    found = [*_devices(schedule)]
    generators: dict[int, torch.Generator] = {}
    draws = False
    for node in schedule.nodes:
        if node.extern is None:
            continue
        call, name = node.extern, node.buffers[0]
        draws = draws or is_random(call.operator)
        reason = _reads_back(call.operator, call.args)
        if reason is not None:
            found.append(Obstacle(1, f"{call.operator._opname} {reason}", "data", name, call.location))
        if is_foreign(call.operator):
            reason = "is nobody's we know, and may compute on the host"
            found.append(Obstacle(3, f"{call.operator} {reason}", "foreign", name, call.location))
        for generator in _generators((*call.args, *call.kwargs.values())):
            if generator.device.type == "cpu" and _one_device(schedule) != "cpu":
                reason = "draws from a generator of the CPU, on the host"
                found.append(Obstacle(3, f"{call.operator._opname} {reason}", "generator", name, call.location))
            generators[id(generator)] = generator
    return GraphCheck(subject, tuple(found), tuple(generators.values()), draws)


def _one_device(schedule: Any) -> str | None:
    devices = {str(layout.device) for layout in schedule.layouts.values()}
    return next(iter(devices)) if len(devices) == 1 else None


def _devices(schedule: Any) -> list[Obstacle]:
    """What is not on the device on which most of the region is."""
    devices = [str(layout.device) for layout in schedule.layouts.values()]
    if len(set(devices)) <= 1:
        return []
    cards = [device for device in devices if device.startswith("cuda")] or devices
    main = max(dict.fromkeys(cards), key=cards.count)
    made = {name: node for node in schedule.nodes for name in node.buffers}
    found = []
    for name, layout in schedule.layouts.items():
        if str(layout.device) != main:
            call = made[name].extern if name in made else None
            what = "an input" if name in schedule.inputs else "a result"
            reason = f"{what} on {layout.device}, while the region runs on {main}"
            found.append(Obstacle(3, reason, "device", name, call.location if call is not None else None))
    return found


def _reads_back(operator: torch._ops.OpOverload, args: tuple[Any, ...]) -> str | None:
    """Why an operator's launches cannot be known beforehand, or None."""
    tags = operator.tags
    if torch.Tag.dynamic_output_shape in tags:
        return "makes a result whose shape depends on data"
    if torch.Tag.data_dependent_output in tags:
        return "reads a value back to the host"
    if operator.namespace not in ("aten", "prims"):
        return None
    name = operator._opname
    if name in ("index", "index_put", "index_put_", "_index_put_impl_") and _has_mask(args):
        return "takes a mask of booleans as a subscript, and counts it on the host"
    if name == "repeat_interleave" and "Tensor" in operator._overloadname:
        return "sums the repetitions on the host"
    return SYNCHRONIZING.get(name.removesuffix("_"), SYNCHRONIZING.get(name))


def _has_mask(args: tuple[Any, ...]) -> bool:
    subscripts = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(s, BufferArgument) and s.layout.dtype in (torch.bool, torch.uint8) for s in subscripts)


def _generators(values: Any) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for value in values:
        if isinstance(value, torch.Generator):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _generators(value)
    return found
