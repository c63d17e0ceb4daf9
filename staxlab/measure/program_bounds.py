"""How far apart two right results may lie: rounding errors sent through a program (Sections 6.5, 11.4 and 13.3).

Whether two results are "consistent" cannot be asked with a fixed tolerance. A sum of a million numbers that cancel may
differ in every digit between two right programs, and a single addition in none. So the bound is made from the program
and its data. It is run once more in double precision, which stands for the exact result, and then several times with a
deliberate error at every operator, as large as a right implementation may make it and of random sign:

================================  ====================================================================================
moves, compares, selects          none
an addition, a product            two units of roundoff of the result
an elementary function            the units in the last place that :data:`staxlab.loops.enclosure.ULPS` allows
another function of one element   the same of the result and of its arguments, since its formula may cancel inside
a sum of ``n`` terms              ``gamma(h) * sum(|a_i|)``, ``h`` the smaller of ``n - 1`` and ``2 sqrt(n)``, or the
                                  height of a kernel's summation tree where that is larger
another operator over many        its inputs and its result off by ``2 sqrt(n) + 4`` units
================================  ====================================================================================

How far the result then strays is its condition: cancellation, steep functions and long sums make it large by
themselves, and an element where a comparison flips is left open. This is Monte Carlo arithmetic (Parker, 1997, "Monte
Carlo Arithmetic") with amplitudes taken from error analysis. Gradients come along: the backward pass runs under the
same treatment.

``2 sqrt(n)`` is what accumulation in tiles comes to (Section 11.4), and six standard deviations of a sum that is
carried out one by one (Theorem 13.1: ``sqrt(n) / 3`` units of ``sum(|a_i|)`` for summands of one sign).

What is drawn at random is recorded from an ordinary run and played back, since a generator gives other numbers in
another precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture.graph import Node, TensorMeta
from ..capture.module import GraphModule, Interpreter
from ..loops.enclosure import ULPS
from ..operators.basis import is_random, is_view, written_arguments
from ..operators.structure import flatten, rebuild
from .rounding import composed_units, expected_height, gamma, stored_apart, unit_roundoff

#: Runs with deliberate errors; the bound is the largest deviation among them, :data:`SAFETY` times.
RUNS = 6

#: Two results may be off on different sides, and six runs need not meet the worst signs.
SAFETY = 8.0

#: A comparison of two roundings of one exact value.
POINTWISE_UNITS = 2

_ROUNDED = {torch.float16, torch.bfloat16, torch.float32}
_HALF = {torch.float16, torch.bfloat16}

#: Operators that move, select or compare, by their names without a trailing underscore.
_EXACT = frozenset(
    "clone copy index gather index_select cat stack where masked_fill relu neg abs maximum minimum amax amin max min "
    "sort topk clamp clamp_min clamp_max slice_scatter select_scatter as_strided_scatter diagonal_scatter zeros ones "
    "full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty empty_strided fill "
    "zero constant_pad_nd flip roll repeat embedding threshold max_pool2d_with_indices sign floor ceil round trunc "
    "scatter index_put tril triu masked_scatter lift_fresh lift_fresh_copy alias_copy arange eye kthvalue median "
    "mode cummax cummin fmax fmin nan_to_num copysign scalar_tensor threshold_backward select_backward slice_backward "
    "max_pool2d_with_indices_backward unfold_copy hardtanh repeat_interleave unbind_copy new_empty_strided "
    "value_selecting_reduction_backward masked_select view_as_real isnan isinf "
    "_local_scalar_dense resize set _unsafe_view view_copy reshape_copy expand_copy permute_copy".split()
)

#: Sums of products of their arguments: the operator on magnitudes gives the sum of magnitudes.
_LINEAR = frozenset(
    "sum mean mm bmm addmm baddbmm addmv mv dot vdot convolution cumsum index_add scatter_add trace "
    "embedding_dense_backward avg_pool2d _adaptive_avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d_backward "
    "nansum addbmm addcmul addcdiv".split()
)

#: Operators on single elements whose result has one right rounding, or nearly so: their error is relative.
_PLAIN = frozenset(
    "add sub rsub mul div true_divide reciprocal sqrt rsqrt square pow fmod remainder floor_divide ldexp _to_copy "
    "positive real imag view_as_complex complex polar hypot".split()
)


@dataclass(frozen=True)
class Bounds:
    """For each value of an observation (results, then gradients, then inputs afterwards): the ``exact`` one, computed
    in double precision, and how far a right result may lie from another, ``bound``. None for what is no tensor. NaN
    marks an element that is left open. ``reason`` says why there are none at all."""

    exact: tuple[torch.Tensor | None, ...]
    bound: tuple[torch.Tensor | None, ...]
    reason: str = ""

    def __len__(self) -> int:
        return len(self.bound)


def bounds_of(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    upstream: Sequence[Any] | None = None,
    seed: int = 0,
    runs: int = RUNS,
    height: int = 0,
) -> Bounds:
    """The bounds of what a graph computes on ``inputs`` (one value for each placeholder; they are copied).

    With ``upstream``, one gradient for each tensor among the results that is differentiable, gradients of the inputs
    that require grad follow the results. ``height`` is that of the tallest summation tree among the kernels that are
    judged. ``runs + 1`` executions in double precision, one more if numbers are drawn.
    Never raises: where an operator cannot run in double precision, all runs are in that of the program, whose own
    rounding is then counted twice; where it cannot run so either, the bounds are empty and say why.
    """
    reason = ""
    for wide in (True, False):
        try:
            return _bounds(module, inputs, upstream, seed, runs, height, wide)
        except Exception as error:  # the operators of a program may refuse anything
            said = str(error).strip().splitlines()
            reason = reason or f"{type(error).__name__}: {said[0] if said else ''}"
    return Bounds((), (), reason)


def _bounds(
    module: GraphModule, inputs: Sequence[Any], upstream: Sequence[Any] | None, seed: int, runs: int,
    height: int, wide: bool,
) -> Bounds:  # fmt: skip
    drawn: list[Any] = []
    names: list[torch.dtype | None] = []
    first = _Run(module, None, drawn, recording=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for value in first.values(inputs, upstream):
            names.append(value.dtype if isinstance(value, torch.Tensor) else None)
    exact = _Run(module, None, drawn, wide=wide).values(inputs, upstream)
    deviation = [None if value is None else torch.zeros(value.shape, dtype=torch.float64) for value in exact]
    for number in range(runs):
        generator = torch.Generator().manual_seed(1 + number)
        for place, (value, other) in enumerate(
            zip(exact, _Run(module, generator, drawn, height=height, wide=wide).values(inputs, upstream), strict=True)
        ):
            if value is not None and other is not None:
                deviation[place] = torch.maximum(deviation[place], _distance(value, other))
    bounds = [_widened(*entry) for entry in zip(exact, deviation, names, strict=True)]
    return Bounds(tuple(exact), tuple(bounds))


def _distance(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far an element strayed; NaN where one is a number and the other is not."""
    if value.dtype.is_complex:
        value, other = torch.view_as_real(value), torch.view_as_real(other)
        return _distance(value, other).amax(-1)
    one, two = value.double(), other.double()
    away = (one - two).abs()
    return torch.where((one == two) | (one.isnan() & two.isnan()), 0.0, torch.where(away.isinf(), math.nan, away))


