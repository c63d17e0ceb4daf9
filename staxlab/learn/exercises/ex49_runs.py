"""What Exercise 49 runs: maps of subscripts composed by the package, a small language with a random operation, and the
package's removal of dead code with its caution switched off.

The core language of Definition 6.5 has no random numbers, and neither has the package's loop language. The one here is
a model: bindings of integers, evaluated one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import torch

from ...capture.graph import Node
from ...capture.module import GraphModule
from ...capture.tracer import trace
from ...loops.ir import Layout
from ...loops.layout import IndexMap, broadcast, contiguous_stride, layout_through, permuted, sliced, unsqueezed
from ...transform.dce import eliminate_dead_code
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..limits import describe_error
from ..variants import generator

# --- Part 1: a view of a view -----------------------------------------------------------------------------------------

Matrix = list[list[int]]


def _drawn_view(rng: random.Random, shape: tuple[int, ...]) -> IndexMap:
    kind = rng.choice(("permute", "slice", "slice", "unsqueeze", "expand"))
    if kind == "permute" and len(shape) > 1:
        return permuted(shape, rng.sample(range(len(shape)), len(shape)))
    if kind == "unsqueeze":
        return unsqueezed(shape, rng.randint(0, len(shape)))
    if kind == "expand":
        return broadcast(shape, (rng.randint(2, 3), *shape))
    d = rng.randrange(len(shape))
    if shape[d] < 3:
        return permuted(shape, range(len(shape)))
    start, step = rng.randint(1, 2), rng.randint(1, 2)
    return sliced(shape, d, start, len(range(start, shape[d], step)), step)


@lru_cache(maxsize=8)
def views(seed: int | None) -> tuple[tuple[tuple[int, ...], IndexMap, IndexMap], ...]:
    """(shape, view of it, view of that view)."""
    rng = generator(seed, "views")
    cut = sliced((11,), 0, 2, 4, 2)
    cases = [((11,), cut, sliced(cut.shape, 0, 1, 2, 2))]
    turn = permuted((3, 5), (1, 0))
    cases.append(((3, 5), turn, sliced(turn.shape, 0, 1, 2, 2)))
    for _ in range(24):
        shape = tuple(rng.randint(3, 7) for _ in range(rng.randint(1, 3)))
        inner = _drawn_view(rng, shape)
        cases.append((shape, inner, _drawn_view(rng, inner.shape)))
    return tuple(cases)


def _lists(view: IndexMap) -> tuple[Matrix, list[int]]:
    matrix, shift = view.affine()
    return [list(row) for row in matrix], list(shift)


def strides_of_both() -> str:
    """Which product takes the strides of e to those of both views: computed for a transpose that is cut."""
    shape, inner, outer = views(None)[1]
    t = contiguous_stride(shape)
    (a1, _), (a2, _) = _lists(outer), _lists(inner)
    found = layout_through(Layout(shape, t, torch.float32, "cpu"), inner.after(outer)).stride
    inner_first = torch.tensor(a1).T @ (torch.tensor(a2).T @ torch.tensor(t))
    return STRIDES[0] if tuple(inner_first.tolist()) == tuple(found) else STRIDES[1]


STRIDES = ("A1^T A2^T t", "A2^T A1^T t")


def _matrix_and_vector(value: Any) -> tuple[Matrix, list[int]] | None:
    """A student's (A, c) of integers, as lists; None where it is something else."""

    def entries(row: Any) -> list[int] | None:
        row = row.tolist() if hasattr(row, "tolist") else row
        whole = isinstance(row, list | tuple) and all(isinstance(x, int) for x in row)
        return list(row) if whole else None

    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    rows = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    matrix, shift = [entries(row) for row in rows] if isinstance(rows, list | tuple) else [None], entries(value[1])
    return None if shift is None or None in matrix else (matrix, shift)


