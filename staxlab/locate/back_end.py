"""Inside the back end (Sections 6 to 9 and 11): one half of a region, run at every level of its translation.

The operator graph is right, and what runs in the end is not. Between them lie four things that can be run:

=============  =======================================================================================================
loops          the loop program by its definition (Section 6.9)
kernels        the compiled kernels in the order of the schedule, each buffer in memory of its own, which is full of NaN
wrapper        the generated Python wrapper, with the memory plan
program        the same as a program in C
=============  =======================================================================================================

Bisection finds the first that is wrong in two runs after the last. Then one look inside: lowering, an operator at a
time; kernels, each against what its loops mean, on the sample and on the data of :mod:`staxlab.measure.validation`.
A fused kernel that is wrong although its members are right alone is the work of fusion; kernels that are all right but
give wrong values one after the other are in a wrong order; and a wrapper that is right once no memory is used twice
has a wrong memory plan.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta
from ..capture.module import GraphModule, Interpreter
from ..compilation import Compilation
from ..errors import StaxError
from ..loops.body import record
from ..loops.enclosure import OutsideDomain
from ..loops.ir import ComputedBuffer, ExternBuffer, LoopProgram, Reduction
from ..loops.semantics import call_extern, evaluate_computed, flat_storage, view_of
from ..measure.agreement import Agreement, Difference, compare
from ..measure.eager import stand_in
from ..measure.node_enclosures import enclose_node
from ..measure.program_bounds import bounds_of
from ..measure.validation import KernelValidation, user_lines, validate
from ..measure.validation_kernel import MOST_POINTS
from ..operators.graph import OperatorGraph
from ..operators.structure import flatten
from ..schedule.memory_plan import MemoryPlan, Placement
from ..schedule.records import Schedule, buffers_read
from .front_end import lines_of
from .record import Culprit
from .sample import copies_of
from .values import node_values

#: Longer sums are not folded one element after the other; their value is then the rounded exact one.
LONGEST_FOLD = 256


@dataclass
class Half:
    """A region without gradients, or one half of one that has them: its ``compilation`` up to the wrapper, and
    the ``inputs`` of its operator graph. ``name`` is "", "forward" or "backward"."""

    compilation: Compilation
    inputs: list[Any]
    name: str = ""
    seed: int = 0
    launchers: Mapping[str, Any] = field(default_factory=dict)
    expected: list[Any] = field(default_factory=list)
    bounds: Sequence[torch.Tensor | None] | None = None

    @property
    def operators(self) -> OperatorGraph:
        return self.compilation.operators

    def prepare(self) -> None:
        """Build the kernels, and compute what the operators give."""
        from ..runtime.build import build

        made = self.compilation
        self.launchers = build(made.kernels, made.options, made.device)
        self.expected = self.run(lambda given: flatten(Interpreter(self.operators.module).run(*given)))
        height = tallest_sum(made.kernels)
        self.bounds = bounds_of(self.operators.module, self.inputs, seed=self.seed, height=height).bound or None

    def run(self, call: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
        """The results of a call on copies of the inputs, and the inputs afterwards."""
        given = copies_of([x.detach() if isinstance(x, torch.Tensor) else x for x in self.inputs])
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self.seed)
            results = list(call(list(given)))
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in (*results, *given)]

    def judge(self, values: Sequence[Any]) -> Agreement:
        """How values compare with those of the operators."""
        count = len(self.expected) - len(self.inputs)
        names = [f"result {k}" for k in range(count)]
        names += [f"{node.name} afterwards" for node in self.operators.graph.placeholders]
        return compare(values, self.expected, names, self.bounds)

    def by_name(self, given: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The inputs of the loop program: placeholders, then tensors that the graph holds as constants."""
        known = dict(zip((node.name for node in self.operators.graph.placeholders), given, strict=True))
        for node in self.operators.graph:
            if node.op == "get_attr":
                known[node.name] = self.operators.module.constants[node.target]
        return {buffer.name: known[buffer.name] for buffer in self.compilation.loops.inputs}

    # -- what can be run ----------------------------------------------------------------------------------------------

    def loops(self, given: list[Any]) -> list[Any]:
        if not self.compilation.device.is_gpu:
            return interpreted(self.compilation.loops, self.by_name(given))
        names = {name: tensor.cpu() for name, tensor in self.by_name(given).items()}  # the semantics runs on a CPU
        found = interpreted(self.compilation.loops, names)
        return [x.to(self.operators.home) if isinstance(x, torch.Tensor) else x for x in found]

    def kernels(self, given: list[Any]) -> list[Any]:
        made = self.compilation
        return one_by_one(made.schedule, made.kernels, self.launchers, self.by_name(given))

    def wrapper(self, given: list[Any]) -> Sequence[Any]:
        from ..runtime.artifact import load

        return load(self.compilation.wrapper, self.launchers).wrapper_call([*self.by_name(given).values()])

    def program(self, given: list[Any]) -> Sequence[Any]:
        from ..runtime.artifact import load
        from ..runtime.program import program_of
        from ..runtime.recipe import recipe_of

        made = self.compilation
        program, why = program_of(recipe_of(made.schedule, made.kernels), made.kernels, self.launchers)
        return load(made.wrapper, self.launchers, program, why).call([*self.by_name(given).values()])


