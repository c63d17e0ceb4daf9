"""What decomposition rules are made of (Section 4.8), found by running each on samples made from its schema.

A rule is code: the operators on its right-hand side depend on the arguments it is given, and a composite operator's
body is C++ that cannot be read from here. So every rule is run on a few small samples under a dispatch mode that writes
down the operators it meets, without taking them apart in turn. The union over the samples is the right-hand side that
:mod:`.depth` reasons about. A branch that no sample takes is not seen: what follows is about the rules as observed.

Samples live on the ``meta`` device, where operators compute shapes and touch no memory: nothing here can write, crash
on an odd argument, or take long. Rules that ask for values cannot run there and are listed as unobserved.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .basis import decomposition_of, is_random
from .decompositions import DECOMPOSITIONS
from .depth import Expansion, depths, expansion
from .functionalize import functional_twin

#: Shapes that all tensor arguments of a call take together, and what their integer arguments are.
SHAPES = ((2, 3, 4, 4), (3, 3), (4,), (2, 3, 4), (2, 3, 4, 4, 4), ())
INTEGERS = (1, 0, 2)
DTYPES = (torch.float32, torch.int64, torch.bool)
ENOUGH = 6  # samples on which a rule ran


# Operators with these words in their names are for tensors that are not strided arrays of numbers in a processor's
# memory, or belong to one vendor's library. A region that meets one is not compiled, so their rules are never asked
# for, and running them on samples they were not made for can end the process.
ELSEWHERE = (
    "sparse", "_csr", "_csc", "_bsr", "_bsc", "_coo", "nested", "to_padded", "quantiz", "fbgemm", "mkldnn", "cudnn",
    "cuda", "cufft", "miopen", "_thnn", "_test_",
)  # fmt: skip

# Composites about which PyTorch prints a warning of its own, past Python's filters (they are deprecated, most of them).
LOUD = frozenset("chain_matmul frobenius_norm nuclear_norm lu_solve qr _lu_with_info meshgrid cross stft chalf".split())

OWN, TABLE, COMPOSITE, WRITE = "own rule", "PyTorch's table", "composite body", "write"


@dataclass(frozen=True)
class DecompositionTable:
    """The rules that apply with a given basis: operators outside it that have one and draw no random numbers.

    ``rules`` maps the name of an operator to the operators on its right-hand side; ``kinds`` says where the rule comes
    from: "own rule" (``decompositions``), "PyTorch's table", "composite body" (an operator that is defined by others
    and that the dispatcher takes apart by itself) or "write" (an in-place or ``out=`` operator, which functionalization
    turns into its functional twin). ``unobserved`` are rules that ran on no sample; ``basis`` holds names as well.
    """

    rules: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, str]
    unobserved: tuple[str, ...]
    basis: frozenset[str]

    @cached_property
    def depths(self) -> dict[str, int]:
        """The depth of every operator that occurs. Raises CyclicRulesError where the rules go round."""
        return depths(self.rules, self.basis)

    def expansion(self, operator: str) -> Expansion:
        """The tree of one operator, by its name (``aten.cross_entropy_loss.default``). KeyError if it has no rule."""
        return expansion({operator: self.rules[operator], **self.rules}, self.basis, operator)

    @property
    def by_depth(self) -> dict[int, tuple[str, ...]]:
        """The operators that have a rule, by their depth."""
        found: dict[int, list[str]] = {}
        for name in self.rules:
            found.setdefault(self.depths[name], []).append(name)
        return {depth: tuple(sorted(found[depth])) for depth in sorted(found)}

    @cached_property
    def reachable(self) -> tuple[str, ...]:
        """Operators whose rule is *reachable*, by name.

        The dispatcher can hand such an operator to the recorder (a program of strided tensors may call it), it is
        outside the basis and draws no random numbers, there is something to put in its place, and whatever that is made
        of ends in the basis: no leaf of its expansion is left to PyTorch. A composite operator is handed over in
        inference mode, or when a rule's part is one; elsewhere the dispatcher takes it apart before.
        O(operators + parts).
        """
        ends: dict[str, bool] = dict.fromkeys(self.basis, True)
        for name in sorted(self.rules, key=self.depths.__getitem__):  # parts come before what is made of them
            ends[name] = all(ends.get(part, False) for part in self.rules[name])
        return tuple(name for name in self.rules if ends[name])

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Operators that rules end in and that are neither in the basis nor have a rule: PyTorch runs them as they
        are."""
        reached = {part for parts in self.rules.values() for part in parts}
        return tuple(sorted(reached - self.basis - set(self.rules)))

    def format(self) -> str:
        counts = Counter(self.kinds[name] for name in self.rules)
        lines = [f"{len(self.rules)} rules outside a basis of {len(self.basis)} operators"]
        lines += [f"    {counts[kind]:4} {kind}" for kind in (OWN, TABLE, COMPOSITE, WRITE) if counts[kind]]
        handed = sum(self.kinds[name] != COMPOSITE for name in self.reachable)
        lines.append(f"{len(self.reachable)} end in the basis, {handed} of them not counting composite bodies")
        lines.append("depth (Proposition 4.3):")
        for depth, names in self.by_depth.items():
            shown = ", ".join(name.removeprefix("aten.").removesuffix(".default") for name in names[:4])
            lines.append(f"    {depth}: {len(names):4} operators: {shown}{', ...' if len(names) > 4 else ''}")
        if self.unobserved:
            lines.append(f"{len(self.unobserved)} more rules ran on no sample")
        return "\n".join(lines)

    __str__ = format

    def __repr__(self) -> str:
        return f"<{len(self.rules)} decomposition rules>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def observe(
    basis: Collection[Any], operators: Collection[Any] | None = None, *, rules: Mapping[Any, Any] | None = None
) -> DecompositionTable:
    """The decomposition table of a basis: every rule that applies, run on samples (about ten seconds for all of
    PyTorch's operators).

    ``operators`` limits the search to these overloads. ``rules`` are tried before the compiler's own choice
    (``basis.decomposition_of``).
    """
    found: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, str] = {}
    unobserved = []
    for func in operators if operators is not None else all_overloads():
        if func in basis or is_random(func) or any(word in func._opname for word in ELSEWHERE):
            continue
        rule = (rules or {}).get(func) or decomposition_of(func)
        if func._schema.is_mutable:
            twin = functional_twin(func)
            if twin is not None and (twin in basis or decomposition_of(twin) is not None):
                found[str(func)], kinds[str(func)] = (str(twin),), WRITE
        elif rule is not None:
            parts = None if func._opname in LOUD else observed_parts(func, rule)
            if parts is None:
                unobserved.append(str(func))
                continue
            found[str(func)] = tuple(map(str, parts))
            kinds[str(func)] = OWN if func in DECOMPOSITIONS else COMPOSITE if func._can_decompose() else TABLE
    return DecompositionTable(found, kinds, tuple(unobserved), frozenset(map(str, basis)))


