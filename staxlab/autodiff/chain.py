"""A reversal order carried out on tensors: the gradients of a chain of functions in a few stored states (Section 5.8).

:func:`differentiate` takes a chain of functions (a list of callables, or an ``nn.Sequential``) and a reversal order,
and makes every move of it for real. Values and gradients are those of eager execution, bit for bit, whatever the order
computes again. Four things make it so:

* A state is a tensor *and the state of the random number generators* at that point, so dropout draws the same numbers
  when a step is computed again; afterwards the generators stand where eager's forward pass leaves them.
* Forward steps run in gradient mode, on a tensor that requires grad where eager's does, since PyTorch chooses other
  kernels for some operators otherwise. The tape of a step is dropped at once; a backward step needs one of the same
  size.
* A parameter that several steps share receives its contributions in eager's order: what has come in so far enters the
  next backward step as the gradient of one more output, the parameter itself.
* Buffers that a step changes (the running statistics of batch normalization) are put back before it runs again.

Each step works on a copy of its state, so one that writes into its input (``ReLU(inplace=True)``) does no harm to what
is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import StaxError
from .checkpoint import binomial
from .reversal import Advance, Move, Reversal, Reverse, Store, simulate

Step = Callable[[Tensor], Tensor]


class ChainError(StaxError):
    """A chain of functions that cannot be differentiated step by step."""


@dataclass(frozen=True, eq=False)
class ChainGradients:
    """What :func:`differentiate` found.

    ``output`` is ``z_l`` (detached), ``input_gradient`` the gradient of the chain's input (None if that does not
    require grad), ``gradients`` pairs of a leaf tensor that some step reads and its gradient. ``reversal`` is the order
    as it was run. ``peak_states`` and ``peak_bytes`` were counted while it ran: the most states that were in slots at
    the same time, and the most bytes of tensor data in them. ``forward_evaluations`` counts calls of the functions by
    advances; each backward step makes one call more, which records the step's tape.
    """

    output: Tensor
    input_gradient: Tensor | None
    gradients: tuple[tuple[Tensor, Tensor], ...]
    reversal: Reversal
    peak_states: int
    peak_bytes: int
    forward_evaluations: int

    def of(self, leaf: Tensor) -> Tensor | None:
        """The gradient of a leaf tensor, such as a parameter; None if no step reads it."""
        return next((gradient for tensor, gradient in self.gradients if tensor is leaf), None)

    def accumulate(self) -> None:
        """Add the gradients to the ``.grad`` of their tensors, as ``backward()`` would."""
        for leaf, gradient in self.gradients:
            leaf.grad = gradient.clone() if leaf.grad is None else leaf.grad + gradient

    def format(self) -> str:
        """What was stored and computed, then the order."""
        head = (
            f"gradients of {len(self.gradients)} tensors; at most {self.peak_states} states "
            f"({self.peak_bytes:,} bytes) stored at once; {self.forward_evaluations} forward evaluations"
        )
        return f"{head}\n{self.reversal.format()}"

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return {**mimebundle(self.reversal), "text/plain": self.format()}


def differentiate(
    functions: Sequence[Step] | nn.Sequential,
    x: Tensor,
    order: Reversal | Iterable[Move] | None = None,
    *,
    slots: int | None = None,
    gradient: Tensor | None = None,
) -> ChainGradients:
    """The gradients of ``functions[-1](...functions[0](x))``, stored and recomputed as ``order`` says.

    ``order`` is a :class:`Reversal` or a sequence of moves for as many steps as there are functions; without it, the
    binomial order for ``slots`` slots is taken (Theorem 5.4), or everything is stored. ``gradient`` is the gradient of
    the output, of its shape and dtype; it may be left out if the output is a scalar. Every function maps one tensor to
    one tensor, and does the same when it is called again.

    Raises ReversalError if the order is not legal, before anything runs; ChainError if a function returns no tensor,
    reads a tensor that was itself computed from others with gradients, or the output does not depend on the input.
    """
    steps = list(functions)
    if not steps:
        raise ChainError("a chain of no functions has no gradient", remedy="give at least one")
    if order is None:
        order = binomial(len(steps), len(steps) if slots is None else min(slots, len(steps)))
    limit = order.slots if isinstance(order, Reversal) else slots
    moves = order.moves if isinstance(order, Reversal) else tuple(order)
    name = order.name if isinstance(order, Reversal) else "reversal order"
    reversal = simulate(moves, len(steps), limit, name=name)
    return _Execution(steps, x, gradient).run(reversal)


@dataclass(frozen=True, eq=False)
class _State:
    """A state of the chain: a detached tensor, whether eager's has a gradient, and the generators as they stood when it
    had been computed."""

    tensor: Tensor
    has_gradient: bool
    generators: _Generators


class _Generators:
    """The states of PyTorch's default random number generators: that of the CPU, and those of the devices in use."""

    def __init__(self, devices: Sequence[torch.device]):
        self.cpu = torch.get_rng_state()
        self.others = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.others:
            torch.cuda.set_rng_state(state, device)


