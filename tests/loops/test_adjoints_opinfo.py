"""Gradients of PyTorch's operator samples: the joint graph, lowered and evaluated, against eager execution's engine.

In double precision, since in single precision eager's own adjoints cancel here and there (a layer norm's). No operator
that the engine runs on real numbers may lack both a rule and an entry among the library calls, for then users would be
warned about a line they never wrote.
"""

from __future__ import annotations

import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from staxlab.autodiff.joint import JointGraph, joint_graph
from staxlab.errors import LoweringError
from staxlab.loops.lowering import basis
from staxlab.loops.semantics import evaluate
from staxlab.operators.basis import is_random
from staxlab.operators.graph import OperatorGraph
from staxlab.operators.structure import flatten, rebuild

from .lowered import CPU, lower, module_of
from .opinfo import operators_database

pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest (the dev extra)")
aten = torch.ops.aten
# PyTorch refuses the gradient itself (a sparse one; eigenvectors up to a phase).
REFUSED_BY_EAGER = frozenset({"to_sparse", "linalg.eig"})
# A write that functionalization reports as an obstacle, and what a function outside the program looks up.
NOT_THE_ENGINES = frozenset({aten.copy_.default, aten._unique.default})


class Survey:
    """Samples of every operator with a gradient: how they came out, what was wrong, what would have warned."""

    def __init__(self, limit: int, every: int):
        self.limit, self.every = limit, every
        self.tally: Counter = Counter()
        self.failures: list[str] = []
        self.without_rule: Counter = Counter()

    def run(self) -> Survey:
        with ThreadPoolExecutor(1) as pool:  # the database inspects the whole stack for every sample
            pool.submit(self._run).result()
        return self

    def _run(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for op in operators_database()[:: self.every]:
                if op.supports_autograd and torch.float64 in op.supported_backward_dtypes("cpu"):
                    self._operator(op)
        torch.set_num_threads(threads)

    def _operator(self, op: Any) -> None:
        try:
            samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=True))
        except ImportError:
            return
        for position, sample in enumerate(samples[:: max(1, len(samples) // self.limit)][: self.limit]):
            try:
                self.tally[self._sample(op, sample)] += 1
            except LoweringError as refusal:
                if "pending conjugation" not in str(refusal):  # results of the forward pass that are refused as such
                    self.failures.append(f"{op.name} {op.variant_test_name} sample {position}: {refusal}")
            except Exception as error:
                if op.name not in REFUSED_BY_EAGER:
                    self.failures.append(f"{op.name} {op.variant_test_name} sample {position}: {error!r:.300}")

    def _sample(self, op: Any, sample: Any) -> str:
        structure = (sample.input, sample.args, sample.kwargs)
        leaves = flatten(structure)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        generators = any(isinstance(leaf, torch.Generator) for leaf in leaves)
        if generators or any(t.layout != torch.strided for t in tensors):
            return "skipped"

        def function(*given: torch.Tensor) -> Any:
            remaining = iter(given)
            filled = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            first, args, kwargs = rebuild(structure, filled)
            return op.op(first, *args, **kwargs)

        torch.manual_seed(42)
        graph = joint_graph(module_of(function, len(tensors)), tensors, basis=basis())
        self._note_missing(graph)
        if graph.obstacles or all(gradient is None for gradient in graph.gradients):
            return "obstacle" if graph.obstacles else "no gradient"
        torch.manual_seed(42)
        gradients = gradients_of(graph, tensors)
        torch.manual_seed(42)
        twins = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        results = [r for r in flatten(function(*twins)) if isinstance(r, torch.Tensor) and r.requires_grad]
        wanted = [t for t in twins if t.requires_grad]
        expected = torch.autograd.grad(results, wanted, [torch.ones_like(r) for r in results], allow_unused=True)
        ours = [g for g, t in zip(gradients, twins, strict=True) if t.requires_grad]
        for got, eager in zip(ours, expected, strict=True):
            if eager is None:
                assert got is None or not got.any()
            else:
                torch.testing.assert_close(got, eager, equal_nan=True)
        return "compared"

    def _note_missing(self, graph: JointGraph) -> None:
        known = basis() | NOT_THE_ENGINES
        for node in graph.backward_nodes:
            target = node.target
            values = flatten([node.val, *(n.val for n in node.inputs)])
            complex_ = any(getattr(v, "dtype", torch.float64).is_complex for v in values if hasattr(v, "dtype"))
            if (
                isinstance(target, torch._ops.OpOverload)
                and target not in known
                and not is_random(target)
                and not complex_
            ):
                self.without_rule[str(target)] += 1


def gradients_of(graph: JointGraph, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients by the reference semantics, for upstream gradients of 1."""
    operators = OperatorGraph(graph.module, graph.inputs)
    program = lower(operators, CPU)
    given = {p.name: t.detach() for p, t in zip(graph.primals, inputs, strict=True)}
    given |= {t.name: torch.ones(t.val.shape, dtype=t.val.dtype) for t in graph.tangents if t is not None}
    given |= {name: value for name, value in graph.module.constants.items() if isinstance(value, torch.Tensor)}
    placed = {}
    for buffer in program.inputs:
        room = torch.empty_strided(buffer.layout.shape, buffer.layout.stride, dtype=buffer.layout.dtype)
        same = given[buffer.name].stride() == room.stride()
        placed[buffer.name] = given[buffer.name] if same else room.copy_(given[buffer.name])
    return operators.rebuild(evaluate(program, placed))[1]


def test_gradients_of_a_sample_of_every_third_operator():
    survey = Survey(1, every=3).run()
    assert not survey.failures, "\n".join(survey.failures)
    assert not survey.without_rule, survey.without_rule
    assert survey.tally["compared"] > 0.6 * sum(survey.tally.values())


@pytest.mark.slow
def test_gradients_of_samples_of_every_operator():
    survey = Survey(8, every=1).run()
    print(dict(survey.tally))
    assert not survey.failures, "\n".join(survey.failures)
    assert not survey.without_rule, survey.without_rule