def all_overloads() -> list[torch._ops.OpOverload]:
    """Every overload of PyTorch's own operators, by name."""
    found = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = qualified.partition("::")
        if namespace == "aten":
            packet, _, overload = name.partition(".")
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


class _Listening(TorchDispatchMode):
    """Writes down every overload that is called."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[Any, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.heard[func] = None
        return func(*args, **(kwargs or {}))


def observed_parts(func: torch._ops.OpOverload, rule: Callable[..., Any]) -> tuple[Any, ...] | None:
    """The operators that ``rule`` calls in place of ``func``, in order of first appearance over all samples it could be
    run on, or None if it ran on none. What a rule would do to its own operator counts too: ``func`` among its parts is
    a cycle of length one."""
    found: dict[Any, None] = {}
    ran = 0
    for args, kwargs in samples(func):
        listening = _Listening()
        try:
            with warnings.catch_warnings(), torch.no_grad(), listening:
                warnings.simplefilter("ignore")
                result = rule(*args, **kwargs)
        except Exception:  # not every combination of arguments makes sense for every operator
            continue
        if result is NotImplemented:
            continue
        found.update(listening.heard)
        ran += 1
        if ran == ENOUGH:
            break
    return tuple(found) if ran else None


def samples(func: torch._ops.OpOverload) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Calls of ``func``: its required arguments, and the optional tensors once left out and once given."""
    if str(func) in SPECIAL:
        yield from SPECIAL[str(func)]()
    arguments = func._schema.arguments
    for shape, integer, dtype, given in itertools.product(SHAPES, INTEGERS, DTYPES, (False, True)):
        positional, named = [], {}
        for argument in arguments:
            may_miss = argument.has_default_value() or "Optional" in str(argument.type)
            if argument.has_default_value() and not (given and "Tensor" in str(argument.type)):
                continue
            try:
                value = None if may_miss and not given else _value(argument, shape, integer, dtype)
            except _NoSample:
                return
            # A positional argument behind one that was left out is given by its name.
            if argument.kwarg_only or len(positional) < arguments.index(argument):
                named[argument.name] = value
            else:
                positional.append(value)
        yield tuple(positional), named


