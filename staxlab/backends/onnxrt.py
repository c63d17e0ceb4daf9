"""ONNX Runtime as a backend: an exchange format between the compiler's front and a foreign engine (Section 11.3).

The operator graph is exported (:mod:`.onnx_export`), checked by ``onnx.checker`` and run by onnxruntime on the CPU. It
is a compiler of another kind than ours: its unit is the operator, for which it has kernels in store, and its fusions
are patterns it knows, as XLA's fusion kinds are (Section 12.4). No code is generated, so a first call costs
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import TensorMeta
from ..capture.module import GraphModule
from ..errors import BackendError, MissingDependencyError, OptionError
from ..loops.ops import compute_dtype
from ..operators.structure import flatten
from .smaller_basis import over_basis, unsupported

LEVELS = ("all", "basic", "none")


def onnxrt(
    graph_module: GraphModule, example_inputs: Sequence[torch.Tensor], *, threads: int = 0, optimization: str = "all"
) -> Session:
    """Export a graph and make an onnxruntime session of it.

    ``threads``: of one operator (0: as many as PyTorch uses). ``optimization``: the rewrites the runtime applies,
    "all", "basic" (those that keep its standard operators) or "none".

    Raises MissingDependencyError without onnx or onnxruntime, BackendError for an operator, dtype or device that cannot
    be taken, naming the line, and OptionError for an option of the wrong kind.
    """
    onnx, runtime = _libraries()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise OptionError(f"threads={threads!r} is not allowed: a whole number of 0 or more")
    if optimization not in LEVELS:
        raise OptionError(f"optimization={optimization!r} is not allowed: one of {', '.join(map(repr, LEVELS))}")
    _require_cpu(graph_module)
    from .onnx_export import Exporter
    from .onnx_operators import RULES, basis

    module = over_basis(graph_module, [*example_inputs], basis())
    model = Exporter(module, RULES).model()
    chosen = runtime.SessionOptions()
    chosen.intra_op_num_threads = threads or torch.get_num_threads()
    chosen.log_severity_level = 4
    levels = runtime.GraphOptimizationLevel
    chosen.graph_optimization_level = {
        "all": levels.ORT_ENABLE_ALL, "basic": levels.ORT_ENABLE_BASIC, "none": levels.ORT_DISABLE_ALL
    }[optimization]  # fmt: skip
    try:
        session = runtime.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(module, error) from error
    outputs = tuple(node.val for node in flatten(module.graph.output.args[0]))
    return Session(session, tuple(node.name for node in module.graph.placeholders), outputs, model)


@dataclass(frozen=True)
class Session:
    """A model that runs. Called with flat tensors; ``model`` is the ``onnx.ModelProto``."""

    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[TensorMeta, ...]
    model: Any

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        wanted = {entry.name for entry in self.session.get_inputs()}
        given = {
            name: x.detach().to(compute_dtype(x.dtype)).contiguous().numpy()
            for name, x in zip(self.inputs, tensors, strict=True)
            if name in wanted
        }
        results = self.session.run(None, given)
        return [
            torch.as_tensor(array).reshape(meta.shape).to(meta.dtype)
            for array, meta in zip(results, self.outputs, strict=True)
        ]

    def format(self) -> str:
        """The model in the text form of the ONNX project."""
        from onnx import printer

        return printer.to_text(self.model)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"backend 'onnxrt' needs the packages onnx and onnxruntime ({error})",
            remedy="pip install 'staxlab[onnxrt]'",
        ) from error
    return onnx, onnxruntime


def _require_cpu(module: GraphModule) -> None:
    for node in module.graph:
        for leaf in flatten(node.val):
            if isinstance(leaf, TensorMeta) and leaf.device.type != "cpu":
                raise unsupported(node, "onnxruntime", f"the value is on {leaf.device}, and the runtime is a CPU's")


def _refused(module: GraphModule, error: Exception) -> BackendError:
    """The runtime's own words, and the line of the node it names."""
    text = str(error).split("\n")[0]
    named = re.search(r"[Nn]ode[:( ]+(?:with name )?'?\(?([\w.]+)", text)
    for name in filter(None, [named and named.group(1)]):
        for node in module.graph:
            if node.name == name.rpartition(".")[0] or node.name == name:
                return unsupported(node, "onnxruntime", text)
    return BackendError(f"onnxruntime does not take the model: {text}", remedy="backend='stax' compiles the region")
