"""Results made beforehand: eager's out= forms, and what compilers make of a function that overwrites its results."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cases, harness, peers, preallocated

SIZE = (64, 96)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
def test_eager_overwrites_the_results_where_an_out_form_exists(case):
    inputs = case.make_inputs(SIZE, torch.float32, "cpu")
    results = preallocated.empty_like_results(case.function, inputs)
    wanted = [r.clone() for r in results]
    for result in results:
        result.fill_(7)
    run, allocating = preallocated.eager_into(case.function, inputs, results)
    for _ in range(2):  # the second call finds the results of the first
        for got, true, result in zip(run(), wanted, results, strict=True):
            assert torch.equal(got, true)
            assert allocating or got.data_ptr() == result.data_ptr()
    if case.table in ("13.1", "13.2"):
        assert not allocating


def test_an_out_form_that_copies_is_not_used():
    assert preallocated.out_form(torch.ops.aten.native_layer_norm.default) is None
    assert preallocated.out_form(torch.ops.aten.exp.default) is not None


def test_relu_has_an_equal_with_an_out_form():
    x = torch.tensor([-1.0, 0.0, 2.0, torch.nan])
    out = torch.empty(4)
    preallocated.out_form(torch.ops.aten.relu.default)(x, out=[out])
    assert torch.equal(out.nan_to_num(5.0), torch.relu(x).nan_to_num(5.0))


def test_values_are_let_go_of_after_their_last_reader():
    x, out = torch.randn(8, 3), torch.empty(8)
    run, _ = preallocated.eager_into(lambda x: ((x + 1) * 2).exp().sum(-1), [x], [out])
    assert run()[0] is out
    assert torch.equal(out, ((x + 1) * 2).exp().sum(-1))
    steps = [("a", [preallocated._Slot(0)], {}, None, [1], True), ("b", [preallocated._Slot(1)], {}, None, [2], True)]
    assert preallocated._last_use(steps, [2]) == [[0], [1]]


def test_keyword_arguments_lists_and_steps_in_place_are_repeated():
    def function(x, w):
        y = torch.cat([x, w], dim=0)
        y.add_(w[0], alpha=2.0)
        return y * 1.0

    x, w = torch.randn(3, 4), torch.randn(2, 4)
    out = torch.empty(5, 4)
    run, allocating = preallocated.eager_into(function, [x, w], [out])
    for _ in range(2):
        assert torch.equal(run()[0], function(x, w))
    assert allocating == []


def test_staxlab_fills_the_given_results():
    case = cases.select("example_7_2")[0]
    inputs = case.make_inputs(SIZE, torch.float32, "cpu")
    side = peers.PEERS["staxlab"].prepare_into(case, inputs)
    side.run()
    for got, wanted in zip(side.outputs(), case.function(*inputs), strict=True):
        assert torch.allclose(got, wanted)
    copied = side.details["bytes_copied_afterwards"]
    assert side.details["direct"] == (copied == 0)
    assert copied in (0, 2 * 4 * SIZE[0])


def test_a_function_that_forgets_a_result_is_found_out():
    forgetful = peers.Peer(
        "forgetful", "forgetful", None,
        prepare_into=lambda case, inputs: peers._overwriting(case, inputs, lambda results, *tensors: None),
    )  # fmt: skip
    settings = harness.Settings(readings=3, warmup=1, rounds=1, pause=0.0, preallocated=True, roof=False)
    result, sides = harness.prepare(
        cases.select("relu")[0], SIZE, [peers.PEERS["eager"], forgetful, peers.Peer("none", "none", None)], settings
    )
    assert list(sides) == ["eager"]
    assert result.entry("forgetful").problem.startswith("wrong")
    assert result.entry("none").problem == "missing: it cannot write into given results"
