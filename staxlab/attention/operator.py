"""Attention as one operator, ``staxlab::attention``, that graphs can hold (Section 9.10).

A call of :func:`~staxlab.attention.omni.omni_attention` has parts that no graph of tensors can hold: two functions, a
scale, options. They are put together into a :class:`Specification`, which is registered, and the operator is given its
name. All that is data stays data: query, key and value, the lists of the block mask and every tensor that the two
functions captured are arguments of the operator. So capture, the joint graph, the partitioner and the scheduler see an
operator like any other, with all its dependences, and the dispatcher runs it:

* below autograd it finds the kernel that fits (:mod:`.backends`) and calls it;
* its derivative is a second operator, ``staxlab::attention_backward``, of the logarithm of the sum of exponentials and
  the result, and not of any N x M matrix; where the logarithm is a result of its own, its gradient goes in, too;
* a second derivative, and one in forward mode, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import torch

from ..codegen.extern import DESCRIBERS, Description
from ..errors import StaxError
from ..loops.ir import Extern
from ..loops.lowering.registry import LIBRARY
from ..options import DeviceSpec, device_spec, host_device_spec
from ..provenance import Line
from ..runtime.plan_key import MEANINGS
from ..specialize.ambient import are_ordinary, must_run_eagerly
from .problem import AttentionProblem, BlockGeometry


class BlockLists(NamedTuple):
    """The lists of a block mask as kernels are given them, by the names that :class:`.block_mask.BlockMask` has."""

    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor
    full_kv_indices: torch.Tensor
    q_num_blocks: torch.Tensor
    q_indices: torch.Tensor
    full_q_num_blocks: torch.Tensor
    full_q_indices: torch.Tensor


@dataclass(frozen=True, eq=False)
class Specification:
    """All of an attention that is no tensor and no size. ``score`` and ``mask`` are traced modifications or None,
    ``scale`` a number or None for one over the square root of the head size, ``geometry`` that of the block mask,
    ``options`` the kernel options as sorted pairs."""

    score: Any = None
    mask: Any = None
    scale: float | None = None
    geometry: BlockGeometry | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> tuple:
        """Hashable: equal for two specifications exactly if they mean the same."""
        scale = None if self.scale is None else (self.scale, math.copysign(1.0, self.scale))
        return (self.score and self.score.key, self.mask and self.mask.key, scale, self.geometry, self.options)

    @property
    def captured(self) -> tuple[Any, ...]:
        """The tensors both functions read, those of ``score`` first, as the operator is given them."""
        return (*(self.score.captured if self.score else ()), *(self.mask.captured if self.mask else ()))

    def problem(
        self, query: Any, key: Any, value: Any, device: DeviceSpec, learnable: Sequence[bool] | None = None
    ) -> AttentionProblem:
        """What a kernel is made for. The three need ``shape``, ``stride`` and ``dtype`` only: tensors and layouts.
        ``learnable`` says of each captured tensor whether it gets a gradient, and is None for the forward pass."""
        batch, heads, queries, head_size = query.shape
        scale = 1.0 / math.sqrt(head_size) if self.scale is None else self.scale
        wanted = iter(learnable or [False] * len(self.captured))
        score, mask = (part and _with_gradients(part, wanted) for part in (self.score, self.mask))
        return AttentionProblem(
            batch, heads, key.shape[1], queries, key.shape[2], head_size, value.shape[3], query.dtype, scale,
            _stride(query), _stride(key), _stride(value), score, mask, self.geometry, learnable is not None, device,
        )  # fmt: skip


def _with_gradients(modification: Any, wanted: Iterator[bool]) -> Any:
    """The modification whose captured tensors get a gradient where that is wanted. Whether they require one is known
    for certain only when the operator is called: inside a region they may be results of other operations."""
    captured = tuple(replace(part, requires_grad=wants) for part, wants in zip(modification.captured, wanted))  # noqa: B905
    return replace(modification, captured=captured)


def _stride(value: Any) -> tuple[int, ...]:
    stride = value.stride
    return tuple(stride() if callable(stride) else stride)


_names: dict[tuple, str] = {}
_specifications: dict[str, Specification] = {}
_lock = Lock()


def register(found: Specification) -> str:
    """The name under which graphs know a specification; the same for every one with the same key.

    A name stays valid as long as the process runs: graphs that hold it may live as long. What is kept are two small
    graphs and no tensor, once for every specification that differs.
    """
    key = found.key
    with _lock:
        name = _names.get(key)
        if name is None:
            parts = [part.name for part in (found.score, found.mask) if part]
            name = f"{'+'.join(parts) or 'plain'}:{len(_names)}"
            _names[key], _specifications[name] = name, found
        return name


def specification(name: str) -> Specification:
    """The specification that :func:`register` gave this name."""
    return _specifications[name]


def clear() -> None:
    """Forget the kernels that have been built and described. Specifications stay, since graphs hold their names."""
    from .backends import describe

    for cache in CACHES:
        cache.clear()
    describe.cache_clear()


# -- the operator itself ----------------------------------------------------------------------------------------------

_library = torch.library.Library("staxlab", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor[] blocks, Tensor[] captured, str specification) "
    "-> (Tensor output, Tensor lse)"
)
_library.define(
    "attention_backward(Tensor? output_gradient, Tensor? lse_gradient, Tensor query, Tensor key, Tensor value, "
    "Tensor output, Tensor lse, Tensor[] blocks, Tensor[] captured, str specification, bool[] learnable) -> Tensor[]"
)
attention = torch.ops.staxlab.attention.default
attention_backward = torch.ops.staxlab.attention_backward.default
LIBRARY.update((attention, attention_backward))


def _described(call: Extern, device: DeviceSpec) -> Description:
    """What a call of either operator runs on a device, from the layouts of its arguments."""
    from .backends import describe

    backward = call.operator is attention_backward
    query, key, value = (argument.layout for argument in (call.args[2:5] if backward else call.args[:3]))
    given = specification(call.args[9] if backward else call.args[5])
    problem = given.problem(query, key, value, device, tuple(call.args[10]) if backward else None)
    if problem.is_empty:
        return Description("text", (Line("nothing to compute: zeros, and minus infinity as logarithms"),))
    return describe(problem, given.options)


DESCRIBERS.update({attention: _described, attention_backward: _described})


def _meaning(name: str) -> tuple:
    """What a specification's name stands for, since it is a name in this process only. A modification's key has all
    that its kernels depend on, its place in the user's file among it."""
    given = specification(name)
    geometry = None if given.geometry is None else tuple(vars(given.geometry).items())
    return (given.key[0], given.key[1], given.key[2], geometry, given.options)


