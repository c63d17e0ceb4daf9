"""Export (Section 10.2): one program for a declared range of sizes, with its assumptions written into its graph.

``staxlab.export(f, (x, w), dims={"x": {0: n}, "w": {0: n}})`` records ``f`` with the declared dimensions as symbols.
Every decision that was made about them is then adjudicated against the declared ranges, with three outcomes: implied by
the range, and dropped; violated by some of the range, and refused with the range for which the program holds; or kept,
as an assertion that the exported program makes at every call (:mod:`.adjudication`).
"""

from __future__ import annotations

from .dimension import Dim
from .program import ExportedProgram, export
from .saving import load_exported

__all__ = ["Dim", "ExportedProgram", "export", "load_exported"]
