"""Tracing a ``score_mod`` or ``mask_mod``: the body means what the function means, and what is none is refused."""

from __future__ import annotations

import functools
import gc
import math
import os
import re
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab import omni_attention
from staxlab.attention import modification as module
from staxlab.attention.modification import modification
from staxlab.attention.reference import reference_attention, subscript_tensors
from staxlab.errors import CaptureError, OptionError
from staxlab.loops.body import _Recorder
from staxlab.loops.expressions import Expr
from staxlab.loops.semantics import Evaluator
from tests.attention.variants import VARIANTS, Variant

SLOPE = 0.5  # a global that a function below reads
TABLE = torch.arange(6.0)


def check(function, kind, sizes, dtype=torch.float32, known=(True, False)):
    """With and without sizes, the body evaluated over all subscripts is the function of the same tensors, bit for bit
    but for transcendental functions."""
    places = subscript_tensors(sizes)
    score = torch.randn(sizes, generator=torch.Generator().manual_seed(1), dtype=dtype)
    want = (function(score, *places) if kind == "score" else function(*places)).expand(sizes)
    for given_sizes in known:
        made = modification(function, kind, sizes if given_sizes else None, dtype)
        got = made.evaluate(score if kind == "score" else None, *places).expand(sizes)
        assert got.dtype == (dtype if kind == "score" else torch.bool)
        torch.testing.assert_close(got, want.to(got.dtype), rtol=2e-6, atol=2e-6, equal_nan=True)
    return made


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_variants(variant: Variant):
    made = variant.make()
    for function, kind in ((made.score_mod, "score"), (made.mask_mod, "mask")):
        if function is not None:
            check(function, kind, variant.sizes.scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_captured_tensors_of_other_dtypes(dtype):
    """Elements are promoted as PyTorch promotes them. What is computed of half precision alone stays float32, as in
    every kernel, where eager execution would round it."""
    bias = torch.randn(3, dtype=dtype)
    check(lambda s, b, h, q, kv: (s + bias[h]) * kv, "score", (1, 3, 4, 5))
    made = modification(lambda s, b, h, q, kv: s + bias[h] * kv, "score", (1, 3, 4, 5))
    found = made.evaluate(torch.zeros(()), 0, torch.arange(3), 0, 3)
    torch.testing.assert_close(found, (bias.double() * 3).float())


def test_float64_scores():
    check(lambda s, b, h, q, kv: torch.log1p(s * s) - q / 3, "score", (1, 1, 4, 5), torch.float64)


OFFSETS, DOCUMENT = torch.tensor([0, 5, 9]), torch.repeat_interleave(torch.arange(3), torch.tensor([5, 4, 7]))


def neighbourhood(b, h, q_idx, kv_idx):
    """Pixels of an 8 x 8 image near each other, windows shifted at the border."""
    rows, columns = (q_idx // 8, kv_idx // 8), (q_idx % 8, kv_idx % 8)
    near = [(q.clamp(2, 5) - k).abs() <= 2 for q, k in (rows, columns)]
    return near[0] & near[1]


def per_document(b, h, q_idx, kv_idx):
    """Causal in each document, by positions that count from its start."""
    query, key = q_idx - OFFSETS[DOCUMENT[q_idx]], kv_idx - OFFSETS[DOCUMENT[kv_idx]]
    return (DOCUMENT[q_idx] == DOCUMENT[kv_idx]) & (query >= key)


def several_pieces(b, h, q_idx, kv_idx):
    """A loop in Python over pieces that see each other both ways."""
    seen = q_idx.new_zeros((), dtype=torch.bool)
    for start, length in ((2, 3), (8, 4)):
        seen = seen | ((q_idx >= start) & (kv_idx >= start) & (kv_idx < start + length))
    return seen | (q_idx >= kv_idx)


def mixed_numbers(score, b, h, q_idx, kv_idx):
    steps = torch.floor(q_idx / 2.5) + torch.ceil(kv_idx / 3) + torch.round(q_idx * 0.3)
    return score * (q_idx < 5) + (q_idx > 3) * 0.5 + torch.pow(2.0, -h) + steps + (q_idx / 2).to(torch.int32) % 3


def test_idioms():
    """Functions as people write them for attention with programmable scores."""
    check(neighbourhood, "mask", (1, 1, 64, 64))
    check(per_document, "mask", (1, 2, 16, 16))
    check(several_pieces, "mask", (1, 1, 16, 14))
    check(mixed_numbers, "score", (1, 3, 9, 11))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_modes_around_a_call(mode):
    """What is in force where attention is called changes nothing of a modification, nor does it hide what learns."""
    bias = torch.randn(3, requires_grad=True)

    def function(s, b, h, q, kv):
        return torch.tanh(s) + bias[h]

    plain = modification(function)
    with mode():
        made = modification(function)
    assert str(made) == str(plain) and made.key == plain.key and made.captured[0].requires_grad


def test_function_transforms_around_a_call():
    """The sample of a modification belongs to no transform that the call is under."""
    q, k, v = torch.randn(3, 1, 2, 5, 16, dtype=torch.float64)

    def loss(attention, x, **options):
        return attention(x, k, v, lambda s, b, h, i, j: torch.tanh(s) - (i - j), **options)

    module.clear()
    ours = torch.func.grad(lambda x: loss(omni_attention, x, kernel_options={"BACKEND": "reference"}).sin().sum())(q)
    module.clear()
    value, pull = torch.func.vjp(lambda x: loss(omni_attention, x, kernel_options={"BACKEND": "reference"}), q)
    wanted = torch.func.grad(lambda x: loss(reference_attention, x)[0].sin().sum())(q)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(pull(value.cos())[0], wanted)


# -- arithmetic of subscripts -----------------------------------------------------------------------------------------

WHOLE = {
    "a division by what is positive": lambda b, h, q, kv: (q + kv) % (h + 1) + (q * 7) // (kv + 1),
    "truncating divisions": lambda b, h, q, kv: torch.div(q - kv, h + 2, rounding_mode="trunc") + torch.fmod(kv - q, 3),
    "a division by something negative": lambda b, h, q, kv: (q - kv) // (-1 - h) + (q - kv) % (-1 - h),
    "mixed with floating point": lambda b, h, q, kv: q / 3 + kv * 0.25 - h / (kv + 1),
    "as int64": lambda b, h, q, kv: q.long() * 3 - kv,
    "bits": lambda b, h, q, kv: ((q ^ kv) & 3) | (h << 2),
    "extremes": lambda b, h, q, kv: torch.maximum(q, kv) - torch.minimum(q, kv * 2) + torch.clamp(q - kv, -1, 2),
    "selection": lambda b, h, q, kv: torch.where(q > kv, q, torch.where(h == 1, kv, b)),
    "truth values": lambda b, h, q, kv: ((q > kv) | ~(h == 0)) * 2 + (q <= 2).int(),
    "factories": lambda b, h, q, kv: torch.zeros_like(q) + torch.full_like(kv, 3) + torch.arange(7)[q],
    "constants": lambda b, h, q, kv: q * torch.tensor(2) - torch.tensor(1, dtype=torch.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_arithmetic_of_subscripts(name):
    check(lambda s, b, h, q, kv: s + WHOLE[name](b, h, q, kv), "score", (2, 3, 6, 5))


def test_subscripts_wrap_as_int32_does():
    """At long lengths a product of positions does not fit: it wraps in eager execution, and so it does here."""
    table = torch.arange(7.0)

    def hashed(s, b, h, q, kv):
        return s + table[(q * kv) % 7] + (q * kv) % 5

    made = modification(hashed, "score", (1, 1, 70_000, 70_000))
    q, kv = torch.randint(50_000, 70_000, (2, 500), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    assert torch.equal(made.evaluate(torch.zeros(500), 0, 0, q, kv), hashed(torch.zeros(500), 0, 0, q, kv))


def test_lanes_that_belong_to_no_score_divide_by_anything():
    """Eager execution raises; a body yields something, and nothing traps."""
    divisor = torch.tensor([3, -1, 0, -(2**31)], dtype=torch.int32)
    made = modification(lambda s, b, h, q, kv: s + q % divisor[kv] + q // divisor[kv], "score", (1, 1, 5, 4))
    q = torch.tensor([-(2**31), 5], dtype=torch.int32).reshape(-1, 1)
    got = made.evaluate(torch.zeros(2, 4), 0, 0, q, torch.arange(4).reshape(1, -1))
    with pytest.raises((ZeroDivisionError, RuntimeError)):
        _ = q // divisor
    where = torch.tensor([0, 1, 3])
    torch.testing.assert_close(got[1, where], (q[1] % divisor[where] + q[1] // divisor[where]).float())


@settings(max_examples=40)
@given(data=st.data())
def test_random_programs(data):
    """Programs of integers, truth values and floating point, against the same functions of whole tensors."""
    table, kind = torch.randn(4, 5), torch.tensor([3, 1, 0, 2, -1])
    steps = data.draw(st.lists(st.tuples(*[st.integers(0, 99)] * 4), min_size=1, max_size=10))

    def program(score, b, h, q, kv):
        whole = [b, h, q, kv, q - kv, kind[kv], (q * 3) % 5]
        real = [score, table[h, q], q * 0.5, torch.tanh(score)]
        truth = [q >= kv, kind[q] == h]
        for step, first, second, third in steps:
            x, y = whole[first % len(whole)], whole[second % len(whole)]
            u, v, c = real[first % len(real)], real[second % len(real)], truth[third % len(truth)]
            choice = step % 9
            if choice < 3:
                whole.append((x + y, x - y, torch.where(c, x, y))[choice])
            elif choice < 6:
                real.append((u + v, torch.where(c, u, v), u * y)[choice - 3])
            else:
                truth.append((x < y, c ^ (u > v), ~c)[choice - 6])
        return real[-1] + real[-2] + whole[-1] + torch.where(truth[-1], score, 0.0)

    check(program, "score", (2, 3, 4, 5))


# -- captured tensors -------------------------------------------------------------------------------------------------


def test_subscripts_are_proved_where_sizes_show_them_in_range():
    """With sizes a relative bias is a plain load; without, it is brought into range."""
    table = torch.randn(2, 9)

    def relative(s, b, h, q, kv):
        return s + table[h, q - kv + 4]

    texts = [str(modification(relative, "score", sizes)) for sizes in ((1, 2, 5, 5), (1, 2, 6, 5), None)]
    assert "load captured0[9*h - kv + q + 4]" in texts[0] and "minimum" not in texts[0]
    assert all("minimum" in text for text in texts[1:])


def test_no_subscript_leaves_the_tensor():
    """Whatever is in memory and whatever the subscripts are, loads stay inside: what a visible score must not do, and
    what a lane without a score does all the time."""
    table, data = torch.arange(5.0), torch.tensor([4, -5, 5, 99, -6, -99, 2**40, -(2**40)])
    made = modification(lambda s, b, h, q, kv: s + table[data[q]] + table[q - 3], "score", None)
    places = torch.arange(-3, 12)
    found = made.evaluate(torch.zeros(15), 0, 0, places, 0)
    assert bool(((found >= 0) & (found <= 8)).all())
    with pytest.raises(IndexError):
        _ = table[data]


def test_strides_are_those_of_the_tensor():
    whole = torch.arange(60.0).reshape(6, 10)
    for bias in (whole.t(), whole[::2, 1::3], whole[1].expand(6, 10), whole.as_strided((2, 3), (7, 2))):
        check(lambda s, b, h, q, kv, bias=bias: s + bias[q, kv], "score", (1, 1, *bias.shape))


def test_views_of_captured_tensors_cost_nothing():
    bias = torch.randn(3, 4, 2)
    made = check(
        lambda s, b, h, q, kv: s + bias.permute(2, 0, 1)[0][q, kv] + bias[1].reshape(-1)[kv], "score", (1, 1, 3, 4)
    )
    assert [c.path for c in made.captured] == ["bias"]


class Bias(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.weight[h]

    def method(self, score, b, h, q_idx, kv_idx):
        return score * self.weight[h]


class Slopes:
    def __init__(self):
        self.slopes = torch.randn(3)

    def __call__(self, score, b, h, q_idx, kv_idx):
        return score * self.slopes[h]


def uses_globals(score, b, h, q_idx, kv_idx):
    return score * SLOPE + TABLE[q_idx]


def with_defaults(score, b, h, q_idx, kv_idx, slope=0.25):
    return score * slope


@pytest.mark.parametrize("name", ["module", "method", "object", "globals", "default", "partial", "nested", "no_grad"])
def test_where_captured_tensors_may_live(name):
    bias, inner = torch.randn(3), {"table": [torch.randn(3)]}

    def nested(s, b, h, q, kv):
        return s + inner["table"][0][h]

    @torch.no_grad()
    def no_grad(s, b, h, q, kv):
        return s + bias[h]

    functions = {
        "module": Bias(), "method": Bias().method, "object": Slopes(), "globals": uses_globals, "nested": nested,
        "default": with_defaults, "partial": functools.partial(lambda t, k, s, b, h, q, kv: s * t[h] + k, bias, 3),
        "no_grad": no_grad,
    }  # fmt: skip
    function = functions[name]
    with torch.no_grad():
        made = check(function, "score", (2, 3, 4, 4))
    assert len(made.captured) == (0 if name == "default" else 1)
    if name in ("module", "method"):
        assert made.captured[0].requires_grad


def test_tensors_the_function_makes_are_captured_with_their_values():
    made = check(lambda s, b, h, q, kv: s * torch.tensor([0.5, 0.25, 0.125])[h], "score", (1, 3, 2, 2))
    assert torch.equal(made.captured[0].tensor, torch.tensor([0.5, 0.25, 0.125]))


def test_tensors_are_held_weakly():
    def make():
        bias = torch.randn(3)
        return lambda s, b, h, q, kv: s + bias[h]

    function = make()
    made = modification(function)
    assert made.captured[0].tensor.shape == (3,)
    del function
    gc.collect()
    with pytest.raises(CaptureError, match="'bias' that a modification reads no longer exists"):
        _ = made.captured[0].tensor


def test_replay_numbers_tensors_after_those_that_stand_before():
    bias, slope = torch.randn(3), torch.randn(3)
    made = modification(lambda s, b, h, q, kv: s * slope[h] + bias[h])
    asked = []

    class Noting(Evaluator):
        def load(self, buffer, index):
            asked.append(buffer)
            return torch.ones(())

    made.replay(Noting({}, {"h": 0}), torch.zeros(()), first=4)
    assert asked == ["captured4", "captured5"]


# -- keys and what is traced ------------------------------------------------------------------------------------------


def scaled_by(factor):
    return lambda s, b, h, q, kv: s * factor


def scaled_by_table(table):
    return lambda s, b, h, q, kv: s * table[h]


def test_equal_functions_have_equal_keys_and_are_traced_once(monkeypatch):
    traced = []
    original = module.trace_modification
    monkeypatch.setattr(module, "trace_modification", lambda *a: traced.append(a) or original(*a))
    module.clear()
    keys = {modification(scaled_by(0.5)).key for _ in range(4)}
    assert len(keys) == 1 and len(traced) == 1
    tables = [torch.randn(3) for _ in range(3)]
    functions = [scaled_by_table(table) for table in tables]
    made = [modification(function) for function in functions]
    assert len({m.key for m in made}) == 1 and len(traced) == 2
    assert [m.captured[0].tensor is table for m, table in zip(made, tables, strict=True)] == [True] * 3


def test_the_key_changes_with_whatever_the_kernel_depends_on(monkeypatch):
    def keyed(table, kind="score", sizes=None, dtype=torch.float32):
        return modification(lambda s, b, h, q, kv: s + table[h], kind, sizes, dtype).key

    base = keyed(torch.ones(3))
    assert base == keyed(torch.zeros(3))  # values are data
    others = [
        keyed(torch.ones(4)), keyed(torch.ones(3, dtype=torch.float64)), keyed(torch.ones(6)[::2]),
        keyed(torch.ones(3, requires_grad=True)), keyed(torch.ones(3), sizes=(1, 3, 2, 2)),
        keyed(torch.ones(3), dtype=torch.float64),
    ]  # fmt: skip
    assert len({base, *others}) == len(others) + 1
    numbers = [0.5, 0.25, 1, 1.0, True, 0.0, -0.0, math.nan, math.inf]
    assert len({modification(scaled_by(n)).key for n in (0.5, 0.25, 2.0, 0.0, -0.0, math.nan, math.inf)}) == 7
    assert all(hash(modification(scaled_by(n)).key) is not None for n in numbers)
    assert modification(alibi, sizes=(1, 2, 8, 8)).key != modification(alibi, sizes=(1, 2, 8, 9)).key  # ranges
    before = modification(uses_globals).key
    monkeypatch.setitem(globals(), "SLOPE", 0.75)
    assert modification(uses_globals).key != before


def test_a_name_bound_to_another_tensor_is_seen(monkeypatch):
    first = modification(uses_globals)
    monkeypatch.setitem(globals(), "TABLE", torch.full((6,), 7.0))
    second = modification(uses_globals)
    assert second.captured[0].tensor is TABLE and second.key == first.key


def test_the_sample_leaves_no_trace():
    """The sizes of a sample are no part of the body, random states are where they were, and memory is not N x M."""
    state = torch.get_rng_state()
    made = modification(lambda b, h, q, kv: (q - kv).abs() < 512, "mask", (4, 64, 1 << 20, 1 << 20))
    assert torch.equal(torch.get_rng_state(), state)
    assert [symbol.upper for symbol in made.symbols] == [3, 63, (1 << 20) - 1, (1 << 20) - 1]
    assert (
        made.evaluate(None, 0, 0, 1_000_000, 999_500).item()
        and not made.evaluate(None, 0, 0, 1_000_000, 999_000).item()
    )
    assert made.dims == ("q", "kv") and modification(lambda b, h, q, kv: q > b, "mask").dims == ("b", "q")


def test_every_number_of_things_traced_is_kept_within_bounds(monkeypatch):
    module.clear()
    monkeypatch.setattr(module, "_LARGEST", 3)
    for number in range(6):
        modification(scaled_by(float(number)))
    assert len(module._TRACED) <= 3


# -- refusals ---------------------------------------------------------------------------------------------------------

BIAS = torch.randn(4, 4)
PAIR = torch.randn(2)

REFUSED = {
    "a sum": (lambda s, b, h, q, kv: s - s.sum(-1, keepdim=True), "uses sum, which is no function of one score"),
    "a softmax": (lambda s, b, h, q, kv: s.softmax(-1), "uses _softmax"),
    "a product": (lambda s, b, h, q, kv: s @ s, "which is no function of one score"),
    "a scan": (lambda s, b, h, q, kv: s.cumsum(-1), "uses cumsum"),
    "sorting": (lambda s, b, h, q, kv: s.sort(-1).values, "uses sort"),
    "a transposition": (lambda s, b, h, q, kv: s + q.transpose(2, 3), "uses transpose"),
    "a slice": (lambda s, b, h, q, kv: s[..., :1], "uses slice"),
    "turning round": (lambda s, b, h, q, kv: s.flip(-1), "uses flip"),
    "another shape": (lambda s, b, h, q, kv: s.reshape(-1), "uses view"),
    "squeezing": (lambda s, b, h, q, kv: s + q.squeeze(), "uses squeeze"),
    "a triangle": (lambda s, b, h, q, kv: s.tril(), "uses tril"),
    "stacking": (lambda s, b, h, q, kv: torch.stack([s, s]).amax(0), "which is no function of one score"),
    "a branch": (lambda s, b, h, q, kv: s if (q > kv).any() else -s, "asks for the value of a tensor, bool"),
    "a number": (lambda s, b, h, q, kv: s * BIAS.max().item(), "asks for the value of a tensor"),
    "a length": (lambda s, b, h, q, kv: s / kv.shape[-1], "reads the shape of a score or subscript"),
    "a count": (lambda s, b, h, q, kv: s / s.numel(), "reads the numel of a score or subscript"),
    "random numbers": (lambda s, b, h, q, kv: s + torch.rand_like(s), "draws random numbers"),
    "dropout": (lambda s, b, h, q, kv: F.dropout(s), "draws random numbers"),
    "writing the score": (lambda s, b, h, q, kv: s.mul_(2), "writes to a tensor that it was given"),
    "writing a captured tensor": (lambda s, b, h, q, kv: s + BIAS.add_(0)[q, kv], "writes to a tensor"),
    "a whole tensor": (lambda s, b, h, q, kv: s + BIAS, r"fails for the score at position \(0, 0, 0, 0\)"),
    "a whole tensor of two": (lambda s, b, h, q, kv: s + PAIR, "combines one score with all of a captured tensor"),
    "a row": (lambda s, b, h, q, kv: s + BIAS[q], "fails for the score at position"),
    "a row of a table": (lambda s, b, h, q, kv: torch.where(BIAS[q] > 0, 1.0, 0.0), "makes more than one element"),
    "an element by two tensors": (lambda s, b, h, q, kv: s + BIAS[q, torch.arange(2)], "combines one score with all"),
    "reading the score": (lambda s, b, h, q, kv: s[b, h, q, kv], "reads a score or subscript by position"),
    "a sum of captured tensors": (lambda s, b, h, q, kv: s + BIAS.sum(0)[q], "uses sum of captured tensors"),
    "detaching": (lambda s, b, h, q, kv: s - s.detach(), "detaches what it has computed"),
    "whole numbers": (lambda s, b, h, q, kv: q - kv, "returns int32"),
    "truth values": (lambda s, b, h, q, kv: q >= kv, "returns bool"),
    "nothing": (lambda s, b, h, q, kv: None, "returns NoneType"),
    "two": (lambda s, b, h, q, kv: (s, s), "returns a container"),
    "an argument too few": (lambda s, b, h, q: s, r"does not take \(score, b, h, q_idx, kv_idx\)"),
    "a subscript out of range": (lambda s, b, h, q, kv: s + BIAS[q + 4, kv], "subscript|index|range"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_one_score_is_refused(name):
    """One clear message: what, which of the user's lines, what to do."""
    function, words = REFUSED[name]
    before = BIAS.clone()
    with pytest.raises((CaptureError, IndexError)) as caught:
        modification(function, "score", (1, 1, 4, 4))
    text = str(caught.value)
    assert re.search(words, text), text
    if isinstance(caught.value, CaptureError):
        assert "test_modification.py:" in text and "remedy: " in text and "score_mod '<lambda>'" in text
        assert len(text.splitlines()) == 3
    assert torch.equal(BIAS, before)


def test_masks_are_truth_values():
    for function, what in (
        (lambda b, h, q, kv: q - kv, "int32"),
        (lambda b, h, q, kv: q * 1.0, "float32"),
        (lambda b, h, q, kv: 1, "int"),
    ):
        with pytest.raises(CaptureError, match=f"returns {what}.*which scores take part"):
            modification(function, "mask")
    made = modification(lambda b, h, q, kv: True, "mask")
    assert bool(made.evaluate(None, 0, 0, 0, 0)) and made.dims == ()
    constant = modification(lambda s, b, h, q, kv: 0.0)
    assert float(constant.evaluate(torch.ones(()), 0, 0, 0, 0)) == 0.0


def test_what_is_no_function_or_no_kind_is_refused():
    with pytest.raises(CaptureError, match="a score_mod is a function of .score, b, h, q_idx, kv_idx., not int"):
        modification(3)
    with pytest.raises(OptionError, match="unknown kind of modification 'masks'"):
        modification(uses_globals, "masks")
    with pytest.raises(OptionError, match="scores are float32 or float64"):
        modification(uses_globals, dtype=torch.float16)
    with pytest.raises(OptionError, match="traced already"):
        modification(modification(uses_globals))


def test_the_users_own_exceptions_pass_through():
    def broken(s, b, h, q, kv):
        raise ValueError("the user's")

    with pytest.raises(ValueError, match="the user's"):
        modification(broken)


# -- what is shown ----------------------------------------------------------------------------------------------------


def alibi(score, b, h, q_idx, kv_idx):
    return score - torch.exp2(-(h + 1).to(torch.float32)) * (q_idx - kv_idx)


def test_a_modification_prints_and_draws():
    made = modification(alibi, "score", (1, 8, 64, 64))
    text = str(made)
    assert "score_mod alibi" in text and "test_modification.py" in text and "def alibi" in text
    assert "exp2(" in text and text.endswith("yield tmp12")
    assert repr(made) == "<score_mod alibi: 13 statements>"
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"] == text
    for words in ("alibi", "data-origins", "loop body", "Derivative", "captures no tensor"):
        assert words in bundle["text/html"], words
    bias = torch.randn(3, requires_grad=True)
    html = modification(lambda s, b, h, q, kv: s + bias[h])._repr_mimebundle_()["text/html"]
    assert "Captured tensors" in html and "<caption>" in html


def test_statements_know_the_lines_they_stem_from():
    made = modification(alibi)
    lines = {node.id: node.location.line for node in made.graph if node.location is not None}
    ids = {node.id for node in made.graph}
    for statement in made.body.all_statements():
        assert statement.origins and statement.origins <= ids
    reverse = made.adjoint.reverse
    assert all(s.origins <= ids for s in reverse.all_statements()) and set(lines.values())


def test_a_body_is_replayed_under_the_recorder_itself():
    """Replaying a body under the recording handler yields the body: no handler is special."""
    made = modification(alibi, "score", (1, 8, 64, 64))
    recorder = _Recorder({"score": torch.float32})
    made.replay(recorder, recorder.load("score", Expr.of(0)))
    assert [(s.operation, s.args) for s in recorder.scopes[0]] == [(s.operation, s.args) for s in made.body.statements]


def test_functions_of_an_installed_package_are_told_apart(monkeypatch):
    """Specialization takes installed software as it is; which of its functions was given still matters."""
    path = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "an_installed_package.py")
    installed = types.ModuleType("an_installed_package")
    installed.__file__ = path
    monkeypatch.setitem(sys.modules, "an_installed_package", installed)
    text = "def twice(score, b, h, q, kv):\n    return score * 2\ndef less(score, b, h, q, kv):\n    return score - 1\n"
    exec(compile(text, path, "exec"), vars(installed))
    twice, less = installed.twice, installed.less
    for function in (twice, less, functools.partial(twice), functools.partial(less)):
        wanted = function.func if isinstance(function, functools.partial) else function
        assert modification(function).name == modification(wanted).name
        (score,) = (torch.tensor([3.0]),)
        assert modification(function).evaluate(score, 0, 0, 0, 0) == wanted(score, 0, 0, 0, 0)
