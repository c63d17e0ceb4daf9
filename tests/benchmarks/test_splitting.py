"""The benchmark of split reductions: its cases decide what they are meant to show, and it says where it cannot run."""

from __future__ import annotations

import pytest
import torch

from benchmarks import splitting
from staxlab.loops.splitting import TOPIC
from staxlab.options import GPU_SPECS, Options
from tests.loops.lowered import lower, operators_of

SM90 = GPU_SPECS["sm_90"]
SMALL = [case for case in splitting.all_cases() if case.input_bytes <= 1 << 26]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases_are_split_where_their_outputs_are_few(case):
    operators = operators_of(case.function(), torch.empty(case.shape, dtype=case.dtype))
    (decision,) = [d for d in lower(operators, SM90, Options()).decisions if d.topic == TOPIC]
    assert (decision.choice > 1) == (case.shape != (8192, 2048))
    (whole,) = [d for d in lower(operators, SM90, Options(split_reductions=False)).decisions if d.topic == TOPIC]
    assert whole.choice == 1


def test_each_peer_has_a_function_of_its_own():
    case = splitting.all_cases()[0]
    assert case.function() is not case.function()


def test_the_command_line(capsys):
    assert splitting.main(["--list", "--only", "column"]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["column sum 4096x1024 float32", "column sum 65536x256 float32"]
    if not torch.cuda.is_available():
        assert splitting.main([]) == 2


@pytest.mark.gpu
def test_a_measurement_is_right_and_repeats():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = splitting.measure(splitting.SumCase("full sum", (1 << 16,), None), readings=3)
    assert found["peers"]["staxlab"]["repeats"] and found["peers"]["staxlab"]["max_error"] < 1e-6
