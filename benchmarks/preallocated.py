"""Every peer writing its results into memory that is already there: what is left is the quality of the kernels.

A result in new memory costs page faults, for large tensors more than the kernel takes (Section 8.5). A pool of results
saves them, and so hides how good the kernels are. Here nobody pays them: the results exist before the first reading,
and every call overwrites them.

* eager: the operators of the function, recorded once, and those that make a result called through their ``out=``
  form. PyTorch has some ``out=`` forms that compute into new memory and copy; these are not used. Where an operator has
  no other, its result stays new memory, and ``details`` says so.
* torch.compile and staxlab compile a function that ends in ``out.copy_(result)``, which a compiler may turn into
  kernels that write there. ``details`` tells whether it did.
* XLA is given the last results to overwrite (``donate_argnums``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

#: Operators without an ``out=`` form of their own, by an equal one that has it. relu(x) is max(x, 0), NaN included.
EQUIVALENT: dict[Any, Callable[..., Any]] = {
    aten.relu.default: lambda x, *, out: torch.clamp(x, min=0, out=out),
}


def flat(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def empty_like_results(function: Callable[..., Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Tensors of the layout of the function's results, their pages touched."""
    with torch.no_grad():
        return [torch.empty_like(t.detach()).copy_(t.detach()) for t in flat(function(*inputs))]


def writing(function: Callable[..., Any]) -> Callable[..., None]:
    """``function(*inputs)`` as ``into(results, *inputs)``, which overwrites ``results``. For compilers."""

    def into(results: Sequence[torch.Tensor], *inputs: Any) -> None:
        for out, value in zip(results, flat(function(*inputs)), strict=True):
            out.copy_(value)

    return into


# --- Eager ------------------------------------------------------------------------------------------------------------


class _Recorder(TorchDispatchMode):
    """Writes down every operator that runs, with its arguments and its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


def eager_into(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> tuple[Callable[[], tuple[torch.Tensor, ...]], list[str]]:
    """A callable that runs the function's operators one by one as eager does, the last ones into ``results``; and the
    operators whose results are new memory because they have no ``out=`` form that works without a copy.

    The operators are those of one run, so the function must not branch on values. O(operators) per call.
    """
    with _Recorder() as recorder:
        returned = flat(function(*inputs))
    slots: dict[int, int] = {id(t): i for i, t in enumerate(inputs)}  # recorded tensors live in recorder.calls
    wanted = {id(t): out for t, out in zip(returned, results, strict=True)}
    steps, allocating, count = [], [], len(slots)
    made: set[int] = set()
    for func, args, kwargs, result in recorder.calls:
        tensors = [t for t in flat(result) if isinstance(t, torch.Tensor)]
        targets = [wanted.get(id(t)) for t in tensors]
        call, outs = func, None
        if any(t is not None for t in targets):
            made.update(id(t) for t in tensors)
            into = out_form(func) if all(t is not None for t in targets) else None
            if into is None:
                allocating.append(str(func))
            else:
                call, outs = into, targets
        places = []
        for t in tensors:
            if id(t) not in slots:  # an operator in place gives back what it was given
                slots[id(t)] = count
                count += 1
            places.append(slots[id(t)])
        single = not isinstance(result, (tuple, list))
        steps.append((call, _template(args, slots), _template(kwargs, slots), outs, places, single))
    missing = [t for t in returned if id(t) not in slots]
    if missing:
        raise ValueError("a result was made by no recorded operator")
    ends = [slots[id(t)] for t in returned]
    last_use = _last_use(steps, ends)

    def run() -> tuple[torch.Tensor, ...]:
        memory: list[Any] = [*inputs, *[None] * (count - len(inputs))]
        with torch.no_grad():
            for position, (call, args, kwargs, outs, places, single) in enumerate(steps):
                filled, named = _fill(args, memory), _fill(kwargs, memory)
                value = call(*filled, **named) if outs is None else call(*filled, **named, out=outs)
                del filled, named
                for place, tensor in zip(places, (value,) if single else value, strict=False):
                    memory[place] = tensor
                value = tensor = None
                for place in last_use[position]:  # eager lets go of a value after its last reader
                    memory[place] = None
        return tuple(memory[end] for end in ends)

    return run, allocating


def out_form(func: Any) -> Callable[..., Any] | None:
    """The ``out=`` form of an operator as ``call(*args, out=[tensors])``; None if there is none, or none that writes
    its result directly (PyTorch generates the others: they call the operator and copy)."""
    if func in EQUIVALENT:
        equivalent = EQUIVALENT[func]
        return lambda *args, out, **kwargs: equivalent(*args, out=out[0], **kwargs)
    own = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        form = getattr(func.overloadpacket, name)
        arguments = form._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        if not outs or len(outs) != len(func._schema.returns):
            continue
        if [(a.name, str(a.type)) for a in arguments if not a.is_out] != own:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), "CPU"):
            return lambda *args, out, form=form, outs=outs, **kwargs: form(
                *args, **kwargs, **dict(zip(outs, out, strict=True))
            )
    return None


class _Slot:
    """Stands in a recorded call for a tensor made before it."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


def _template(value: Any, slots: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        return _Slot(slots[id(value)]) if id(value) in slots else value
    if isinstance(value, (tuple, list)):
        return type(value)(_template(v, slots) for v in value)
    return {k: _template(v, slots) for k, v in value.items()} if isinstance(value, dict) else value


def _fill(value: Any, memory: list[Any]) -> Any:
    if isinstance(value, _Slot):
        return memory[value.number]
    if isinstance(value, (tuple, list)):
        return type(value)(_fill(v, memory) for v in value)
    return {k: _fill(v, memory) for k, v in value.items()} if isinstance(value, dict) else value


def _last_use(steps: Sequence[tuple[Any, ...]], ends: Sequence[int]) -> list[list[int]]:
    """Which slots may be emptied after each step."""
    last: dict[int, int] = {}
    for position, (_, args, kwargs, _, places, _) in enumerate(steps):
        for place in (*_numbers(args), *_numbers(kwargs), *places):
            last[place] = position
    after: list[list[int]] = [[] for _ in steps]
    for place, position in last.items():
        if place not in ends:
            after[position].append(place)
    return after


def _numbers(value: Any) -> list[int]:
    if isinstance(value, _Slot):
        return [value.number]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [n for v in value for n in _numbers(v)] if isinstance(value, (tuple, list)) else []


# --- What the compilers made of it ------------------------------------------------------------------------------------


def written_directly(compilation: Any) -> dict[str, Any]:
    """Whether a staxlab region compiled from :func:`writing` writes its results where they belong, and the bytes of
    those that PyTorch copies there after the kernels."""
    schedule = compilation.schedule
    done = nothing_left_to_copy(schedule)
    copies = [
        sum(schedule.bytes_of(access) for access in node.writes)
        for node in schedule.nodes
        if node.extern is not None and node.extern.operator is aten.copy_.default and node.name not in done
    ]
    return {"direct": not copies, "bytes_copied_afterwards": sum(copies)}


def nothing_left_to_copy(schedule: Any) -> frozenset[str]:
    """The nodes of a schedule that stand for a copy whose source was computed where it belongs (Section 7.5)."""
    return schedule.memory.written_back | schedule.memory.skipped if schedule.memory is not None else frozenset()
