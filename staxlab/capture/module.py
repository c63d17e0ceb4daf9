"""Running a graph: an interpreter, and the same program as Python source (Section 3.1).

A :class:`GraphModule` is the unit a backend receives. Its ``code`` is readable Python that computes exactly what the
graph computes; ``forward`` is that code, compiled. :class:`Interpreter` runs the same graph node by node with one
visible environment, which is what analyses, recorders and the debugging backends build on.
"""

from __future__ import annotations

import linecache
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from ..errors import TransformError
from .graph import Graph, Node, last_uses, map_nodes, target_name


class Interpreter:
    """Runs a graph node by node (the "eager" prefix of the pipeline). One visible ``env``, freed as values die.

    Subclasses override :meth:`run_node`. An exception gains a note naming the node and the user's source line.
    """

    def __init__(self, module: GraphModule):
        self.module = module
        self.env: dict[Node, Any] = {}
        self._dying = last_uses(module.graph)

    def run(self, *inputs: Any) -> Any:
        remaining = iter(inputs)
        self.env = {}
        for node in self.module.graph:
            if node.op == "placeholder":
                self.env[node] = next(remaining)
                continue
            try:
                if node.op == "output":
                    return self.load(node.args[0])
                self.env[node] = self.run_node(node)
            except Exception as error:
                where = f" ({node.location})" if node.location else ""
                error.add_note(f"while executing {node.format()}{where}")
                raise
            for dead in self._dying.get(node, ()):
                del self.env[dead]
        raise TransformError("the graph has no output node")

    def load(self, argument: Any) -> Any:
        return map_nodes(argument, self.env.__getitem__)

    def run_node(self, node: Node) -> Any:
        args, kwargs = self.load(node.args), self.load(node.kwargs)
        if node.op == "call_function":
            return node.target(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        if node.op == "get_attr":
            return self.module.constants[node.target]
        return self.module.constants[node.target](*args, **kwargs)  # call_module


class GraphModule:
    """A graph together with the constants it names, and equivalent Python source compiled as :meth:`forward`.

    This is what a backend receives (Section 1.2): ``backend(graph_module, example_inputs, **options) -> callable``.
    """

    _count = 0

    def __init__(self, graph: Graph, constants: dict[str, Any] | None = None):
        self.graph = graph
        self.constants: dict[str, Any] = dict(constants or {})
        self._forward: Callable | None = None
        self._code: str | None = None

    @property
    def code(self) -> str:
        """Python source of a function ``forward(...)`` that computes what the graph computes."""
        if self._code is None:
            self._code, self._globals = _python_source(self)
        return self._code

    @property
    def forward(self) -> Callable:
        if self._forward is None:
            source = self.code
            GraphModule._count += 1
            file = f"<staxlab graph {GraphModule._count}>"
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            scope = dict(self._globals)
            exec(compile(source, file, "exec"), scope)
            self._forward = scope["forward"]
        return self._forward

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def __str__(self) -> str:
        return self.graph.format()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
    operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.eq: "==", operator.ne: "!=",
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_PREFIX = {operator.neg: "-", operator.invert: "~", operator.pos: "+"}


def _python_source(module: GraphModule) -> tuple[str, dict[str, Any]]:
    scope: dict[str, Any] = {"torch": torch, "operator": operator, "constants": module.constants}

    def name_of(value: Any) -> str:
        """A spelling for a value in the source; what has no literal spelling becomes a global of the function."""
        if isinstance(value, Node):
            return value.name
        if isinstance(value, tuple) and not isinstance(value, torch.Size) and not hasattr(value, "_fields"):
            inner = ", ".join(name_of(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{bind(type(value).__name__, type(value))}({', '.join(name_of(v) for v in value)})"
        if isinstance(value, list):
            return f"[{', '.join(name_of(v) for v in value)}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name_of(k)}: {name_of(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({name_of(value.start)}, {name_of(value.stop)}, {name_of(value.step)})"
        if isinstance(value, float):
            literal = repr(value)
            return literal if literal not in ("inf", "-inf", "nan") else f"float('{literal}')"
        if value is None or isinstance(value, (bool, int, str, bytes)) or value is Ellipsis:
            literal = type(value) in (bool, int, str, bytes, type(None), type(Ellipsis))
            return repr(value) if literal else bind("value", value)
        if isinstance(value, torch.dtype):
            return str(value)
        return bind(getattr(value, "__name__", type(value).__name__), value)

    def bind(base: str, value: Any) -> str:
        base = re.sub(r"\W", "_", base) or "value"
        name, count = f"_{base}", 0
        while name in module.graph._names or scope.get(name, value) is not value:
            count += 1
            name = f"_{base}_{count}"
        scope[name] = value
        return name

    def call_target(target: Callable) -> str:
        if isinstance(target, torch._ops.OpOverload):
            return f"torch.ops.{target}"
        spelled = target_name(target)
        root: Any = {"torch": torch, "operator": operator}.get(spelled.split(".")[0])
        found = root
        for part in spelled.split(".")[1:]:
            found = getattr(found, part, None)
        return spelled if found is target and root is not None else bind(getattr(target, "__name__", "target"), target)

    dying = last_uses(module.graph)
    lines = [f"def forward({', '.join(node.name for node in module.graph.placeholders)}):"]
    for node in module.graph:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            lines.append(f"    return {name_of(node.args[0])}")
            continue
        arguments = [name_of(a) for a in node.args]
        keywords = [f"{key}={name_of(value)}" for key, value in node.kwargs.items()]
        if node.op == "get_attr":
            expression = f"constants[{node.target!r}]"
        elif node.op == "call_module":
            expression = f"constants[{node.target!r}]({', '.join(arguments + keywords)})"
        elif node.op == "call_method":
            expression = f"{arguments[0]}.{node.target}({', '.join(arguments[1:] + keywords)})"
        elif node.target in _INFIX and len(arguments) == 2 and not keywords:
            expression = f"{arguments[0]} {_INFIX[node.target]} {arguments[1]}"
        elif node.target in _PREFIX and len(arguments) == 1 and not keywords:
            expression = f"{_PREFIX[node.target]}{arguments[0]}"
        elif node.target is getattr and len(arguments) == 2:
            expression = f"{arguments[0]}.{node.args[1]}"
        elif node.target is operator.getitem and len(arguments) == 2:
            expression = f"{arguments[0]}[{arguments[1]}]"
        else:
            expression = f"{call_target(node.target)}({', '.join(arguments + keywords)})"
        comment = f"  # {node.location.text}" if node.location and node.location.text else ""
        lines.append(f"    {node.name} = {expression}{comment}")
        dead = [d.name for d in dying.get(node, ()) if d.op != "placeholder" and d is not node]
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    return "\n".join(lines) + "\n", scope
