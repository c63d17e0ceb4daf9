"""What eager execution really runs: the operators of the program as written, before the compiler touched it.

The compiler's own operator graph is not it. By then common subexpressions are merged (Example 7.2 writes ``x.exp()``
twice, and eager computes it twice) and operators outside the basis are taken apart (eager runs softmax as one). A byte
ratio against that graph would credit eager with the compiler's work. So the captured graph is run once more, whole, on
stand-in tensors of the sample's layouts, and its operators are written down without decomposing any.

When neither a pass nor a decomposition changed anything the two graphs are the same, and nothing is run.
"""

from __future__ import annotations

from typing import Any

import torch

from ..capture.graph import Graph, TensorMeta


def eager_operators(compilation: Any) -> tuple[Graph, str | None]:
    """The operator graph eager execution follows, and a remark if it could not be obtained.

    Costs one eager execution in time and memory where the compiler changed the program. When that fails (the program
    needs data the stand-ins do not have), the compiler's operator graph is returned with the reason.
    """
    operators = compilation.operators
    if not _was_changed(compilation):
        return operators.graph, None
    from ..operators.record import record

    try:
        inputs = [stand_in(node.val) for node in compilation.capture.module.graph.placeholders]
        return record(compilation.capture.module, inputs).graph, None
    except Exception as error:  # the user's program may do anything on data it was not meant for
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return operators.graph, f"eager is counted after the compiler's own simplifications: {reason}"


def _was_changed(compilation: Any) -> bool:
    """Whether the operator graph may differ from the program as written."""
    if getattr(compilation, "capture", None) is None or getattr(compilation, "transforms", None) is None:
        return False
    if getattr(compilation.operators, "decomposed", ()):
        return True
    before, after = compilation.capture.module.graph, compilation.transforms.final.graph
    return [n.format() for n in before.calls] != [n.format() for n in after.calls]


def stand_in(value: Any) -> Any:
    """A tensor of the given metadata: ones, or zeros for what may be a subscript. Anything else is returned as it
    is."""
    if not isinstance(value, TensorMeta):
        return value
    device = value.device if value.device.type != "cuda" or torch.cuda.is_available() else torch.device("cpu")
    if value.numel == 0:
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=device)
    span = value.storage_offset + 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride, strict=True))
    fill = torch.ones if value.dtype.is_floating_point else torch.zeros
    return fill(span, dtype=value.dtype, device=device).as_strided(value.shape, value.stride, value.storage_offset)
