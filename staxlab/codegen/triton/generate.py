"""From a schedule to Triton kernels: one readable kernel per node (Sections 9.1 to 9.5)."""

from __future__ import annotations

from ...errors import CodegenError
from ...loops.body import MemoryAccess
from ...options import DeviceSpec, Options
from ...schedule.programs import plan_passes
from ...schedule.records import Schedule, ScheduleNode
from ..kernel import Kernel, KernelSet
from .candidates import tuning_of
from .fused import FusedWriter, pass_decision
from .kernel_text import KernelWriter
from .launch import Work, choose_launch, configured
from .scans import order_decision
from .templates import product_kernel
from .tiling import Form, choose_form


def generate(schedule: Schedule, options: Options, device: DeviceSpec) -> KernelSet:
    """A :class:`Kernel` for every schedule node, in order; extern nodes become extern kernels.

    ``launch`` of a Triton kernel holds ``form``, ``grid`` (three numbers; a zero means nothing to do), ``constants``
    (values of the ``tl.constexpr`` parameters), ``sizes`` (values of the size parameters, in order), ``num_warps``,
    ``num_stages`` and ``options`` (what the compiler is given besides). Raises CodegenError where a node cannot be
    expressed, naming it.
    """
    return KernelSet(tuple(_kernel(schedule, node, n, device) for n, node in enumerate(schedule.nodes)))


def _kernel(schedule: Schedule, node: ScheduleNode, number: int, device: DeviceSpec) -> Kernel:
    if node.kind == "extern":
        from ..extern import extern_kernel

        return extern_kernel(schedule, node, device)
    try:
        return triton_kernel(schedule, node, f"_fused_{number}", device)
    except CodegenError as error:
        raise CodegenError(f"{node.name}: {error.what}", remedy=error.remedy) from error


def _loaded_bytes(schedule: Schedule, node: ScheduleNode) -> int:
    """Bytes loaded for a point of the block, all inputs together."""
    return sum(schedule.layouts[buffer].dtype.itemsize for buffer in {a.buffer for a in node.reads}) or 4


def work_of(schedule: Schedule, node: ScheduleNode, form: Form) -> Work:
    """What a kernel does with a point of its block, for the rules of :mod:`.launch`."""

    def itemsize(access: MemoryAccess) -> int:
        return schedule.layouts[access.buffer].dtype.itemsize

    element_bytes = _loaded_bytes(schedule, node)
    if form.kind == "pointwise":
        return Work(element_bytes)
    columns = set(form.space.dim("r0_").symbols)
    stored = [access for access in node.writes if columns & access.index.symbols]
    rows = [*stored, *(access for access in node.reads if columns & access.index.symbols)]
    return Work(
        element_bytes,
        itemsize=min(max(map(itemsize, rows), default=4), 8),
        passes=plan_passes(node.members).count if node.members else 1,
        reductions=sum(member.kind == "reduction" for member in node.members) if node.members else 1,
        stores_points=bool(stored),
        scans=node.kind == "scan",
    )


def triton_kernel(
    schedule: Schedule,
    node: ScheduleNode,
    suffix: str,
    device: DeviceSpec,
    configuration: tuple[dict[str, int], int, int] | None = None,
) -> Kernel:
    """The kernel of one node that is no call; ``suffix`` completes its name ("triton_per" + suffix).

    ``configuration`` overrides the rules: block sizes by name, warps, pipeline stages (for a search or an experiment).
    """
    if node.product is not None:
        return product_kernel(schedule, node, suffix, device, configuration)
    form = choose_form(schedule, node, configuration[0].get("R0_BLOCK") if configuration else None)
    if configuration is None:
        launch = choose_launch(form, node.name, work_of(schedule, node, form), device)
    else:
        launch = configured(form, node.name, _loaded_bytes(schedule, node), device, *configuration)
    name = f"triton_{form.prefix}{suffix}"
    text = (FusedWriter if node.members else KernelWriter)(schedule, node, form, launch, name).write()
    order = (order_decision(node, form.kind == "looped"),) if node.kind == "scan" and not node.is_empty else ()
    if node.members and form.kind == "looped":
        order = (pass_decision(node),)
    constants = dict(launch.blocks)
    if form.kind == "persistent":
        del constants["R0_BLOCK"]
    return Kernel(
        name=name,
        language="triton",
        lines=text.lines,
        arguments=text.arguments,
        nodes=(node.name,),
        device=device,
        origins=node.origins,
        launch={
            "form": form.kind,
            "grid": launch.grid,
            "constants": constants,
            "sizes": {dim.size_name: dim.numel for dim in form.space.dims},
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "options": text.compiler_options,
        },
        bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node),
        operations=node.operations,
        decisions=(*form.decisions, *order, launch.decision, *text.decisions),
        tuning=tuning_of(schedule, node, suffix, device, form, launch) if configuration is None else None,
    )
