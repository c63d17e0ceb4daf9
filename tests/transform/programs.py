"""Random straight-line programs, as source text: views, writes, broadcasts, reductions, scalars and mixed dtypes.

A program is drawn as a list of numbers, which hypothesis shortens well. :func:`write` turns it into lines such as
``v7 = v2.t()`` while running them eagerly: a line that PyTorch refuses (shapes that do not fit, a write into an
expanded tensor) is left out, so every program that comes out is valid, and a failure prints as a function to paste.
"""

from __future__ import annotations

import linecache
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from hypothesis import strategies as st

MOST_NODES = 30
LARGEST = 400  # elements of an intermediate

# {a} and {b} are earlier values, {k} a small number. A line that writes into {a} begins with "!".
VIEWS = [
    "{a}.t()", "{a}.transpose(0, -1)", "{a}[{k}]", "{a}[1:]", "{a}[..., ::2]", "{a}[:, {k}]", "{a}.unsqueeze({k})",
    "{a}.squeeze()", "{a}.view(-1)", "{a}.reshape(-1)", "{a}.reshape(2, -1)", "{a}.flatten()", "{a}.expand(2, 3, 4)",
    "{a}.expand(3, 4)", "{a}[None]", "{a}.narrow(0, 1, 2)", "{a}.select(-1, {k})", "{a}.diagonal()",
    "{a}.unbind(0)[{k}]",
    "{a}.chunk(2)[-1]", "{a}.split(2, -1)[0]", "{a}.permute(1, 0)", "{a}.movedim(0, -1)", "{a}.contiguous()",
    "{a}.detach()", "{a}.unfold(0, 2, 1)", "{a}.as_strided((2, 2), (1, 2))", "{a}.expand_as({b})", "{a}.view_as({b})",
    "{a}.swapaxes(0, 1)", "{a}.to(torch.float32)", "{a}.type_as({b})", "torch.broadcast_tensors({a}, {b})[0]",
    "{a}.alias_copy()" if hasattr(torch.Tensor, "alias_copy") else "{a}[:]", "{a}.T", "{a}.mT",
    "{a}.unflatten(-1, (2, -1))",
]  # fmt: skip
WRITES = [
    "!{a}.add_({b})", "!{a}.add_({k})", "!{a}.mul_({b})", "!{a}.mul_(2)", "!{a}.sub_({b}, alpha=2)", "!{a}.zero_()",
    "!{a}.fill_({k})", "!{a}.copy_({b})", "!{a}[0].copy_({b})", "!{a}.t()[0].add_(1)", "!{a}.view(-1)[1:].mul_(3)",
    "!{a}.clamp_(-1, {k})", "!{a}.neg_()", "!{a}.relu_()", "!{a}.masked_fill_({b}, {k})", "!{a}.diagonal().zero_()",
    "!torch.add({a}, {b}, out={a})", "!torch.mul({b}, 2, out={a})", "!{a}.logical_not_()", "!{a}.abs_()",
    "!{a}.div_(2)",
    "!{a}.index_fill_(0, torch.tensor([0, 1]), {k})", "!{a}.addcmul_({b}, {b})", "!{a}.lerp_({b}, 0.5)", "!{a}.t_()",
    "!{a}.unsqueeze_(0)", "!{a}.squeeze_()", "!{a}.transpose_(0, -1)", "!{a}.round_()", "!{a}.bitwise_xor_({b})",
    "!{a}.cumsum_(0)", "!{a}.index_add_(0, torch.tensor([0, 0]), {b}[:2])", "!{a}.tril_()", "!{a}.uniform_()",
    "!torch.nn.functional.relu({a}, inplace=True)", "!{a}.exp_()", "!{a}.pow_(2)", "!{a}.eq_({b})",
]  # fmt: skip
STATEMENTS = [
    "!{a}[0] = {b}", "!{a}[{b}] = {k}", "!{a}[..., 1:] = {k}", "!{a}[:, [0, 2]] += 1", "!{a} += {b}", "!{a} *= 2",
    "!{a}[1] += {b}[0]", "!{a} -= {k}", "!{a}[0, {k}] = {b}.sum()", "!{a} &= {b}",
]  # fmt: skip
POINTWISE = [
    "{a} + {b}", "{a} * {b}", "{a} - {b}", "{a} / (abs({b}) + 1)", "{k} - {a}", "2 * {a}", "{a} * 1", "{a} + 0",
    "-(-{a})",
    "{a} / 1", "{a} ** 1", "{a} ** 2", "{a} - 0", "{a}.relu().relu()", "abs(abs({a}))", "{a}.exp()", "{a}.sigmoid()",
    "{a}.clamp(-1, {k})", "{a} > {b}", "{a} == {b}", "{a} != {k}", "~({a} < {b})", "torch.where({a} > {k}, {a}, {b})",
    "torch.maximum({a}, {b})", "{a}.float()", "{a}.double()", "{a}.bfloat16()", "{a}.long()", "{a}.bool()", "{a}.int()",
    "{a} // ({b}.abs() + 1)", "{a} % 3", "{a} & {b}", "{a} | {b}", "{a}.sin()", "{a}.sqrt()", "{a}.rsqrt()",
    "{a}.floor()",
    "{a}.masked_fill({b}, {k})", "{a}.isnan()", "{a}.sign()", "torch.lerp({a}, {b}, 0.3)",
    "torch.addcmul({a}, {b}, {b})",
    "{a} + 1.5", "{a} * True", "torch.add({a}, {b}, alpha=2)", "{a}.to({b}.dtype)", "{a}.log1p()", "{a}.tanh()",
    "{k} / {a}",
    "{a}.nan_to_num()", "{a}.pow({b})", "torch.fmod({a}, 2)", "{a}.reciprocal()", "torch.atan2({a}, {b})", "{a}.gelu()",
    "torch.nn.functional.gelu({a})", "torch.nn.functional.silu({a})", "{a}.trunc().neg()", "{a}.remainder({b})",
]  # fmt: skip
OTHERS = [
    "{a}.sum()", "{a}.sum(0)", "{a}.sum(-1, keepdim=True)", "{a}.mean(-1)", "{a}.amax(0)", "{a}.min()", "{a}.max(0)[1]",
    "{a}.prod(0)", "{a}.any()", "{a}.all(-1)", "{a}.argmax()", "{a}.var(-1)", "{a}.std(0)", "{a}.cumsum(-1)",
    "{a}.norm()",
    "{a}.softmax(-1)", "{a}.logsumexp(0)", "{a}.sort(-1)[0]", "{a}.flip(0)", "{a}.clone()", "{a} @ {b}",
    "{a}.matmul({b}.t())",
    "torch.cat([{a}, {b}])", "torch.stack([{a}, {b}])", "{a}.roll(1, 0)", "{a}.repeat(2, 1)", "{a}[[1, 0]]",
    "{a}.tril()",
    "{a}.gather(0, {b}.long().clamp(0, 1))", "torch.zeros_like({a})", "torch.ones_like({a})",
    "torch.full_like({a}, {k})",
    "torch.arange(4)", "torch.tensor({k}.5)", "torch.rand(3, 4)", "torch.zeros(3, 4)", "{a}.new_ones(4)",
    "{a}.median()",
    "{a}.scatter(0, torch.tensor([[0, 1]]), {k})", "{a}.index_select(0, torch.tensor([1, 0]))",
    "{a}.take(torch.tensor([1]))",
    "torch.nn.functional.dropout({a}, 0.5)", "torch.nn.functional.layer_norm({a}, (4,))", "{a} * {b}.sum()",
    "{a}.topk(2)[0]",
    "torch.nn.functional.pad({a}, (1, 0))", "torch.outer({a}, {b})", "torch.einsum('ij,kj->ik', {a}, {b})",
    "{a}.dim() * {b}",
    "{a} + {b}.shape[0]", "{a}.nelement() + {a}", "torch.empty_like({a}).copy_({b})", "{a}.logcumsumexp(0)",
    "{a}.trace()",
]  # fmt: skip
LINES = VIEWS * 2 + WRITES * 2 + STATEMENTS * 4 + POINTWISE + OTHERS