class _NoSample(Exception):
    """An argument of a type that nothing is made up for."""


def _value(argument: Any, shape: tuple[int, ...], integer: int, dtype: torch.dtype) -> Any:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if argument.name == "dtype":
        return torch.float32
    if kind == "Tensor":
        whole = argument.name in ("index", "indices", "offsets") and dtype != torch.bool
        size = shape if argument.name not in _BY_CHANNEL or len(shape) < 2 else shape[1:2]
        return torch.empty(size, dtype=torch.int64 if whole else dtype, device="meta")
    if kind in ("List[Tensor", "List[Optional[Tensor"):
        return [torch.empty(shape, dtype=dtype, device="meta") for _ in range(2)]
    if kind == "List[int":
        return [integer or 1] * (argument.N or max(len(shape) - 2, 1))
    if kind == "List[float":
        return [1.0] * (argument.N or max(len(shape) - 2, 1))
    plain = {"int": integer, "float": 0.5, "number": integer, "bool": bool(integer % 2), "str": "none"}
    if kind in plain:
        return _WORDS.get(argument.name, plain[kind]) if kind == "str" else plain[kind]
    if kind == "List[bool":
        return [True] * (argument.N or 3)
    raise _NoSample(argument.name)


# Tensors with one number for each channel.
_BY_CHANNEL = frozenset("weight bias running_mean running_var mean var invstd save_mean save_invstd".split())
_WORDS = {"indexing": "ij", "mode": "reflect", "reduce": "sum", "ord": "fro", "padding": "same", "equation": "i,i->i",
          "UPLO": "L", "approximate": "none", "side": "left"}  # fmt: skip


def _t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _images(rank: int) -> torch.Tensor:
    return _t(2, 4, *[8] * rank)


def _once(make: Callable[[], tuple]) -> Callable[[], Iterator[tuple[tuple, dict[str, Any]]]]:
    return lambda: iter([(make(), {})])


