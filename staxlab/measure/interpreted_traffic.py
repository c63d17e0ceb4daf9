"""What a Triton kernel reads and writes, counted while it runs in Triton's interpreter.

A model of traffic is a claim about a program. Here the program is asked: every load and store of every program instance
is seen with its addresses and its mask, and attributed to the tensor in whose memory it lies. An element that one load
asks for several times (a value spread over a block) counts once; asked for again by another load, it counts again, for
it is the caches' affair whether that goes to memory. :func:`counted_attention` puts the counts of an attention kernel
beside the closed forms of :mod:`.attention_traffic` (Section 9.10, Theorem 9.2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .attention_traffic import AttentionTraffic, attention_traffic
from .tables import Table, Tabular

OTHERS = "everything else"


@dataclass
class Accesses:
    """Elements read and written by the loads and stores of a run, by the name of a tensor; tensors that were not named
    (results, what a wrapper allocates) are :data:`OTHERS`."""

    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def counted_accesses(tensors: Mapping[str, torch.Tensor]) -> Iterator[Accesses]:
    """Count what kernels that are interpreted inside ``with`` do to these CPU tensors. Atomic operations are not seen.

    O(lanes log lanes) for every load. Raises MissingDependencyError without Triton.
    """
    import numpy as np

    from ..codegen.triton.source_files import require_triton

    require_triton()
    from triton.runtime import interpreter

    builder, found = interpreter.interpreter_builder, Accesses()
    ranges = []
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        ranges.append((name, storage.data_ptr(), storage.data_ptr() + storage.nbytes()))

    def note(into: dict[str, int], pointers: Any, mask: Any) -> None:
        addresses = np.unique(np.asarray(pointers.data)[np.asarray(mask.data).astype(bool)])
        left = len(addresses)
        for name, start, stop in ranges:
            inside = int(np.count_nonzero((addresses >= start) & (addresses < stop)))
            if inside:
                into[name] = into.get(name, 0) + inside
                left -= inside
        if left:
            into[OTHERS] = into.get(OTHERS, 0) + left

    load, store = builder.create_masked_load, builder.create_masked_store

    def counting_load(pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        note(found.read, pointers, mask)
        return load(pointers, mask, *rest, **named)

    def counting_store(pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        note(found.written, pointers, mask)
        return store(pointers, value, mask, *rest, **named)

    before = dict(vars(builder))
    vars(builder).update(create_masked_load=counting_load, create_masked_store=counting_store)
    try:
        yield found
    finally:
        for name in ("create_masked_load", "create_masked_store"):
            if name in before:
                vars(builder)[name] = before[name]
            else:
                vars(builder).pop(name, None)


# --- Attention --------------------------------------------------------------------------------------------------------


def model_of(problem: Any, configuration: Any, block_mask: Any = None, **facts: Any) -> AttentionTraffic:
    """The traffic that :func:`~.attention_traffic.attention_traffic` expects of a template: ``problem`` is its
    :class:`~staxlab.attention.problem.AttentionProblem`, ``configuration`` has ``block_m``, ``block_n`` and ``splits``.
    Raises what that function raises, for what it has no closed form of."""
    packed = False
    if configuration.splits:
        from ..codegen.triton.attention.decoding import is_packed

        packed = is_packed(problem)
    return attention_traffic(
        problem.queries, problem.keys, problem.head_size, value_size=problem.value_size, batch=problem.batch,
        query_heads=problem.query_heads, key_heads=problem.key_heads, itemsize=problem.dtype.itemsize,
        tile=(configuration.block_m, configuration.block_n), block_mask=block_mask, packed=packed,
        splits=max(configuration.splits, 1), **facts,
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class CountedAttention(Tabular):
    """A kernel's loads and stores, counted in the interpreter, beside the closed forms: rows of (what, elements of the
    model, elements counted). ``described`` says what ran."""

    described: str
    rows: tuple[tuple[str, int, int], ...]

    @property
    def agrees(self) -> bool:
        return all(model == counted for _, model, counted in self.rows)

    def summary(self) -> str:
        wrong = [what for what, model, counted in self.rows if model != counted]
        return "counted as the model has it" if not wrong else f"not as the model has it: {', '.join(wrong)}"

    def table(self) -> Table:
        rows = [(what, f"{model:,}", f"{counted:,}") for what, model, counted in self.rows]
        head = ("elements", "closed form", "counted in the kernel")
        return Table.build(f"Loads and stores of {self.described}", head, rows, [self.summary()])


def counted_attention(
    run: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_mask: Any = None,
    captured: Sequence[torch.Tensor] = (),
) -> CountedAttention:
    """Run a forward kernel of attention (what ``build_forward`` of :mod:`staxlab.codegen.triton.attention.forward`
    returns) in the interpreter, counting, and compare. The tensors must lie in memory of their own each."""
    names = {"Q": query, "K": key, "V": value}
    with counted_accesses(names | {f"captured {k}": tensor for k, tensor in enumerate(captured)}) as found:
        run(query, key, value, block_mask, captured)
    model = model_of(run.problem, run.configuration, block_mask)
    flows = {flow.name: flow for flow in model.flows}
    rows = [(f"{name} read", flows[name].read, found.read.get(name, 0)) for name in names]
    results = flows["O"].written + flows["LSE"].written
    rows.append(("O and LSE written", results, found.written.get(OTHERS, 0)))
    return CountedAttention(f"{run.problem} ({run.configuration})", tuple(rows))
