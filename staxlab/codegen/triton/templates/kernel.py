"""A product of matrices, with its epilogue, as one Triton kernel (Section 9.8)."""

from __future__ import annotations

from typing import Any

from ....options import Decision, DeviceSpec
from ....schedule.epilogues import saved_bytes
from ....schedule.records import Schedule, ScheduleNode
from ...kernel import Kernel
from .configurations import Configuration, default_configuration, shared_bytes
from .tile import Product
from .tuning import tuning_of_product
from .writer import ProductWriter, descriptors


def product_kernel(
    schedule: Schedule,
    node: ScheduleNode,
    suffix: str,
    device: DeviceSpec,
    configuration: Configuration | None = None,
) -> Kernel:
    """The kernel of a template node, or of one with its epilogue; ``suffix`` completes its name ("triton_tem").

    ``configuration`` overrides the rule: block sizes by name, warps, pipeline stages. It has ``PROGRAMS`` for the
    persistent template (where that cannot fetch the operands, the rule's tiled one takes its place) and ``TMA_STORE``
    where what it stores by rows goes through the accelerator, too. CodegenError for what cannot be expressed.
    """
    product = Product.of(node)
    form, sizes = product.form, product.sizes
    fetched, problem = descriptors(product, schedule)
    if device.compute_capability < 90:
        fetched, problem = None, f"{device.name} has no tensor memory accelerator"
    wanted = form.template == "persistent-tma" if configuration is None else "PROGRAMS" in configuration[0]
    persistent = wanted and fetched is not None
    by_rule = configuration is None
    if configuration is None or (wanted and not persistent):
        configuration = default_configuration(sizes, form.operands, form.precision, persistent, device)
    blocks, warps, stages = configuration
    name = f"triton_tem{suffix}"
    text = ProductWriter(schedule, product, configuration, name, fetched if persistent else None).write()
    batch, rows, columns, depth = sizes
    tiles = -(-rows // blocks["BLOCK_M"]) * -(-columns // blocks["BLOCK_N"])
    grid = min(tiles, blocks["PROGRAMS"]) if persistent else tiles * batch
    launch: dict[str, Any] = {
        "form": "persistent-tma" if persistent else "tiled",
        "grid": (0 if 0 in (batch, rows, columns) else grid, 1, 1),
        "constants": {name: value for name, value in blocks.items() if name != "TMA_STORE"},
        "sizes": {},
        "num_warps": warps,
        "num_stages": stages,
        "options": text.compiler_options,
        "precision": form.precision,
    }
    if persistent:
        # Descriptors hold addresses at multiples of 16 bytes; where a tensor starts elsewhere, this kernel runs.
        plain = default_configuration(sizes, form.operands, form.precision, False, device)
        launch["unaligned"] = product_kernel(schedule, node, f"{suffix}_unaligned", device, plain)
    return Kernel(
        name=name,
        language="triton",
        lines=text.lines,
        arguments=text.arguments,
        nodes=(node.name,),
        device=device,
        origins=node.origins,
        launch=launch,
        bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node),
        operations=node.operations,
        decisions=_decisions(schedule, product, configuration, persistent, problem if wanted else "", tiles),
        tuning=(
            tuning_of_product(schedule, node, suffix, device, configuration, fetched is not None) if by_rule else None
        ),
    )


def _decisions(
    schedule: Schedule, product: Product, configuration: Configuration, persistent: bool, problem: str, tiles: int
) -> tuple[Decision, ...]:
    blocks, warps, stages = configuration
    batch, rows, columns, depth = product.sizes
    name, form = product.node.name, product.form
    itemsize = form.operands.itemsize
    found = []
    if problem and not persistent:
        reason = f"the tiled template: {problem}"
        found.append(Decision("template", name, "tiled", reason, ("tiled", "persistent-tma")))
    fed = batch * depth * (-(-columns // blocks["BLOCK_N"]) * rows + -(-rows // blocks["BLOCK_M"]) * columns) * itemsize
    shared = shared_bytes(blocks, stages, itemsize)
    chosen = ", ".join(f"{key}={value}" for key, value in blocks.items())
    reason = (
        f"{tiles * batch:,} tiles for {schedule.device.multiprocessors} multiprocessors; {stages} stages take "
        f"{shared:,} bytes of shared memory; the tiles read {fed:,} bytes, some of them from the cache"
    )
    inputs = (("tiles", tiles * batch), ("shared bytes", shared), ("bytes that tiles read", fed),
              ("accumulators of a thread", blocks["BLOCK_M"] * blocks["BLOCK_N"] // (32 * warps)))  # fmt: skip
    chosen += f", num_warps={warps}, num_stages={stages}"
    found.append(Decision("launch", name, chosen, reason, (), inputs))
    if product.epilogue:
        saved = saved_bytes(product.node, schedule.layouts[product.template.buffers[0]].dtype.itemsize)
        moved = schedule.bytes_read(product.node) + schedule.bytes_written(product.node)
        reason = f"{moved:,} bytes are moved instead of {moved + saved:,}; rounded where the program stores"
        inputs = (("bytes fused", moved), ("bytes apart", moved + saved))
        found.append(Decision("epilogue", name, len(product.epilogue), reason, (), inputs))
    return tuple(found)