#: Numbers of a program: (line, first value, second value, small number) for each node, and which values it returns.
drawn = st.tuples(
    st.lists(
        st.tuples(st.integers(0, len(LINES) - 1), st.integers(0, 36), st.integers(0, 36), st.integers(0, 2)),
        min_size=1,
        max_size=MOST_NODES,
    ),
    st.lists(st.integers(0, 36), min_size=1, max_size=4),
)

PARAMETERS = ("x", "y", "n", "m", "h", "d", "s", "r")


def inputs(seed: int) -> list[torch.Tensor]:
    """Arguments of a program: float32 with special values, a broadcast row, int64, bool, bfloat16, a transposed
    float64, a strided and a view that may share memory (``r`` looks at ``s``'s storage where ``seed`` is odd)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, generator=generator)
    x.view(-1)[:4] = torch.tensor([0.0, -0.0, float("inf"), float("nan")])
    base = torch.randn(6, 8, generator=generator)
    return [
        x,
        torch.randn(4, generator=generator),
        torch.randint(-3, 4, (3, 4), generator=generator),
        torch.randn(3, 4, generator=generator) > 0,
        torch.randn(3, 4, generator=generator).bfloat16(),
        torch.randn(4, 3, generator=generator, dtype=torch.float64).t(),
        base[::2, ::2],
        base[1::2, 1::2] if seed % 2 else torch.randn(3, 1, generator=generator).expand(3, 4),
    ]


@dataclass(frozen=True)
class Program:
    """A function of :func:`inputs`: its lines, and the names it returns."""

    lines: tuple[str, ...]
    returned: tuple[str, ...]
    name: str = "program"
    seed: int = 0  # of the arguments of its first call

    @cached_property
    def source(self) -> str:
        head, last = f"def {self.name}({', '.join(PARAMETERS)}):", f"return [{', '.join(self.returned)}]"
        return "\n    ".join([head, *self.lines, last]) + "\n"

    @cached_property
    def function(self) -> Callable:
        """The function, with lines that can be looked up."""
        file = f"<{self.name} {zlib.crc32(self.source.encode()):08x}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        scope = {"torch": torch}
        exec(compile(self.source, file, "exec"), scope)
        return scope[self.name]

    def arguments(self, call: int) -> list[torch.Tensor]:
        """Fresh arguments, of one geometry in all calls."""
        return inputs(self.seed + 2 * call)

    def without(self, place: int) -> Program | None:
        """The program without one line, if what is left still runs."""
        smaller = Program(self.lines[:place] + self.lines[place + 1 :], self.returned, self.name, self.seed)
        removed = self.lines[place].split(" = ")[0]
        if removed in smaller.returned:
            smaller = replace(smaller, returned=tuple(n for n in smaller.returned if n != removed) or ("x",))
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                smaller.function(*self.arguments(0))
        except Exception:
            return None
        return smaller


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether ``a`` may share memory with ``b`` under another geometry: what a write reads of it then depends on the
    order in which PyTorch visits elements."""
    if _storage(a) != _storage(b):
        return False
    return (a.storage_offset(), a.shape, a.stride()) != (b.storage_offset(), b.shape, b.stride())


