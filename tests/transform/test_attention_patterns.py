"""Attention written out: every spelling is found and means what it meant, gradients included; near misses stay."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.capture.tracer import trace
from staxlab.errors import OptionError
from staxlab.options import Options
from staxlab.transform import transform
from tests.transform.attention_runs import gradients, replaced_by, rewritten, with_gradients
from tests.transform.attention_spellings import GENERAL, LIBRARY, SPELLINGS, Spelling, inputs
from tests.transform.observation import tensors_in
from tests.view.reading import read

ROOT = Path(__file__).resolve().parents[2]
SDPA = torch.nn.functional.scaled_dot_product_attention
TOLERANCE = 1e-11  # float64: everything here is of the order of one


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def run(log, arguments):
    with torch.no_grad():
        return log.final(*arguments)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda s: s.name)
def test_a_spelling_is_attention(spelling):
    arguments = inputs(spelling.takes)
    log = rewritten(spelling.function, arguments)
    assert replaced_by(log) == [spelling.inference], log
    expected = spelling.function(*arguments)
    actual = run(log, arguments)
    close(actual, expected)
    assert actual.stride() == expected.stride()
    assert not any("softmax" == node.target_name().split(".")[-1] for node in log.final.graph.calls)


@pytest.mark.parametrize("spelling", [s for s in SPELLINGS if s.training], ids=lambda s: s.name)
def test_a_spelling_has_its_gradients(spelling):
    arguments = with_gradients(inputs(spelling.takes))
    log = rewritten(spelling.function, arguments)
    assert replaced_by(log) == [spelling.training], log
    actual, expected = log.final(*arguments), spelling.function(*arguments)
    close(actual, expected)
    upstream = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        gradients(actual, arguments, upstream), gradients(expected, arguments, upstream), strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None:
            close(one, other)


def test_every_kind_that_the_course_tells_apart():
    """Scale multiplied, divided or none; with and without a mask and dropout; the key transposed after or before; in
    inference and in training: all 48."""
    kinds = itertools.product(
        ("s = s * 0.25", "s = s / 4", ""), ("s = s + m", ""), ("p = F.dropout(p, 0.4, training=False)", ""),
        ("s = q @ k.transpose(-2, -1)", "k = k.permute(0, 1, 3, 2)\ns = q @ k"), (False, True),
    )  # fmt: skip
    seen = 0
    for scale, mask, dropout, scores, trains in kinds:
        lines = ["m = added.detach()", scores, scale, mask, "p = s.softmax(-1)", dropout, "p.matmul(v)"]
        spelling = Spelling("a kind", "q k v added", "\n".join(line for line in lines if line))
        arguments = inputs(spelling.takes)
        arguments = with_gradients(arguments) if trains else arguments
        log = rewritten(spelling.function, arguments)
        assert replaced_by(log) == [LIBRARY]
        actual, expected = log.final(*arguments), spelling.function(*arguments)
        close(actual, expected)
        if trains:
            close(*(gradients(y, arguments[:3], torch.ones_like(y)) for y in (actual, expected)))
        seen += 1
    assert seen == 48


# -- rows without a key -----------------------------------------------------------------------------------------------

ROW = torch.zeros(6, 6, dtype=torch.bool)
ROW[2] = True  # query 2 sees nothing
#: Function, what is lost, and what it becomes, in inference and in training.
LOST: dict[str, tuple] = {
    "masked_fill by data": (lambda q, k, v, lost: (q @ k.mT).masked_fill(lost, -INF).softmax(-1) @ v, "data", LIBRARY),
    "where by data": (lambda q, k, v, lost: torch.where(~lost, q @ k.mT, -INF).softmax(-1) @ v, "data", LIBRARY),
    "masked_fill, and a slope": (
        lambda q, k, v, lost: (
            (q @ k.mT - 0.1 * (torch.arange(6)[:, None] - torch.arange(6)).abs().double())
            .masked_fill(lost, -INF)
            .softmax(-1)
            @ v
        ),
        "data",
        LIBRARY,
    ),
    "added": (lambda q, k, v, lost: (q @ k.mT + lost).softmax(-1) @ v, "added", LIBRARY),
    "added with an infinity": (lambda q, k, v, lost: (q @ k.mT + lost).softmax(-1) @ v, "infinity", LIBRARY),
    "added with a NaN": (lambda q, k, v, lost: (q @ k.mT + lost).softmax(-1) @ v, "nan", LIBRARY),
    "a learned bias": (lambda q, k, v, lost: (q @ k.mT + lost).softmax(-1) @ v, "learned", LIBRARY, GENERAL),
    "by position, masked": (
        lambda q, k, v: (q @ k.mT).masked_fill(torch.ones(6, 6).triu().bool(), -INF).softmax(-1) @ v, "", LIBRARY),
    "by position, added": (
        lambda q, k, v: (q @ k.mT + torch.full((6, 6), -INF).double().triu()).softmax(-1) @ v, "", LIBRARY),
    "lowest number, data": (
        lambda q, k, v, lost: (q @ k.mT).masked_fill(lost, -1.7e308).softmax(-1) @ v, "data", LIBRARY, GENERAL),
    "softmax written out": (
        lambda q, k, v, lost: (lambda s: (lambda e: e / e.sum(-1, keepdim=True))((s - s.amax(-1, keepdim=True)).exp()))(
            (q @ k.mT).masked_fill(lost, -INF)) @ v, "data", LIBRARY),
    "values of another size": (
        lambda q, k, v, lost: (q @ k.mT).masked_fill(lost, -INF).softmax(-1) @ v[..., :5], "data", GENERAL),
}  # fmt: skip
INF = float("inf")


def with_lost_rows(kind: str) -> list[torch.Tensor]:
    arguments = inputs("q k v")
    if kind == "data":
        arguments.append(ROW)
    elif kind:
        bias = torch.zeros(6, 6, dtype=torch.float64)
        bias[2] = {"infinity": 0.0, "nan": 0.0}.get(kind, -INF)
        bias[2, 1] = {"infinity": INF, "nan": float("nan")}.get(kind, -INF)
        arguments.append(bias)
    return arguments


@pytest.mark.parametrize("name", LOST)
def test_a_row_without_a_key_is_nan_as_in_eager(name):
    function, kind, choice = LOST[name][:3]
    arguments = with_lost_rows(kind)
    log = rewritten(function, arguments)
    assert replaced_by(log) == [choice], log
    expected = function(*arguments)
    assert expected.isnan().any() or "lowest" in name
    close(run(log, arguments), expected)


@pytest.mark.parametrize("name", LOST)
def test_a_row_without_a_key_has_eagers_gradients_with_every_nan_in_its_place(name):
    function, kind, *_, choice = LOST[name]
    arguments = with_lost_rows(kind)
    for place, tensor in enumerate(arguments):
        learns = place < 3 or kind == "learned"
        arguments[place] = tensor.clone().requires_grad_(learns)
    if "lowest" in name:  # all of a row may be that number, beside which the logarithm of the row's sum is lost
        with pytest.raises(OptionError, match="its sum is lost"):
            rewritten(function, arguments)
        return
    log = rewritten(function, arguments)
    assert replaced_by(log) == [choice], log
    actual, expected = log.final(*arguments), function(*arguments)
    close(actual, expected)
    upstream = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))
    for one, other in zip(
        gradients(actual, arguments, upstream), gradients(expected, arguments, upstream), strict=True
    ):
        close(one, other)


def test_where_rows_are_lost_in_two_ways_no_nan_is_lost_in_gradients():
    """NaN may then reach more elements than eager's, never fewer, and whatever is a number is eager's."""

    def function(q, k, v, bias, hidden):
        return (q @ k.mT + bias).masked_fill(hidden, -INF).softmax(-1) @ v

    arguments = [*inputs("q k v"), with_lost_rows("added")[-1], ROW.clone()]
    arguments[4][2, 3:] = False  # query 2 loses the first three keys to the mask and the others to the bias
    arguments = with_gradients(arguments)
    log = rewritten(function, arguments)
    assert replaced_by(log) == [GENERAL]
    actual, expected = log.final(*arguments), function(*arguments)
    close(actual, expected)
    assert expected.isnan().any()
    upstream = torch.ones_like(expected)
    for one, other in zip(
        gradients(actual, arguments, upstream), gradients(expected, arguments, upstream), strict=True
    ):
        assert one.isnan()[other.isnan()].all() and other.isnan().any()
        close(one[~one.isnan()], other[~one.isnan()])


# -- near misses -------------------------------------------------------------------------------------------------------

S = "s = q @ k.mT * 0.25\n"
MISSES: dict[str, tuple[str, str, str]] = {
    "the probabilities are a result too": ("q k v", S + "p = s.softmax(-1)\n(p @ v, p)", "is read by %output"),
    "the scores are a result too": ("q k v", S + "(s.softmax(-1) @ v, s)", "is read by %output"),
    "the scores are summed as well": ("q k v", S + "s.softmax(-1) @ v + s.mean()", "is read by %mean"),
    "probabilities used twice": ("q k v", S + "p = s.softmax(-1)\np @ v + p @ k", "is read by %matmul"),
    "softmax over queries": ("q k v", S + "s.softmax(-2) @ v", "no product of two matrices"),
    "softmax over heads": ("q k v", S + "s.softmax(1) @ v", "no product of two matrices"),
    "dropout": ("q k v", S + "F.dropout(s.softmax(-1), 0.5, training=True) @ v", "draws random numbers"),
    "no maximum": ("q k v", S + "e = s.exp()\n(e / e.sum(-1, keepdim=True)) @ v", ""),
    "the sum is another's": ("q k v", S + "e = (s - s.amax(-1, keepdim=True)).exp()\n"
                             "(e / (e + 1).sum(-1, keepdim=True)) @ v", ""),
    "the maximum is another axis's": ("q k v", S + "e = (s - s.amax(-2, keepdim=True)).exp()\n"
                                      "(e / e.sum(-1, keepdim=True)) @ v", ""),
    "probabilities changed": ("q k v", S + "(s.softmax(-1) * 0.5) @ v", ""),
    "probabilities masked": ("q k v", S + "s.softmax(-1).tril() @ v", ""),
    "scores normalised": ("q k v", "s = F.layer_norm(q @ k.mT, (6,))\ns.softmax(-1) @ v", "no product"),
    "scores sorted": ("q k v", "s = (q @ k.mT).sort(-1)[0]\ns.softmax(-1) @ v", "no product"),
    "scores mixed among heads": ("q k v", "s = torch.einsum('bhqk,hg->bgqk', q @ k.mT, q[0, :, :4, 0])\n"
                                 "s.softmax(-1) @ v", "no product"),
    "no scores": ("q k v", "q[..., :6].softmax(-1) @ v", ""),
    "no product with values": ("q k v", S + "s.softmax(-1).sum(-2)", ""),
    "written to afterwards": ("q k v", S + "o = s.softmax(-1) @ v\nv.add_(1)\no", "written to"),
    "a mask written to after it was made": ("q k v", "m = torch.ones(6, 6)\nm[2, 1] = 0\nhidden = m == 0\n"
                                            "(q @ k.mT).masked_fill(hidden, -inf).softmax(-1) @ v", "written to"),
    "positions written to before they are compared": ("q k v", "i = torch.arange(6)\ni[0] = 3\n"
                                                      "s = (q @ k.mT).masked_fill(i > i[:, None], -inf)\n"
                                                      "s.softmax(-1) @ v", "written to"),
    "a factor after it": ("q3 k3 v3", "p = (q3 @ k3.mT).softmax(-1)\n"
                          "torch.baddbmm(torch.empty(8, 6, 8).double(), p, v3, beta=0, alpha=2.0)", ""),
    "something added to it": ("q3 k3 v3", "p = (q3 @ k3.mT).softmax(-1)\ntorch.baddbmm(q3, p, v3)", ""),
    "hidden, and then negated": ("q k v hidden", "s = (-(q @ k.mT)).masked_fill(hidden, -inf)\n"
                                "(-s).softmax(-1) @ v", "turned into something else"),
    "hidden with infinity": ("q k v hidden", "(q @ k.mT).masked_fill(hidden, inf).softmax(-1) @ v", "turned into"),
    "rounded between": ("q k v", S + "s.float().softmax(-1).double() @ v", "float32"),
    "a logarithm of large scores": ("q k v bias", "s = q @ k.mT + bias\n"
                                    "(s - s.logsumexp(-1, keepdim=True)).exp() @ v", "does not sum to one"),
    "one key": ("q k v", "(q @ k[:, :, :1].mT).softmax(-1) @ v[:, :, :1]", "no product"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_stay_as_they_are(name):
    takes, text, reason = MISSES[name]
    spelling = Spelling(name, takes, text)
    if reason:
        with pytest.raises(OptionError, match=f"attention='require'(.|\n)*{reason}"):
            rewritten(spelling.function, inputs(takes))
    log = rewritten(spelling.function, inputs(takes), mode="auto" if reason else "require")
    assert replaced_by(log) == [] and {d.choice for d in log.decisions} == ({"as written"} if reason else set())
    torch.manual_seed(5)
    actual = run(log, inputs(takes))
    torch.manual_seed(5)
    expected = spelling.function(*inputs(takes))
    for one, other in zip(tensors_in(actual), tensors_in(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


#: Hidden with a low number by one mask and with minus infinity by another: of some rows nothing else is left, and there
#: the low number is what counts.
TWICE_HIDDEN = [
    "s = s.masked_fill(i > i[:, None] + 1, low)\ns = s.masked_fill(i < 3, -inf)",
    "s = s.masked_fill(i < 3, -inf)\ns = s.masked_fill(i > i[:, None] + 1, low)",
    "s = s.masked_fill(i > i[:, None] + 1, low) + torch.full((6, 6), -inf).double().tril(-1).masked_fill(i >= 3, 0.0)",
    "s = (s + added).masked_fill(i > i[:, None], low)",
    "s = s.masked_fill(i > i[:, None], low) + added",
    "s = s.masked_fill(i > i[:, None], low).masked_fill(hidden, -inf)",
    "s = s.masked_fill(hidden, low).masked_fill(i > i[:, None], -inf)",
    "s = s.masked_fill(i > i[:, None], low).masked_fill(i[:, None] + i > 6, low)",
]


@pytest.mark.parametrize("number", range(len(TWICE_HIDDEN)))
@pytest.mark.parametrize("low", ["-1e300", "-1e4", "torch.finfo(s.dtype).min"])
def test_a_row_that_is_hidden_in_two_ways(number, low):
    lines = ["i = torch.arange(6)", "s = q @ k.mT", TWICE_HIDDEN[number].replace("low", low), "s.softmax(-1) @ v"]
    spelling = Spelling("hidden twice", "q k v added hidden", "\n".join(lines))
    for trains in (False, True):
        arguments = inputs(spelling.takes)
        arguments[3][:, :, 1] = -INF
        arguments[4][1] = True
        if trains:
            arguments = [*with_gradients(arguments[:3]), *arguments[3:]]
        try:
            log = rewritten(spelling.function, arguments)
        except OptionError as refused:  # gradients of a row of nothing but large numbers are not made from one number
            assert trains and "its sum is lost" in str(refused)
            continue
        actual, expected = log.final(*arguments), spelling.function(*arguments)
        close(actual, expected)
        if trains:
            found = (gradients(y, arguments, torch.ones_like(y)) for y in (actual, expected))
            for one, other in zip(*found, strict=True):
                assert one.isnan()[other.isnan()].all()
                close(one[~one.isnan()], other[~one.isnan()])


KEYWORDS = [
    "torch.softmax(input=q @ k.mT, dim=-1) @ v",
    "(q @ torch.transpose(input=k, dim0=-2, dim1=-1)).softmax(dim=-1) @ v",
    "(q @ k.mT).masked_fill(mask=hidden, value=-inf).softmax(-1) @ v",
    "s = q @ k.mT\ntorch.where(condition=hidden, input=s * 0.5, other=s).softmax(-1) @ v",
    "torch.exp(input=F.log_softmax(q @ k.mT, -1)) @ v",
    "torch.exp(F.log_softmax(input=q @ k.mT, dim=-1)) @ v",
    "s = q @ k.mT\ne = torch.exp(input=s - torch.amax(input=s, dim=-1, keepdim=True))\n"
    "(e / torch.sum(input=e, dim=-1, keepdim=True)) @ v",
    "i = torch.arange(start=1, end=7)\n(q @ k.mT).masked_fill(i[:, None] < 3, -2.0).softmax(-1) @ v",
    "m = torch.tril(input=torch.ones(6, 6), diagonal=1)\n(q @ k.mT).masked_fill(m == 0, -inf).softmax(-1) @ v",
    "s = q @ k.mT\n(s + hidden.type_as(s) * -3).softmax(-1) @ v",
    "s = q @ k.mT\nb = torch.ones(2, 4, 6, 6).type_as(s)\n(s * b).softmax(-1) @ v",
    "torch.matmul(input=(q @ k.mT).softmax(-1), other=v)",
    "torch.einsum('bhqk,bhkd->bhqd', [(q @ k.mT).softmax(-1), v])",
    "s = torch.add(input=q @ k.mT, other=hidden.double(), alpha=-3)\ns.softmax(-1) @ v",
    "s = torch.add(q @ k.mT, hidden.double(), alpha=-3)\ns.softmax(-1) @ v",
    "s = torch.clamp(input=q @ k.mT, min=-1.0, max=torch.tensor(1.0).double())\ns.softmax(-1) @ v",
    "s = (q @ k.mT).view_as(torch.ones(2, 4, 6, 6))\ns.softmax(-1) @ v",
    "(torch.zeros(2, 4, 6, 6).double().view_as(q @ k.mT) + q @ k.mT).softmax(-1) @ v",
]


@pytest.mark.parametrize("number", range(len(KEYWORDS)))
def test_unusual_calls_are_taken_or_left_and_never_mistaken(number):
    spelling = Spelling("unusual", "q k v hidden", KEYWORDS[number])
    for trains in (False, True):
        arguments = inputs(spelling.takes)
        arguments = with_gradients(arguments) if trains else arguments
        try:
            log = rewritten(spelling.function, arguments)
        except OptionError:
            log = rewritten(spelling.function, arguments, mode="auto")
        close(log.final(*arguments), spelling.function(*arguments))


# -- which form, and whether it is worth it ----------------------------------------------------------------------------


def plain(q, k, v):
    return (q @ k.mT * 0.25).softmax(-1) @ v


def decided(function, *arguments, **more):
    (decision,) = rewritten(function, list(arguments), mode="auto", **more).decisions
    return decision


def test_small_scores_stay_where_they_are():
    tiny, larger = (torch.randn(1, 2, length, 16) for length in (64, 256))
    assert decided(plain, tiny, tiny, tiny).choice == "as written"
    assert "nearest cache" in decided(plain, tiny, tiny, tiny).reason
    decision = decided(plain, larger, larger, larger)
    assert decision.choice == LIBRARY and dict(decision.inputs)["written out"] == 4 * 2 * 256 * 256 * 4
    assert replaced_by(rewritten(plain, [tiny, tiny, tiny])) == [LIBRARY]


def test_a_gradient_that_is_a_matrix_of_scores_is_left_to_the_program_on_a_cpu():
    q, bias = torch.randn(1, 2, 256, 16, requires_grad=True), torch.randn(2, 256, 256)

    def biased(q, bias):
        return (q @ q.mT * 0.25 + bias).softmax(-1) @ q

    def sloped(q, slope):
        i = torch.arange(256)
        return (q @ q.mT * 0.25 - slope * (i[:, None] - i).abs()).softmax(-1) @ q

    assert decided(biased, q, bias).choice == LIBRARY
    assert "added up one by one" in decided(biased, q, bias.requires_grad_()).reason
    assert decided(sloped, q, torch.rand(2, 1, 1, requires_grad=True)).choice == GENERAL


def test_scores_that_are_smaller_than_the_result_stay_where_they_are():
    q, k = torch.randn(1, 2, 4096, 64), torch.randn(1, 2, 8, 64)
    decision = decided(plain, q, k, k)
    assert decision.choice == "as written" and "more" in decision.reason
    facts = dict(decision.inputs)
    assert facts["written out"] == 4 * 2 * 4096 * 8 * 4 < facts["rewritten"] == 2 * 2 * 4096 * 64 * 4


def test_the_option_switches_it_off_and_dynamic_mode_leaves_it_alone():
    q = torch.randn(1, 2, 256, 16)
    for options in (Options(attention="off"), Options(dynamic=True)):
        log = transform(trace(plain, (q, q, q)), options)
        assert replaced_by(log) == [] and not log.decisions


def test_without_the_operator_a_function_of_the_score_stays_as_it_is():
    q = torch.randn(1, 2, 256, 16)

    def capped(q, k, v):
        return (torch.tanh(q @ k.mT / 30) * 30).softmax(-1) @ v

    assert "not at hand" in decided(capped, q, q, q, general=None).reason
    assert decided(capped, q, q, q).choice == GENERAL


def test_a_causal_mask_is_a_flag_and_a_window_is_not():
    def causal(q, k, v):
        i = torch.arange(q.shape[-2])
        return (q @ k.mT).masked_fill(i[:, None] < i, -INF).softmax(-1) @ v

    def window(q, k, v):
        i = torch.arange(q.shape[-2])
        return (q @ k.mT).masked_fill((i[:, None] - i).abs() > 2, -INF).softmax(-1) @ v

    def shifted(q, k, v):
        i = torch.arange(q.shape[-2])
        return (q @ k.mT).masked_fill(i[:, None] + 1 < i, -INF).softmax(-1) @ v

    arguments = inputs("q k v")
    for function, flag in ((causal, True), (window, False), (shifted, False)):
        (call,) = [n for n in rewritten(function, arguments).final.graph.calls if n.target is SDPA]
        assert ("is_causal" in call.kwargs) == flag == ("attn_mask" not in call.kwargs)
        assert not any(n.target == "amax" for n in rewritten(function, arguments).final.graph.calls)  # proved


def test_grouped_queries_read_the_keys_that_they_share():
    for name in ("keys repeated for groups of queries", "keys expanded for groups of queries"):
        spelling = next(s for s in SPELLINGS if s.name == name)
        final = rewritten(spelling.function, inputs(spelling.takes)).final
        (call,) = [node for node in final.graph.calls if node.target is SDPA]
        assert call.kwargs["enable_gqa"] and call.args[1].val.shape[1] == 2
        assert not any("repeat" in node.target_name() or "expand" in node.target_name() for node in final.graph.calls)


def test_the_log_shows_both_sides():
    log = rewritten(plain, inputs("q k v"))
    assert "recognise attention" in str(log) and "+ %scaled_dot_product_attention" in str(log)
    (applied,) = [a for r in log.changes if r.name == "ReplaceAttention" for a in r.applied]
    assert len(applied.before) == 4 and applied.origins >= {n.id for n in log.initial.graph.calls} - {3}
    page = read(view.html(log))
    assert "Attention that is written out" in page.text and "a scale and nothing else" in page.text


def test_the_table_of_spellings_is_fresh_and_has_the_kinds_of_the_course():
    specification = importlib.util.spec_from_file_location("build_attention", ROOT / "docs/build_attention_patterns.py")
    builder = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(builder)
    assert (ROOT / "docs" / "attention_patterns.md").read_text() == builder.page(), "stale: run `make docs`"
    kinds = {builder.kind(spelling) for spelling in SPELLINGS}
    assert len(SPELLINGS) >= 30 and {"beyond", "divided, key transposed after"} <= kinds
    assert any("mask added" in kind for kind in kinds) and any("dropout" in kind for kind in kinds)


@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_rows_of_one_large_number_have_eagers_gradients(low):
    """A row that is hidden whole by a finite number has uniform probabilities. Made anew from the one number that is
    kept of a row, each would be 1: such a program stays as it is written where it learns."""
    hidden = torch.rand(2, 1, 256, 256, generator=torch.Generator().manual_seed(0)) > 0.5
    hidden[:, :, 7] = True

    def padded(q, k, v):
        return torch.softmax((q @ k.mT / 8).masked_fill(hidden, low), -1) @ v

    shape = (2, 4, 256, 64)
    given = [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    assert len(replaced_by(rewritten(padded, given))) == 1
    close(staxlab.compile(padded)(*given), padded(*given))
    arguments, again = with_gradients(given), with_gradients(given)
    found, expected = staxlab.compile(padded)(*arguments), padded(*again)
    upstream = torch.ones_like(expected)
    both = gradients(found, arguments, upstream), gradients(expected, again, upstream)
    for one, other in zip(*both, strict=True):
        close(one, other)
