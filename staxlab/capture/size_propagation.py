"""Sizes of intermediate values as expressions over those of the inputs (Section 10.2).

The operations that a value comes from are run once on tensors without memory whose sizes are symbols: PyTorch's
``FakeTensorMode`` with its ``ShapeEnv``, which know the shape rules of every operator. What PyTorch assumes on the way
(that two sizes broadcast because they are equal, that a size is divisible) is taken over as decisions of ours; an
assumption or a size that is no integer polynomial with divisions is a size that cannot be told, and so is one that
differs on the sample from what the value has.

Nothing here is imported before somebody asks for the size of an intermediate value: it costs two seconds, once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ..loops.expressions import Expr
from ..shapes.environment import LEAST_SYMBOLIC
from ..shapes.relations import NEGATION, Relation
from .gates import backward_slice
from .graph import Node, TensorMeta
from .module import GraphModule, Interpreter


class _NoPolynomial(Exception):
    """A size or an assumption that our expressions do not have."""


def _parts(value: Any) -> int | None:
    return len(value) if isinstance(value, (tuple, list)) else None


class Propagation:
    """Runs slices of one graph, each node once."""

    def __init__(self, sizes: Any):
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.owner = sizes
        # Equal hints do not make one symbol: what inputs have in common is for the program to say. That a size is 2 or
        # more may be taken for granted only where all ranges say so.
        wide = all(symbol.lower >= LEAST_SYMBOLIC for symbol in sizes.environment.hints)
        self.shape_environment = ShapeEnv(duck_shape=False, specialize_zero_one=wide)
        self.mode = FakeTensorMode(shape_env=self.shape_environment, allow_non_fake_inputs=True)
        self.values: dict[Node, Any] = {}
        self.symbols: dict[Any, Expr] = {}
        self.taken = 0
        self.assumed: list[tuple[Relation, Node]] = []

    def sizes_of_value(self, value: Any) -> tuple[Expr, ...]:
        return tuple(self._expression(extent) for extent in value.shape)

    def sizes(self, node: Node) -> tuple[Expr, ...] | None:
        """The sizes of a node's tensor, or None. Linear in the nodes it depends on that were not asked before."""
        meta = node.val
        found = self._told(node, self.sizes_of_value) if isinstance(meta, TensorMeta) else None
        if found is None or tuple(map(self.owner.environment.hint, found)) != tuple(meta.shape):
            return None
        self._rely()
        return found

    def tells(self, node: Node) -> bool:
        """Whether what the operation of ``node`` takes for granted is among the decisions, down to how many parts it
        returns."""
        if isinstance(node.val, TensorMeta):
            return self.owner.of(node) is not None
        if not isinstance(node.val, (tuple, list)) or self._told(node, _parts) != len(node.val):
            return False
        self._rely()
        return True

    def _told(self, node: Node, read: Callable[[Any], Any]) -> Any:
        """What ``read`` finds in a node's value on symbols; None where that cannot be told."""
        from torch.utils._python_dispatch import _disable_current_modes

        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                return read(self._run(node))
        except Exception:  # an operator without a shape rule, or one that needs data: not the program's fault
            return None

    def _rely(self) -> None:
        assumed, self.assumed = self.assumed, []
        for relation, operation in assumed:
            text = f"{operation.target_name()} relies on it"
            self.owner.environment.ask(relation, text, node=operation)

    def _run(self, node: Node) -> Any:
        interpreter = Interpreter(GraphModule(self.owner.graph))
        interpreter.env = self.values
        order = self._order()
        needed_nodes = backward_slice([node])
        writes = [order[writing] for writing in needed_nodes if writing.meta.get("mutates")]
        if writes:  # `y.t_()` changes the shape of y itself, so whoever reads y before it has to run before it
            needed_nodes |= {earlier for earlier in self.owner.graph if order[earlier] < max(writes)}
        for needed in sorted(needed_nodes, key=order.__getitem__):
            if needed in self.values:
                continue
            if needed.op == "placeholder":
                self.values[needed] = self._input(needed)
            else:
                with self.mode, torch.no_grad():
                    is_item = needed.target is operator.getitem
                    found = _item(*interpreter.load(needed.args)) if is_item else interpreter.run_node(needed)
                    self.values[needed] = found
                self._name_sizes(needed)
                self.assumed += [(relation, needed) for relation in self._assumptions()]
        return self.values[node]

    def _name_sizes(self, node: Node) -> None:
        """Symbols of ours for the sizes that the operation of ``node`` has made up: those that depend on data."""
        value = self.values[node]
        if not isinstance(value, torch.Tensor) or not isinstance(node.val, TensorMeta):
            return
        for dimension, extent in enumerate(value.shape):
            term = None if type(extent) is int else extent.node.expr
            if term is not None and term.is_Symbol and term not in self.symbols:
                self.symbols[term] = self.owner.data_dependent(node, dimension)

    def _order(self) -> dict[Node, int]:
        return {node: position for position, node in enumerate(self.owner.graph)}

    def _input(self, node: Node) -> Any:
        """A tensor without memory, like the input, with a symbol for each size that is one."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        meta, expressions = node.val, self.owner.known[node]
        sample = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
        dynamic = [DimDynamic.STATIC if e.is_constant else DimDynamic.DYNAMIC for e in expressions]
        context = StatelessSymbolicContext(dynamic_sizes=dynamic)
        fake = self.mode.from_tensor(sample, source=ConstantSource(f"input_{node.name}"), symbolic_context=context)
        for extent, expression in zip(fake.shape, expressions, strict=True):
            if not isinstance(extent, int):
                self.symbols[extent.node.expr] = expression
        return fake

    # -- from sympy ----------------------------------------------------------------------------------------------------

    def _expression(self, extent: Any) -> Expr:
        return Expr.of(extent) if type(extent) is int else self._convert(extent.node.expr)

    def _convert(self, term: Any) -> Expr:
        import sympy
        from torch.utils._sympy import functions

        if term in self.symbols:
            return self.symbols[term]
        if term.is_Integer:
            return Expr.of(int(term))
        parts = [self._convert(part) for part in term.args]
        if isinstance(term, sympy.Add):
            return sum(parts[1:], parts[0])
        if isinstance(term, sympy.Mul):
            product = parts[0]
            for part in parts[1:]:
                product = product * part
            return product
        if isinstance(term, sympy.Pow) and term.exp.is_Integer and 0 < int(term.exp) <= 8:
            product = parts[0]
            for _ in range(int(term.exp) - 1):
                product = product * parts[0]
            return product
        if isinstance(term, (functions.FloorDiv, functions.CleanDiv)):
            return parts[0] // parts[1]
        if isinstance(term, (functions.Mod, functions.PythonMod, sympy.Mod)):
            return parts[0] % parts[1]
        raise _NoPolynomial(term)

    def _assumptions(self) -> list[Relation]:
        """What the shape environment has assumed since it was asked last."""
        guards = self.shape_environment.guards
        new, self.taken = guards[self.taken :], len(guards)
        return [relation for guard in new for relation in self._relations(guard.expr)]

    def _relations(self, condition: Any, negate: bool = False) -> list[Relation]:
        import sympy

        if condition is sympy.true and not negate:
            return []
        if isinstance(condition, sympy.Not):
            return self._relations(condition.args[0], not negate)
        if isinstance(condition, sympy.And) and not negate:
            return [relation for part in condition.args for relation in self._relations(part)]
        comparison = {
            "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=",
            "StrictGreaterThan": ">", "GreaterThan": ">=",
        }.get(type(condition).__name__)  # fmt: skip
        if comparison is None:
            raise _NoPolynomial(condition)
        left, right = (self._convert(part) for part in condition.args)
        return [Relation.of(left, NEGATION[comparison] if negate else comparison, right)]


def _item(value: Any, index: Any) -> Any:
    """``value[index]``. Subscripting with a size would make it a number at once, which ``select`` does not."""
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(value, torch.Tensor) or not all(type(p) in (int, slice, torch.SymInt) for p in parts):
        return value[index]
    dimension = 0
    for part in parts:
        if isinstance(part, slice):
            value = value[(slice(None),) * dimension + (part,)]
            dimension += 1
        else:
            value = value.select(dimension, part)
    return value
