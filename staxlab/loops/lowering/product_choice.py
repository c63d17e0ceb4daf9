"""Who computes a product on a GPU: the library, or a Triton template with its epilogue (Section 9.8).

A vendor's product is hard to beat, and opaque: what follows it reads the result from memory again. A template takes the
elementwise operations that follow in before it stores. So the rule weighs what a template loses in the product against
what it saves in traffic, by the roofline's arithmetic (Williams, Waterman and Patterson, 2009, "Roofline"):

* the product moves ``b (m k + k n + m n)`` bytes and makes ``2 m n k`` operations; it takes the longer of the two;
* every elementwise reader of the same shape saves reading ``m n`` elements, and if there are no other readers, the
  product is not written either;
* a template reaches a part of the library's rate: what a measured file says (:data:`MEASURED`), else
  :data:`UNMEASURED`, a pessimistic guess, so that nothing unmeasured is chosen unless memory decides alone.

What is saved must also be worth something in absolute terms (:data:`LEAST_SAVING`), but where a template was measured
to be the faster one anyway: a product of 1024 x 1024 matrices takes the host longer to launch than the device to
compute, and launching a kernel of ours takes half of what the library's call does. Options name either outright. A
convolution has no template and is always the library's.
"""

from __future__ import annotations

import torch

from ...capture.graph import Node, TensorMeta
from ...options import Decision, DeviceSpec, Options
from ...specialize.ambient import product_precision
from ..ir import ProductForm
from ..realize import rates
from .registry import RULES

#: Dtypes that the templates multiply, all with float32 accumulators.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: Nominal rates of dense products in operations/s, by compute capability: of the data sheets (A100, H100 SXM).
MATRIX_THROUGHPUT = {
    80: {torch.float16: 312e12, torch.bfloat16: 312e12, "tf32": 156e12},
    90: {torch.float16: 989e12, torch.bfloat16: 989e12, "tf32": 495e12},
}  # fmt: skip

#: Rates of templates relative to the library's, by (compute capability, dtype): pairs (operations of a product from
#: which on the rate holds, rate), ascending. Filled from the results of ``python -m benchmarks.gpu_matmul``, whose
#: operands lie in memory row by row. They hold for nothing else: with the transposed weights of a decoder's layers
#: (8192 rows, 2048 x 5632) templates with everything fused into them took 1.1 to 1.6 times the library's time.
MEASURED: dict[tuple[int, torch.dtype], tuple[tuple[float, float], ...]] = {
    (90, torch.bfloat16): ((1 << 31, 1.2), (1 << 33, 1.0)),
}

#: From how many tiles of 128 x 256 for each multiprocessor on the persistent template is taken where there is an
#: accelerator to fetch its operands: it fetches the next tile's while it stores one. With small depths it is 1.2 times
#: as fast as the tiled one, with large ones as fast (benchmarks/results/gpu_matmul.json).
PERSISTENT_FROM = 2

#: The rate of a template that nothing has measured, relative to the library's.
UNMEASURED = 0.5

#: Bytes that an epilogue must save to be worth a kernel that is not the library's: what a Hopper card moves in the
#: couple of microseconds that launching takes.
LEAST_SAVING = 8 << 20

#: From how many times the longer side of the result on the summed dimension is cut (the criterion of Section 9.8).
DEEP = 128


def relative_rate(
    device: DeviceSpec, dtype: torch.dtype, operations: float, by_rows: bool = True
) -> tuple[float, str]:
    """The rate of a template relative to the library's for a product of so many operations, and where it is from.
    ``by_rows``: both operands lie in memory row by row."""
    capability = 90 if device.compute_capability >= 90 else 80
    found = UNMEASURED, "a guess, since nothing has been measured"
    if not by_rows:
        return UNMEASURED, "a guess, since nothing has been measured with a transposed operand"
    for start, rate in MEASURED.get((capability, dtype), ()):
        if operations >= start:
            found = rate, "measured"
    return found


def peak_rate(device: DeviceSpec, dtype: torch.dtype, precision: str) -> float:
    """Operations/s of dense products with operands of ``dtype``."""
    capability = 90 if device.compute_capability >= 90 else 80
    kind = "tf32" if dtype == torch.float32 and precision == "tf32" else dtype
    return MATRIX_THROUGHPUT[capability].get(kind) or rates(device).throughput


def epilogue_readers(node: Node) -> tuple[int, bool]:
    """How many elementwise operators read the product, through views that keep all of it, and whether nothing else
    does. O(readers)."""
    count, alone = 0, True
    for user in node.users:
        rule = RULES.get(user.target) if user.op != "output" else None
        whole = isinstance(user.val, TensorMeta) and user.val.numel == node.val.numel
        if rule is not None and rule.is_view and whole:
            more, others = epilogue_readers(user)
            count, alone = count + more, alone and others
        elif rule is not None and rule.kind == "pointwise" and whole:
            count += 1
        else:
            alone = False
    return count, alone and count > 0


