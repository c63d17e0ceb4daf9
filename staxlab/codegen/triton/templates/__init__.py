"""Templates of matrix products (Section 9.8): loops laid out by hand, with holes for prologue and epilogue.

:mod:`.texts` holds the programs, :mod:`.tile` what is particular about a product's subscripts, :mod:`.writer` fills the
holes, :mod:`.configurations` says which tiles the rule takes, :mod:`.tuning` what a search may vary, and :mod:`.kernel`
makes the kernel.
"""

from __future__ import annotations

from .configurations import default_configuration
from .kernel import product_kernel
from .tuning import ProductTuning

__all__ = ["ProductTuning", "default_configuration", "product_kernel"]
