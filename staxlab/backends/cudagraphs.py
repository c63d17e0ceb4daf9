"""CUDA Graphs without a compiler: PyTorch's operators one after the other, recorded and replayed (Section 9.9).

Of the model's parameters this backend touches one. The kernels are eager's, as many and with as much traffic; what goes
is ``n * t_launch``, the host's price for each of them. Beside "stax" it tells how much of a gain is fewer launches and
how much is less memory traffic. Recording, the guard on addresses and the care for results that are still held are
those of compiled regions (:mod:`staxlab.runtime.graphs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import TensorMeta
from ..capture.module import GraphModule, Interpreter
from ..errors import OptionError
from ..operators.structure import flatten
from ..runtime.graph_checks import SYNCHRONIZING
from ..runtime.graph_devices import CudaGraphDevice, GraphDevice
from ..runtime.graphs import GraphedRegion
from .smaller_basis import unsupported


def cudagraphs(
    graph_module: GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    graph_inputs: str = "check",
    graph_outputs: str = "reuse",
) -> Recorded:
    """Record a graph's operators. The options are those of compiled regions (:class:`staxlab.options.Options`).

    Raises OptionError for values that are on no GPU, and BackendError for an operator that waits for the device, naming
    the line.
    """
    device = graph_device(graph_module)
    for node in graph_module.graph.calls:
        name = getattr(node.target, "_opname", "")
        if name in SYNCHRONIZING:
            raise unsupported(node, "CUDA Graphs", f"it {SYNCHRONIZING[name]}")
    region = GraphedRegion(
        lambda inputs: Interpreter(graph_module).run(*inputs),
        device,
        name="region",
        inputs=graph_inputs,
        outputs=graph_outputs,
        guarded=True,
    )
    return Recorded(graph_module, region)


@dataclass(frozen=True)
class Recorded:
    """A region of operators that is recorded and replayed; ``region`` reports how often."""

    module: GraphModule
    region: GraphedRegion

    def __call__(self, *tensors: torch.Tensor) -> Sequence[Any]:
        return self.region([*tensors])

    def format(self) -> str:
        return f"{self.module}\n{self.region.report()}"


def graph_device(module: GraphModule) -> GraphDevice:
    """The one card a graph's values are on."""
    found: dict[torch.device, Any] = {}
    for node in module.graph:
        for leaf in flatten(node.val):
            if isinstance(leaf, TensorMeta):
                found.setdefault(leaf.device, node)
    elsewhere = next((node for device, node in found.items() if device.type != "cuda"), None)
    if elsewhere is not None or len(found) != 1:
        places = ", ".join(map(str, found)) or "no device"
        raise OptionError(
            f"backend 'cudagraphs' needs every value on one GPU, and they are on {places}",
            where=elsewhere.location if elsewhere is not None else None,
            remedy="move the tensors to a CUDA device; on a CPU there is nothing to record",
        )
    (device,) = found
    return CudaGraphDevice(torch.cuda.current_device() if device.index is None else device.index)
