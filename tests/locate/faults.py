"""Mistakes planted in the compiler, one in each layer: what breaks, a program that shows it, and who is to be blamed.

Each ``plant`` changes the real code through pytest's ``monkeypatch``.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import staxlab
from staxlab.transform.rewrite import Applied, Pass, describe

aten = torch.ops.aten
SCALE = 2.0


@dataclass(frozen=True)
class Fault:
    """A planted mistake. ``part`` is a piece of what the culprit has to be called, ``line`` one of the user's line."""

    name: str
    layer: str
    part: str
    plant: Callable[[Any], None]
    program: Callable[..., Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    line: str = ""
    options: dict[str, Any] | None = None
    half: str = ""


def numbers(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


# -- capture ----------------------------------------------------------------------------------------------------------


def swap_operands_when_spelling(patch: Any) -> None:
    from staxlab.capture import tracer

    true = tracer.spell

    def spell(func: Any, args: tuple, kwargs: dict, frame: Any) -> Any:
        op, target, args, kwargs = true(func, args, kwargs, frame)
        is_difference = getattr(target, "__name__", target) == "sub"
        return op, target, tuple(reversed(args)) if is_difference else args, kwargs

    patch.setattr(tracer, "spell", spell)


def differences(x, w):
    y = torch.exp(x)
    z = y - w
    return z * 2


# -- passes -----------------------------------------------------------------------------------------------------------


def remove_doubling(patch: Any) -> None:
    from staxlab.transform import Rule, Var, normalize

    x = Var("x")
    rules = {**normalize._IDENTITIES_OF}
    rules["mul"] = (*rules.get("mul", ()), Rule("x * 2 -> x", x * 2, x))
    patch.setattr(normalize, "_IDENTITIES_OF", rules)


def doubled(x, w):
    y = x.exp() + w
    z = y * 2
    return z.sin() + 1


def add_constants_wrongly(patch: Any) -> None:
    from staxlab.transform import passes

    def fold(graph: Any) -> list[Applied]:
        applied = []
        for node in graph.calls:
            first = node.args[0] if node.args else None
            if node.target is not operator.add or getattr(first, "target", None) is not operator.add:
                continue
            if not (isinstance(node.args[1], int) and isinstance(first.args[1], int) and len(first.users) == 1):
                continue
            before = describe([first, node])
            node.args = (first.args[0], node.args[1] + first.args[1] + 1)
            graph.erase(first)
            applied.append(Applied("fold sums", "(x + a) + b -> x + (a + b)", before, describe([node]), node.origins))
        return applied

    found = tuple(Pass("Fold", fold) if item.name == "Fold" else item for item in passes.PASSES)
    patch.setattr(passes, "PASSES", found)


def constants(x, w):
    y = x * w
    z = y + 2
    z = z + 3
    return z.exp()


def ignore_numbers_in_keys(patch: Any) -> None:
    from staxlab.transform import cse

    true = cse._key
    patch.setattr(cse, "_key", lambda argument: int if type(argument) is int else true(argument))


def nearly_equal(x, w):
    y = x.sin() + 2
    z = x.sin() + 3
    return y * z * w


# -- operators --------------------------------------------------------------------------------------------------------


def forget_writes_through_views(patch: Any) -> None:
    from staxlab.operators.functionalize import Functionalizer

    true = Functionalizer._store

    def store(self: Any, target: Any, way: Any, value: Any) -> None:
        if not way.chain:
            true(self, target, way, value)

    patch.setattr(Functionalizer, "_store", store)


def writes_into_a_view(x, w):
    y = x * 2
    y[1:].add_(w[1:])
    return y.exp()


def quarter_the_quadratic(patch: Any) -> None:
    from staxlab.operators import basis, decompositions, record

    def smooth_l1_loss(x: Any, y: Any, reduction: int = 1, beta: float = 1.0) -> Any:
        distance = aten.abs.default(aten.sub.Tensor(x, y))
        quadratic = aten.mul.Tensor(aten.mul.Tensor(distance, 0.25), distance)
        linear = aten.sub.Tensor(distance, 0.5)
        return decompositions.reduced(aten.where.self(aten.lt.Scalar(distance, 1.0), quadratic, linear), reduction)

    patch.setitem(decompositions.DECOMPOSITIONS, aten.smooth_l1_loss.default, smooth_l1_loss)
    patch.setattr(record, "decomposition_of", basis.decomposition_of.__wrapped__)  # which remembers nothing


def smooth(x, w):
    y = x * 0.1
    return F.smooth_l1_loss(y, w * 0.1) + 1


# -- gradients --------------------------------------------------------------------------------------------------------


def derive_sine_as_sine(patch: Any) -> None:
    from staxlab.autodiff import joint

    true = joint.joint_graph

    def joint_graph(*args: Any, **kwargs: Any) -> Any:
        found = true(*args, **kwargs)
        for node in found.graph:
            if node in found.backward and node.target is aten.cos.default:
                node.target = aten.sin.default
        return found

    patch.setattr(joint, "joint_graph", joint_graph)


def sines(x, w):
    y = x.sin()
    return (y * w).sum(-1)


def recompute_exponentials_as_sines(patch: Any) -> None:
    from staxlab.autodiff import split

    true, copy = split._Division._backward, split.take_over

    def backward(self: Any, *args: Any) -> Any:
        def wrong(graph: Any, node: Any, op: str, target: Any, *rest: Any) -> Any:
            again = node not in self.joint.backward and target is aten.sin.default
            return copy(graph, node, op, aten.tanh.default if again else target, *rest)

        split.take_over = wrong
        try:
            return true(self, *args)
        finally:
            split.take_over = copy

    patch.setattr(split._Division, "_backward", backward)


def recomputed(x, w):
    y = torch.sin(x * w)
    return (y * y.exp()).sum()


# -- lowering and scheduling ------------------------------------------------------------------------------------------


def lower_sine_as_cosine(patch: Any) -> None:
    from staxlab.loops.lowering import RULES

    patch.setitem(RULES, aten.sin.default, RULES[aten.cos.default])


def waves(x, w):
    y = (x * 0.5).exp()
    z = torch.sin(y)
    return (z + w).sum(-1)


def run_backwards(patch: Any) -> None:
    from staxlab.schedule import dependencies
    from staxlab.schedule.placement import plan_memory

    def in_some_order(nodes: Any, program: Any, device: Any, layouts: Any, owned: Any = frozenset()) -> Any:
        plan = plan_memory(nodes, program, device, layouts)
        nothing = tuple(() for _ in nodes)
        allocate = (tuple(name for names in plan.allocate for name in names), *nothing[1:])
        span = (0, len(nodes) - 1) if plan.arena_span else None
        plan = dataclasses.replace(plan, allocate=allocate, release=nothing, arena_span=span)
        return [*reversed(nodes)], plan, ()

    patch.setattr(dependencies, "in_best_order", in_some_order)


def one_place_for_all(patch: Any) -> None:
    from staxlab.schedule import arena

    true = arena.allocate

    def allocate(found: Any) -> Any:
        offsets, size, decision = true(found)
        return dict.fromkeys(offsets, 0), size, decision

    patch.setattr(arena, "allocate", allocate)


def several_kernels(x, w):
    y = x.exp().sum(0)
    z = (x * y).sum(1)
    v = (w * z.unsqueeze(1)).sum(0)
    return (y * v).sum() + w


def allow_every_fusion(patch: Any) -> None:
    from staxlab.schedule.legality import Legality

    patch.setattr(Legality, "conflict", lambda self, one, other: None)
    patch.setattr(Legality, "together", lambda self, views: None)


def across_rows(x, w):
    y = x.exp().sum(1)
    return (w * y).sum(1)


# -- code generation and what calls it --------------------------------------------------------------------------------


def write_another_number(patch: Any) -> None:
    from staxlab.codegen import cpp

    true = cpp.generate

    def generate(*args: Any) -> Any:
        found = true(*args)
        kernels = []
        for kernel in found:
            lines = tuple(dataclasses.replace(line, text=line.text.replace("1.5f", "1.25f")) for line in kernel.lines)
            kernels.append(dataclasses.replace(kernel, lines=lines))
        return type(found)(tuple(kernels))

    patch.setattr(cpp, "generate", generate)


def scaled(x, w):
    y = x * 1.5
    return (y + w).exp()


def hand_out_results_exchanged(patch: Any) -> None:
    from staxlab.codegen import wrapper
    from staxlab.runtime import recipe

    patch.setattr(recipe, "recipe_of", lambda schedule, kernels: "it is switched off in this test")
    true = wrapper._WrapperWriter.write

    def write(self: Any) -> Any:
        self.schedule = dataclasses.replace(
            self.schedule,
            program=dataclasses.replace(self.schedule.program, outputs=self.schedule.program.outputs[::-1]),
        )
        return true(self)

    patch.setattr(wrapper._WrapperWriter, "write", write)


def exchange_results_in_c(patch: Any) -> None:
    from staxlab.runtime import program

    true = program.program_of

    def program_of(recipe: Any, *rest: Any) -> Any:
        if not isinstance(recipe, str):
            recipe = dataclasses.replace(recipe, outputs=recipe.outputs[::-1])
        return true(recipe, *rest)

    patch.setattr(program, "program_of", program_of)


def two_results(x, w):
    return x + w, x * w


def leave_numbers_out_of_keys(patch: Any) -> None:
    from staxlab.specialize.free_state import FreeState

    def describe_rest(self: Any) -> None:
        self.generation += 1
        self.rest = self.read_rest()
        self.scalar_part = ()

    patch.setattr(FreeState, "_describe_rest", describe_rest)


def by_a_global(x, w):
    y = x + w
    return y * SCALE


def large_pair() -> tuple[torch.Tensor, ...]:
    return numbers(256, 256), numbers(256, 256) + 0.5


def pair() -> tuple[torch.Tensor, ...]:
    return numbers(6, 8), numbers(6, 8) + 0.5


def differentiable() -> tuple[torch.Tensor, ...]:
    return numbers(6, 8, grad=True), numbers(6, 8) + 0.5


FAULTS: tuple[Fault, ...] = (
    Fault("capture", "capture", "%sub", swap_operands_when_spelling, differences, pair, "z = y - w"),
    Fault("rule", "transforms", "x * 2 -> x", remove_doubling, doubled, pair, "z = y * 2"),
    Fault("fold", "transforms", "pass Fold", add_constants_wrongly, constants, pair, "z = z + 3"),
    Fault("merging", "transforms", "pass MergeCommonSubexpressions", ignore_numbers_in_keys, nearly_equal, pair,
          "z = x.sin() + 3"),
    Fault("functionalization", "operators", "functionalization", forget_writes_through_views, writes_into_a_view, pair,
          "y[1:].add_(w[1:])"),
    Fault("decomposition", "operators", "decomposition of aten.smooth_l1_loss", quarter_the_quadratic, smooth, pair,
          "smooth_l1_loss"),
    Fault("joint", "joint", "backward side", derive_sine_as_sine, sines, differentiable),
    Fault("partition", "partition", "recomputation of %sin", recompute_exponentials_as_sines, recomputed,
          differentiable, "torch.sin(x * w)", None, "backward"),
    Fault("lowering", "loops", "lowering of aten.sin", lower_sine_as_cosine, waves, pair, "z = torch.sin(y)"),
    Fault("order", "schedule", "order", run_backwards, several_kernels, pair, "", {"fuse": False}),
    Fault("memory", "schedule", "memory plan", one_place_for_all, several_kernels, pair, "", {"fuse": False}),
    Fault("fusion", "schedule", "fusion", allow_every_fusion, across_rows, large_pair),
    Fault("code", "kernels", "kernel fused", write_another_number, scaled, pair, "x * 1.5"),
    Fault("wrapper", "wrapper", "wrapper", hand_out_results_exchanged, two_results, pair),
    Fault("program", "artifact", "program in C", exchange_results_in_c, two_results, pair),
    Fault("guards", "dispatch", "version 1", leave_numbers_out_of_keys, by_a_global, pair, "return y * SCALE"),
)  # fmt: skip


def compiled_for(fault: Fault) -> Any:
    """What is asked about: the program, or for guards a compiled function that holds a version of another number."""
    global SCALE
    if fault.name != "guards":
        return fault.program
    SCALE = 2.0
    compiled = staxlab.compile(fault.program)
    compiled(*fault.inputs())
    SCALE = 3.0
    return compiled
