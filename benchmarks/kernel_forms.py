"""One function for each form that the Triton generator can give a kernel, with what its kernels must look like.

The table is read by the tests (``tests/codegen/test_triton_every_form.py``: values in Triton's interpreter, counted
facts of the compiled code) and by the memory and race check on a device (``python -m benchmarks.gpu_sanitizer``), so
that no form is known to one and unknown to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Facts:
    """What a kernel is: its ``form`` ("pointwise", "persistent", "looped"), how many ``reads`` and ``writes`` its text
    has; and in the machine's terms the widths of its ``loads`` and ``stores`` of global memory ("v4.b32" is 16 bytes at
    once), the ``advice`` they give the cache, and whether it has ``atomics``. Several widths in one text are separated
    by spaces: how often a loop is unrolled, and what is read of a row's last piece, is the compiler's."""

    form: str
    reads: int
    writes: int
    loads: str
    stores: str
    advice: str = ""
    atomics: bool = False


@dataclass(frozen=True)
class KernelForm:
    """``function`` of the tensors that ``make`` makes from a generator and ``sizes``; its ``kernels`` at those sizes.

    ``marks`` are pieces of text that the kernels together must hold, ``absent`` ones that none may. ``others`` are more
    sizes at which values must agree with eager execution: ``()`` for a tensor without dimensions, zeros for empty ones.
    ``special`` says that floating-point inputs may hold NaN and infinities, ``strided`` that inputs may lie apart in
    memory; ``tolerance`` is relative and absolute, 0 for exact results. ``values_at`` are the sizes at which values are
    compared where ``sizes`` would take an interpreter too long.
    """

    name: str
    function: Callable[..., Any]
    make: Callable[..., Tensors]
    sizes: tuple[int, ...]
    kernels: tuple[Facts, ...]
    marks: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    others: tuple[tuple[int, ...], ...] = ()
    special: bool = True
    strided: bool = True
    tolerance: float = 1e-5
    values_at: tuple[int, ...] | None = None

    def inputs(self, sizes: tuple[int, ...] | None = None, seed: int = 0) -> Tensors:
        """Inputs on the CPU, the same for every call with one seed; of ``sizes`` other than the form's, if given."""
        return self.make(torch.Generator().manual_seed(seed), *(self.sizes if sizes is None else sizes))


