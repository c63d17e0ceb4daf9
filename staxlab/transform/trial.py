"""A rewrite tried out before it is made: what a rule from outside would do, on the sample (Section 4.2).

A rule that replaces one operation by others claims that nobody can tell the difference. The metadata of the new nodes
cannot be inferred, since any operation may stand in a rule, and the law it states may be wrong. So both sides are
computed, on copies of the values the variables stand for: dtype, device, shape, strides and whose memory the result
shares must be the same, nothing may be written or drawn at random, and the values must be equal up to rounding.

The values come from the capture's samples. A node is computed when it is first asked for, and its inputs before it, so
that a rule that never matches costs nothing. What has effects, or reads memory that is written somewhere, is not run
again. Where values are not to be had (a graph without samples), tensors without memory show everything but values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta, describe_value, nodes_in
from ..capture.isolation import CallFacts, Watcher, storage_key
from ..capture.module import GraphModule, Interpreter
from .effects import Effects

#: How far two results may round apart, in units of the dtype's epsilon, relative to the largest number involved.
ROUNDINGS = 16
_EFFECTS = ("mutates", "random", "reads_data", "foreign")
_UNKNOWN = object()


class Trial:
    """Computes nodes of ``graph`` on ``samples`` (one tensor for each placeholder, or None), each at most once.

    Holds every value it computed: as much memory as the program takes without freeing anything, while it lives.
    """

    def __init__(self, graph: Graph, effects: Effects, constants: dict[str, Any], samples: Sequence[Any] | None):
        self._effects = effects
        self._interpreter = Interpreter(GraphModule(graph, constants))
        known = zip(graph.placeholders, samples, strict=True) if samples is not None else ()
        self._values: dict[Node, Any] = dict(known)

    def value(self, node: Node) -> torch.Tensor | None:
        """The node's value on the sample; None where it is no tensor or cannot be computed once more."""
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [source for source in current.inputs if source not in self._values]
            if current in self._values:
                pending.pop()
            elif self._is_closed(current):
                self._values[pending.pop()] = _UNKNOWN
            elif missing:
                pending += missing
            else:
                self._values[pending.pop()] = self._run(current, self._values)
        found = self._values[node]
        return found if isinstance(found, torch.Tensor) and found.layout is torch.strided else None

    def _is_closed(self, node: Node) -> bool:
        if node.op in ("placeholder", "call_module", "output") or any(map(node.meta.get, _EFFECTS)):
            return True
        return any(map(self._effects.is_written, (node, *node.inputs)))

    def _run(self, node: Node, env: dict[Node, Any]) -> Any:
        if any(env[source] is _UNKNOWN for source in node.inputs):
            return _UNKNOWN
        self._interpreter.env = env
        try:
            with torch.no_grad():
                return self._interpreter.run_node(node)
        except Exception:  # it ran while capturing: something it depends on has changed since
            return _UNKNOWN

    def objection(self, root: Node, created: Sequence[Node], bound: dict[str, Node]) -> str | None:
        """Why ``root`` may not be replaced by the last of the nodes ``created``, which compute from the nodes ``bound``
        to the names of variables; None if nothing speaks against it. The new nodes get the metadata that was seen."""
        values = {name: self.value(node) for name, node in bound.items()}
        expected = self.value(root)
        on_sample = expected is not None and all(value is not None for value in values.values())
        copies = {
            name: _copied(values[name]) if on_sample else _without_memory(node.val) for name, node in bound.items()
        }
        env: dict[Node, Any] = {node: copies[name] for name, node in bound.items()}
        for node in created:
            facts, problem = self._observe(node, env)
            if problem is not None:
                return problem
            for effect, words in (("mutates", "writes into its argument"), ("random", "draws random numbers"),
                                  ("foreign", "is no operator of PyTorch's")):  # fmt: skip
                if getattr(facts, effect):
                    return f"is no pure function: {node.target_name()} {words}"
            _describe(node, env, facts)
        found = env[created[-1]]
        return (
            _different_metadata(TensorMeta.of(expected) if on_sample else root.val, found, on_sample)
            or _shared_memory(found, copies)
            or (_different_values(expected, found, list(copies.values())) if on_sample else None)
        )

    def _observe(self, node: Node, env: dict[Node, Any]) -> tuple[CallFacts, str | None]:
        watcher = Watcher()
        watcher.inside, watcher.facts = True, CallFacts()
        watcher.arguments = [env[source] for source in node.inputs if isinstance(env[source], torch.Tensor)]
        self._interpreter.env = env
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), watcher:
                env[node] = self._interpreter.run_node(node)
        except Exception as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            return watcher.facts, f"cannot be computed: {said[0]}"
        return watcher.facts, None

    def different_value(self, root: Node, other: Node) -> str | None:
        """How the values of two nodes differ on the sample; None where they do not, or are not known."""
        expected, found = self.value(root), self.value(other)
        return None if expected is None or found is None else _different_values(expected, found, [found])

    def learn(self, root: Node, other: Node) -> None:
        """``other`` has taken the place of ``root``: what is known of one is known of the other."""
        if root in self._values:
            self._values.setdefault(other, self._values[root])


