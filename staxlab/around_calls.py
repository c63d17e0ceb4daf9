"""What stands around the call of a region in Python: modes and version counters as eager execution has them.

A generated program is called with the modes of its caller. Operators among its steps look at some of them, so they are
run in the modes their graph was recorded in; and what a graph does in one write, eager execution may have done, and
counted, in several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

any_autocast = torch._C._is_any_autocast_enabled
set_version = torch._C._autograd._unsafe_set_version_counter


def as_recorded(run: Callable[[list[torch.Tensor]], Any], operators: Any) -> Callable[[list], Any]:
    """``run`` in the modes that the graph of operators was recorded in, as far as PyTorch's routines look at them."""
    return recorded(outside_autocast(run), operators)


def recorded(run: Callable[[list[torch.Tensor]], Any], operators: Any) -> Callable[[list], Any]:
    """``run`` with gradient recording on, if an operator delivers what its adjoint reads only then."""
    if not any(map(_keeps_for_backward, operators.graph.calls)):
        return run

    def recording(inputs: list[Any]) -> Any:
        detached = [x.detach() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]
        with torch.enable_grad():
            return run(detached)

    return recording


def _keeps_for_backward(node: Any) -> bool:
    """Whether an operator of the graph delivers what only its adjoint reads, and that only where gradient recording is
    on: oneDNN's recurrent layers and their workspace."""
    is_recurrent = node.target is torch.ops.aten.mkldnn_rnn_layer.default
    return is_recurrent and bool(getattr(node.val[3], "numel", 0))


def outside_autocast(run: Callable[[list[torch.Tensor]], Any]) -> Callable[[list[torch.Tensor]], Any]:
    """``run`` with autocast off. A graph of operators has autocast's casts among its nodes. Applied once more, it would
    also cast what the program computes where it is switched off, and what a backward pass computes."""

    def outside(inputs: list[torch.Tensor]) -> Any:
        if not any_autocast():
            return run(inputs)
        with torch._C._DisableAutocast():
            return run(inputs)

    return outside


def counting_writes(run: Callable[[list[torch.Tensor]], Any], operators: Any) -> Callable[[list[torch.Tensor]], Any]:
    """``run``, and then the version counters of its inputs as eager execution leaves them. That counts every write,
    while the graph writes a modified input once (Section 4.9)."""
    missing = writes_uncounted(operators)
    if not missing:
        return run

    def counting(inputs: list[torch.Tensor]) -> Any:
        result = run(inputs)
        for tensor, more in ((inputs[place], more) for place, more in missing):
            if not tensor.is_inference():  # those have no counter
                set_version((tensor,), (tensor._version + more,))
        return result

    return counting


def writes_uncounted(operators: Any) -> list[tuple[int, int]]:
    """(number of an input, how many writes to it the graph does without)."""
    written = {node.args[0] for node in operators.write_backs}
    counts = zip(operators.graph.placeholders, operators.versions, strict=True)
    missing = [(place, count - (node in written)) for place, (node, count) in enumerate(counts)]
    return [(place, more) for place, more in missing if more]
