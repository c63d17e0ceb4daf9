"""Locating errors by layer (Section 11.4)."""

from __future__ import annotations

from .record import Check, Culprit, Location
from .search import locate_error

__all__ = ["Check", "Culprit", "Location", "locate_error"]