def judge_compose(callee: Callee, seed: int | None) -> Verdict:
    """The student's matrix and vector against the map of the package, entry by entry."""
    for shape, inner, outer in views(seed):
        (a1, c1), (a2, c2) = _lists(outer), _lists(inner)
        arguments = (a1, c1, a2, c2)
        outcome = callee.call(*arguments)
        asked = (("A1, c1", f"{a1}, {c1}"), ("A2, c2", f"{a2}, {c2}"))
        if isinstance(outcome.error, IndexError | ValueError):
            message = "The sizes do not go together that way round."
            return wrong(message, *asked, ("reason", outcome.reason()), mistake="other-way-round")
        if outcome.failed:
            return call_failed(callee, arguments, outcome)
        found = _matrix_and_vector(outcome.value)
        if found is None:
            return unexpected_result(callee, arguments, "that is not (matrix, vector)")
        matrix, shift = found
        truth, c = _lists(inner.after(outer))
        yours = ("yours", f"{matrix}, {shift}")
        if (matrix, shift) == (truth, c):
            continue
        if len(matrix) != len(shape) or any(len(row) != len(outer.shape) for row in matrix) or len(shift) != len(shape):
            message = "A needs a row for each dimension of e and a column for each of the outer view."
            return wrong(message, *asked, yours, mistake="other-way-round")
        if len(a1[0]) == len(a2) and (matrix, shift) == _composed(a1, c1, a2, c2):
            message = "That map is applied the other way round: which of the two gets the subscript of the result?"
            return wrong(message, *asked, yours, mistake="other-way-round")
        i = next(i for i in product(*map(range, outer.shape)) if _at(matrix, shift, i) != _at(truth, c, i))
        facts = (*asked, yours, ("element", i), ("yours looks at", _at(matrix, shift, i)),
                 ("the views look at", _at(truth, c, i)))  # fmt: skip
        if matrix != truth:
            return wrong("Another map of subscripts.", *facts, mistake="wrong-matrix")
        message = "The matrix is right. The outer shift is a subscript of the inner view: where does that take it?"
        return wrong(message, *facts, mistake="wrong-shift")
    return right("It is the map of both views, entry by entry.", ("tried", f"{len(views(seed))} pairs of views"))


def _composed(a: Matrix, c: list[int], b: Matrix, d: list[int]) -> tuple[Matrix, list[int]]:
    """First ``i -> b i + d``, and then ``i -> a i + c``."""
    product_of, moved = torch.tensor(a) @ torch.tensor(b), torch.tensor(a) @ torch.tensor(d) + torch.tensor(c)
    return product_of.tolist(), moved.tolist()


def _at(matrix: Matrix, shift: Sequence[int], i: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(a * x for a, x in zip(row, i, strict=True)) + c for row, c in zip(matrix, shift, strict=True))


# --- Part 2: random numbers -------------------------------------------------------------------------------------------

Binding = tuple[Any, ...]  # (name, operator, argument, ...)
WRAP = 2**61 - 1  # arithmetic modulo a prime: long products stay short, and no two of them coincide by accident
ARITHMETIC = {
    "add": lambda a, b: (a + b) % WRAP,
    "sub": lambda a, b: (a - b) % WRAP,
    "mul": lambda a, b: a * b % WRAP,
}
ARITY = {"add": 2, "sub": 2, "mul": 2, "rand": 1, "first": 1, "second": 1}


class NotAProgram(Exception):
    """A binding that does not belong to the language. The message is for the student."""


def rand(state: int) -> tuple[int, int]:
    """A number, and the state after it: a function like any other."""
    after = (state * 1103515245 + 12345) % 2**31
    return after >> 16, after


