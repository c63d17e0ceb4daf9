"""From a product and its epilogue to the text of a kernel: the holes of a template, filled (Section 9.8).

What reads an operand goes into the loop over k, with whatever was inlined into it (the prologue); an operand that is
read as it stands goes to the matrix units untouched, so that its loads can run ahead. What is made of the sums goes
after the loop, in registers: the template's own epilogue first, then the nodes fused with it, each rounded where the
program would have stored it, so that fusing changes no value.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch

from ....loops.body import LoopBody
from ....loops.expressions import Expr
from ....provenance import CodeWriter, Line, Origins
from ....schedule.records import Schedule, ScheduleNode
from ...kernel import KernelArgument
from ..handler import HALF, BlockValue, Emission
from ..kernel_text import KernelText, own_origins
from ..operations import triton_dtype, write_preamble
from ..space import INT32_MAX, BlockSpace, largest_magnitude
from .configurations import Configuration
from .holes import fill
from .texts import PERSISTENT_TMA, TILED
from .tile import ALONG_K, Product, Strided, TileOps, affine, buffers_of, plain_load, strided

RESULT = frozenset({"m", "n"})


@dataclass(frozen=True)
class Descriptors:
    """Both operands as the tensor memory accelerator is told of them."""

    left: Strided
    right: Strided


def descriptors(product: Product, schedule: Schedule) -> tuple[Descriptors | None, str]:
    """The operands for the accelerator, or why it cannot fetch them.

    It wants matrices in memory, elements of a row or column side by side, rows apart by multiples of 16 bytes and a
    start at one (NVIDIA, 2024, "CUDA C++ Programming Guide": tensor memory access), and here no batch.
    """
    batch, *_ = product.sizes
    if batch > 1 or len(product.template.ranges) > 2:
        return None, "a batch of matrices"
    m, n, k = product.symbols
    found = []
    for body, row, column in ((product.left, m, k), (product.right, k, n)):
        operand = strided(body, row, column)
        if operand is None:
            return None, "an operand is computed while it is read, or is no matrix in memory"
        if not _aligned(operand, schedule.layouts[operand.buffer].dtype.itemsize):
            return None, f"{operand.buffer} has no rows or columns side by side at multiples of 16 bytes"
        found.append(operand)
    return Descriptors(*found), ""


def _is_rounded(body: LoopBody, dtype: torch.dtype) -> bool:
    """Whether the last thing a body does is to round to ``dtype``."""
    result = next(s for s in body.statements if s.id == body.result)
    return result.operation == "to_dtype" and result.args[1] == dtype


def stored_by_rows(product: Product, schedule: Schedule) -> dict[str, Strided]:
    """The results that the accelerator can store: matrices with rows side by side at multiples of 16 bytes."""
    m, n, _ = product.symbols
    found = {}
    for member in (product.template, *product.epilogue):
        (buffer,) = member.buffers
        dtype = schedule.layouts[buffer].dtype
        place = affine(buffer, member.writes[0].index, m, n)
        if place is not None and place.columns == 1 and dtype != torch.bool and _aligned(place, dtype.itemsize):
            found[buffer] = place
    return found


def _aligned(place: Strided, itemsize: int) -> bool:
    unit = max(16 // itemsize, 1)
    steps = sorted((place.rows, place.columns))
    return steps[0] == 1 and steps[1] > 1 and steps[1] % unit == 0 and place.offset % unit == 0


class ProductWriter:
    """Writes one product as a kernel of a configuration."""

    def __init__(
        self, schedule: Schedule, product: Product, configuration: Configuration, name: str,
        fetched: Descriptors | None = None,
    ):  # fmt: skip
        self.schedule, self.product, self.name, self.fetched = schedule, product, name, fetched
        self.blocks = {key: value for key, value in configuration[0].items() if key != "TMA_STORE"}
        stores = "TMA_STORE" in configuration[0]
        self.results = stored_by_rows(product, schedule) if stores else {}
        body = product.template.body
        result = next(s for s in body.statements if s.id == body.result)
        self.origins: Origins = result.origins or own_origins(product.template)
        reads, written = buffers_of(product.node, schedule.layouts)
        layouts = schedule.layouts
        self.arguments = tuple(
            [KernelArgument(f"in_ptr{k}", b, "input", layouts[b].dtype) for k, b in enumerate(reads)]
            + [KernelArgument(f"out_ptr{k}", b, "output", layouts[b].dtype) for k, b in enumerate(written)]
        )
        self.pointers = {a.buffer: a.name for a in self.arguments}
        self.values: dict[str, BlockValue] = {}
        self.count, self.helpers, self.library, self.asserts = 0, set(), False, False
        _, rows, columns, depth = product.sizes
        self.extents = {"m": rows, "n": columns, "k_row": depth, "k_column": depth}
        sides = {"m": "BLOCK_M", "n": "BLOCK_N", "k_row": "BLOCK_K", "k_column": "BLOCK_K"}
        self.masks = frozenset(p for p, block in sides.items() if self.extents[p] % self.blocks[block])
        self.wide = self._is_wide()

    def _is_wide(self) -> bool:
        """Whether a subscript, or an index past the edge of the last tile, needs 64 bits."""
        product = self.product
        found: list[tuple[BlockSpace, LoopBody]] = [
            (product.space("m", "k_row"), product.left),
            (product.space("k_column", "n"), product.right),
            (product.space("m", "n"), product.template.body.epilogue),
            *((product.space("m", "n"), member.body) for member in product.epilogue),
        ]
        subscripts = [
            (space, argument)
            for space, body in found
            for statement in body.all_statements()
            for argument in statement.args
            if isinstance(argument, Expr)
        ]
        results = (product.template, *product.epilogue)
        subscripts += [(found[2][0], access.index) for member in results for access in member.writes]
        largest = max(largest_magnitude(space.flatten(expression)) for space, expression in subscripts)
        return not max(largest + (1 << 16), *self.extents.values()) <= INT32_MAX

    # -- the holes ----------------------------------------------------------------------------------------------------

    def _emission(self, space: BlockSpace, outer: CodeWriter, inner: CodeWriter, zero_fill: bool) -> Emission:
        dtypes = {a.buffer: a.dtype for a in self.arguments}
        masks = self.masks & space.all
        return Emission(
            space, outer, inner, masks, self.pointers, dtypes, lambda *_: "", zero_fill, count=self.count,
            helpers=self.helpers,
        )  # fmt: skip

    def _took(self, emission: Emission) -> None:
        """Remember what an emission used up."""
        self.count = emission.count
        self.library, self.asserts = self.library or emission.library, self.asserts or emission.asserts

    def _operand(self, body: LoopBody, space: BlockSpace, before: CodeWriter, inside: CodeWriter) -> str:
        """Write what reads a tile of an operand; returns the variable, of the dtype that the matrix units take."""
        emission = self._emission(space, before, inside, zero_fill=True)
        load = plain_load(body)
        raw = load is not None and self.schedule.layouts[load.args[0]].dtype == self.product.form.operands
        origins = body.origins or self.origins
        ops = TileOps(emission, origins, {}, raw)
        read = body.replay(ops)
        value = ops.broadcast(read)
        if not (raw and read.dims & ALONG_K):  # what is the same for every k was read without a look at its end
            value = self._prepared(value, ops)
        self._took(emission)
        return value.name

    def _prepared(self, value: BlockValue, ops: TileOps) -> BlockValue:
        """What was computed of an operand, with zeros past the end of k, where a function of nothing is not nothing."""
        operands = self.product.form.operands
        edge = ALONG_K & ops.emission.space.all & ops.emission.masks
        if edge:
            mask = next(d.mask_name for d in ops.emission.space.dims if d.prefix in edge)
            value = ops.emit(f"tl.where({mask}, {value}, 0.0)", value.dtype, value.dims, "past the end: adds nothing")
        if operands == value.dtype:
            return value
        return ops.emit(f"{value}.to({triton_dtype(operands)})", operands, value.dims, "what the matrix units take")

    def _points(self) -> CodeWriter:
        writer = CodeWriter()
        kind = ".to(tl.int64)" if self.wide else ""
        for prefix, side in (("m", "[:, None]"), ("n", "[None, :]")):
            block = f"BLOCK_{prefix.upper()}"
            number = f"tile_{prefix}{kind}"
            what = "rows" if prefix == "m" else "columns"
            text = f"{prefix} = {number} * {block} + tl.arange(0, {block}){side}  # the {what} of this tile"
            writer.emit(text, self.origins)
            if prefix in self.masks:
                writer.emit(f"{prefix}_mask = {prefix} < {prefix.upper()}  # those that exist", self.origins)
        return writer

    def _summed(self) -> CodeWriter:
        writer = CodeWriter()
        kind = ".to(tl.int64)" if self.wide else ""
        for name, side in (("k_row", "[None, :]"), ("k_column", "[:, None]")):
            writer.emit(f"{name} = k + tl.arange(0, BLOCK_K){side}{kind}", self.origins)
            if name in self.masks:
                writer.emit(f"{name}_mask = {name} < K", self.origins)
        return writer

    def _asserts(self) -> CodeWriter:
        """No mask was written where blocks divide, so a launch with others must not compile."""
        writer = CodeWriter()
        for prefix, size in (("m", "M"), ("n", "N"), ("k_row", "K")):
            if prefix not in self.masks:
                why = f'"BLOCK_{size} must divide {size}: the kernel has no mask there"'
                writer.emit(f"tl.static_assert({size} % BLOCK_{size} == 0, {why})", self.origins)
        return writer

    def _batch(self) -> CodeWriter:
        writer = CodeWriter()
        if self.product.sizes[0] > 1 or len(self.product.template.ranges) > 2:
            first = "(tile // (grid_m * grid_n)).to(tl.int64)" if self.wide else "tile // (grid_m * grid_n)"
            writer.emit(f"batch = {first}  # which matrices of the batch", self.origins)
            writer.emit("tile = tile % (grid_m * grid_n)", self.origins)
        return writer

    def _epilogue(self) -> CodeWriter:
        """What becomes of a tile of sums: the template's own epilogue, then the fused nodes', and the stores."""
        writer, product = CodeWriter(), self.product
        emission = self._emission(product.space("m", "n"), writer, writer, zero_fill=False)
        summed = BlockValue("acc", product.template.accumulate_dtype, RESULT)
        after = product.template.body.epilogue
        value = after.replay(TileOps(emission, self.origins, self.values), summed)
        self._made(product.template, value, emission, writer)
        for member in product.epilogue:
            writer.emit(f"# {member.name}: elementwise, while the tile is in registers", member.origins)
            value = member.body.replay(TileOps(emission, member.origins, self.values))
            self._made(member, value, emission, writer)
        self._took(emission)
        return writer

    def _made(self, member: ScheduleNode, value: BlockValue, emission: Emission, writer: CodeWriter) -> None:
        (buffer,) = member.buffers
        origins = own_origins(member) if member.kind != "template" else self.origins
        ops = TileOps(emission, origins, self.values)
        stored = self.schedule.layouts[buffer].dtype
        if any(a.buffer == buffer for other in self.product.epilogue for a in other.reads):
            if not _is_rounded(member.body.epilogue or member.body, stored):
                value = ops.to_dtype(value, stored)  # as it would be read from memory
            self.values[buffer] = value
        if buffer not in self.product.node.buffers:
            return
        if buffer in self.results:
            value = ops.broadcast(value)
            if value.dtype != stored or stored in HALF:
                value = ops.emit(f"{value}.to({triton_dtype(stored)})", stored, RESULT, "as it is stored")
            text = f"{self._result_name(buffer)}.store([tile_m * BLOCK_M, tile_n * BLOCK_N], {value})"
            writer.emit(text, origins)
            return
        address, _ = ops.address(self.pointers[buffer], emission.space.flatten(member.writes[0].index), RESULT)
        mask, _ = ops.mask_for(RESULT)
        writer.emit(f"tl.store({', '.join([address, value.name, *([mask] if mask else [])])})", origins)

    def _result_name(self, buffer: str) -> str:
        kept = [b for b in self.product.node.buffers if b in self.results]
        return "result" if len(kept) == 1 else f"result{kept.index(buffer)}"

    def _results(self) -> CodeWriter:
        """Descriptors of what the accelerator stores."""
        writer = CodeWriter()
        for member in (self.product.template, *self.product.epilogue):
            (buffer,) = member.buffers
            if buffer in self.results and buffer in self.product.node.buffers:
                place = self.results[buffer]
                start = f"{self.pointers[buffer]} + {place.offset}" if place.offset else self.pointers[buffer]
                text = f"tl.make_tensor_descriptor({start}, [M, N], [{place.rows}, 1], [BLOCK_M, BLOCK_N])"
                origins = own_origins(member) if member.kind != "template" else self.origins
                writer.emit(f"{self._result_name(buffer)} = {text}", origins)
        return writer

    # -- putting it together ------------------------------------------------------------------------------------------

    def write(self) -> KernelText:
        """The kernel's text. CodegenError for what Triton cannot express."""
        product = self.product
        batch, rows, columns, depth = product.sizes
        names = {"M": rows, "N": columns, "K": depth, "precision": product.form.precision}
        # The matrix units of compute capability 9 add products of 8-bit numbers in fewer bits than float32 has; 32
        # products, those of one instruction, are the fewest that Triton lets them add before it goes on in float32.
        names["accumulation"] = ", max_num_imprecise_acc=32" if product.form.operands.itemsize == 1 else ""
        holes = {"asserts": self._asserts(), "batch": self._batch(), "points": self._points()}
        before, left, right = CodeWriter(), CodeWriter(), CodeWriter()
        if self.fetched is None:
            names["left"] = self._operand(product.left, product.space("m", "k_row"), before, left)
            names["right"] = self._operand(product.right, product.space("k_column", "n"), before, right)
            holes |= {"before": before, "summed": self._summed(), "left": left, "right": right}
        else:
            names |= self._fetches(self.fetched)
            holes["results"] = self._results()
        holes["epilogue"] = self._epilogue()
        body = CodeWriter()
        with body.indent():
            fill(body, PERSISTENT_TMA if self.fetched else TILED, holes, names, self._origins_of)
        return self._assemble(body)

    def _origins_of(self, line: str) -> Origins:
        """A descriptor belongs to what makes its operand, too."""
        for name, operand in (("left", self.product.left), ("right", self.product.right)):
            if line.startswith(f"{name} = ") or f" {name}.load" in line:
                return self.origins | operand.origins
        return self.origins

    def _fetches(self, fetched: Descriptors) -> dict[str, str]:
        """The words of the template that tell the accelerator what to fetch. Its last dimension is the one along which
        elements lie side by side, so a matrix that is stored by columns is fetched as its transpose and turned."""
        found: dict[str, str] = {}
        sides = (("left", fetched.left, ("M", "K"), ("tile_m * BLOCK_M", "k")),
                 ("right", fetched.right, ("K", "N"), ("k", "tile_n * BLOCK_N")))  # fmt: skip
        for name, operand, (rows, columns), (first, second) in sides:
            pointer = self.pointers[operand.buffer]
            found[f"{name}_pointer"] = f"{pointer} + {operand.offset}" if operand.offset else pointer
            turned = operand.columns != 1
            shape, step = ((columns, rows), operand.columns) if turned else ((rows, columns), operand.rows)
            place = (second, first) if turned else (first, second)
            found[f"{name}_shape"] = f"[{shape[0]}, {shape[1]}]"
            found[f"{name}_strides"] = f"[{step}, 1]"
            found[f"{name}_block"] = f"[BLOCK_{shape[0]}, BLOCK_{shape[1]}]"
            found[f"{name}_place"] = f"[{place[0]}, {place[1]}]"
            found[f"{name}_turned"] = ".T  # stored by columns" if turned else ""
        return found

    def _assemble(self, body: CodeWriter) -> KernelText:
        top, node = CodeWriter(), self.product.node
        write_preamble(top, self._description(), node.origins, self.library, self.helpers)
        parameters = [a.name for a in self.arguments] + [f"{name}: tl.constexpr" for name in self.blocks]
        top.emit("@triton.jit")
        top.emit(f"def {self.name}({', '.join(parameters)}):", node.origins)
        kernel_line = len(top.lines())
        lines: tuple[Line, ...] = (*top.lines(), *body.lines())
        return KernelText(lines, self.arguments, self.asserts, kernel_line)

    def _description(self) -> list[str]:
        product, layouts = self.product, self.schedule.layouts
        batch, rows, columns, depth = product.sizes
        many = f"{batch} x " if batch > 1 else ""
        how = (
            "PROGRAMS program instances make one tile after the other, fetched by the tensor memory accelerator"
            if self.fetched
            else "every program instance makes a tile of BLOCK_M x BLOCK_N"
        )
        lines = [f"Product {product.template.name}, {many}{rows} x {depth} by {depth} x {columns}: {how}."]
        if product.epilogue:
            lines += textwrap.wrap(f"Epilogue: {', '.join(m.name for m in product.epilogue)}", 110)
        lines += [f"Writes {b}: {layouts[b]}" for b in product.node.buffers]
        if product.node.private:
            lines += textwrap.wrap(f"Never in memory: {', '.join(product.node.private)}", 110)
        return lines