class _Execution:
    """One run. ``at_hand`` is the current state, ``slots`` what is stored, ``adjoint`` the gradient of the last state
    whose backward step is still to come."""

    def __init__(self, steps: Sequence[Step], x: Tensor, gradient: Tensor | None):
        self.steps, self.x, self.adjoint, self.output = steps, x, gradient, None
        self.devices = sorted(_cuda_devices(steps, x), key=str)
        self.at_hand = _State(x.detach(), x.requires_grad, _Generators(self.devices))
        self.position = 0
        self.slots: dict[int, list[_State]] = {0: [self.at_hand]}
        self.furthest, self.frontier = 0, self.at_hand.generators
        self.buffers: dict[int, list[tuple[Tensor, Tensor]]] = {}  # step: what to put back before it runs again
        self.totals: dict[Tensor, Tensor] = {}  # tensors hash by identity
        self.peak_states = self.peak_bytes = self.forward_evaluations = 0
        self.caches_casts = torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, ("cpu", "cuda")))

    def run(self, reversal: Reversal) -> ChainGradients:
        self._measure()
        try:
            for move in reversal.moves:
                match move:
                    case Advance(start, stop):
                        self._advance(start, stop)
                    case Reverse(step):
                        self._reverse(step)
                    case Store(state):
                        self.slots.setdefault(state, []).append(self.at_hand)
                    case _:
                        held = self.slots[move.state]
                        held.pop()
                        if not held:
                            del self.slots[move.state]
                self._measure()
        finally:
            self.frontier.restore()
        assert self.output is not None
        # A chain that is cut leaves what other steps have contributed.
        from_input = self.adjoint if self.adjoint is not None else self.totals.pop(self.x, None)
        return ChainGradients(
            self.output, from_input, tuple(self.totals.items()), reversal, self.peak_states, self.peak_bytes,
            self.forward_evaluations,
        )  # fmt: skip

    def _measure(self) -> None:
        held = [state for states in self.slots.values() for state in states]
        self.peak_states = max(self.peak_states, len(held))
        self.peak_bytes = max(self.peak_bytes, sum(state.tensor.nbytes for state in held))

    def _state(self, number: int) -> _State:
        return self.at_hand if number == self.position else self.slots[number][0]

    def _advance(self, start: int, stop: int) -> None:
        state = self._state(start)
        state.generators.restore()
        for step in range(start + 1, stop + 1):
            with _Buffers(self.buffers, step, self.steps[step - 1]):
                _, result = self._evaluate(step, state)
            self.forward_evaluations += 1
            state = _State(result.detach(), result.requires_grad, _Generators(self.devices))
            self._reached(step, state.generators)
            del result
        self.at_hand, self.position = state, stop

    def _reached(self, step: int, generators: _Generators) -> None:
        """The generators move on with the first evaluation of a step, and with no other."""
        if step > self.furthest:
            self.furthest, self.frontier = step, generators

    def _evaluate(self, step: int, state: _State) -> tuple[Tensor, Tensor]:
        """Run a step with a tape: (the leaf its gradient is taken at, the result)."""
        function = self.steps[step - 1]
        if self.caches_casts:
            torch.clear_autocast_cache()  # a cast weight belongs to the tape of one step
        leaf = state.tensor.detach().requires_grad_(state.has_gradient)
        if step == 1 and self.x.is_leaf and self.x.requires_grad:
            leaf = self.x  # itself: its contributions from here and from steps that read it too have one order
        with torch.enable_grad():
            result = function(leaf if leaf is self.x else _writable(leaf))
        if not isinstance(result, Tensor):
            raise ChainError(
                f"step {step} returned {type(result).__name__} and not a tensor",
                remedy="every function of a chain maps one tensor to one tensor",
            )
        return leaf, result

    def _reverse(self, step: int) -> None:
        # Buffers stay as they are until the tape is done: it may hold them.
        with _Buffers(self.buffers, step, self.steps[step - 1]):
            self._reverse_with_buffers(step)

    def _reverse_with_buffers(self, step: int) -> None:
        state = self._state(step - 1)
        state.generators.restore()
        before = _sequence_number()
        leaf, result = self._evaluate(step, state)
        self._reached(step, _Generators(self.devices))
        if step == len(self.steps):
            self.output = result.detach()
            self.adjoint = self._first_adjoint(result)
        if self.adjoint is None or not result.requires_grad:
            self.adjoint = None
            return
        leaves = list(_leaves(result, leaf, before, step))
        known = [tensor for tensor in (leaf, *leaves) if tensor in self.totals]
        if known and self.caches_casts:
            raise ChainError(
                f"step {step} shares a parameter with a later step, and autocast keeps its casts: eager adds up the "
                "gradients in the lower precision, which cannot be done step by step",
                remedy="torch.autocast(..., cache_enabled=False) casts, and adds up, each time anew",
            )
        wanted = ([leaf] if leaf.requires_grad else []) + leaves
        found = torch.autograd.grad(
            [result, *known], wanted, [self.adjoint, *(self.totals.pop(tensor) for tensor in known)],
            allow_unused=True,
        )  # fmt: skip
        gradients = iter(found)
        self.adjoint = next(gradients) if leaf.requires_grad else None
        for parameter, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                self.totals[parameter] = gradient

    def _first_adjoint(self, result: Tensor) -> Tensor | None:
        if not result.requires_grad:
            raise ChainError(
                "the output of the chain depends on nothing that has a gradient",
                remedy="let the input or a parameter be of a floating-point type",
            )
        if self.adjoint is not None:
            return self.adjoint
        if result.numel() != 1:
            raise ChainError(
                f"the output has shape {tuple(result.shape)}, so its gradient must be given",
                remedy="pass gradient=..., or let the last function return a loss",
            )
        return torch.ones_like(result)