def _describe(node: Node, env: dict[Node, Any], facts: CallFacts) -> None:
    """Metadata of a new node as it was seen, in place of what :func:`.patterns.infer` supposed."""
    value, supposed = env[node], node.val
    seen = describe_value(value)
    if isinstance(seen, TensorMeta):
        grad = isinstance(supposed, TensorMeta) and supposed.requires_grad and seen.dtype.is_floating_point
        device = supposed.device if isinstance(supposed, TensorMeta) and seen.device.type == "meta" else seen.device
        seen = dataclasses.replace(seen, requires_grad=grad, device=device)
        arguments = [env[source] for source in nodes_in((node.args, node.kwargs))]
        if any(isinstance(a, torch.Tensor) and storage_key(a) == storage_key(value) for a in arguments):
            node.meta["aliases"] = True
    node.meta["val"] = seen
    node.meta.update(facts.as_meta())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with the same strides, gaps and overlaps included."""
    tensor = tensor.detach()
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    span = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def _without_memory(meta: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")


def _different_metadata(meta: TensorMeta, found: Any, on_sample: bool) -> str | None:
    if not isinstance(found, torch.Tensor):
        return f"gives a {type(found).__name__} in place of a tensor"
    facts = [("dtype", meta.dtype, found.dtype), ("shape", list(meta.shape), list(found.shape))]
    if on_sample:
        facts.append(("device", meta.device, found.device))
    facts.append(("strides", list(meta.stride), list(found.stride())))
    for name, before, after in facts:
        if before != after:
            return f"changes the {name}: {before} became {after}".replace("torch.", "")
    return None


def _shared_memory(found: torch.Tensor, copies: dict[str, torch.Tensor]) -> str | None:
    for name, copy in copies.items():
        if storage_key(copy) == storage_key(found):
            return f"changes aliasing: its result shares memory with {name}, where the program makes a new tensor"
    return None


def _different_values(expected: torch.Tensor, found: torch.Tensor, arguments: list[torch.Tensor]) -> str | None:
    if not expected.numel():
        return None
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        largest = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in (expected, *arguments)
                       if t.numel() and t.dtype.is_floating_point), default=1.0)  # fmt: skip
        slack = ROUNDINGS * torch.finfo(expected.dtype).eps
        same = torch.isclose(found, expected, rtol=slack, atol=slack * largest, equal_nan=True)
    else:
        same = found == expected
    if bool(same.all()):
        return None
    place = tuple((~same).nonzero()[0].tolist())
    where = f"at {list(place)} " if place else ""
    return f"changes values: {where}the sample gives {found[place].item()} in place of {expected[place].item()}"