def run(program: Sequence[Binding], env: Mapping[str, Any], implicit: bool = False) -> Any:
    """The value of the last binding. ``implicit`` programs draw from a state that no binding names (``s0`` of the
    environment to begin with). Raises NotAProgram."""
    values, hidden, result = dict(env), env["s0"], None
    for name, operator, *arguments in program:
        text = f"{name} = {operator}({', '.join(map(str, arguments))})"
        if not all(type(x) in (str, int) for x in arguments):
            raise NotAProgram(f"{text}: arguments are names or integers")
        if operator not in ARITY or len(arguments) != (0 if implicit and operator == "rand" else ARITY[operator]):
            raise NotAProgram(f"{text}: there is no such operation here")
        if name in values:
            raise NotAProgram(f"{text}: {name} has a value already")
        missing = [x for x in arguments if isinstance(x, str) and x not in values]
        if missing:
            raise NotAProgram(f"{text}: {missing[0]} has no value yet")
        operands = [values[x] if isinstance(x, str) else x for x in arguments]
        if any(isinstance(x, tuple) != (operator in ("first", "second")) for x in operands):
            raise NotAProgram(f"{text}: rand gives a pair; first and second take one apart, and nothing else does")
        if operator == "rand" and implicit:
            result, hidden = rand(hidden)
        elif operator == "rand":
            result = rand(*operands)
        elif operator in ("first", "second"):
            result = operands[0][operator == "second"]
        else:
            result = ARITHMETIC[operator](*operands)
        values[name] = result
    return result


def merge_equal(program: Sequence[Binding]) -> list[Binding]:
    """Common subexpression elimination by value numbering (Theorem 6.2 (1)): the same operation on the same names."""
    known: dict[tuple, str] = {}
    renamed: dict[str, str] = {}
    kept = []
    for name, operator, *arguments in program:
        key = (operator, *(renamed.get(x, x) if isinstance(x, str) else x for x in arguments))
        if key in known:
            renamed[name] = known[key]
        else:
            known[key] = name
            kept.append((name, *key))
    result = program[-1][0]
    return [*kept, ("result", "add", renamed.get(result, result), 0)]


def remove_unused(program: Sequence[Binding]) -> list[Binding]:
    """Dead code elimination (Theorem 6.2 (2)): what the last binding does not need, step by step, goes."""
    needed, kept = {program[-1][0]}, []
    for name, operator, *arguments in reversed(program):
        if name in needed:
            kept.append((name, operator, *arguments))
            needed.update(x for x in arguments if isinstance(x, str))
    return kept[::-1]


#: Two bindings p and q, in five programs; "implicit" ones name no state.
PROGRAMS: dict[str, tuple[tuple[Binding, ...], bool]] = {
    "p = rand(s0); q = rand(s0)": ((("p", "rand", "s0"), ("q", "rand", "s0")), False),
    "p = rand(s0); s1 = second(p); q = rand(s1)":
        ((("p", "rand", "s0"), ("s1", "second", "p"), ("q", "rand", "s1")), False),
    "p = rand(); q = rand()  (the state has no name)": ((("p", "rand"), ("q", "rand")), True),
    "p = rand(s0); s1 = second(p); r = rand(s1); q = rand(s0)":
        ((("p", "rand", "s0"), ("s1", "second", "p"), ("r", "rand", "s1"), ("q", "rand", "s0")), False),
    "a = rand(s0); b = rand(s0); s1 = second(a); s2 = second(b); p = rand(s1); q = rand(s2)":
        ((("a", "rand", "s0"), ("b", "rand", "s0"), ("s1", "second", "a"), ("s2", "second", "b"), ("p", "rand", "s1"),
          ("q", "rand", "s2")), False),
}  # fmt: skip


@lru_cache(maxsize=8)
def may_merge(text: str) -> bool:
    """Whether p and q have the same value in every environment that was tried."""
    program, implicit = PROGRAMS[text]
    upto = [k for k, binding in enumerate(program) if binding[0] in ("p", "q")]
    for s0 in (0, 1, 7, 12345, 2**30):
        p, q = (run(program[: k + 1], {"s0": s0}, implicit) for k in upto)
        if p != q:
            return False
    return True


