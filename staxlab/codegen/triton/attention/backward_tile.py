"""What becomes of a tile of scores in the backward kernels: the user's functions and their derivatives (Section 9.10).

The lines of ``score_mod``, of its derivative and of ``mask_mod`` stand where the tile is in registers. The derivative
follows the function and uses its intermediate values by name. A contribution to the gradient of a captured tensor is
summed over the tile along the dimensions that its subscript does not vary on, and then added to a float32 buffer in
memory by an atomic operation: the order in which program instances come to it is not fixed, and so neither are the last
bits of such a gradient. Those of queries, keys and values are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ....provenance import CodeWriter, Origins
from ..handler import BlockValue, Emission
from .handler import ScoreOps
from .pieces import LOG2_E, KernelWriter, Place

TILE = frozenset({"m", "n"})


class SharingOps(ScoreOps):
    """Writes a modification, and later its derivative, into one tile. A line that stands there already is not written
    again, so that the derivative shares what the function itself computed. ``written`` are the variables by what they
    were assigned, ``known`` those of positions."""

    def __init__(
        self, emission: Emission, score: BlockValue | None, moving: str, origins: Origins,
        known: dict[Any, Any], relaxed: bool, written: dict[tuple, BlockValue],
    ):  # fmt: skip
        super().__init__(emission, score, moving, origins, known, relaxed)
        self.written = written

    def tagged(self, origins: Origins) -> SharingOps:
        return SharingOps(self.emission, self.score, self.moving, origins, self.known, self.relaxed, self.written)

    def emit(self, text: str, dtype: torch.dtype, dims: frozenset[str], note: str = "") -> BlockValue:
        key = (text, dtype)
        if key not in self.written:
            self.written[key] = super().emit(text, dtype, dims, note)
        return self.written[key]


class TileWriter:
    """Fills the holes of one tile, in the order in which they stand: :meth:`probabilities`, then :meth:`adjoint`.

    ``over`` is what the kernel makes gradients of, "keys" or "queries"; ``place`` says where lines go and which
    dimensions may hang over an edge; ``partial`` whether ``mask_mod`` decides.
    """

    def __init__(self, kernel: KernelWriter, over: str, place: Place, partial: bool):
        self.kernel, self.problem, self.over, self.place, self.partial = kernel, kernel.problem, over, place, partial
        self.known: dict[Any, Any] = {}
        self.written: dict[tuple, BlockValue] = {}
        self.score = BlockValue("score", torch.float32, TILE)
        self.visible = ""

    def _replay(self, modification: Any, inside: CodeWriter, run: Any, what: str = "") -> Any:
        """``run(ops)`` with a handler that knows what stands in the tile already."""

        def shared(ops: ScoreOps) -> Any:
            known = (self.known, ops.relaxed, self.written)
            return run(SharingOps(ops.emission, self.score, ops.moving, ops.origins, *known))

        return self.kernel.replay(modification, replace(self.place, inside=inside), shared, what=what)

    def probabilities(self) -> CodeWriter:
        """From ``scores``, products of queries and keys, to ``p = 2**(score log2(e) - shift)``."""
        modification, writer, origins = self.problem.score, CodeWriter(), self.kernel.origins
        if modification is None:
            writer.emit(f"p = tl.exp2(scores * {self.problem.scale * LOG2_E!r} - row_shift)", origins)
        else:
            writer.emit(f"score = scores * {float(self.problem.scale)!r}", origins)

            def run(ops: ScoreOps) -> BlockValue:
                return ops.broadcast(ops.to_dtype(modification.replay(ops, self.score), torch.float32))

            modified = self._replay(modification, writer, run)
            writer.emit(f"p = tl.exp2({modified} * {LOG2_E!r} - row_shift)", origins)
        self._decide_visibility(writer)
        if self.visible:
            writer.emit(f"p = tl.where({self.visible}, p, 0.0)", origins)
        return writer

    def _decide_visibility(self, writer: CodeWriter) -> None:
        """The condition under which an element of the tile counts, or "" where all do.

        Queries past the end have an infinite shift, and so P = 0, unless a score_mod makes something infinite of what
        is not there. Keys past the end change only their own rows of the gradients in the kernel over keys, and those
        are not stored; in the kernel over queries they are summed up with all others.
        """
        modified, masks, conditions = self.problem.score is not None, self.place.masks, []
        if "m" in masks and modified:
            conditions.append("m_mask")
        if "n" in masks and (self.over == "queries" or modified):
            conditions.append("n_mask")
        mask = self.problem.mask
        if self.partial and mask is not None:

            def run(ops: ScoreOps) -> BlockValue:
                return ops.to_dtype(mask.replay(ops, None), torch.bool)

            conditions.append(self._replay(mask, writer, run).name)
        if len(conditions) > 1:
            writer.emit(f"visible = {' & '.join(conditions)}", self.kernel.origins)
            conditions = ["visible"]
        self.visible = conditions[0] if conditions else ""

    def adjoint(self) -> tuple[CodeWriter, str]:
        """From ``ds``, the gradient of the modified score, to the variable that holds the gradient of the score itself;
        on the way, in the kernel over keys, what captured tensors get of it."""
        modification, writer = self.problem.score, CodeWriter()
        if modification is None:
            return writer, "ds"

        def run(ops: ScoreOps) -> BlockValue:
            upstream = BlockValue("ds", torch.float32, TILE)
            d_score, contributions = modification.adjoint.replay(ops, self.score, upstream)
            for contribution in contributions if self.over == "keys" else ():
                self._contribute(ops, contribution)
            return ops.broadcast(ops.to_dtype(d_score, torch.float32))

        d_score = self._replay(modification, writer, run, what="derivative of score_mod")
        if not self.visible:
            return writer, d_score.name
        # Where P is 0 the derivative may still be infinite, and 0 times that is not 0.
        writer.emit(f"d_score = tl.where({self.visible}, {d_score}, 0.0)", self.kernel.origins)
        return writer, "d_score"

    def _contribute(self, ops: ScoreOps, contribution: Any) -> None:
        """Add what this tile contributes to the gradient of a captured tensor."""
        space = ops.emission.space
        value = ops.broadcast(ops.to_dtype(contribution.value, torch.float32))
        if self.visible:
            value = ops.emit(f"tl.where({self.visible}, {value}, 0.0)", torch.float32, TILE)
        subscript = space.flatten(contribution.subscript)
        own = space.dims_of(subscript)
        total = value.name
        for prefix in sorted(TILE - own):  # in the loop, even if what comes of it does not vary along it
            name, what = ops.fresh(), "queries" if prefix == "m" else "keys"
            text = f"{name} = tl.sum({total}, {space.dim(prefix).axis}, keep_dims=True)  # over the tile's {what}"
            ops.emission.inner.emit(text, ops.origins)
            total = name
        pointer = d_captured(contribution.number)
        place = f"{pointer} + {ops._block(subscript, space.shape(()))}"
        if own:
            place, _ = ops.address(pointer, subscript, own)
        mask, _ = ops.mask_for(own)
        guard = f", {mask}" if mask else ""
        ops.emission.inner.emit(f"tl.atomic_add({place}, {total}{guard}, sem='relaxed')", ops.origins)


def d_captured(number: int) -> str:
    """The argument that collects the gradient of a captured tensor of ``score_mod``."""
    return f"d_captured{number}"
