"""Perturbed answers: does a checker really check?

A checker is tested with answers that are almost right. The mistakes an author thinks of are listed in the exercise;
this module produces the ones nobody thinks of, by changing the reference answer in one place: another constant, another
operator, an operand or a statement left out, one name in the place of another. Every such *mutant* must lose points,
except where the change makes no difference: for formulas that is decided here, by exact evaluation, and mutants that
equal the original are not produced; for functions it cannot be decided, so an exercise lists the ``HARMLESS`` ones.

Only reference answers are mutated, so the code that is executed here is the package's own.
"""

from __future__ import annotations

import ast
import copy
import inspect
import random
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .answers import Choice, Field, FormulaIn, Function, Number, Numbers, Steps, as_number
from .formula import FormulaError, parse_formula

OTHER_OPERATOR: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Div),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
}


@dataclass(frozen=True)
class Mutant:
    """A changed answer, and what was changed."""

    change: str
    answer: Any


def mutants(field: Field, answer: Any, constants: Mapping[str, Fraction]) -> Iterator[Mutant]:
    """All single changes of ``answer``. Nothing for fields a person reads."""
    match field:
        case FormulaIn():
            names = (*field.variables, *constants)
            if isinstance(answer, str):
                for text in formula_mutants(answer, names, constants):
                    yield Mutant(f"{answer} became {text}", text)
        case Steps():
            names = (*field.variables, *constants)
            for position, step in enumerate(answer):
                relation, text = _split_relation(step)
                for changed in formula_mutants(text, names, constants):
                    steps = [*answer[:position], relation + changed, *answer[position + 1 :]]
                    yield Mutant(f"step {position + 1} became {relation}{changed}", steps)
        case Choice():
            yield from (Mutant(f"chose {option}", option) for option in field.options if option != answer)
        case Number():
            value = Fraction(as_number(answer))
            for other in dict.fromkeys((value + 1, value - 1, 2 * value, value / 2, -value, Fraction(0))):
                if other != value:
                    yield Mutant(f"{value} became {other}", other)
        case Numbers():
            yield from _array_mutants(answer)
        case Function():
            yield from function_mutants(answer)


def _split_relation(step: str) -> tuple[str, str]:
    text = step.lstrip()
    for relation in ("<=", ">=", "="):
        if text.startswith(relation):
            return relation + " ", text.removeprefix(relation).strip()
    return "", text


def _array_mutants(answer: Any) -> Iterator[Mutant]:
    """One entry raised by one, for every entry."""
    nested = answer.tolist() if hasattr(answer, "tolist") else answer

    def walk(value: Any) -> Iterator[Any]:
        if not isinstance(value, list | tuple):
            yield Fraction(as_number(value)) + 1
            return
        for position, entry in enumerate(value):
            for changed in walk(entry):
                yield [*value[:position], changed, *value[position + 1 :]]

    for changed in walk(nested):
        yield Mutant(f"became {changed}", changed)


def formula_mutants(text: str, names: tuple[str, ...], constants: Mapping[str, Fraction]) -> Iterator[str]:
    """Formulas that differ from ``text`` in one place and, at some point, in value."""
    original = parse_formula(text, names)
    rng = random.Random(text)
    points = [{name: constants.get(name, Fraction(rng.randint(1, 60))) for name in names} for _ in range(8)]

    def values(formula: str) -> list[Any]:
        found = []
        parsed = parse_formula(formula, names)
        for point in points:
            try:
                found.append(parsed.at(**point))
            except FormulaError as error:
                found.append(str(error))
        return found

    # The index of a Sum stands in a tuple; elsewhere it looks like any other name.
    indices = {n.elts[0].id for n in ast.walk(original.tree) if isinstance(n, ast.Tuple)}
    truth, seen = values(text), {ast.unparse(original.tree)}
    for tree in single_changes(original.tree, (*names, *indices)):
        changed = ast.unparse(tree)
        try:
            different = changed not in seen and values(changed) != truth
        except FormulaError:
            continue  # no formula any more: refused before it is judged
        if different:
            seen.add(changed)
            yield changed


def function_mutants(function: Callable[..., Any]) -> Iterator[Mutant]:
    """Functions whose source differs from that of ``function`` in one place. The change is the statement concerned."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef), "reference functions are written with def, at module level"
    parameters = [argument.arg for argument in definition.args.args]
    seen = {ast.unparse(definition)}
    for tree in single_changes(definition, tuple(parameters)):
        source = ast.unparse(tree)
        if source in seen:
            continue
        seen.add(source)
        namespace = dict(function.__globals__)
        exec(compile(source, f"<mutant of {function.__name__}>", "exec"), namespace)
        yield Mutant(_changed_line(ast.unparse(definition), source), namespace[function.__name__])


def _changed_line(before: str, after: str) -> str:
    """The first line in which two sources differ."""
    old, new = before.splitlines(), after.splitlines()
    for a, b in zip(old, new, strict=False):
        if a != b:
            return f"{a.strip()} -> {b.strip()}"
    return f"{len(old)} lines -> {len(new)} lines"


def single_changes(tree: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Copies of a syntax tree, each changed in one place."""
    strings = sorted({n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)})
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    variables = sorted(loaded & (set(names) | bound))
    for position, node in enumerate(ast.walk(tree)):
        for replacement in _replacements(node, strings, variables):
            changed = copy.deepcopy(tree)
            victim = next(n for i, n in enumerate(ast.walk(changed)) if i == position)
            if victim is changed:
                yield replacement
            else:
                _replace(changed, victim, replacement)
                yield ast.fix_missing_locations(changed)
        # Statements left out: `pass` stands in where a block would become empty.
        for name, block in ast.iter_fields(node):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                for index in range(len(block)):
                    changed = copy.deepcopy(tree)
                    twin = next(n for i, n in enumerate(ast.walk(changed)) if i == position)
                    getattr(twin, name)[index] = ast.Pass()
                    yield ast.fix_missing_locations(changed)


def _replacements(node: ast.AST, strings: list[str], variables: list[str]) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int() | float() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=str() as value):
            yield from (ast.Constant(other) for other in strings if other != value)
        case ast.Name(id=name, ctx=ast.Load()) if name in variables:
            yield from (ast.Name(other, ast.Load()) for other in variables if other != name)
        case ast.BinOp(left=left, op=op, right=right):
            yield from (left, right)
            for other in OTHER_OPERATOR.get(type(op), ()):
                yield ast.BinOp(left, other(), right)


def _replace(tree: ast.AST, victim: ast.AST, replacement: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is victim:
                setattr(parent, name, replacement)
                return
            if isinstance(value, list):
                for index, entry in enumerate(value):
                    if entry is victim:
                        value[index] = replacement
                        return
