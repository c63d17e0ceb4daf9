"""From an operator graph to ONNX, the exchange format of trained models (opset 21).

ONNX is a graph of tensor operations like the one of Section 5.1, so translating is a walk with one rule for each
overload (:mod:`.onnx_operators`). What takes care is what the two standards do not share: PyTorch promotes dtypes where
ONNX wants equal ones, and the operators differ on NaN, on negative subscripts, and on the sign of a remainder. A rule
either writes what PyTorch means or refuses.

Half precision is carried as float32, as everywhere in this package: each operator computes in float32 and rounds its
result to the dtype the program has there, by two casts. So a CPU library without half-precision arithmetic gives
eager's roundings. Nodes keep their names, so a runtime's complaint about a node leads back to the user's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch

from ..capture.graph import Node, TensorMeta
from ..capture.module import GraphModule
from ..loops.ops import compute_dtype
from ..operators.structure import flatten
from .smaller_basis import unsupported

OPSET, FORMAT_VERSION = 21, 10
LIBRARY = "ONNX"

# The numbers of onnx.TensorProto for what values are carried as, and the half precisions results are rounded to.
ONNX_DTYPES = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.bool: 9,
    torch.float16: 10, torch.float64: 11, torch.bfloat16: 16,
}  # fmt: skip
HALF = (torch.float16, torch.bfloat16)


class Exporter:
    """Writes one model. ``names`` has the ONNX name of each value: for an operator with several results, a list."""

    def __init__(self, module: GraphModule, rules: dict[Any, Callable[[Exporter, Node], Any]]):
        from onnx import helper, numpy_helper

        self.module, self.rules = module, rules
        self.names: dict[Node, Any] = {}
        self.current: Node | None = None
        self._helper, self._arrays = helper, numpy_helper
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._constants: dict[tuple, str] = {}
        self._count = 0

    # -- the walk -----------------------------------------------------------------------------------------------------

    def model(self) -> Any:
        """The checked ``onnx.ModelProto``. BackendError for what has no rule. O(nodes + bytes of constants)."""
        from onnx import checker

        graph = self.module.graph
        for node in graph:
            self.current = node
            if node.op == "placeholder":
                self.names[node] = node.name
            elif node.op == "get_attr":
                self.names[node] = self.tensor(self.module.constants[node.target])
            elif node.op != "output":
                self.names[node] = self._translated(node)
        inputs = [self._described(node.name, node) for node in graph.placeholders]
        outputs: list[Any] = []
        given = {*(node.name for node in graph.placeholders), *self._constants.values()}
        for node in flatten(graph.output.args[0]):
            name = self.names[node]
            if name in given:  # an input, a constant, or the same value twice
                name = self.op("Identity", name, name=f"result.{len(outputs)}")
            given.add(name)
            outputs.append(self._described(name, node))
        made = self._helper.make_graph(self._nodes, "region", inputs, outputs, self._initializers)
        opset = self._helper.make_opsetid("", OPSET)
        model = self._helper.make_model(made, opset_imports=[opset], ir_version=FORMAT_VERSION, producer_name="staxlab")
        checker.check_model(model)
        return model

    def _translated(self, node: Node) -> Any:
        if node.target in self.rules:
            return self.rules[node.target](self, node)
        if not node.inputs and isinstance(node.val, TensorMeta) and _is_constant(node):
            return self.tensor(node.target(*node.args, **{**node.kwargs, **_on_cpu(node)}))
        raise unsupported(node, LIBRARY, "there is no rule that translates it")

    def _described(self, name: str, node: Node) -> Any:
        self.require_dtype(node)
        carried = ONNX_DTYPES[compute_dtype(node.val.dtype)]
        return self._helper.make_tensor_value_info(name, carried, node.val.shape)

    def require_dtype(self, node: Node) -> None:
        for leaf in flatten(node.val):
            if isinstance(leaf, TensorMeta) and leaf.dtype not in ONNX_DTYPES:
                raise unsupported(node, LIBRARY, f"{leaf.dtype} has no counterpart there")

    # -- what rules are written with ----------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add an ONNX node with one result, and return the result's name."""
        if name is None:
            base = self.current.name if self.current is not None else "value"
            name = f"{base}.{self._count}"
            self._count += 1
        attributes = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(self._helper.make_node(kind, [*inputs], [name], name=name, **attributes))
        return name

    def tensor(self, value: torch.Tensor) -> str:
        """The name of a constant."""
        value = value.detach().cpu()
        return self.array(value.to(compute_dtype(value.dtype)).contiguous().numpy())

    def array(self, value: numpy.ndarray) -> str:
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            name = f"constant.{len(self._constants)}"
            self._initializers.append(self._arrays.from_array(value, name))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, *values: int) -> str:
        """A vector of int64: shapes, axes and subscripts are inputs of ONNX operators."""
        return self.array(numpy.array(values, dtype=numpy.int64))

    def scalar(self, value: bool | int | float, dtype: torch.dtype) -> str:
        return self.tensor(torch.tensor(value, dtype=compute_dtype(dtype)))

    def cast(self, name: str, source: torch.dtype, target: torch.dtype) -> str:
        """A value converted as PyTorch converts it. float to bool is ``!= 0``, which for NaN is true: a cast of ONNX
        Runtime gives false there."""
        before, after = compute_dtype(source), compute_dtype(target)
        if target == torch.bool and source != torch.bool:
            return self.op("Not", self.op("Equal", name, self.scalar(0, source)))
        if before != after:
            name = self.op("Cast", name, to=ONNX_DTYPES[after])
        return self.rounded(name, target) if target != source else name

    def rounded(self, name: str, dtype: torch.dtype) -> str:
        """A float32 value rounded to half precision, if that is what the program has here."""
        if dtype not in HALF:
            return name
        return self.op("Cast", self.op("Cast", name, to=ONNX_DTYPES[dtype]), to=ONNX_DTYPES[torch.float32])

    def operand(self, argument: Any, dtype: torch.dtype) -> str:
        """An argument, tensor or number, as a value computed in ``dtype``."""
        if not isinstance(argument, Node):
            return self.scalar(argument, dtype)
        source = argument.val.dtype
        if compute_dtype(source) == compute_dtype(dtype):
            return self.names[argument]  # a half-precision value is a float32 value
        return self.cast(self.names[argument], source, dtype)

    def reshaped(self, name: str, shape: tuple[int, ...]) -> str:
        return self.op("Reshape", name, self.integers(*shape), allowzero=1)

    def refuse(self, why: str) -> Exception:
        assert self.current is not None
        return unsupported(self.current, LIBRARY, why)


def _is_constant(node: Node) -> bool:
    """Whether an operator without tensor arguments yields the same values at every run, and not just some memory."""
    tags = node.target.tags
    is_random = torch.Tag.nondeterministic_seeded in tags
    return not is_random and not node.target._opname.startswith(("empty", "rand"))


def _on_cpu(node: Node) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if "device" in node.kwargs else {}