#: The levels in order: what is run, the layer it adds, and what it says.
LEVELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("loops", ("loops",), "the loop program by its definition"),
    ("kernels", ("schedule", "kernels"), "the kernels one by one, each buffer in memory of its own"),
    ("wrapper", ("schedule", "wrapper"), "the Python wrapper, with the memory plan"),
    ("program", ("artifact",), "the program in C"),
)


def levels_of(half: Half) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """The levels that a half has. On a GPU kernels are not run apart from their wrapper, and there is no program."""
    return LEVELS if not half.compilation.device.is_gpu else (LEVELS[0], LEVELS[2])


def culprit_of(half: Half, level: str, difference: Difference | None) -> Culprit:
    """What of a level is at fault, the levels before it being right."""
    if half.compilation.device.is_gpu and level == "wrapper":
        reason = "the loops are right; on a GPU kernels are not judged one by one"
        return Culprit("kernels", "the kernels, their order or what calls them", reason, difference, half=half.name)
    look = {"loops": _lowering, "kernels": _kernels, "wrapper": _wrapper, "program": _program}[level]
    found = look(half, difference)
    return replace(found, half=half.name)


# -- loops ------------------------------------------------------------------------------------------------------------


def interpreted(program: LoopProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """As :func:`staxlab.loops.semantics.evaluate`, but long sums are computed exactly and rounded, and not folded: O(1)
    tensor operations for each piece of a buffer."""
    storages = {buffer.name: flat_storage(inputs[buffer.name], buffer.layout) for buffer in program.inputs}
    calls: dict[str, Any] = {}
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    for buffer in program.buffers:
        if isinstance(buffer, ExternBuffer):
            _deliver(buffer, storages, calls)
        else:
            storages[buffer.name] = _elements(buffer, dtypes, storages)
    return _outputs(program, storages, inputs)


def _deliver(buffer: ExternBuffer, storages: dict[str, torch.Tensor], calls: dict[str, Any]) -> None:
    """One result of an operator of PyTorch's, which is called once for all of its results."""
    if buffer.call not in calls:
        calls[buffer.call] = call_extern(buffer, storages)
    found = calls[buffer.call]
    if found is not None:  # an operator that only checks gives nothing
        result = found if buffer.position is None else found[buffer.position]
        storages[buffer.name] = flat_storage(result, buffer.layout)


def _elements(
    buffer: ComputedBuffer, dtypes: Mapping[str, torch.dtype], storages: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    data = buffer.data
    length = 1
    for extent in data.reduction_ranges if isinstance(data, Reduction) else ():
        length *= extent
    if length <= LONGEST_FOLD or data.kind not in ("sum", "prod") or not data.accumulate_dtype.is_floating_point:
        return evaluate_computed(buffer, dtypes, storages)
    try:
        pieces = enclose_node(buffer, record(buffer, dtypes), storages, length - 1, MOST_POINTS, True)
        values = torch.cat([piece.value.reshape(-1) for _, piece in pieces])
    except OutsideDomain:
        return evaluate_computed(buffer, dtypes, storages)
    storage = torch.zeros(buffer.layout.storage_elements, dtype=buffer.layout.dtype)
    view_of(storage, buffer.layout).copy_(values.reshape(buffer.layout.shape))
    return storage


def _outputs(
    program: LoopProgram, storages: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]
) -> list[Any]:
    found: list[Any] = []
    for output in program.outputs:
        if output.name is None:
            found.append(output.constant)
        elif output.name in inputs:
            tensor, layout = inputs[output.name], output.layout
            found.append(tensor.as_strided(layout.shape, layout.stride, tensor.storage_offset() + layout.offset))
        else:
            found.append(view_of(storages[output.name], output.layout))
    return found


def _lowering(half: Half, difference: Difference | None) -> Culprit:
    """The operator whose own lowering is wrong; else what puts them together."""
    made = half.compilation
    values = node_values(half.operators.module, half.inputs, half.seed)
    for node in half.operators.graph.calls:
        found = _alone(half, node, values)
        if found is not None and found.difference is not None:
            where = (node.location,) if node.location else ()
            wrong = replace(found.difference, value=f"%{node.name}")
            reason = f"lowered alone, on the inputs it has here: {node.format()}"
            part = f"lowering of {node.target_name()}"
            return Culprit("loops", part, reason, wrong, where, node.origins)
    from ..loops.lowering import lower

    forced = {node.name: "realize" for node in half.operators.graph.calls}
    reason = "every operator is lowered rightly alone"
    try:
        apart = lower(half.operators, made.device, made.options, forced=forced)
        if half.judge(half.run(lambda given: interpreted(apart, half.by_name(given)))).agrees:
            part = "inlining of one operator into another"
            return Culprit("loops", part, f"{reason}, and together with every value in memory", difference)
    except Exception:  # it was a further look, and says nothing then
        pass
    return Culprit("loops", "the loop program as a whole", reason, difference)


def raising_operator(made: Compilation) -> Node | None:
    """The first operator whose lowering alone raises what only a defect raises; None if there is none."""
    from ..loops.lowering import lower

    for node in made.operators.graph.calls:
        sources = [source for source in node.inputs if isinstance(source.val, TensorMeta)]
        if node.target is operator.getitem or len(sources) != len(node.inputs) or node in made.operators.write_backs:
            continue
        try:
            lower(alone(node, [stand_in(source.val) for source in sources]), made.device, made.options)
        except StaxError:
            continue
        except Exception:
            return node
    return None


def _alone(half: Half, node: Node, values: Mapping[str, Any]) -> Agreement | None:
    """One operator lowered by itself, against what PyTorch computes; None where that cannot be done."""
    from ..loops.lowering import lower

    sources = [source for source in node.inputs if isinstance(source.val, TensorMeta)]
    if node.target is operator.getitem or len(sources) != len(node.inputs) or node in half.operators.write_backs:
        return None
    if "empty" in node.target_name():
        return None  # memory that nobody has written has no value
    given = [values[source.name] for source in sources]
    single = alone(node, given)
    wanted = flatten(values[node.name])
    try:
        program = lower(single, half.compilation.device, half.compilation.options)
        if all(isinstance(buffer, ExternBuffer) for buffer in program.buffers):
            return None
        names = dict(zip((source.name for source in sources), copies_of(given), strict=True))
        found = interpreted(program, {buffer.name: names[buffer.name] for buffer in program.inputs})
    except Exception:
        return None
    positions = [k.args[1] for k in node.users if k.target is operator.getitem] or [0]
    if isinstance(node.val, (tuple, list)):
        wanted = [wanted[position] for position in dict.fromkeys(positions)]
    bounds = bounds_of(single.module, given, seed=half.seed, height=tallest_sum(half.compilation.kernels)).bound
    return compare(found, wanted, [node.name], bounds[: len(found)] or None)


def alone(node: Node, given: Sequence[torch.Tensor]) -> OperatorGraph:
    """The graph of one operator, whose inputs are given."""
    graph = Graph()
    twins: dict[Node, Node] = {}
    sources = [source for source in node.inputs if isinstance(source.val, TensorMeta)]
    for source, value in zip(sources, given, strict=True):
        twins[source] = graph.placeholder(source.name, val=TensorMeta.of(value), origins=source.origins)
    from ..capture.graph import map_nodes

    args, kwargs = (map_nodes(part, twins.__getitem__) for part in (node.args, node.kwargs))
    twin = graph.create(node.op, node.target, args, kwargs, name=node.name, origins=node.origins,
                        location=node.location, val=node.val)  # fmt: skip
    result: Any = twin
    if isinstance(node.val, (tuple, list)):
        positions = dict.fromkeys(user.args[1] for user in node.users if user.target is operator.getitem)
        result = tuple(graph.call_function(operator.getitem, (twin, k), val=node.val[k]) for k in positions)
    graph.set_output(result)
    return OperatorGraph(GraphModule(graph), tuple(source.val for source in graph.placeholders))


# -- kernels ----------------------------------------------------------------------------------------------------------


def tallest_sum(kernels: Any) -> int:
    """The height of the tallest summation tree among generated kernels; 0 where none adds in another order."""
    from ..measure.rounding import plan_of

    tallest = 0
    for kernel in kernels or ():
        orders = kernel.launch.get("accumulations") or {"": kernel.launch.get("accumulation")}
        for order in orders.values():
            if order and order.get("kind", "sum") == "sum":
                tallest = max(tallest, plan_of(order).height)
    return tallest


def one_by_one(
    schedule: Schedule, kernels: Any, launchers: Mapping[str, Any], inputs: Mapping[str, torch.Tensor]
) -> list[Any]:
    """Run kernels in the order of the schedule, every buffer in memory of its own, full of NaN until it is written."""
    program = schedule.program
    storages = {buffer.name: flat_storage(inputs[buffer.name], buffer.layout) for buffer in program.inputs}
    calls: dict[str, Any] = {}
    for buffer in program.buffers:  # what a kernel finds that runs too early
        storages.setdefault(buffer.name, _blank(buffer.layout))
    for node, kernel in zip(schedule.nodes, kernels, strict=True):
        if node.extern is not None:
            for buffer in program.buffers:
                if buffer.name in node.buffers:
                    _deliver(buffer, storages, calls)
            continue
        for name in node.buffers:
            base = node.base
            storages[name] = storages[base].clone() if base is not None else _blank(schedule.layouts[name])
        if kernel.name not in launchers or node.is_empty or kernel.launch.get("skip"):
            continue
        starts = [schedule.layouts[a.buffer].offset if a.role == "input" else 0 for a in kernel.arguments]
        given = [storages[a.buffer][start:] for a, start in zip(kernel.arguments, starts, strict=True)]
        launchers[kernel.name](*(x.data_ptr() if kernel.language == "cpp" else x for x in given))
    return _outputs(program, storages, inputs)


def _blank(layout: Any) -> torch.Tensor:
    fill = float("nan") if layout.dtype.is_floating_point else 0
    return torch.full((layout.storage_elements,), fill, dtype=layout.dtype)


def _kernels(half: Half, difference: Difference | None) -> Culprit:
    """The kernel that does not compute what its loops mean; else the order they run in."""
    made = half.compilation
    sources = user_lines(half.operators.graph)
    inputs = [*half.by_name(copies_of(half.inputs)).values()]
    found = validate(made.schedule, made.kernels, half.launchers, inputs, sources)
    if found.failures:
        wrong = found.failures[0]
        node = next(n for n, k in zip(made.schedule.nodes, made.kernels, strict=True) if k.name == wrong.kernel)
        if node.members and _right_apart(half, inputs):
            members = ", ".join(member.name for member in node.members)
            part = f"fusion of {members} into {wrong.kernel}"
            reason = "without fusion every kernel computes what its loops mean"
            return Culprit("schedule", part, reason, _shown(wrong), wrong.mismatch.sources, wrong.origins)
        reason = f"it was held to: {wrong.basis}; on {wrong.mismatch.data} data"
        return Culprit("kernels", f"kernel {wrong.kernel}", reason, _shown(wrong), wrong.mismatch.sources,
                       wrong.origins)  # fmt: skip
    early = read_too_early(made.schedule)
    reason = f"every kernel computes what its loops mean, but {early or 'one after the other they do not'}"
    return Culprit("schedule", "the order of the kernels", reason, difference)


def _right_apart(half: Half, inputs: list[torch.Tensor]) -> bool:
    from ..codegen.cpp import generate
    from ..runtime.build import build
    from ..schedule.dependencies import schedule

    made = half.compilation
    if made.device.is_gpu:
        return False
    options = replace(made.options, fuse=False)
    apart = schedule(made.loops, made.device, options, made.owned_inputs)
    kernels = generate(apart, options, made.device)
    return validate(apart, kernels, build(kernels, options, made.device), inputs).passed


def _shown(wrong: KernelValidation) -> Difference:
    found = wrong.mismatch
    assert found is not None
    name, count = f"{found.buffer} of {found.kernel}, {found.data} data", found.elements
    room = 0.0
    if isinstance(found.expected, float) and found.upper == found.upper:
        room = max(float(found.upper) - found.expected, found.expected - float(found.lower), 0.0)
    return Difference(name, found.element, found.computed, found.expected, room, found.wrong, count, found.what)


def read_too_early(schedule: Schedule) -> str:
    """Which kernel reads a buffer that no kernel before it has written; "" if none does."""
    written = set(schedule.inputs)
    for node in schedule.nodes:
        missing = sorted(buffers_read(node) - written)
        if missing:
            return f"{node.name} reads {missing[0]} before it is computed"
        written |= set(node.buffers)
    return ""


# -- wrapper and program ----------------------------------------------------------------------------------------------


def _wrapper(half: Half, difference: Difference | None) -> Culprit:
    """The memory plan, if the wrapper is right once no memory is used twice; else what the wrapper does."""
    from ..codegen.wrapper import generate_wrapper
    from ..runtime.artifact import load

    made = half.compilation
    everything = frozenset().union(*(node.origins for node in made.schedule.nodes))
    where = lines_of(half.operators.graph, everything)
    if made.schedule.memory is not None:
        apart = without_reuse(made.schedule)
        try:
            wrapper = generate_wrapper(apart, made.kernels, made.options)
            call = load(wrapper, half.launchers).wrapper_call
            right = half.judge(half.run(lambda given: call([*half.by_name(given).values()]))).agrees
        except Exception:  # a plan of ours that this region does not bear: then nothing is learned
            right = False
        if right:
            reason = overlapping(made.schedule) or "with memory of its own for every buffer the values are right"
            return Culprit("schedule", "the memory plan", reason, difference, where)
    reason = "the kernels are right one by one, so allocations, calls or results are put together wrongly"
    return Culprit("wrapper", "the generated wrapper", reason, difference, where)


def without_reuse(schedule: Schedule) -> Schedule:
    """The schedule with a plan that gives every buffer memory of its own for the whole call."""
    plan = schedule.memory
    assert plan is not None
    inputs = set(schedule.inputs)
    placements = dict(plan.placements)
    moved: set[str] = set()
    for name, placed in plan.placements.items():
        if placed.kind in ("arena", "own", "in place"):
            placements[name] = Placement(name, placed.bytes, "own", name)
            moved.add(name)
    for name, placed in plan.placements.items():
        if placed.kind == "view of base":
            node = next(node for node in schedule.nodes if name in node.buffers)
            root = placements[node.base].root if node.base in placements else node.base
            placements[name] = replace(placed, root=root)
    allocate = []
    for node, before in zip(schedule.nodes, plan.allocate, strict=True):
        kept = [name for name in before if name in placements and placements[name].root == name]
        made = [name for name in node.buffers if name in moved and name not in kept]
        allocate.append((*kept, *made))
    nothing: tuple[tuple[str, ...], ...] = tuple(() for _ in schedule.nodes)
    assert not moved & inputs
    apart = MemoryPlan(placements, tuple(allocate), nothing, plan.live_bytes, steps=plan.steps,
                       lifetimes=plan.lifetimes, sources=plan.sources)  # fmt: skip
    return replace(schedule, memory=apart)


def overlapping(schedule: Schedule) -> str:
    """Two buffers that share bytes of the arena while both are needed; "" if there are none."""
    plan = schedule.memory
    assert plan is not None
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(schedule.nodes):
        for name in node.buffers:
            first.setdefault(name, position)
        for name in (*node.buffers, *buffers_read(node)):
            last[name] = position
    placed = [(n, p) for n, p in plan.placements.items() if p.kind == "arena" and n in first]
    for number, (one, here) in enumerate(placed):
        for other, there in placed[number + 1 :]:
            bytes_meet = here.offset < there.offset + there.bytes and there.offset < here.offset + here.bytes
            if bytes_meet and first[one] <= last[other] and first[other] <= last[one]:
                return f"{one} and {other} stand in the same bytes of the arena while both are needed"
    return ""


def _program(half: Half, difference: Difference | None) -> Culprit:
    everything = frozenset().union(*(node.origins for node in half.compilation.schedule.nodes))
    reason = "the Python wrapper, which describes the same calls, is right"
    where = lines_of(half.operators.graph, everything)
    return Culprit("artifact", "the program in C", reason, difference, where)
