"""From one line of Python to a function with inputs, so that a compiler has something to compile.

``F.softmax(torch.randn(64, 1000), -1)`` is an expression, and a compiler wants a function. What separates the two is
the question Section 2 asks of every program: which parts vary from call to call, and which are fixed? Here the syntax
tree answers it. A call that makes a tensor out of constants (``torch.randn(64, 1000)``) becomes a named *input*; a
module made out of constants (``nn.LayerNorm(8)``) becomes an object the function *closes over*; everything else is the
body. This is lambda lifting (Johnsson 1985) with tensor factories in the role of free variables.

Several statements may stand before the expression, separated by semicolons, so that a tensor can be used twice:
``x = torch.randn(64, 128); torch.relu(x) * x``.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .errors import OptionError

FACTORIES = frozenset(
    "arange bernoulli complex empty empty_strided eye full hann_window linspace logspace normal ones poisson polar "
    "rand randint randn randperm scalar_tensor tensor as_tensor asarray tril_indices triu_indices zeros".split()
)
MODULE_METHODS = frozenset("bfloat16 cpu cuda double eval float half requires_grad_ to train".split())
NAMES = ("torch", "F", "nn", "math", "staxlab")


@dataclass(frozen=True)
class OneLiner:
    """The function an expression stands for, and the values it was given.

    ``source`` is the function's text (what a source location in the compilation refers to), ``inputs`` the arguments in
    order as (name, text, tensor), ``objects`` the modules and other constants closed over as (name, text, value).
    """

    expression: str
    source: str
    function: Callable[..., Any]
    inputs: tuple[tuple[str, str, Any], ...]
    objects: tuple[tuple[str, str, Any], ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        return tuple(value for _, _, value in self.inputs)

    def __str__(self) -> str:
        given = [f"{name} = {text}" for name, text, _ in (*self.objects, *self.inputs)]
        return "\n".join([*given, self.source.rstrip()])


def parse(expression: str, *, seed: int = 0) -> OneLiner:
    """Turn an expression (or ``name = value; ...; expression``) into a function with inputs.

    Inputs are evaluated once, after ``torch.manual_seed(seed)``, from left to right. A name that stands for a plain
    number is replaced by it. Raises OptionError for text that is not Python, uses an unknown name, makes no tensor, or
    whose inputs cannot be evaluated.
    """
    import torch

    tree = _syntax(expression)
    *statements, final = tree.body
    if not isinstance(final, ast.Expr):
        raise OptionError("the last statement must be an expression", remedy="end with what is to be computed")
    lifting = _Lifting(expression)
    body: list[ast.stmt] = []
    for statement in statements:
        if not (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            raise OptionError(
                f"only assignments to a name may stand before the expression, not {ast.unparse(statement)!r}",
                remedy="write a file and call staxlab.explain for anything larger",
            )
        name = statement.targets[0].id
        if lifting.is_plain(statement.value):
            lifting.plain[name] = _evaluate(statement.value, _scope() | lifting.plain)
            continue
        value = lifting.lift(statement.value, wanted=name)
        lifting.plain.pop(name, None)
        if not (isinstance(value, ast.Name) and value.id == name):
            lifting.local.add(name)
            body.append(ast.Assign(targets=statement.targets, value=value))
    body.append(ast.Return(value=lifting.lift(final.value)))
    if not lifting.inputs and not lifting.objects:
        raise OptionError(
            f"{expression.strip()!r} makes no tensor, so there is nothing to compile",
            remedy="use a factory with constant arguments, such as torch.randn(64, 128)",
        )
    torch.manual_seed(seed)
    scope = _scope()
    values = {name: _evaluate(node, scope) for name, node in lifting.hoisted}
    for name, node in lifting.inputs.items():
        if not isinstance(values[name], torch.Tensor):
            raise OptionError(f"{ast.unparse(node)} is a {type(values[name]).__name__}, not a tensor")
    source = _source(body, lifting)
    objects = tuple((name, ast.unparse(node), values[name]) for name, node in lifting.objects.items())
    inputs = tuple((name, ast.unparse(node), values[name]) for name, node in lifting.inputs.items())
    function = define(source, closed_over={name: value for name, _, value in objects})
    return OneLiner(expression, source, function, inputs, objects)


def define(source: str, *, file: str = "<one-liner>", closed_over: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Compile the text of one ``def`` so that tracebacks and source locations can quote its lines.

    ``closed_over`` become cells of the function's closure, as if an enclosing function had assigned them.
    """
    lines = source.splitlines(keepends=True)
    # A modification time of None keeps linecache from looking for the file on disk and forgetting these lines.
    linecache.cache[file] = (len(source), None, lines, file)
    tree = ast.parse(source)
    (definition,) = tree.body
    names = sorted(closed_over or ())
    maker = ast.FunctionDef(
        name="make",
        args=ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
        ),
        body=[definition, ast.Return(value=ast.Name(id=definition.name, ctx=ast.Load()))],
        decorator_list=[],
        type_params=[],
    )
    tree.body = [maker]
    scope = _scope()
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), scope)
    function = scope["make"](**(closed_over or {}))
    function.__qualname__ = definition.name
    return function