def _writable(leaf: Tensor) -> Tensor:
    """A copy of a state that a step may write into, as it may into eager's."""
    copy = leaf.clone()
    # A tensor whose elements overlap in memory has no copy of the same layout; nor can it be written into.
    return copy if copy.stride() == leaf.stride() else leaf.view_as(leaf)


class _Buffers:
    """Around a call of a step: the buffers it changes have, whenever it runs, the contents of its first run."""

    def __init__(self, kept: dict[int, list[tuple[Tensor, Tensor]]], step: int, function: Step):
        self.kept, self.step = kept, step
        self.is_first = step not in kept
        self.buffers = list(function.buffers()) if isinstance(function, nn.Module) else []

    def __enter__(self) -> None:
        with torch.no_grad():
            if self.is_first:
                self.before = [(buffer, buffer.clone()) for buffer in self.buffers]
            else:
                self.after = [(buffer, buffer.clone()) for buffer, _ in self.kept[self.step]]
                for buffer, contents in self.kept[self.step]:
                    buffer.copy_(contents)

    def __exit__(self, *error: Any) -> None:
        with torch.no_grad():
            if self.is_first:
                # By contents: batch normalization changes its statistics without raising their version.
                self.kept[self.step] = [pair for pair in self.before if not torch.equal(*pair)]
            else:
                for buffer, contents in self.after:
                    buffer.copy_(contents)


def _cuda_devices(steps: Sequence[Step], x: Tensor) -> set[torch.device]:
    tensors = [x, *(p for step in steps if isinstance(step, nn.Module) for p in step.parameters())]
    found = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return found | ({torch.device("cuda", torch.cuda.current_device())} if torch.cuda.is_initialized() else set())


def _sequence_number() -> int:
    """A number that every node of the autograd graph made from here on exceeds."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).clone().grad_fn
    assert node is not None
    return node._sequence_nr()


def _leaves(result: Tensor, leaf: Tensor, before: int, step: int) -> Iterator[Tensor]:
    """The leaf tensors other than ``leaf`` that ``result`` was computed from, in a fixed order."""
    pending = [result.grad_fn] if result.grad_fn is not None else []
    seen = set(pending)
    if result.grad_fn is None and result.requires_grad and result is not leaf:
        yield _without_hooks(result, step)
    while pending:
        node = pending.pop()
        if type(node).__name__ == "AccumulateGrad":
            if node.variable is not leaf:
                yield _without_hooks(node.variable, step)
            continue
        if node._sequence_nr() <= before:
            raise ChainError(
                f"step {step} reads a tensor that was computed from others before the chain ran ({node.name()})",
                remedy="detach it, or compute it inside the step",
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def _without_hooks(leaf: Tensor, step: int) -> Tensor:
    if leaf._backward_hooks:
        raise ChainError(
            f"step {step} reads a tensor whose gradient has a hook, which would run once for every step that reads it",
            remedy="remove the hook, and apply what it does to the gradients that are returned",
        )
    return leaf