def _labelled(rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of 4 classes and their labels."""
    return _t(2, 4, *[3] * rank), _t(2, *[3] * rank, dtype=torch.int64)


def _convolution(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _images(rank), _t(4, 4, *[3] * rank)


def _resized(rank: int, *more: Any) -> tuple:
    return _images(rank), None, *more, [2.0] * rank


#: Operators whose arguments must fit together in a way their schema does not tell.
SPECIAL: dict[str, Callable[[], Iterator[tuple[tuple, dict[str, Any]]]]] = {
    f"aten.{name}": _once(make)
    for name, make in {
        "layer_norm.default": lambda: (_t(2, 4), [4], _t(4), _t(4)),
        "rms_norm.default": lambda: (_t(2, 4), [4], _t(4)),
        "cross_entropy_loss.default": _labelled,
        "nll_loss.default": _labelled,
        "nll_loss_nd.default": _labelled,
        "nll_loss_forward.default": lambda: (*_labelled(), None, 1, -100),
        "nll_loss_backward.default": lambda: (_t(), *_labelled(), None, 1, -100, _t()),
        "nll_loss2d_backward.default": lambda: (_t(), *_labelled(2), None, 1, -100, _t()),
        "conv1d.default": lambda: _convolution(1),
        "conv2d.default": lambda: _convolution(2),
        "conv3d.default": lambda: _convolution(3),
        "conv1d.padding": lambda: (*_convolution(1), None, [1], "same"),
        "conv2d.padding": lambda: (*_convolution(2), None, [1, 1], "same"),
        "conv3d.padding": lambda: (*_convolution(3), None, [1, 1, 1], "same"),
        "conv_transpose1d.default": lambda: _convolution(1),
        "conv_transpose2d.input": lambda: _convolution(2),
        "conv_transpose3d.input": lambda: _convolution(3),
        "upsample_nearest1d.vec": lambda: _resized(1),
        "upsample_nearest2d.vec": lambda: _resized(2),
        "upsample_nearest3d.vec": lambda: _resized(3),
        "_upsample_nearest_exact1d.vec": lambda: _resized(1),
        "_upsample_nearest_exact2d.vec": lambda: _resized(2),
        "_upsample_nearest_exact3d.vec": lambda: _resized(3),
        "upsample_linear1d.vec": lambda: _resized(1, False),
        "upsample_bilinear2d.vec": lambda: _resized(2, False),
        "upsample_bicubic2d.vec": lambda: _resized(2, False),
        "upsample_trilinear3d.vec": lambda: _resized(3, False),
        "_upsample_bilinear2d_aa.vec": lambda: _resized(2, False),
        "_upsample_bicubic2d_aa.vec": lambda: _resized(2, False),
        "grid_sampler.default": lambda: (_images(2), _t(2, 5, 5, 2), 0, 0, False),
        "affine_grid_generator.default": lambda: (_t(2, 2, 3), [2, 4, 5, 5], False),
        "bilinear.default": lambda: (_t(2, 3), _t(2, 4), _t(5, 3, 4), None),
        "cosine_embedding_loss.default": lambda: (_t(2, 3), _t(2, 3), _t(2)),
        "col2im.default": lambda: (_t(2, 16, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
        "gru_cell.default": lambda: (_t(2, 3), _t(2, 4), _t(12, 3), _t(12, 4)),
        "lstm_cell.default": lambda: (_t(2, 3), [_t(2, 4), _t(2, 4)], _t(16, 3), _t(16, 4)),
        "native_group_norm_backward.default": lambda: (
            _images(2), _images(2), _t(2, 2), _t(2, 2), _t(4), 2, 4, 64, 2, [True, True, True],
        ),
        "permute_copy.default": lambda: (_t(2, 3), [1, 0]),
        "as_strided_scatter.default": lambda: (_t(4, 4), _t(2, 2), [2, 2], [1, 2]),
        "_softmax_backward_data.default": lambda: (_t(2, 3), _t(2, 3), 1, torch.float32),
        "_log_softmax_backward_data.default": lambda: (_t(2, 3), _t(2, 3), 1, torch.float32),
        "_unsafe_index_put.default": lambda: (_t(4), [_t(2, dtype=torch.int64)], _t(2)),
        "linspace.Tensor_Tensor": lambda: (_t(), _t(), 5),
        "linspace.Tensor_Scalar": lambda: (_t(), 1.0, 5),
        "linspace.Scalar_Tensor": lambda: (0.0, _t(), 5),
        "cov.default": lambda: (_t(3, 5),),
        "linalg_tensorinv.default": lambda: (_t(4, 2, 2), 1),
        "trace_backward.default": lambda: (_t(), [3, 3]),
        "stft.default": lambda: (_t(64), 16),
    }.items()
}  # fmt: skip