MEANINGS.update({attention: lambda args: _meaning(args[5]), attention_backward: lambda args: _meaning(args[9])})

_kernels: dict[tuple, Any] = {}
_MOST_KERNELS = 512  # built ones that are kept, the oldest go first; libraries and texts have caches of their own
_devices: dict[torch.device, DeviceSpec] = {}
#: What :func:`clear` forgets. Who keeps built kernels elsewhere adds what holds them.
CACHES: list[dict] = [_kernels, _devices]


def device_of(tensor: torch.Tensor) -> DeviceSpec:
    """The device a tensor is on, as generators know it."""
    if tensor.device.type != "cuda":
        return host_device_spec()
    if tensor.device not in _devices:
        _devices[tensor.device] = device_spec(str(tensor.device))
    return _devices[tensor.device]


def kernel_of(
    name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, learnable: tuple[bool, ...] | None = None
) -> tuple[AttentionProblem, Any]:
    """The problem of a call and what computes it (None: there is nothing to compute), built when it is first met."""
    threads = 0 if query.is_cuda else torch.get_num_threads()
    met = (
        name, query.shape, query.stride(), query.dtype, key.shape, key.stride(), value.shape, value.stride(),
        query.device, threads, learnable, learnable and torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    found = _kernels.get(met)
    if found is None:
        from .backends import build

        given = specification(name)
        problem = given.problem(query, key, value, device_of(query), learnable)
        found = problem, (None if problem.is_empty else build(problem, given.options))
        while len(_kernels) >= _MOST_KERNELS:
            _kernels.pop(next(iter(_kernels)), None)
        _kernels[met] = found
    return found


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    name: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    problem, kernel = kernel_of(name, query, key, value)
    return run(problem, kernel, query, key, value, blocks, captured)


def run(
    problem: AttentionProblem,
    kernel: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The forward pass of a problem by its kernel, both as :func:`kernel_of` gives them. Below autograd: no gradient is
    recorded here."""
    if kernel is None:
        output, lse = _results(problem, query)
        return output.zero_(), lse.fill_(-math.inf)
    lists = BlockLists(*blocks) if blocks else None
    with torch._C._DisableAutocast():  # what was to be cast has been
        output, lse = kernel(query, key, value, lists, _as_traced(captured, problem))
    if output.stride() != problem.output_strides:
        output = torch.empty_strided(output.shape, problem.output_strides, **_like(query)).copy_(output)
    return output, lse.contiguous()


def _attention_backward(
    output_gradient: torch.Tensor | None,
    lse_gradient: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
    blocks: Sequence[torch.Tensor],
    captured: Sequence[torch.Tensor],
    name: str,
    learnable: Sequence[bool],
) -> list[torch.Tensor]:
    problem, kernel = kernel_of(name, query, key, value, tuple(learnable))
    wanted = [tensor for tensor, wants in zip(captured, learnable, strict=True) if wants]
    if kernel is None:
        return [gradient.zero_() for gradient in _gradients(problem, (query, key, value), wanted)]
    if output_gradient is None:  # only the logarithm was used
        output_gradient = torch.zeros_like(output)
    lists = BlockLists(*blocks) if blocks else None
    given = (query, key, value, output, lse, output_gradient, lse_gradient, lists, _as_traced(captured, problem))
    with torch._C._DisableAutocast():
        found = kernel(*given)
    made = [gradient.to(part.dtype) for gradient, part in zip(found, (query, key, value, *wanted), strict=True)]
    for place, strides in enumerate(problem.gradient_strides):
        if made[place].stride() != strides:
            made[place] = torch.empty_strided(made[place].shape, strides, **_like(query)).copy_(made[place])
    return made


def _results(problem: AttentionProblem, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the results of a problem."""
    rows = (problem.batch, problem.query_heads, problem.queries)
    output = torch.empty_strided((*rows, problem.value_size), problem.output_strides, **_like(like))
    return output, torch.empty(rows, dtype=problem.accumulator, device=like.device)


def _like(tensor: torch.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "device": tensor.device}


def _as_traced(captured: Sequence[torch.Tensor], problem: AttentionProblem) -> list[torch.Tensor]:
    """Captured tensors with the strides that the kernel's subscripts were made for. In a region they are what other
    kernels wrote, in eager's layout, so that a copy is rare."""
    found = []
    for tensor, expected in zip(captured, problem.captured, strict=True):
        if tensor.stride() != tuple(expected.strides):
            # Where elements share memory they are equal, and the first is copied for all.
            first = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in expected.strides)]
            copy = torch.empty_strided(first.shape, expected.strides, **_like(tensor)).copy_(first)
            tensor = copy.expand(tensor.shape)
        found.append(tensor)
    return found