def _widened(
    value: torch.Tensor | None, deviation: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor | None:
    if value is None or deviation is None or dtype is None:
        return None
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.where(deviation == 0, deviation, math.nan)
    real = torch.empty((), dtype=dtype).real.dtype if dtype.is_complex else dtype
    info = torch.finfo(real)
    size = value.abs().double()
    own = stored_apart(size, real)
    bound = SAFETY * deviation + torch.where(size.isfinite(), own, 0.0)
    return torch.where(size.isfinite() & (size > info.max / 2), math.nan, bound)


class _Run(Interpreter):
    """One execution: ordinary, which records what is drawn; exact; or with deliberate errors."""

    def __init__(
        self, module: GraphModule, generator: torch.Generator | None, drawn: list[Any], recording: bool = False,
        height: int = 0, wide: bool = True,
    ):  # fmt: skip
        super().__init__(module)
        self.wide = wide and not recording
        widest = [node.val.dtype for node in module.graph if isinstance(node.val, TensorMeta)]
        units = [unit_roundoff(dtype) for dtype in map(_real, widest) if dtype.is_floating_point]
        unit = max(units, default=unit_roundoff("float32"))
        self.mode = _Arithmetic(generator, drawn, recording, unit, height, self.wide)
        self.default = self.mode.unit
        self.constants: dict[str, Any] = {}

    def run_node(self, node: Node) -> Any:
        dtype = _real(node.val.dtype) if isinstance(node.val, TensorMeta) else None
        known = dtype is not None and dtype.is_floating_point
        self.mode.unit = unit_roundoff(dtype) if known else self.default
        if node.op == "get_attr":
            if node.target not in self.constants:
                self.constants[node.target] = self._taken(self.module.constants[node.target])
            return self.constants[node.target]
        return super().run_node(node)

    def _taken(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copied = value.detach().clone()
        if self.wide and copied.dtype in _ROUNDED:
            copied = copied.double()
        return copied.requires_grad_(value.requires_grad)

    def values(self, inputs: Sequence[Any], upstream: Sequence[Any] | None) -> list[Any]:
        given = [self._taken(value) for value in inputs]
        with torch.set_grad_enabled(upstream is not None):
            run = [x.view_as(x) if isinstance(x, torch.Tensor) and x.requires_grad else x for x in given]
            with self.mode:
                results = flatten(self.run(*run))
                found = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in results]
                if upstream is not None:
                    self.mode.unit = self.default
                    found += self._gradients(found, given, upstream)
        found += [x if isinstance(x, torch.Tensor) else None for x in run]
        return [None if x is None else x.detach() for x in found]

    def _gradients(self, results: list[Any], given: list[Any], upstream: Sequence[Any]) -> list[Any]:
        wanted = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
        roots = [x for x in results if x is not None and x.requires_grad]
        tangents = [None if t is None else self._taken(t).to(r.dtype) for r, t in zip(roots, upstream, strict=True)]
        pairs = [(r, t) for r, t in zip(roots, tangents, strict=True) if t is not None]
        if not pairs or not wanted:
            return []
        return list(torch.autograd.grad([r for r, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True))


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.empty((), dtype=dtype).real.dtype if dtype.is_complex else dtype


class _Arithmetic(TorchDispatchMode):
    """Below autograd: double precision in the place of narrower formats, and an error at every operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would otherwise import its own compiler to wrap __torch_dispatch__

    def __init__(self, generator: torch.Generator | None, drawn: list[Any], recording: bool, unit: float,
                 height: int, wide: bool):  # fmt: skip
        super().__init__()
        self.height, self.wide = height, wide
        self.generator, self.recording, self.unit = generator, recording, unit
        self.drawn, self.position = drawn, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.recording:
            result = func(*args, **kwargs)
            if is_random(func):
                self.drawn.append(_kept(result))
            return result
        if is_random(func):
            return self._replayed(func, args, kwargs)
        if self.wide:
            args, kwargs = _in_double(args), _in_double(kwargs)
        if self.generator is None:
            return func(*args, **kwargs)
        return self._with_error(func, args, kwargs)

    def _replayed(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What the ordinary run drew; where results are made of the first argument too (dropout), they follow it."""
        kept = _in_double(self.drawn[self.position]) if self.wide else self.drawn[self.position]
        self.position += 1
        if func._opname == "native_dropout":
            scale = 1 / (1 - args[1]) if args[1] < 1 else 0.0
            return args[0] * kept[1] * scale, kept[1]
        written = written_arguments(func, args, kwargs)
        if written:
            written[0].copy_(kept if isinstance(kept, torch.Tensor) else kept[0])
            return args[0]
        return rebuild(kept, [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in flatten(kept)])

    def _with_error(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        name = func._opname.removesuffix("_")
        tensors = [x for x in flatten((args, kwargs)) if isinstance(x, torch.Tensor) and _rounds(x)]
        if is_view(func) or name in _EXACT and name != "_to_copy" or func._schema.name.startswith("prims::"):
            return func(*args, **kwargs)
        size = max((x.numel() for x in tensors), default=0)
        linear = name in _LINEAR and not written_arguments(func, args, kwargs)
        if linear:
            magnitudes = func(*_magnitudes(args), **_magnitudes(kwargs))
        result = func(*args, **kwargs)
        leaves = flatten(result)
        smallest = min((x.numel() for x in leaves if isinstance(x, torch.Tensor) and _rounds(x)), default=0)
        if not smallest:
            return result
        if linear:
            terms = _terms(name, args, size, smallest)
            height = expected_height(terms, self.height)
            return self._off(func, args, kwargs, result, self.unit, gamma(height, self._accumulate()), magnitudes)
        if size <= smallest and not _reduces(name):
            units = ULPS.get(name, 0) + POINTWISE_UNITS
            plain = name in ULPS or name in _PLAIN
            room = None if plain else rebuild(result, [_room(leaf, tensors) for leaf in leaves])
            return self._off(func, args, kwargs, result, units * self.unit, units * self.unit, room)
        count = max(size // max(smallest, 1), *(max(x.shape, default=1) for x in tensors), 1)
        units = composed_units(count) * min(self.unit, unit_roundoff("float32"))
        if not written_arguments(func, args, kwargs):
            result = func(*self._moved(args, units), **self._moved(kwargs, units))
        return self._off(func, args, kwargs, result, units + self.unit)

    def _accumulate(self) -> str:
        """Sums of 16-bit numbers are carried out in float32, in eager execution and here."""
        return "float64" if self.unit < unit_roundoff("float32") else "float32"

    def _signs(self, like: torch.Tensor) -> torch.Tensor:
        ends = torch.randint(0, 2, like.shape, generator=self.generator) * 2 - 1
        return ends.to(like.device, torch.float64)

    def _moved(self, value: Any, units: float) -> Any:
        """Arguments with a relative error."""
        leaves = [x * (1 + units * self._signs(x)) if isinstance(x, torch.Tensor) and _rounds(x) else x
                  for x in flatten(value)]  # fmt: skip
        return rebuild(value, leaves)

    def _off(
        self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any, relative: float, absolute: float = 0.0,
        magnitudes: Any = None,
    ) -> Any:  # fmt: skip
        """The result with an error; in the place where it stands if the operator writes."""
        written = written_arguments(func, args, kwargs)
        if written:
            for tensor in written:
                if _rounds(tensor):
                    tensor.mul_(1 + relative * self._signs(tensor))
            return result
        sizes = flatten(magnitudes) if magnitudes is not None else [None] * len(flatten(result))
        leaves = []
        for leaf, size in zip(flatten(result), sizes, strict=True):
            if isinstance(leaf, torch.Tensor) and _rounds(leaf):
                error = relative * leaf
                error = error + absolute * size if size is not None else error
                leaf = (leaf + torch.where(error.isfinite(), error, 0.0) * self._signs(leaf)).to(leaf.dtype)
            leaves.append(leaf)
        return rebuild(result, leaves)


def _rounds(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _room(leaf: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """What the error of a composed function is relative to, besides its result: its arguments; of a derivative, the
    upstream gradient times what it multiplies."""
    if not isinstance(leaf, torch.Tensor) or not _rounds(leaf):
        return leaf
    fitting = [x.abs().double() for x in tensors if _fits(x.shape, leaf.shape)]
    if not fitting:
        return leaf.abs()
    size = fitting[0]
    if len(fitting) > 1:
        size = size * (1 + sum(fitting[1:]))
    return torch.where(size.isfinite(), size, 0.0).expand(leaf.shape)


def _fits(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a tensor of one shape broadcasts to another."""
    ends = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(extent in (1, wanted) for extent, wanted in ends)


def _kept(result: Any) -> Any:
    return rebuild(result, [x.clone() if isinstance(x, torch.Tensor) else x for x in flatten(result)])


def _in_double(value: Any) -> Any:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.double() if leaf.dtype in _ROUNDED else leaf
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _ROUNDED else leaf

    return rebuild(value, [change(leaf) for leaf in flatten(value)])


def _magnitudes(value: Any) -> Any:
    def size(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.abs() if _rounds(leaf) else leaf
        return abs(leaf) if isinstance(leaf, float) else leaf

    return rebuild(value, [size(leaf) for leaf in flatten(value)])


def _reduces(name: str) -> bool:
    """Whether an operator whose result is as large as its argument still merges many elements into one."""
    words = ("softmax", "norm", "cumprod", "logcumsumexp", "linalg", "fft", "conv", "attention", "pool", "upsample",
             "grid_sample", "rnn", "lstm", "gru", "cdist", "solve", "inverse", "cholesky", "_lu", "matmul", "interp",
             "index_add", "index_put", "scatter", "_flash", "mkldnn")  # fmt: skip
    return any(word in name for word in words)


def _terms(name: str, args: tuple, size: int, smallest: int) -> int:
    """How many numbers an element of the result is the sum of, one for a bias included."""
    if name in ("mm", "bmm", "mv"):
        return int(args[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return int(args[1].shape[-1]) + 1
    if name in ("dot", "vdot", "trace"):
        return int(args[0].numel())
    if name == "convolution":
        weight = args[1]
        return int(weight.numel() // max(weight.shape[1 if args[6] else 0], 1)) + 1
    if name == "cumsum":
        return int(args[0].shape[args[1]]) if args[0].dim() else 1
    if name in ("index_add", "scatter_add", "embedding_dense_backward"):
        return max(int(x.numel()) for x in args if isinstance(x, torch.Tensor))
    return max(size // max(smallest, 1), 1)
