"""One input that prefixes are run on, over and over: each run finds the same tensors, and leaves the caller's alone.

Arguments are copied for every run, tensors that share memory into copies that share it; what a function finds outside
its arguments (parameters, buffers, closures) is put back afterwards. Random numbers begin at one seed. What a run shows
is an :class:`Observation`: its results, the gradients of what requires grad, the contents of inputs afterwards, and
which results share memory with which inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.record import Capture
from ..errors import OptionError
from ..measure.agreement import Agreement, Difference, compare
from ..specialize.structure import argument_leaves, children, rebuild_container


@dataclass(frozen=True)
class Observation:
    """What a run shows: ``values`` (results, then gradients, then inputs afterwards) with their ``names``, the number
    of results among them, and ``sharing``: for each result that is a tensor the numbers of results and inputs whose
    memory it is in. ``returned`` is the kind of each container and leaf that came back."""

    values: tuple[Any, ...]
    names: tuple[str, ...]
    results: int
    sharing: tuple[Any, ...]
    returned: tuple[str, ...]

    def against(self, other: Observation, bounds: Sequence[torch.Tensor | None] | None = None) -> Agreement:
        """How this run compares with the reference ``other``."""
        if self.returned != other.returned:
            what = f"{', '.join(self.returned)} came back in the place of {', '.join(other.returned)}"
            return Agreement(False, float("inf"), difference=Difference("results", what=what))
        found = compare(self.values, other.values, other.names, bounds)
        if found.difference is None and self.sharing != other.sharing:
            what = f"results share memory otherwise than in eager execution: {self.sharing}, not {other.sharing}"
            return Agreement(False, float("inf"), difference=Difference("results", what=what))
        return found


class Sample:
    """Arguments for ``fn``, with everything a repeated run needs.

    ``upstream`` are the upstream gradients of its differentiable results: one tensor, a sequence, or None for normal
    numbers (1 for a single number). ``trains`` says whether gradients are looked at.
    """

    def __init__(self, fn: Any, args: tuple, kwargs: dict[str, Any], capture: Capture, upstream: Any, seed: int):
        self.fn, self.args, self.kwargs, self.capture, self.seed = fn, args, kwargs, capture, seed
        self.given = upstream
        self.flat = capture.bind(args, kwargs)
        self.input_names = [taken.path for taken in capture.inputs]
        self.free = [x for x, taken in zip(self.flat, capture.inputs, strict=True) if taken.is_free]
        found = [leaf.value for leaf in argument_leaves(args, kwargs, str)]
        self.generators = [x for x in found if isinstance(x, torch.Generator)]
        self.trains = torch.is_grad_enabled() and any(x.requires_grad for x in self.flat)
        self.upstream: list[torch.Tensor | None] = []

    # -- running ------------------------------------------------------------------------------------------------------

    def observe(self, call: Callable[..., Any]) -> Observation:
        """Run ``call`` on copies of the arguments. What it raises passes through; memory is put back in any case."""
        args, kwargs = self.copies()
        kept = _snapshot(self.free)
        states = [(generator, generator.get_state()) for generator in self.generators]
        try:
            with torch.random.fork_rng(devices=[]), _python_numbers(self.seed):
                torch.manual_seed(self.seed)
                result = call(*args, **kwargs)
                return self._observation(result, self.capture.bind(args, kwargs))
        finally:
            _restore(kept)
            for generator, state in states:
                generator.set_state(state)

    def flat_copies(self) -> list[torch.Tensor]:
        """The flat inputs of a region, free tensors included, all copied."""
        return copies_of(self.flat)

    def copies(self) -> tuple[tuple, dict[str, Any]]:
        """The arguments with every tensor in a container of theirs copied."""
        own: list[torch.Tensor] = []
        _map((self.args, self.kwargs), lambda tensor: own.append(tensor) or tensor)
        fresh = iter(copies_of(own))
        return _map((self.args, self.kwargs), lambda _: next(fresh))

    def _observation(self, result: Any, inputs: list[torch.Tensor]) -> Observation:
        leaves, returned = [], []
        leaves_of(result, "result", leaves, returned)
        names, values = [name for name, _ in leaves], [value for _, value in leaves]
        gradients: list[Any] = []
        if self.trains:
            gradients = self._gradients(values, inputs)
            names += [f"gradient of {n}" for n, x in zip(self.input_names, inputs, strict=True) if x.requires_grad]
        names += [f"{name} afterwards" for name in self.input_names]
        sharing = tuple(_sharing(value, values, inputs) for value in values if isinstance(value, torch.Tensor))
        shown = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in (*values, *gradients, *inputs)]
        return Observation(tuple(shown), tuple(names), len(leaves), sharing, tuple(returned))

    def _gradients(self, results: list[Any], inputs: list[torch.Tensor]) -> list[Any]:
        roots = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
        if not self.upstream:
            self.upstream = self._upstream(roots)
        wanted = [x for x in inputs if x.requires_grad]
        pairs = [(r, t) for r, t in zip(roots, self.upstream, strict=False) if t is not None]
        if not pairs:
            return [None] * len(wanted)
        found = torch.autograd.grad([r for r, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True)
        return list(found)

    def _upstream(self, roots: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if self.given is None:
            generator = torch.Generator().manual_seed(self.seed)
            numbers = [torch.randn(r.shape, generator=generator, dtype=torch.float64) for r in roots]
            return [
                (n if r.dim() else torch.ones_like(n)).to(r.dtype).to(r.device)
                for n, r in zip(numbers, roots, strict=True)
            ]
        given = [self.given] if isinstance(self.given, torch.Tensor) else list(self.given)
        if len(given) != len(roots):
            raise OptionError(
                f"{len(given)} upstream gradients were given for {len(roots)} differentiable results",
                remedy="give one for each, None where there is none",
            )
        for tangent, root in zip(given, roots, strict=True):
            if tangent is not None and tangent.shape != root.shape:
                raise OptionError(f"an upstream gradient is {list(tangent.shape)}, its result {list(root.shape)}")
        return given

    def another(self, seed: int) -> tuple[tuple, dict[str, Any]]:
        """Arguments like these with other numbers: floating-point tensors are drawn anew with the same mean and
        deviation, whole numbers stay, since they may be subscripts."""
        generator = torch.Generator().manual_seed(seed)

        def drawn(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point() or not tensor.numel() or tensor.layout is not torch.strided:
                return tensor
            wide = tensor.detach().double().nan_to_num(0.0, 1.0, -1.0)
            deviation = float(wide.std()) if tensor.numel() > 1 else 1.0
            numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            fresh = copies_of([tensor])[0]
            with torch.no_grad():
                fresh.copy_(numbers * deviation + wide.mean().cpu())
            return fresh

        return _map((self.args, self.kwargs), drawn)


# -- copies -----------------------------------------------------------------------------------------------------------


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides, dtype and ``requires_grad``; those that share memory share the copy's. One tensor
    given twice is copied once."""
    memories: dict[int, torch.UntypedStorage] = {}
    known: dict[int, torch.Tensor] = {}
    found = []
    for tensor in tensors:
        if id(tensor) not in known:
            known[id(tensor)] = _copy(tensor, memories)
        found.append(known[id(tensor)])
    return found


