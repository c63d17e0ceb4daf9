"""Lowering: from the operator graph to the loop IR (Sections 6.1 and 6.2). One module per class of Table 6.1."""

from __future__ import annotations

from . import (  # noqa: F401  (importing a module registers its rules)
    adjoint_norms,
    adjoint_windows,
    adjoints,
    binary,
    choosing,
    factories,
    indexing,
    joining,
    library,
    normalizations,
    pooling,
    products,
    reductions,
    scans,
    scatters,
    special,
    unary,
    views,
)
from .call import Call
from .graph import lower
from .registry import LIBRARY, RULES, Decline, basis, lowering, register_lowering
from .values import TensorValue

__all__ = ["LIBRARY", "RULES", "Call", "Decline", "TensorValue", "basis", "lower", "lowering", "register_lowering"]
