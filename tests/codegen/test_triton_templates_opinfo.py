"""PyTorch's own samples of product operators, by templates, in Triton's interpreter: inputs nobody here wrote."""

from __future__ import annotations

import pytest
import torch

import staxlab

pytest.importorskip("triton")
pytest.importorskip("expecttest")

from tests.codegen.test_triton_opinfo import check, operators, samples

NAMES = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "__rmatmul__", "mv", "addmv", "dot", "vdot", "inner", "einsum",
    "nn.functional.linear", "nn.functional.bilinear", "linalg.multi_dot", "linalg.matrix_power", "tensordot",
    "linalg.vecdot",
)  # fmt: skip
#: What eager rounds more than once on a CPU, or has no template (a product rounded after each matrix of its batch).
ROUNDED_BETWEEN = ("addmv", "addbmm", "linalg.matrix_power")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("choice", ["template", "template-tma"])
@pytest.mark.parametrize("name", NAMES)
def test_samples(monkeypatch, name, choice):
    plain = staxlab.explain
    monkeypatch.setattr(staxlab, "explain", lambda *a, **k: plain(*a, **k, options={"matmul": choice}))
    op = operators()[name]
    dtypes = (torch.float32,) if name in ROUNDED_BETWEEN else (torch.float32, torch.bfloat16)
    compared = [check(op, sample) for dtype in dtypes for sample in samples(op, dtype, 3)]
    assert any(compared)