@lru_cache(maxsize=8)
def implicit_programs(seed: int | None) -> tuple[tuple[Binding, ...], ...]:
    """Programs that draw from a state without a name, small ones first; some draws and some sums are used by nobody."""
    rng = generator(seed, "programs")
    cases: list[tuple[Binding, ...]] = [
        (("a", "add", "x", 1), ("b", "mul", "a", "a")), (("r", "rand"), ("b", "add", "r", "x")),
        (("r", "rand"), ("t", "rand"), ("b", "sub", "r", "t")), (("r", "rand"), ("t", "rand"), ("b", "add", "t", "x")),
        (("a", "mul", "x", 3), ("r", "rand"), ("c", "mul", "x", 3), ("t", "rand"), ("d", "sub", "a", "c"),
         ("e", "add", "t", "d")),
    ]  # fmt: skip
    for _ in range(12):
        names, program = ["x"], []
        for k in range(rng.randint(3, 8)):
            name = f"v{k}"
            if rng.random() < 0.45:
                program.append((name, "rand"))
            else:
                pick = (rng.choice(names), rng.choice([*names, rng.randint(1, 9)]))
                program.append((name, rng.choice(tuple(ARITHMETIC)), *pick))
            names.append(name)
        program.append(("last", "sub", names[-1], names[-2]))
        cases.append(tuple(program))
    return tuple(cases)


def program_text(program: Sequence[Binding]) -> str:
    return "\n".join(f"{name} = {operator}({', '.join(map(str, arguments))})" for name, operator, *arguments in program)


def _bindings(value: Any) -> list[Binding]:
    """A student's list of bindings; empty where it is none."""
    if not isinstance(value, list | tuple) or not all(isinstance(binding, list | tuple) for binding in value):
        return []
    named = all(len(binding) >= 2 and type(binding[0]) is type(binding[1]) is str for binding in value)
    return [tuple(binding) for binding in value] if named else []


def judge_thread(callee: Callee, seed: int | None) -> Verdict:
    """Translated programs draw the same numbers, before and after both eliminations."""
    merged = removed = 0
    for program in implicit_programs(seed):
        outcome = callee.call([tuple(binding) for binding in program])
        if outcome.failed:
            return call_failed(callee, (list(program),), outcome)
        explicit = _bindings(outcome.value)
        if not explicit:
            return unexpected_result(callee, (list(program),), "that is no list of bindings (name, operator, ...)")
        facts = (("program", program_text(program)), ("yours", program_text(explicit)))
        for x, s0 in ((0, 1), (5, 12345), (-3, 2**30 + 7)):
            env = {"x": x, "s0": s0}
            try:
                yours = run(explicit, env)
            except NotAProgram as problem:
                return wrong("That is no program of the language.", *facts, ("reason", problem), mistake="no-program")
            if yours == run(program, env, implicit=True):
                continue
            shown = (*facts, ("x and s0", f"{x}, {s0}"), ("yours gives", yours))
            states = [binding[2] for binding in explicit if binding[1] == "rand"]
            if len(states) > 1 and set(states) == {"s0"}:
                message = "All draws take the first state, so all give the same number."
                return wrong(message, *shown, mistake="one-state")
            return wrong("It does not give what the program gives.", *shown, mistake="other-value")
        for change in (merge_equal, remove_unused):
            changed = change(explicit)
            assert run(changed, {"x": 5, "s0": 9}) == run(explicit, {"x": 5, "s0": 9}), "Theorem 6.2"
            if change is merge_equal:
                merged += len(explicit) + 1 - len(changed)
            else:
                removed += len(explicit) - len(changed)
    facts = (("programs", len(implicit_programs(seed))), ("bindings merged since", merged),
             ("unused bindings removed since", removed))  # fmt: skip
    return right("The same numbers; and merging and removing bindings of yours changes none of them.", *facts)


# --- Part 3: refinement -----------------------------------------------------------------------------------------------

#: Integer tensors a student's function is run on; the first is the sample it is recorded with.
INPUTS = ([1, 1, 1], [0, 0, 0], [0, 1, 2], [-1, 1, 2], [5, 6, 7], [1000, 1, 1], [-1000, 0, 3])


