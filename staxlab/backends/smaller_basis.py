"""An operator graph once more, over the operators another compiler has rules for (Definition 4.2).

The graph of Section 5.1 is made of what *our* back end has rules for, some five hundred overloads. A translator to
somebody else's language has a few dozen, and need not have more: the same recorder takes the rest apart by PyTorch's
decomposition rules, on the example inputs. What is left outside the smaller basis has no rule, and its node names the
user's line.
"""

from __future__ import annotations

from typing import Any

from ..capture.graph import Node
from ..capture.module import GraphModule
from ..errors import BackendError
from ..operators.record import record


def over_basis(module: GraphModule, inputs: list[Any], basis: frozenset[Any]) -> GraphModule:
    """``module``, a graph of ``aten`` overloads without writes, over ``basis`` as far as rules go. One eager execution.

    BackendError where that is no pure function of the inputs, which no decomposition should bring about.
    """
    found = record(module, inputs, basis=basis)
    if found.obstacles or found.write_backs:
        what = found.obstacles[0] if found.obstacles else f"%{found.write_backs[0].name} writes into an input"
        raise BackendError(f"taken apart, the graph is no function of its inputs: {what}")
    return found.module


def unsupported(node: Node, library: str, why: str = "") -> BackendError:
    """The error for an operator that a translator has no rule for, or not for these arguments."""
    reason = f": {why}" if why else ""
    return BackendError(
        f"{library} is not given %{node.name} = {node.target_name()}{reason}",
        where=node.location,
        remedy="compile this part with backend='stax', or leave the operator out of the region",
    )