def _scope() -> dict[str, Any]:
    import torch

    import staxlab

    names = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn, "math": math, "staxlab": staxlab}
    return names | {"__name__": "one_liner"}


def _syntax(expression: str) -> ast.Module:
    text = textwrap.dedent(expression).strip()
    if not text:
        raise OptionError("the expression is empty", remedy="try 'F.softmax(torch.randn(64, 1000), -1)'")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        column = f", near column {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise OptionError(f"{text!r} is not a Python expression: {reason}{column}") from None
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    if clash := sorted(assigned & set(NAMES)):
        raise OptionError(f"{clash[0]!r} cannot be assigned: it names a module here", remedy="choose another name")
    for node in ast.walk(tree):
        known = isinstance(node, ast.Name) and (node.id in assigned or node.id in NAMES or hasattr(builtins, node.id))
        if isinstance(node, ast.Name) and not known:
            raise OptionError(f"the name {node.id!r} is not known here", remedy=_define_it(node.id, text, tree))
    return tree


def _define_it(name: str, text: str, tree: ast.Module) -> str:
    """How to go on from an unknown name: as a tensor it can be made first, as a module it cannot be had."""
    available = f"available: {', '.join(NAMES)}"
    owners = (node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    modules = {"np", "numpy", "jnp", "tf", "torchvision", "scipy", "plt"}
    if name in modules & {owner.id for owner in owners if isinstance(owner, ast.Name)}:
        return available
    if name in {function.id for function in called if isinstance(function, ast.Name)}:
        return f"spell it out, as in torch.{name}(...) or F.{name}(...); {available}"
    return f"define it first, as in '{name} = torch.randn(8, 8); {text}'; {available}"


def _evaluate(node: ast.expr, scope: dict[str, Any]) -> Any:
    try:
        return eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<one-liner input>", "eval"), scope)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise OptionError(f"{ast.unparse(node)} cannot be evaluated: {type(error).__name__}: {reason}") from error


def _source(body: list[ast.stmt], lifting: _Lifting) -> str:
    lines = [f"def f({', '.join(lifting.inputs)}):"]
    lines += [f"    {ast.unparse(ast.fix_missing_locations(statement))}" for statement in body]
    return "\n".join(lines) + "\n"


class _Lifting:
    """Replaces constant tensor and module constructions by names, and remembers them in the order of evaluation."""

    def __init__(self, expression: str):
        self.inputs: dict[str, ast.expr] = {}
        self.objects: dict[str, ast.expr] = {}
        self.hoisted: list[tuple[str, ast.expr]] = []
        self.local: set[str] = set()
        self.plain: dict[str, Any] = {}
        self._taken = {*NAMES, *re.findall(r"[A-Za-z_]\w*", expression)}

    def is_plain(self, node: ast.expr) -> bool:
        """True for arithmetic on numbers: no call but those of ``math``, no value that only the function knows."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        literal = not any(
            isinstance(part, ast.Attribute) and not _dotted(part).startswith("math.") for part in ast.walk(node)
        )
        return literal and self._constant(node) and all(_dotted(c.func).startswith("math.") for c in calls)

    def lift(self, node: ast.expr, wanted: str | None = None) -> ast.expr:
        if isinstance(node, ast.Name) and node.id in self.plain:
            return ast.parse(repr(self.plain[node.id]), mode="eval").body
        if self._constant(node) and (kind := self._kind(node)):
            return self._name(_Plain(self.plain).visit(node), kind, wanted)
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return _Plain(self.plain).visit(node)  # its parts run many times: one input would stand for several tensors
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.lift(value))
            elif isinstance(value, list):
                setattr(node, field, [self._lift_item(item) for item in value])
        return node

    def _lift_item(self, item: Any) -> Any:
        if isinstance(item, ast.keyword):
            item.value = self.lift(item.value)
            return item
        return self.lift(item) if isinstance(item, ast.expr) else item

    def _name(self, node: ast.expr, kind: str, wanted: str | None) -> ast.Name:
        table = self.inputs if kind == "tensor" else self.objects
        name = wanted if wanted and wanted not in self.local | set(self.inputs) | set(self.objects) else None
        if name is None:
            candidates = _letters() if kind == "tensor" else _numbered(_snake_case(_class_of(node)))
            name = next(n for n in candidates if n not in self._taken)
        self._taken.add(name)
        table[name] = node
        self.hoisted.append((name, node))
        return ast.Name(id=name, ctx=ast.Load())

    def _constant(self, node: ast.expr) -> bool:
        """True when nothing inside depends on what only the function knows: its inputs and local values."""
        variable = self.local | set(self.inputs) | set(self.objects)
        return not any(
            isinstance(n, ast.Name) and (n.id in variable or isinstance(n.ctx, ast.Store)) for n in ast.walk(node)
        )

    def _kind(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Call):
            return None
        prefix, _, last = _dotted(node.func).rpartition(".")
        if prefix in ("torch", "torch.random") and last in FACTORIES:
            nested = any(self._kind(part) == "tensor" for part in ast.walk(node) if part is not node)
            return None if nested else "tensor"
        if prefix in ("nn", "torch.nn") and last[:1].isupper():
            return "tensor" if last in ("Parameter", "Buffer") else "module"
        if isinstance(node.func, ast.Attribute) and node.func.attr in MODULE_METHODS:
            return "module" if self._kind(node.func.value) == "module" else None
        return None


class _Plain(ast.NodeTransformer):
    """Puts plain numbers in the place of the names that stand for them."""

    def __init__(self, values: dict[str, Any]):
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(repr(self.values[node.id]), mode="eval").body if node.id in self.values else node


def _dotted(node: ast.expr) -> str:
    """``torch.nn.Linear`` for that chain of attributes, empty for anything that is not one."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _class_of(node: ast.expr) -> str:
    """The class a construction constructs, behind any methods called on the new object."""
    while isinstance(node, ast.Call):
        if dotted := _dotted(node.func):
            return dotted.rpartition(".")[2]
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return "module"


def _letters() -> Iterator[str]:
    yield from "abcdefghijklmnopqrstuvwxyz"
    yield from _numbered("t")


def _numbered(base: str) -> Iterator[str]:
    yield base
    count = 2
    while True:
        yield f"{base}_{count}"
        count += 1


def _snake_case(name: str) -> str:
    if name.isupper():
        return name.lower()
    name = name.replace("LU", "lu")  # ReLU, SiLU: one word each
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