def _without_unused(captured: Any) -> tuple[GraphModule, int]:
    """Remove whatever reaches no output and neither writes nor draws, whether or not it may raise."""

    def must_run(node: Node) -> bool:
        return bool(node.meta.get("mutates") or node.meta.get("random"))

    graph, _ = captured.graph.copy()
    removed = eliminate_dead_code(graph, must_run)
    return GraphModule(graph, captured.module.constants), len(removed)


def judge_unused(callee: Callee) -> Verdict:
    """Remove what is unused, and look for an input on which that shows."""
    sample = torch.tensor(INPUTS[0])
    outcome = callee.call(sample.clone())
    if outcome.failed:
        return call_failed(callee, (INPUTS[0],), outcome)
    if not isinstance(outcome.value, torch.Tensor):
        return unexpected_result(callee, (INPUTS[0],), f"got {type(outcome.value).__name__} and not a tensor")
    try:
        captured = trace(callee.function, (sample.clone(),), {})
    except Exception as error:  # the student's own, under the tracer
        return wrong("It cannot be recorded as a graph.", ("reason", describe_error(error)), mistake="not-recorded")
    if captured.gates:
        message = "It looks at the numbers in x, which no list of bindings does. An operation has to fail by itself."
        return wrong(message, mistake="looks-at-numbers")
    module, removed = _without_unused(captured)
    if not removed:
        return wrong("Every operation in it is used (or writes, or draws).", mistake="nothing-unused")
    for numbers in INPUTS:
        before = callee.call(torch.tensor(numbers))
        if before.timed_out:
            return call_failed(callee, (numbers,), before)
        try:
            after: Any = captured.rebuild(captured.flat_results(module(torch.tensor(numbers))))
        except Exception as error:  # whatever the operations that are left raise
            after = error
        if before.failed and isinstance(after, torch.Tensor):
            facts = (("x", numbers), ("before", before.reason().splitlines()[0]), ("after", after.tolist()))
            careful, _ = captured.graph.copy()
            kept = len(eliminate_dead_code(careful)) < removed
            note = "it keeps what may raise" if kept else "it does not remove more than that"
            return right("An error before, a result after.", *facts, ("the compiler's own removal", note))
    facts = (("removed", removed), ("inputs tried", len(INPUTS)))
    return wrong("The unused operation never fails, so nobody sees that it is gone.", *facts, mistake="same-behaviour")


#: What one run can come to: (before, after). "error" is an outcome like any other here.
PAIRS = ((1, 1), ("error", "error"), ("error", 1), (1, "error"), (1, 2), (2, 2), ("error", 2), (2, 1))


def against_refines(callee: Callee, pairs: list[tuple[Any, Any]]) -> Verdict | None:
    """The student's relation on the outcomes of two programs, input by input."""
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    outcome = callee.call(list(before), list(after))
    if outcome.failed:
        return call_failed(callee, (before, after), outcome)
    if not isinstance(outcome.value, bool):
        problem = f"it returned {result_text(outcome.value)}, which is neither True nor False"
        return unexpected_result(callee, (before, after), problem)
    truth = all(b == "error" or a == b for b, a in pairs)
    if outcome.value == truth:
        return None
    facts = (("before", before), ("after", after), ("yours", outcome.value))
    if callee.call(["error"], [1]).value is False and callee.call([1], ["error"]).value is True:
        message = "That is the other direction: it lets errors come in and does not let them go."
        return wrong(message, *facts, mistake="other-direction")
    if truth:
        message = "Where the first program fails, the second may do anything. That is what makes it less than equality."
        return wrong(message, *facts, mistake="too-strict")
    if any(b != "error" and a == "error" for b, a in pairs):
        return wrong("The second program fails where the first had a result.", *facts, mistake="error-introduced")
    return wrong("The second program has another result.", *facts, mistake="other-result")