def choose(node: Node, sizes: tuple[int, int, int, int], device: DeviceSpec, options: Options) -> Decision:
    """The choice for a product of ``sizes`` (batch, rows, columns, depth): "library", "tiled" or "persistent-tma"."""
    batch, rows, columns, depth = sizes
    dtype, candidates = node.val.dtype, ("library", "tiled", "persistent-tma")
    precision = product_precision() if dtype == torch.float32 else "ieee"
    inputs: tuple = (
        ("batch", batch), ("rows", rows), ("columns", columns), ("depth", depth), ("dtype", str(dtype)[6:]),
        ("precision", precision),
    )  # fmt: skip

    def decision(choice: str, reason: str, more: tuple = ()) -> Decision:
        return Decision("matmul", node.name, choice, reason, candidates, (*inputs, *more))

    problem = obstacle(node)
    if problem:
        return decision("library", problem)
    if options.matmul == "library":
        return decision("library", "the option matmul asks for the library")
    if options.matmul == "template":
        return decision("tiled", "the option matmul asks for a template")
    if options.matmul == "template-tma":
        if device.compute_capability < 90:
            return decision("tiled", f"{device.name} has no tensor memory accelerator: the tiled template")
        return decision("persistent-tma", "the option matmul asks for the persistent template")
    return _by_rule(node, sizes, device, precision, decision)


def lie_by_rows(node: Node) -> bool:
    """Whether both operands of a product are contiguous along rows."""
    operands = [argument.val for argument in node.args if isinstance(argument, Node)][-2:]
    return all(len(val.shape) < 2 or val.stride[-1] == 1 for val in operands)


def _by_rule(node: Node, sizes: tuple[int, int, int, int], device: DeviceSpec, precision: str, decision) -> Decision:
    batch, rows, columns, depth = sizes
    itemsize, dtype = node.val.dtype.itemsize, node.val.dtype
    operations = 2 * batch * rows * columns * depth
    result = batch * rows * columns * itemsize
    moved = batch * (rows * depth + depth * columns) * itemsize + result
    readers, alone = epilogue_readers(node)
    saved = result * (min(readers, 1) + alone)
    rate, source = relative_rate(device, dtype, operations, lie_by_rows(node))
    peak, bandwidth = peak_rate(device, dtype, precision), rates(device).bandwidth
    library = max(operations / peak, moved / bandwidth) + saved / bandwidth
    template = max(operations / (rate * peak), moved / bandwidth)
    facts = (
        ("bytes of the product", moved), ("bytes an epilogue saves", saved), ("template's rate", rate),
        ("seconds by the library", float(f"{library:.3g}")), ("by a template", float(f"{template:.3g}")),
    )  # fmt: skip
    computes = operations / peak > moved / bandwidth
    faster = rate > 1 and computes
    if not saved and not faster:
        return decision("library", "nothing elementwise follows that a template could take in", facts)
    if saved < LEAST_SAVING and not faster:
        return decision("library", f"an epilogue would save {saved:,} bytes, less than {LEAST_SAVING:,}", facts)
    if template >= library:
        return decision(
            "library", f"what an epilogue saves is less than what a template of rate {rate:g} ({source}) loses", facts
        )
    tiles = -(-rows // 128) * -(-columns // 256)
    many = batch == 1 and tiles >= PERSISTENT_FROM * device.multiprocessors
    choice = "persistent-tma" if many and device.compute_capability >= 90 else "tiled"
    if faster:
        return decision(choice, f"a template has {rate:g} times the library's rate ({source}) at this size", facts)
    return decision(choice, f"an epilogue saves {saved:,} bytes, more than rate {rate:g} ({source}) loses", facts)


def obstacle(node: Node) -> str:
    """Why no template can compute a product, whatever is asked for; "" if one can."""
    dtype, name = node.val.dtype, node.target._opname
    if dtype not in DTYPES:
        return f"no template multiplies {str(dtype).removeprefix('torch.')}"
    if name == "addbmm" and dtype != torch.float32:
        return "addbmm of half precision rounds after each matrix of the batch"
    return ""


def form_of(decision: Decision, dtype: torch.dtype) -> ProductForm:
    """What the chosen template is told."""
    return ProductForm(decision.choice, dtype, dict(decision.inputs)["precision"])


def segments(rows: int, columns: int, depth: int, device: DeviceSpec) -> tuple[int, int]:
    """Into how many segments the summed dimension is cut (split-K), and the length of all but the last, a multiple of
    64. One where it is not ``DEEP`` times the longer side of the result; else so many that there is a tile of 64 x 64
    for every multiprocessor, of 256 elements at least."""
    if depth < DEEP * max(rows, columns):
        return 1, depth
    tiles = -(-rows // 64) * -(-columns // 64)
    wanted = max(1, min(-(-device.multiprocessors // tiles), depth // 256))
    length = -(-depth // wanted // 64) * 64
    return -(-depth // length), length