def _copy(tensor: torch.Tensor, memories: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in memories or not storage.nbytes():
        memories[storage.data_ptr()] = storage.clone()
    fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    fresh.set_(memories[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    if tensor.requires_grad and tensor.grad_fn is not None:
        with torch.enable_grad():
            return fresh.requires_grad_().clone()  # what is no leaf may be written into
    return fresh.requires_grad_(tensor.requires_grad)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same containers with their tensors changed; anything else is passed on as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list, dict)):
        parts = children(value)
        if parts:
            return rebuild_container(value, [_map(part, change) for _, _, part in parts])
    return value


def leaves_of(value: Any, name: str, found: list[tuple[str, Any]], returned: list[str]) -> None:
    """The leaves of what a function returned, named by their place, and what containers they are in."""
    is_leaf = isinstance(value, (torch.Tensor, set, frozenset))
    parts = None if is_leaf else children(value)
    returned.append(type(value).__name__ if not isinstance(value, torch.Tensor) else "tensor")
    if parts is None:
        found.append((name, value))
        return
    for kind, key, part in parts:
        leaves_of(part, f"{name}.{key}" if kind == "attribute" else f"{name}[{key!r}]", found, returned)


def _sharing(value: torch.Tensor, results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> tuple[str, ...]:
    memory = _memory(value)
    if memory is None:
        return ()
    found = [f"result {k}" for k, x in enumerate(results) if x is not value and _memory(x) == memory]
    return (*found, *(f"input {k}" for k, x in enumerate(inputs) if _memory(x) == memory))


def _memory(value: Any) -> int | None:
    """Where a tensor's memory begins; None where it has none that could be shared."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return value.untyped_storage().data_ptr() or None


def _snapshot(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.UntypedStorage, torch.UntypedStorage]]:
    found = {}
    for tensor in tensors:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            found.setdefault(storage.data_ptr(), (storage, storage.clone()))
    return list(found.values())


def _restore(kept: list[tuple[torch.UntypedStorage, torch.UntypedStorage]]) -> None:
    for storage, copy in kept:
        storage.copy_(copy)


class _python_numbers:
    """Python's own generator at a seed, and as it was afterwards."""

    def __init__(self, seed: int):
        self.seed = seed

    def __enter__(self) -> None:
        self.state = random.getstate()
        random.seed(self.seed)

    def __exit__(self, *exc: object) -> None:
        random.setstate(self.state)
