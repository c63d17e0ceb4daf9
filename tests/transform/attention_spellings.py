"""Attention in many spellings: programs as text, what of the canonical form each is, and what has to become of it.

Every line of the table in ``docs/attention_patterns.md`` is one of these, and every one is rewritten and compared with
eager execution by ``test_attention_patterns.py``.
"""

from __future__ import annotations

import linecache
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

BATCH, HEADS, LENGTH, SIZE = 2, 4, 6, 8
LIBRARY, GENERAL = "scaled_dot_product_attention", "attention operator"


def inputs(names: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Arguments by name. Of ``hidden`` and ``added`` every row keeps a key."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    b, h, n, d = BATCH, HEADS, LENGTH, SIZE
    triangle = torch.ones(n, n, dtype=torch.bool).tril()
    shapes = {
        "q k v": (b, h, n, d), "qt kt vt": (b, n, h, d), "q3 k3 v3": (b * h, n, d), "q2 k2 v2": (n, d),
        "kc": (b, h, d, n), "kg vg": (b, 2, n, d), "kgt vgt": (b, n, 2, d), "long_k long_v": (b, h, 2 * n, d),
        "bias": (h, n, n), "table": (h, 2 * n - 1), "tau": (h, 1, 1), "wide_v": (b, h, n, 2 * d), "one_q": (b, h, 1, d),
        "rows": (2, b, h, n, d), "window_bias": (3, 1, 1, n, n), "wq wk wv": (3, b, h, n, d),
    }  # fmt: skip
    found = []
    for name in names.split():
        shape = next((shape for known, shape in shapes.items() if name in known.split()), None)
        if shape is not None:
            found.append(random(*shape))
        elif name == "hidden":  # True where a key is padding
            found.append(torch.tensor([[False] * n, [False] * (n - 2) + [True] * 2])[:, None, None])
        elif name == "kept":
            found.append(triangle[None, None])
        elif name == "added":
            found.append(random(b, 1, n, n).masked_fill(~triangle, -math.inf))
        elif name == "lengths":
            found.append(torch.tensor([n, n - 2]))
        elif name == "document":
            found.append(torch.tensor([0, 0, 0, 1, 1, 1]))
        elif name == "keep":  # 1 where a token is, as tokenizers give it
            found.append(torch.tensor([[1.0] * n, [1.0] * (n - 2) + [0.0] * 2], dtype=dtype))
        else:
            raise KeyError(name)
    return found


@dataclass(frozen=True)
class Spelling:
    """A program over ``inputs(takes)``. ``training`` is what has to become of it where gradients are recorded."""

    name: str
    takes: str
    text: str
    inference: str = LIBRARY
    training: str | None = LIBRARY
    scale: str = "x * c"
    mask: str = "none"
    key: str = "transposed in the product"

    @cached_property
    def function(self) -> Callable:
        """The function, with lines that can be looked up."""
        lines = self.text.strip().split("\n")
        body = "\n".join([*(f"    {line}" for line in lines[:-1]), f"    return {lines[-1]}"])
        source = f"def attention({', '.join(self.takes.split())}):\n{body}\n"
        file = f"<spelling {zlib.crc32(source.encode()):08x}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        scope = {"torch": torch, "F": F, "math": math, "inf": math.inf}
        exec(compile(source, file, "exec"), scope)
        return scope["attention"]


_S = Spelling
SPELLINGS: tuple[Spelling, ...] = (
    # The scale, by multiplication or division, of scores or of an operand, before or after.
    _S("scores times a number", "q k v", "(q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v"),
    _S("scores over a number", "q k v", "torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), dim=-1) @ v",
       scale="x / c"),
    _S("scores times a tensor of one number", "q k v",
       "s = q @ k.mT / torch.full([], 8.0 ** 0.5, dtype=q.dtype)\nF.softmax(s, dim=-1) @ v", scale="x / tensor"),
    _S("no scale", "q k v", "torch.matmul(torch.softmax(torch.matmul(q, k.mT), -1), v)", scale="none"),
    _S("queries scaled", "q k v", "((q * 0.25) @ k.mT).softmax(-1) @ v", scale="q * c"),
    _S("queries over a number", "q k v", "((q / 2.5) @ k.mT).softmax(-1) @ v", scale="q / c"),
    _S("keys scaled", "q k v", "(q @ (k * 0.25).transpose(-1, -2)).softmax(-1) @ v", scale="k * c"),
    _S("both scaled", "q k v", "((q * 8 ** -0.25) @ (k * 8 ** -0.25).mT).softmax(-1) @ v", scale="q * c, k * c"),
    _S("keys scaled after transposing", "q k v", "(q @ (k.mT * 0.25)).softmax(-1) @ v", scale="k^T * c"),
    # How the product is written, and where the keys are transposed.
    _S("keys transposed before", "q k v", "kt = k.permute(0, 1, 3, 2)\n((q @ kt) * 0.25).softmax(-1) @ v",
       key="permuted before"),
    _S("keys stored transposed", "q kc v", "((q @ kc) * 0.25).softmax(-1) @ v", key="as stored"),
    _S("bmm", "q3 k3 v3", "torch.bmm(torch.bmm(q3, k3.transpose(1, 2)).mul(0.25).softmax(2), v3)", key="3-D, bmm"),
    _S("baddbmm without its addend", "q3 k3 v3",
       "s = torch.baddbmm(torch.empty(8, 6, 6, dtype=q3.dtype), q3, k3.transpose(1, 2), beta=0, alpha=0.25)\n"
       "torch.bmm(s.softmax(-1), v3)", scale="alpha", key="3-D, baddbmm"),
    _S("baddbmm with a mask", "q3 k3 v3",
       "m = torch.triu(torch.full((6, 6), -inf, dtype=q3.dtype), 1).expand(8, 6, 6)\n"
       "torch.bmm(torch.baddbmm(m, q3, k3.mT, alpha=0.25).softmax(-1), v3)", scale="alpha", mask="added triangle",
       key="3-D, baddbmm"),
    _S("one head without a batch", "q2 k2 v2", "torch.mm((torch.mm(q2, k2.t()) * 0.25).softmax(1), v2)",
       key="2-D, t()"),
    _S("einsum", "q k v", "p = torch.softmax(torch.einsum('bhqd,bhkd->bhqk', q, k) * 0.25, -1)\n"
       "torch.einsum('bhqk,bhkd->bhqd', p, v)", key="einsum"),
    _S("einsum over (batch, length, head)", "qt kt vt",
       "p = torch.softmax(torch.einsum('bqhd,bkhd->bhqk', qt, kt) * 0.25, -1)\n"
       "torch.einsum('bhqk,bkhd->bqhd', p, vt)", key="einsum"),
    _S("einsum with an ellipsis", "q k v", "p = torch.einsum('...qd,...kd->...qk', q * 0.25, k).softmax(-1)\n"
       "torch.einsum('...qk,...kd->...qd', p, v)", scale="q * c", key="einsum"),
    _S("scores turned around", "q k v", "s = k @ q.mT * 0.25\ns.softmax(-2).mT @ v", key="k @ q^T, softmax over -2"),
    # Layouts.
    _S("(batch, length, head, size)", "qt kt vt",
       "q, k, v = (t.transpose(1, 2) for t in (qt, kt, vt))\n"
       "((q @ k.transpose(-2, -1)) * 0.25).softmax(-1).matmul(v).transpose(1, 2).reshape(2, 6, 32)"),
    _S("(batch, length, head, size), keys permuted at once", "qt kt vt",
       "s = qt.permute(0, 2, 1, 3) @ kt.permute(0, 2, 3, 1) * 0.25\n"
       "(s.softmax(-1) @ vt.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).contiguous()", key="permuted before"),
    _S("heads merged with the batch", "q k v kept",
       "q, k, v = (t.reshape(8, 6, 8) for t in (q, k, v))\n"
       "s = torch.bmm(q, k.mT).view(2, 4, 6, 6) * 0.25\n"
       "p = s.masked_fill(~kept, -inf).softmax(-1).view(8, 6, 6)\ntorch.bmm(p, v).view(2, 4, 6, 8)",
       mask="masked_fill, data", key="3-D, bmm"),
    _S("query, key and value in one tensor", "rows", "q, k = rows.unbind(0)\n((q @ k.mT) * 0.25).softmax(-1) @ k"),
    _S("five axes", "wq wk wv window_bias",
       "(wq @ wk.mT * 0.25 + window_bias.tanh()).softmax(-1) @ wv", mask="added, data", training=GENERAL),
    _S("one query", "one_q k v", "((one_q @ k.mT) * 0.25).softmax(-1) @ v"),
    _S("more keys than queries", "q long_k long_v", "((q @ long_k.mT) * 0.25).softmax(-1) @ long_v"),
    # Masks.
    _S("added mask", "q k v added", "(q @ k.mT * 0.25 + added.detach()).softmax(-1) @ v", mask="added, data"),
    _S("added mask before the scale", "q k v added", "((q @ k.mT + added.detach()) / 4).softmax(-1) @ v", scale="x / c",
       mask="added, data"),
    _S("added triangle", "q k v",
       "m = torch.full((6, 6), -inf, dtype=q.dtype).triu(diagonal=1)\n(q @ k.mT * 0.25 + m).softmax(-1) @ v",
       mask="added triangle"),
    _S("zeros where a triangle is, minus infinity elsewhere", "q k v",
       "m = torch.zeros(6, 6, dtype=q.dtype).masked_fill(~torch.ones(6, 6).tril().bool(), -inf)\n"
       "(q @ k.mT * 0.25 + m).softmax(-1) @ v", mask="added triangle"),
    _S("masked_fill by a triangle", "q k v",
       "m = torch.tril(torch.ones(6, 6)).view(1, 1, 6, 6)\n"
       "((q @ k.mT) * 0.25).masked_fill(m[:, :, :6, :6] == 0, -inf).softmax(-1) @ v", mask="masked_fill triangle"),
    _S("masked_fill by positions", "q k v",
       "i = torch.arange(6)\n((q @ k.mT) * 0.25).masked_fill(i[None, :] > i[:, None], -inf).softmax(-1) @ v",
       mask="masked_fill triangle"),
    _S("where by positions, the lowest number", "q k v",
       "i = torch.arange(6)\ns = torch.where(i[:, None] >= i, q @ k.mT * 0.25, torch.finfo(q.dtype).min)\n"
       "s.softmax(-1) @ v", mask="where triangle"),
    _S("where with a tensor of the lowest number", "q k v",
       "m = torch.ones(6, 6, dtype=torch.bool).tril()\nlow = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype)\n"
       "F.softmax(torch.where(m, q @ k.mT / 4, low), -1) @ v", scale="x / c", mask="where triangle"),
    _S("scale after the mask", "q k v",
       "m = torch.ones_like(q[0, 0] @ k[0, 0].mT).triu(1).bool()\n"
       "((q @ k.mT).masked_fill(m, -inf) / 8 ** 0.5).softmax(-1) @ v", scale="x / c", mask="masked_fill triangle"),
    _S("masked_fill by data", "q k v hidden", "((q @ k.mT) * 0.25).masked_fill(hidden, -inf).softmax(-1) @ v",
       mask="masked_fill, data"),
    _S("masked_fill by data, the lowest number", "q k v hidden",
       "((q @ k.mT) * 0.25).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v", training=None,
       mask="masked_fill, data"),
    _S("a triangle and padding", "q k v hidden",
       "m = torch.ones(6, 6, dtype=torch.bool).tril()\n"
       "((q @ k.mT) * 0.25).masked_fill(~m | hidden, -inf).softmax(-1) @ v", mask="masked_fill, data"),
    _S("one mask after the other", "q k v hidden",
       "s = (q @ k.mT * 0.25).masked_fill(torch.ones(6, 6).triu(1).bool(), -inf)\n"
       "s.masked_fill(hidden, -inf).softmax(-1) @ v", mask="masked_fill, data"),
    _S("one minus a mask, times a large number", "q k v keep",
       "m = (1.0 - keep.detach()[:, None, None, :]) * -1e9\n(q @ k.mT / 4 + m).softmax(-1) @ v", scale="x / c",
       mask="added, data"),
    _S("a window of positions", "q k v",
       "i = torch.arange(6)\nd = i[:, None] - i[None, :]\n"
       "(q @ k.mT * 0.25).masked_fill((d < 0) | (d > 2), -inf).softmax(-1) @ v", mask="masked_fill, positions"),
    _S("in place", "q k v added", "s = q @ k.mT\ns /= 4\ns += added.detach()\ns.softmax(-1) @ v", scale="x /= c",
       mask="added, data"),
    _S("in place, masked", "q k v hidden",
       "s = torch.matmul(q, k.transpose(-1, -2)).mul_(0.25)\ns.masked_fill_(hidden, -inf)\ns.softmax(-1) @ v",
       scale="x *= c", mask="masked_fill, data"),
    # The softmax.
    _S("softmax written out", "q k v",
       "s = q @ k.mT * 0.25\ne = torch.exp(s - s.amax(-1, keepdim=True))\n(e / e.sum(-1, keepdim=True)) @ v"),
    _S("softmax written out with max().values and detach", "q k v",
       "s = q @ k.mT * 0.25\ne = (s - s.max(dim=-1, keepdim=True).values.detach()).exp()\n"
       "(e / e.sum(dim=-1)[..., None]) @ v"),
    _S("softmax by its logarithm", "q k v", "F.log_softmax(q @ k.mT * 0.25, dim=-1).exp() @ v"),
    _S("softmax by logsumexp", "q k v",
       "s = q @ k.mT * 0.25\ntorch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v"),
    _S("softmax with a dtype, and back", "q k v",
       "F.softmax(q @ k.mT * 0.25, dim=-1, dtype=torch.float64).to(q.dtype) @ v"),
    _S("dropout of nothing", "q k v", "F.dropout((q @ k.mT * 0.25).softmax(-1), p=0.0) @ v", mask="none, dropout"),
    _S("dropout, not training", "q k v", "F.dropout((q @ k.mT * 0.25).softmax(-1), 0.3, training=False) @ v",
       mask="none, dropout"),
    _S("torch.nn.Softmax", "q k v", "torch.nn.Softmax(dim=-1)(q @ k.mT * 0.25).matmul(v)"),
    # Grouped queries.
    _S("keys repeated for groups of queries", "q kg vg",
       "k, v = kg.repeat_interleave(2, dim=1), vg.repeat_interleave(2, dim=1)\n((q @ k.mT) * 0.25).softmax(-1) @ v",
       key="repeated heads"),
    _S("keys expanded for groups of queries", "q kg vg",
       "k, v = (t[:, :, None].expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8) for t in (kg, vg))\n"
       "((q @ k.transpose(2, 3)) * 0.25).softmax(-1) @ v", key="expanded heads"),
    _S("keys repeated before transposing", "q kgt vgt",
       "k, v = (t.repeat_interleave(2, 2).transpose(1, 2) for t in (kgt, vgt))\n((q @ k.mT) * 0.25).softmax(-1) @ v",
       key="repeated heads"),
    # What the patterns of the chapter miss: a bias, a function of the score, other sizes of values.
    _S("a learned bias", "q k v bias", "(q @ k.mT * 0.25 + bias).softmax(-1) @ v", training=GENERAL, mask="bias"),
    _S("a learned bias, and a triangle", "q k v bias",
       "m = torch.ones(6, 6, dtype=torch.bool).triu(1)\n"
       "(q @ k.mT * 0.25 + bias[None]).masked_fill(m, -inf).softmax(-1) @ v", training=GENERAL, mask="bias, triangle"),
    _S("relative positions from a table", "q k v table",
       "i = torch.arange(6)\nb = table[:, i[:, None] - i[None, :] + 5]\n(q @ k.mT * 0.25 + b).softmax(-1) @ v",
       training=GENERAL, mask="bias"),
    _S("ALiBi", "q k v",
       "i = torch.arange(6)\nslope = torch.exp2(-torch.arange(1, 5).to(q.dtype))[:, None, None]\n"
       "s = q @ k.mT * 0.25 - slope * (i[:, None] - i[None, :])\n"
       "s.masked_fill(i[None, :] > i[:, None], -inf).softmax(-1) @ v", mask="slope, triangle"),
    _S("soft cap", "q k v", "s = 5.0 * torch.tanh(q @ k.mT * 0.25 / 5.0)\ns.softmax(-1) @ v", GENERAL, GENERAL,
       mask="tanh"),
    _S("soft cap and a triangle", "q k v",
       "s = torch.tanh(q @ k.mT / 4 / 5.0) * 5.0\n"
       "s.masked_fill(torch.ones(6, 6).triu(1).bool(), -inf).softmax(-1) @ v", GENERAL, GENERAL, scale="x / c",
       mask="tanh, triangle"),
    _S("a learned temperature", "q k v tau", "(q @ k.mT * tau.sigmoid()).softmax(-1) @ v", GENERAL, GENERAL,
       scale="x * tensor", mask="temperature"),
    _S("squared scores", "q k v", "s = q @ k.mT * 0.25\n(s - 0.1 * s * s).softmax(-1) @ v", GENERAL, GENERAL,
       mask="polynomial"),
    _S("scores through silu", "q k v", "F.silu(q @ k.mT * 0.25).softmax(-1) @ v", GENERAL, GENERAL, mask="silu"),
    _S("lengths", "q k v lengths",
       "i = torch.arange(6)\n(q @ k.mT * 0.25).masked_fill(i >= lengths[:, None, None, None], -inf).softmax(-1) @ v",
       mask="masked_fill, data"),
    _S("documents and a soft cap", "q k v document",
       "same = document[:, None] == document[None, :]\n"
       "s = 5 * torch.tanh(q @ k.mT * 0.25 / 5)\ns.masked_fill(~same, -inf).softmax(-1) @ v", GENERAL, GENERAL,
       mask="tanh, documents"),
    _S("padding gets a small number", "q k v hidden", "(q @ k.mT * 0.25).masked_fill(hidden, -1e4).softmax(-1) @ v",
       GENERAL, None, mask="masked_fill, small"),
    _S("values of another size", "q k wide_v", "(q @ k.mT * 0.25).softmax(-1) @ wide_v", GENERAL, GENERAL),
    _S("scores negated", "q k v", "(-(q @ k.mT) * 0.25).softmax(-1) @ v", GENERAL, GENERAL, scale="-x * c"),
)  # fmt: skip