def _meta_attention(query: Any, key: Any, value: Any, blocks: Any, captured: Any, name: str) -> Any:
    return _results(specification(name).problem(query, key, value, host_device_spec()), query)


def _meta_attention_backward(*args: Any) -> list[torch.Tensor]:
    query, key, value, captured, name, learnable = *args[2:5], args[8], args[9], args[10]
    wanted = [tensor for tensor, wants in zip(captured, learnable, strict=True) if wants]
    problem = specification(name).problem(query, key, value, host_device_spec(), tuple(learnable))
    return _gradients(problem, (query, key, value), wanted)


def _gradients(
    problem: AttentionProblem, tensors: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Memory for the gradients of query, key, value and of captured tensors."""
    found = [
        torch.empty_strided(tensor.shape, strides, **_like(tensor))
        for tensor, strides in zip(tensors, problem.gradient_strides, strict=True)
    ]
    return [*found, *(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in wanted)]


# -- derivatives ------------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.function._SingleLevelFunction):
    """The operator and its derivative, as autograd is told. Lists are spread out: autograd looks at no list.

    Of the two base classes this is the one that leaves function transforms (``torch.func.grad``) alone: they have come
    to the dispatcher, which calls this for each level of theirs.
    """

    @staticmethod
    def forward(name: str, number: int, query: Any, key: Any, value: Any, *others: torch.Tensor) -> Any:
        blocks, captured = list(others[:number]), list(others[number:])
        with torch._C._AutoDispatchBelowAutograd():
            return attention(query, key, value, blocks, captured, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        name, number, *tensors = inputs
        ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
        ctx.set_materialize_grads(False)
        ctx.name, ctx.number = name, number

    @staticmethod
    def backward(ctx: Any, output_gradient: Any, lse_gradient: Any) -> Any:
        return _Attention.differentiated(ctx, output_gradient, lse_gradient)

    @staticmethod
    def differentiated(ctx: Any, output_gradient: Any, lse_gradient: Any, undispatched: bool = False) -> Any:
        """The gradients of everything that :meth:`forward` was given. ``undispatched``: past the dispatcher, if the
        tensors are still ordinary ones and still nobody watches."""
        query, key, value, output, lse, *others = ctx.saved_tensors
        blocks, captured = others[: ctx.number], others[ctx.number :]
        if output_gradient is None and lse_gradient is None:
            return (None,) * (5 + len(others))
        needs = ctx.needs_input_grad[5 + ctx.number :]
        learnable = [wants and number < _of_score(ctx.name) for number, wants in enumerate(needs)]
        if undispatched and not torch.is_grad_enabled() and not must_run_eagerly():
            gradients = tuple(one for one in (output_gradient, lse_gradient) if one is not None)
            ordinary = are_ordinary((query, key, value, output, lse, *others, *gradients))
            compute = _attention_backward if ordinary else attention_backward
        else:
            compute = attention_backward
        found = compute(
            output_gradient, lse_gradient, query, key, value, output, lse, blocks, captured, ctx.name, learnable
        )
        rest = iter(found[3:])
        return (
            None,
            None,
            *found[:3],
            *(None for _ in blocks),
            *(next(rest) if wants else None for wants in learnable),
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise _no_derivative("in forward mode", "use reverse mode: .backward(), torch.autograd.grad or torch.func.vjp")


class _Undispatched(_Attention):
    """The same for ordinary tensors, with nobody watching: the kernels are called past the dispatcher."""

    @staticmethod
    def forward(name: str, number: int, query: Any, key: Any, value: Any, *others: torch.Tensor) -> Any:
        return _attention(query, key, value, others[:number], others[number:], name)

    @staticmethod
    def backward(ctx: Any, output_gradient: Any, lse_gradient: Any) -> Any:
        return _Attention.differentiated(ctx, output_gradient, lse_gradient, undispatched=True)


class _AttentionBackward(torch.autograd.function._SingleLevelFunction):
    """The derivative, which has none of its own."""

    @staticmethod
    def forward(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(attention_backward(*_packed(args)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise _no_derivative("a second time", "write the scores out (softmax(q @ k.mT) @ v), whose N x M matrices have")

    jvp = _Attention.jvp


def _no_derivative(how: str, remedy: str) -> StaxError:
    return StaxError(f"omni_attention cannot be differentiated {how}", remedy=remedy)


def _spread(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of the backward operator without lists of tensors."""
    blocks, captured = args[7], args[8]
    return (args[9], tuple(args[10]), len(blocks), *args[:7], *blocks, *captured)


def _packed(spread: Sequence[Any]) -> tuple[Any, ...]:
    name, learnable, number, *tensors = spread
    return (*tensors[:7], tensors[7 : 7 + number], tensors[7 + number :], name, list(learnable))


def _of_score(name: str) -> int:
    """How many of the captured tensors ``score_mod`` reads. What a mask reads decides, and has no derivative."""
    score = specification(name).score
    return len(score.captured) if score else 0


_forward_ad = vars(torch.autograd.forward_ad)


def is_differentiated(tensors: Sequence[Any]) -> bool:
    """Whether autograd has to hear of a call: gradients are recorded, or there may be tangents."""
    if _forward_ad["_current_level"] >= 0:
        return True
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


_functorch = torch._C._functorch


def _recorded(function: Any, *args: Any) -> Any:
    """``function.apply(*args)`` on the level of function transforms that the dispatcher is at."""
    before = _functorch.get_single_level_autograd_function_allowed()
    _functorch.set_single_level_autograd_function_allowed(True)
    try:
        return function.apply(*args)
    finally:
        _functorch.set_single_level_autograd_function_allowed(before)


def _autograd_attention(query: Any, key: Any, value: Any, blocks: Any, captured: Any, name: str) -> Any:
    if is_differentiated((query, key, value, *captured[: _of_score(name)])):
        return _recorded(_Attention, name, len(blocks), query, key, value, *blocks, *captured)
    with torch._C._AutoDispatchBelowAutograd():
        return attention(query, key, value, blocks, captured, name)


def undispatched(name: str, query: Any, key: Any, value: Any, blocks: Sequence[Any], captured: Sequence[Any]) -> Any:
    """The operator on ordinary tensors, of which some require grad, with nobody watching."""
    return _recorded(_Undispatched, name, len(blocks), query, key, value, *blocks, *captured)


def _autograd_attention_backward(*args: Any) -> list[torch.Tensor]:
    if is_differentiated((*args[:7], *args[8])):
        return list(_recorded(_AttentionBackward, *_spread(args)))
    with torch._C._AutoDispatchBelowAutograd():
        return attention_backward(*args)


def _refuse_batching(*args: Any) -> Any:
    raise StaxError("omni_attention under torch.vmap", remedy="let the batch dimension be the first of its four")


_KEYS = ("CompositeExplicitAutograd", "Meta", "Autograd", "FuncTorchBatched")
for _name, _implementations in {
    "attention": (_attention, _meta_attention, _autograd_attention, _refuse_batching),
    "attention_backward": (
        _attention_backward,
        _meta_attention_backward,
        _autograd_attention_backward,
        _refuse_batching,
    ),
}.items():
    for _key, _implementation in zip(_KEYS, _implementations, strict=True):
        _library.impl(_name, _implementation, _key)
