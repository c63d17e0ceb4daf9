"""The benchmark of training steps: its cases agree with eager execution in double precision; its record is whole."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from benchmarks import training

SMALL = {
    "example_5_1": (8, 512), "example_1_1": (4, 2048), "norm_gelu": (4, 1024), "cross_entropy": (6, 1000),
    "mlp": (4, 256), "convolutions": (2, 16, 8, 8), "block": (1, 8, 256), "block_dropout": (1, 8, 256),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_case_is_compiled_and_right(name, capsys):
    case = next(case for case in training.CASES if case.name == name)
    small = dataclasses.replace(case, shape=SMALL[name])
    record = training.run_case(small, ["eager", "staxlab"], readings=1, device="cpu")
    assert not record["problems"]
    counted = record["compiled"]
    assert counted["saved_bytes"] <= counted["eager_bytes"]
    if name != "block_dropout":
        assert record["errors"]["staxlab"] < 1e-4
    json.dumps(record, allow_nan=False)
    assert case.title in capsys.readouterr().out


def test_twins_for_jax_compute_the_same():
    jax = pytest.importorskip("jax")
    for case in training.CASES:
        if case.jax is None:
            continue
        small = dataclasses.replace(case, shape=SMALL[case.name])
        module, x = training._inputs(small, "cpu")
        _, results = training._xla_side(small, "cpu")
        reference = training._result(lambda x, c=small, m=module: c.loss(m, x), module, x)
        assert training.error_of(results, reference) < 1e-4, (case.name, jax.__version__)


def test_a_wrong_peer_is_reported_and_not_timed(monkeypatch):
    import staxlab

    monkeypatch.setattr(staxlab, "compile", lambda loss: Wrong(loss))
    case = dataclasses.replace(training.CASES[0], shape=(8, 512))
    record = training.run_case(case, ["eager", "staxlab"], readings=1, device="cpu")
    assert record["problems"]["staxlab"].startswith("wrong")
    assert "staxlab" not in record["times_eager"]


class Wrong:
    """A compiled function whose values are not the function's, with the record of a right one."""

    def __init__(self, loss):
        import staxlab.api

        self.loss = loss
        self.right = staxlab.api.compile(loss)

    @property
    def versions(self):
        return self.right.versions

    def __call__(self, x):
        self.right(x).backward()
        return self.loss(x) * 1.5


def test_unknown_names_are_named(capsys):
    with pytest.raises(SystemExit):
        training.main(["--case", "nothing"])
    assert "example_5_1" in capsys.readouterr().err
    assert torch.is_grad_enabled()
