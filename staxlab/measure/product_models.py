"""The models of Section 9.8 for a product that was compiled: what its tiles move, their order, and their stages.

:func:`product_models` takes the kernel of a template from a compilation and asks the other modules about it: the
traffic of its tiles against Theorem 9.1 (:mod:`.matrix_traffic`), the blocks that its numbering reads at the same time
(:mod:`.grouped_numbering`), and the shared memory of its stages (:mod:`.pipeline_stages`). Nothing is run, so it works
for a GPU that is not here.

The room on the chip is that of a multiprocessor: slices lie in shared memory, accumulators (float32) in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..codegen.kernel import Kernel
from ..codegen.triton.templates.tile import Product
from ..errors import OptionError
from ..options import DeviceSpec
from .grouped_numbering import Numbering, numbering
from .matrix_traffic import TileTraffic, tile_traffic
from .pipeline_stages import StageBudget, compiled_shared_bytes, stage_budget
from .tables import Table, Tabular, bytes_text


@dataclass(frozen=True, repr=False)
class ProductModels(Tabular):
    """The models of one kernel. ``batch`` products of the same sizes run in it; the others are about one of them.
    ``num_stages`` is what the kernel asks for, ``shared`` the bytes of its buffers (see :mod:`.pipeline_stages`). A
    persistent kernel also keeps room for its result, since the next tile's loads are under way meanwhile."""

    kernel: str
    device: DeviceSpec
    batch: int
    traffic: TileTraffic
    numbering: Numbering
    budget: StageBudget
    num_stages: int
    shared: int

    @property
    def parts(self) -> tuple[TileTraffic, Numbering, StageBudget]:
        """The records behind it, each of which draws itself."""
        return self.traffic, self.numbering, self.budget

    def summary(self) -> str:
        t = self.traffic
        many = f"{self.batch:,} times " if self.batch > 1 else ""
        rows, columns, depth = t.tile
        return (
            f"{many}{t.m} x {t.k} by {t.k} x {t.n} in tiles of {rows} x {columns} x {depth}: "
            f"{float(t.intensity):.4g} operations per byte moved between the tiles and memory or cache"
        )

    def table(self) -> Table:
        t, order, budget = self.traffic, self.numbering, self.budget
        reads, plain = order.reads(), order.row_major.reads()
        bound = f"{t.ratio:.3g} times the bound" if t.bound > 0 else "the bound says nothing at this size"
        rows = [
            ("tiles", f"{order.grid_m} x {order.grid_n}", f"groups of {order.group} rows of tiles"),
            ("read by tiles", bytes_text(t.read * t.itemsize), bound),
            ("written", bytes_text(t.written * t.itemsize), "in the operands' size of an element"),
            ("operations per byte", f"{float(t.intensity):.4g}", f"at most {float(t.peak_intensity):.4g}"),
            (f"read by {order.window} at a time", f"{len(reads.rows)} + {len(reads.columns)} = {reads.total}",
             f"row-major {plain.total}"),
            ("stages", str(self.num_stages), f"at most {budget.stages} fit on a multiprocessor"),
            ("their buffers", bytes_text(self.shared), f"of {bytes_text(budget.shared)}"),
        ]  # fmt: skip
        return Table.build(f"Models of {self.kernel} on {self.device.name}", ("what", "value", ""), rows,
                           [self.summary()], text_columns=3)  # fmt: skip

    def format(self) -> str:
        """The table, then those of the models it is made of."""
        return "\n\n".join([self.table().text(), *(str(part) for part in self.parts)])

    __str__ = __repr__ = format


def product_models(compilation: Any, kernel: Kernel | str | None = None) -> ProductModels:
    """The models of a template's kernel in a compilation for a GPU; by default of the first there is.

    Get one with ``staxlab.explain(f, *inputs, target="sm_90", options={"matmul": "template"})``. Raises OptionError if
    there is none, or for a kernel that is no template's.
    """
    nodes = {node.name: node for node in compilation.schedule.nodes}

    def product_of(candidate: Kernel) -> Any:
        node = nodes.get(candidate.nodes[0]) if candidate.language == "triton" and candidate.nodes else None
        return Product.of(node) if node is not None and node.product is not None else None

    found = [one for one in compilation.kernels if product_of(one) is not None]
    if kernel is not None:
        wanted = kernel if isinstance(kernel, str) else kernel.name
        found = [one for one in found if one.name == wanted]
    if not found:
        which = "in it" if kernel is None else f"called {kernel if isinstance(kernel, str) else kernel.name}"
        raise OptionError(
            f"there is no kernel of a matrix template {which}",
            remedy='compile for a GPU with options={"matmul": "template"}; library products have no tiles to look at',
        )
    return _models(found[0], product_of(found[0]))


def _models(kernel: Kernel, product: Any) -> ProductModels:
    launch, device = kernel.launch, kernel.device
    blocks = launch["constants"]
    tile = (blocks["BLOCK_M"], blocks["BLOCK_N"], blocks["BLOCK_K"])
    batch, rows, columns, depth = product.sizes
    if min(batch, rows, columns, depth) < 1:
        raise OptionError(f"{kernel.name} is a product without elements", remedy="look at one with elements")
    itemsize = product.form.operands.itemsize
    capacity = device.shared_memory_per_multiprocessor // itemsize + device.registers_per_multiprocessor
    traffic = tile_traffic(rows, columns, depth, tile=tile, itemsize=itemsize, capacity=capacity)
    down, across = traffic.grid
    window = min(device.multiprocessors, down * across)
    return ProductModels(
        kernel.name,
        device,
        batch,
        traffic,
        numbering(down, across, blocks["GROUP_M"], window),
        stage_budget(tile, itemsize=itemsize, device=device),
        launch["num_stages"],
        compiled_shared_bytes(
            tile,
            itemsize,
            launch["num_stages"],
            device,
            num_warps=launch["num_warps"],
            tensor_cores=not (product.form.operands.itemsize == 4 and launch["precision"] == "ieee"),
        ),
    )