def write(numbers, name: str = "program", seed: int = 0) -> Program | None:
    """The program these numbers stand for; None where no line was valid."""
    steps, returned = numbers
    values: dict[str, torch.Tensor] = dict(zip(PARAMETERS, inputs(seed), strict=True))
    caller = {_storage(value) for value in values.values()}
    body: list[str] = []
    names = [*PARAMETERS]
    for line, first, second, k in steps:
        if len(body) == MOST_NODES:
            break
        a, b = names[-1 - first % len(names)], names[-1 - second % len(names)]
        template = LINES[line]
        writes = template.startswith("!")
        if writes and overlaps(values[a], values[b]):
            template = template.replace("{b}", "{b}.clone()")
        text = template.removeprefix("!").format(a=a, b=b, k=k)
        new = f"v{len(names) - len(PARAMETERS)}"
        if template.removeprefix("!") not in _STATEMENTS:
            text = f"{new} = {text}"
        if any(change in text for change in _RESHAPING) and _storage(values[a]) in caller:
            continue  # the shape of an argument cannot be changed back after tracing: refused, as documented
        scope = {"torch": torch, **values}
        shape = values[a].shape
        versions = {n: v._version for n, v in values.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(text, scope)
        except Exception:
            if any(values[n]._version != version for n, version in versions.items()):
                return None  # refused after having written: what is left is no program's state
            continue
        if "out=" in text and values[a].shape != shape:
            return None  # refused as well: it would resize an argument
        result = scope.get(new)
        if result is not None and (not isinstance(result, torch.Tensor) or result.numel() > LARGEST):
            continue
        values = {n: scope[n] for n in names}
        body.append(text)
        if result is not None:
            values[new] = result
            names.append(new)
    if not body:
        return None
    return Program(tuple(body), tuple(names[-1 - k % len(names)] for k in returned), name, seed)


_RESHAPING = (".t_()", ".unsqueeze_(", ".squeeze_(", ".transpose_(")
_STATEMENTS = {line.removeprefix("!") for line in STATEMENTS} | {
    line.removeprefix("!").replace("{b}", "{b}.clone()") for line in STATEMENTS
}

