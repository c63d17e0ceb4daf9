"""GPU code generation (Section 9): Triton kernels a reader can follow line by line.

``generate`` writes them, ``compile`` takes them to PTX and machine code without a GPU, ``launcher`` runs them on one,
and ``interpreter`` runs them on the CPU through Triton's own interpreter. Only the last three import Triton.
"""

from __future__ import annotations

from .generate import generate, triton_kernel

__all__ = ["generate", "triton_kernel"]