def spaced(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap behind each, so that no two neighbours are adjacent in memory."""
    return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]


def placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor on another device, in the layout it has."""
    storage = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    room = torch.empty(storage if tensor.numel() else 0, dtype=tensor.dtype, device=device)
    return room.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def spoiled(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with NaN and both infinities among them; integers as they are."""
    if not tensor.is_floating_point() or tensor.numel() < 4:
        return tensor
    flat = tensor.flatten().clone()
    for value, place in ((float("nan"), 1), (float("inf"), len(flat) // 2), (float("-inf"), len(flat) - 2)):
        flat[place] = value
    return flat.view(tensor.shape)


# --- Inputs -----------------------------------------------------------------------------------------------------------


def normal(count: int = 1, dtype: torch.dtype = torch.float32) -> Callable[..., Tensors]:
    """``count`` tensors of one shape."""
    return lambda generator, *shape: [torch.randn(shape, generator=generator).to(dtype) for _ in range(count)]


def _with_vectors(generator: torch.Generator, rows: int, columns: int) -> Tensors:
    return [torch.randn(size, generator=generator) for size in ((rows, columns), (columns,), (columns,))]


def _transposed_pair(generator: torch.Generator, rows: int, columns: int) -> Tensors:
    return [torch.randn(columns, rows, generator=generator), torch.randn(rows, columns, generator=generator)]


def _three_orders(generator: torch.Generator, a: int, b: int, c: int) -> Tensors:
    return [torch.randn(size, generator=generator) for size in ((b, c, a), (c, a, b), (a, b, c))]


def _whole_numbers(generator: torch.Generator, *shape: int) -> Tensors:
    return [torch.randint(-50, 50, shape, generator=generator)]


def _table(generator: torch.Generator, rows: int, columns: int, many: int) -> Tensors:
    places = torch.randint(-rows, rows, (many,), generator=generator) if many else torch.zeros(0, dtype=torch.int64)
    return [torch.randn(rows, columns, generator=generator), places]


def _scattered(generator: torch.Generator, rows: int, columns: int, many: int) -> Tensors:
    places = torch.randint(0, rows, (many,), generator=generator)
    return [torch.randn(rows, columns, generator=generator), places, torch.randn(many, columns, generator=generator)]


def _labelled(generator: torch.Generator, rows: int, columns: int) -> Tensors:
    return [torch.randn(rows, columns, generator=generator), torch.randint(0, columns, (rows,), generator=generator)]


def _scalar_and_vector(generator: torch.Generator, n: int) -> Tensors:
    return [torch.randn((), generator=generator), torch.randn(n, generator=generator)]


# --- Functions --------------------------------------------------------------------------------------------------------


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


def example_6_1(x, y):
    return x.t() + y


def example_6_2(x):
    return (x * x).sum(-1)


def three_orders(x, y, z):
    return x.permute(2, 0, 1) * y.permute(1, 2, 0) + z


def gelu_backward(gradient, h):
    """Listing 9.3: the derivative of GELU times the gradient of a scalar loss."""
    return gradient * (0.5 * (1 + torch.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * torch.exp(-0.5 * h * h))


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, weight.shape, weight, bias)


def moments(x):
    return torch.var_mean(x, -1)


def extremes(x):
    return x.amax(-1), x.amin(-1), torch.maximum(x[..., :1], x[..., -1:])


def embedding(table, places):
    return table[places] * 2


def scatter_add(x, places, values):
    return x.index_add(0, places, values)


def scatter_one_to_one(x, places, values):
    return x.index_copy(0, places[:1], values[:1])


def cross_entropy_rows(x, labels):
    return F.cross_entropy(x, labels, reduction="none")


def beyond_32_bits(x):
    return x * 2 + 1


def _far_apart(generator: torch.Generator, rows: int, columns: int) -> Tensors:
    """A few elements that lie a gigabyte apart; what is between them is never touched, so it takes no memory."""
    memory = torch.empty((rows - 1) * (1 << 30) + columns, dtype=torch.int8)
    x = memory.as_strided((rows, columns), (1 << 30, 1))
    x.copy_(torch.randint(-60, 60, (rows, columns), generator=generator))
    return [x]


def _matrix_and_vector(generator: torch.Generator, rows: int, columns: int) -> Tensors:
    return [torch.randn(size, generator=generator) for size in ((rows, columns), (columns,))]


FORMS: tuple[KernelForm, ...] = (
    # Section 9.3
    KernelForm(
        "pointwise", gelu_backward, _scalar_and_vector, (2048,),
        (Facts("pointwise", 2, 1, "b32 v4.b32", "v4.b32"),),
        marks=("in_ptr0 + (0)", "libdevice.erf", "xnumel = 2048"), absent=("xmask =",), others=((0,), (1,)),
    ),
    KernelForm(
        "pointwise, blocks that hang over", torch.relu, normal(), (1000,),
        (Facts("pointwise", 1, 1, "v4.b32", "v4.b32"),),
        marks=("xmask = xindex < xnumel", "tl.PropagateNan.ALL"), others=((), (0, 3), (7, 11)), tolerance=0,
    ),
    KernelForm(
        "pointwise, several results", lambda x, y: (x + y, (x - y).relu()), normal(2), (37, 50),
        (Facts("pointwise", 2, 2, "v2.b32", "v2.b32"),), others=((), (0, 4)), tolerance=0,
    ),
    KernelForm(
        "pointwise, more than the cache holds", lambda x, w: x * w, _matrix_and_vector, (4096, 2048),
        (Facts("pointwise", 2, 1, "v4.b32", "v4.b32", "evict_first evict_last"),), values_at=(40, 70), tolerance=0,
    ),
    KernelForm(
        "pointwise, whole blocks apart", lambda x, w: x * w, _matrix_and_vector, (4097, 2049),
        (Facts("pointwise", 4, 2, "b32 v4.b32", "b32 v4.b32", "evict_first evict_last"),),
        marks=("if xoffset + XBLOCK <= xnumel:", "else:", "xmask = xindex < xnumel"), values_at=(41, 71), tolerance=0,
    ),
    KernelForm(
        "rectangle", example_6_1, _transposed_pair, (256, 512), (Facts("pointwise", 2, 1, "v4.b32", "v4.b32"),),
        marks=("ynumel = 512", "xnumel = 256", "tl.program_id(1) * YBLOCK"), others=((40, 70), (0, 9), (1, 1)),
        tolerance=0,
    ),
    KernelForm(
        "box", three_orders, _three_orders, (32, 24, 40), (Facts("pointwise", 3, 1, "v4.b32", "v4.b32"),),
        marks=("znumel = ", "tl.program_id(2) * ZBLOCK"), others=((17, 9, 33), (0, 9, 9)), tolerance=1e-6,
    ),
    # Section 9.4
    KernelForm(
        "persistent", example_1_1, normal(2), (64, 128), (Facts("persistent", 2, 1, "v4.b32", "b32", "evict_first"),),
        marks=("xnumel = 64", "r0_numel = 128", "R0_BLOCK: tl.constexpr = 128"), absent=("mask =", "for r0_offset"),
        others=((7, 100), (0, 5), (5, 0)),
    ),
    KernelForm(
        "persistent, several members", softmax, normal(), (256, 1000),
        (Facts("persistent", 1, 1, "v4.b32", "v4.b32", "evict_first"),),
        marks=("r0_mask = r0_index < r0_numel", "R0_BLOCK: tl.constexpr = 1024"),
        others=((5, 33), (), (0, 4), (1, 1)),
    ),
    KernelForm(
        "persistent, a long row", softmax, normal(), (6, 4000),
        (Facts("persistent", 1, 1, "v4.b32", "v4.b32", "evict_first"),), others=((2, 2500),),
    ),
    KernelForm(
        "persistent, across rows", lambda x: x.sum(0), normal(), (64, 300),
        (Facts("persistent", 1, 1, "v4.b32", "b32", "evict_first"),), others=((9, 40), (0, 40)),
    ),
    KernelForm(
        "looped", lambda x: x.sum(-1), normal(), (264, 5000),
        (Facts("looped", 1, 1, "v4.b32", "b32", "evict_first"),),
        marks=("for r0_offset in tl.range(0, r0_numel, R0_BLOCK)",), values_at=(5, 5000), tolerance=1e-4,
    ),
    KernelForm(
        "looped, across rows", lambda x: x.sum(0), normal(), (200, 300),
        (Facts("looped", 1, 1, "v4.b32", "b32", "evict_first"),), tolerance=1e-4,
    ),
    KernelForm(
        "split", example_6_2, normal(), (64, 16384),
        (Facts("looped", 1, 1, "v4.b32", "b32", "evict_first"), Facts("persistent", 1, 1, "b32", "b32", "evict_first")),
        marks=("r0_0 + 8192*x0", "xnumel = 128", "r0_numel = 2 "), tolerance=1e-4,
    ),
    KernelForm(
        "split, one result", lambda x: x.sum(), normal(), (1 << 17,),
        (
            Facts("looped", 1, 1, "v4.b32", "b32", "evict_first"),
            Facts("persistent", 1, 1, "b32 v2.b32 v4.b32", "b32", "evict_first"),
        ),
        tolerance=1e-4,
    ),
    KernelForm(
        "positions", lambda x: (x.argmax(-1), x.argmin(-1)), normal(), (64, 500),
        (Facts("persistent", 1, 2, "v4.b32", "b64", "evict_first"),), marks=("merge_argmax", "merge_argmin"),
        others=((9, 33), (1, 1)), tolerance=0,
    ),
    KernelForm(
        "positions, looped", lambda x: x.argmax(-1), normal(), (4, 5000),
        (Facts("looped", 1, 1, "v4.b32", "b64", "evict_first"),), tolerance=0,
    ),
    KernelForm(
        "extremes", extremes, normal(), (64, 500),
        (Facts("persistent", 1, 2, "v4.b32", "b32"), Facts("pointwise", 2, 1, "b32", "v2.b32")),
        marks=("merge_greater", "merge_smaller", "tl.PropagateNan.ALL"), others=((9, 33),), tolerance=0,
    ),
    KernelForm(
        "nothing to reduce", lambda x: x.sum(-1), normal(), (5, 0), (Facts("pointwise", 0, 1, "", "b32"),), tolerance=0,
    ),
    # Section 9.5
    KernelForm(
        "looped, softmax in two passes", softmax, normal(), (132, 17000),
        (Facts("looped", 2, 1, "v4.b32", "v4.b32", "evict_first evict_last"),), marks=("merge_exponential_into(_",),
    ),
    KernelForm(
        "looped, moments in one pass", moments, normal(), (132, 17000),
        (Facts("looped", 1, 2, "v4.b32", "b32", "evict_first"),), marks=("merge_deviation_into(_",), special=False,
    ),
    KernelForm(
        "looped, norm in two passes", layer_norm, _with_vectors, (132, 17000),
        (Facts("looped", 4, 1, "v4.b32", "v4.b32", "evict_first evict_last"),), marks=("merge_deviation_into(_",),
        tolerance=1e-4,
    ),
    KernelForm(
        "split, softmax", softmax, normal(), (8, 65536),
        (
            Facts("persistent", 1, 2, "v4.b32", "b32"),
            Facts("persistent", 2, 2, "b32", "b32", "evict_first"),
            Facts("pointwise", 3, 1, "b32 v4.b32", "v4.b32"),
        ),
    ),
    KernelForm(
        "split, moments", moments, normal(), (8, 65536),
        (
            Facts("persistent", 1, 2, "v4.b32", "b32", "evict_first"),
            Facts("persistent", 2, 2, "b32 v4.b32", "b32", "evict_first"),
        ),
        special=False, tolerance=1e-4,
    ),
    # Table 6.1
    KernelForm(
        "scan", lambda x: x.cumsum(-1), normal(), (6, 300),
        (Facts("persistent", 1, 1, "v4.b32", "v4.b32", "evict_first"),), marks=("tl.associative_scan",),
        others=((0, 3), ()), tolerance=1e-4,
    ),
    KernelForm(
        "scan, looped", lambda x: x.cumsum(-1), normal(), (3, 9000),
        (Facts("looped", 1, 1, "v4.b32", "v4.b32", "evict_first"),), tolerance=1e-3,
    ),
    KernelForm(
        "scan, across rows", lambda x: x.cumsum(0), normal(), (40, 50),
        (Facts("persistent", 1, 1, "v2.b32", "v2.b32", "evict_first"),), tolerance=1e-4,
    ),
    KernelForm(
        "atomic additions", scatter_add, _scattered, (20, 30, 64),
        (
            Facts("pointwise", 1, 1, "v4.b32", "v4.b32"),
            Facts("pointwise", 2, 0, "b64 v4.b32", "", atomics=True),
        ),
        marks=("tl.atomic_add", "tl.device_assert"), others=((20, 30, 0),), special=False,
    ),
    KernelForm(
        "scatter without atomics", scatter_one_to_one, _scattered, (20, 30, 64),
        (Facts("pointwise", 1, 1, "v4.b32", "v4.b32"), Facts("pointwise", 2, 1, "b32 b64", "b32")),
        absent=("tl.atomic",), tolerance=0,
    ),
    KernelForm(
        "subscripts read at run time", embedding, _table, (100, 64, 50),
        (Facts("pointwise", 2, 1, "b64 v4.b32", "v4.b32"),), marks=("tl.device_assert",),
        others=((10, 3, 7), (10, 3, 0)), tolerance=0,
    ),
    KernelForm(
        "an element of a row", cross_entropy_rows, _labelled, (64, 1000),
        (Facts("persistent", 3, 1, "b32 b64 v4.b32", "b32", "evict_last"),), others=((9, 33),),
    ),
    # Widths
    KernelForm(
        "subscripts of 64 bits", beyond_32_bits, _far_apart, (4, 50), (Facts("pointwise", 1, 1, "b16", "b32"),),
        marks=(".to(tl.int64)", "1073741824*"), strided=False, tolerance=0,
    ),
    KernelForm(
        "half precision", lambda x, y: (x * y + 1).relu(), normal(2, torch.bfloat16), (64, 500),
        (Facts("pointwise", 2, 1, "v2.b32", "v2.b32"),), marks=(".to(tl.float32)",), others=((), (0,)), tolerance=1e-2,
    ),
    KernelForm(
        "half precision, reduced", lambda x: x.sum(-1), normal(1, torch.float16), (64, 500),
        (Facts("persistent", 1, 1, "v2.b32", "b16", "evict_first"),), marks=(".to(tl.float32)",), tolerance=1e-2,
    ),
    KernelForm(
        "double precision", lambda x: x.exp().sum(-1), normal(1, torch.float64), (64, 300),
        (Facts("persistent", 1, 1, "v2.b64", "b64", "evict_first"),), tolerance=1e-12,
    ),
    KernelForm(
        "whole numbers", lambda x: (x // 7, x % 7, x.sum(-1), (x > 3).any(-1)), _whole_numbers, (64, 100),
        (Facts("persistent", 1, 4, "v2.b64", "b64 b8 v2.b64", "evict_first"),), marks=("floor_divide", "remainder"),
        others=((0, 4),), tolerance=0,
    ),
)  # fmt: skip
