"""The C++ generator (Section 8): ``generate(schedule, options, device)`` turns schedule nodes into kernels."""

from .generator import generate

__all__ = ["generate"]
