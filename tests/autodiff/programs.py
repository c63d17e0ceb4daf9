"""Random differentiable programs as source text, and what eager execution makes of them.

Every value is a float32 matrix of 4 x 4, so that any operation takes any value and gradients have a long way to go. A
program is drawn as a list of numbers, which hypothesis shortens well.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import staxlab
from staxlab.autodiff.graph import JointGraph
from staxlab.autodiff.joint import joint_graph
from staxlab.autodiff.partition import Partition, prune_tangents
from staxlab.capture.graph import TensorMeta
from staxlab.capture.module import GraphModule, Interpreter
from staxlab.operators.structure import flatten

LINES = [
    "{a}.tanh()", "{a}.sigmoid()", "{a}.sin()", "F.gelu({a})", "{a}.relu()", "-{a}", "({a} * {a})", "{a}.tanh().exp()",
    "{a} + {b}", "{a} * {b}", "{a} - {b}", "{a} / ({b} * {b} + 1)", "torch.maximum({a}, {b})", "{a} @ {b}",
    "torch.where({a} > 0, {a}, {b})", "F.softmax({a}, -1)", "F.layer_norm({a}, (4,))", "F.log_softmax({a}, 0)",
    "F.dropout({a}, 0.5)", "{a}.t()", "{a}.reshape(2, 8).t().reshape(4, 4)", "{a}.sum(-1, keepdim=True).expand(4, 4)",
    "({a} + {b}.mean(0))", "torch.cat([{a}[:2], {b}[2:]])", "torch.cat({a}.split(2, 1)[::-1], 1)", "{a}[[1, 0, 3, 2]]",
    "{a} - {b}.amax(-1, keepdim=True)", "{a}.var(0) * {b}", "{a}.logsumexp(-1)[:, None] + {b}", "{a}.cumsum(0)",
    "{a}.sort(-1)[0]", "torch.addmm({a}, {b}, {a})", "{a}.clone().mul_({b})", "{a}.max(0)[0] * {b}",
    "torch.stack({a}.unbind(0)[::-1])", "{a}.detach() * {b}", "{a}.diagonal() + {b}", "torch.rand(4, 4) * {a}",
    "{a}.exp().log1p()", "({a} * 2).as_strided((4, 4), (1, 4)) * {b}", "{a}.flip(0)", "F.pad({a}[1:], (0, 0, 1, 0))",
]  # fmt: skip
NAMES = ("x", "y", "z")  # z needs no gradient

steps = st.lists(
    st.tuples(st.integers(0, len(LINES) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=14
)


@dataclass(frozen=True)
class Program:
    source: str
    function: Callable[..., Any]

    def arguments(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        x, y, z = (torch.randn(4, 4, generator=generator) for _ in NAMES)
        return [x.requires_grad_(), y.requires_grad_(), z]


def write(numbers: list[tuple[int, int, int]], returns: int = 2) -> Program:
    """The program of these numbers. It returns its last ``returns`` values."""
    names = list(NAMES)
    body = []
    for line, first, second in numbers:
        a, b = names[-1 - first % len(names)], names[-1 - second % len(names)]
        names.append(f"v{len(names)}")
        body.append(f"{names[-1]} = {LINES[line].format(a=a, b=b)}")
    returned = names[len(NAMES) :][-returns:]
    last = f"return [{', '.join(f'{name}.sum()' for name in returned)}, {returned[-1]}]"
    source = "\n    ".join([f"def program({', '.join(NAMES)}):", *body, last]) + "\n"
    file = f"<program {zlib.crc32(source.encode()):08x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, file, "exec"), scope)
    return Program(source, scope["program"])


def recorded(
    function: Callable[..., Any], arguments: list[Any], basis: frozenset | None = None, seed: int = 0
) -> tuple[GraphModule, JointGraph, list[Any]]:
    """The captured module, its joint graph, and the arguments in the order of its inputs."""
    captured = staxlab.trace(function, *arguments)
    torch.manual_seed(seed)
    joint = joint_graph(captured.module, list(captured.samples), basis=basis)
    return captured.module, joint, list(captured.samples)


def upstream(joint: JointGraph) -> list[torch.Tensor | None]:
    """An upstream gradient for each differentiable forward output, laid out as the backward graph expects it."""
    generator = torch.Generator().manual_seed(5)
    return [None if node is None else _tangent(node.val, generator) for node in joint.tangents]


def _tangent(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(meta.shape, generator=generator).to(meta.dtype)
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype).copy_(values)


def eager_gradients(
    module: GraphModule, joint: JointGraph, arguments: list[Any], tangents: list[torch.Tensor | None], seed: int = 0
) -> list[torch.Tensor | None]:
    """What autograd makes of the same upstream gradients, one for each argument. Results that are views of an output or
    of an input get none, and must be undefined in ``tangents``."""
    leaves = [_leaf(value) for value in arguments]
    torch.manual_seed(seed)
    returned = flatten(Interpreter(module).run(*leaves))
    pairs = {r.index: t for t, r in zip(returned, joint.results, strict=True) if r.source == "output" and not r.chain}
    chosen = [(pairs[k], tangent) for k, tangent in enumerate(tangents) if tangent is not None]
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not chosen or not wanted:
        return [None] * len(leaves)
    outputs, seeds = zip(*chosen, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, seeds, allow_unused=True))
    return [next(found) if any(leaf is w for w in wanted) else None for leaf in leaves]


def own_gradients(
    part: Partition, arguments: list[Any], tangents: list[torch.Tensor | None], seed: int = 0
) -> list[torch.Tensor | None]:
    """The same by running the forward and the backward graph of a partition."""
    joint = part.joint
    values = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in arguments]
    undefined = {k for k, node in enumerate(joint.tangents) if node is not None and tangents[k] is None}
    with torch.no_grad():
        torch.manual_seed(seed)
        outputs = Interpreter(part.forward.module).run(*values)
        place = {node: k for k, node in enumerate(joint.primals)}
        primals = [values[place[node]] for node in part.primals_read]
        defined = [tangent for tangent in tangents if tangent is not None]
        backward = prune_tangents(part, undefined)
        return list(Interpreter(backward.module).run(*primals, *outputs[len(joint.outputs) :], *defined))


def directly_returned(joint: JointGraph) -> set[int]:
    """The outputs that the program returns themselves, and not only views of them."""
    return {result.index for result in joint.results if result.source == "output" and not result.chain}


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    same = a.shape == b.shape and a.dtype == b.dtype
    return same and torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
