"""PyTorch's own operator samples on a CUDA device, against eager execution there (:mod:`staxlab.measure.survey`).

    pytest tests/gpu/test_opinfo_cuda.py --slow -n 16            several processes compile, one device runs
    STAXLAB_OPINFO_SECONDS=300 STAXLAB_OPINFO_SAMPLES=8 pytest ...

Each test is a part of the database in one dtype, so that processes share the work. A part has so many seconds
(STAXLAB_OPINFO_SECONDS, by default 120); the operators it did not come to are named in a warning, never passed over in
silence. The samples of an operator are STAXLAB_OPINFO_SAMPLES, by default 2. Without a device the database is compiled
for one and run in Triton's interpreter (``tests/codegen/test_triton_opinfo.py``).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import staxlab
from staxlab.measure import survey

pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPERATORS = survey.database()
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
PARTS = 32


def surveyed(
    operators: Sequence[Any], dtype: torch.dtype, seconds: float, limit: int, device: str = "cuda"
) -> tuple[survey.Findings, list[str]]:
    """What came of the samples of ``operators`` within so many seconds, and the names of those not come to. A single
    operator is not interrupted."""
    found, left, end = survey.Findings(), [], time.monotonic() + seconds
    with ThreadPoolExecutor(1) as pool:  # the database inspects the whole stack for every sample
        for op in operators:
            if not survey.supported(op, dtype, device):
                continue
            if time.monotonic() >= end:
                left.append(op.full_name)
                continue
            arguments = (op, dtype, staxlab.compile, limit, False, None, device)
            found.add(pool.submit(survey.survey, *arguments).result())
    return found, left


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_samples_agree_with_eager_on_the_device(dtype, part):
    seconds = float(os.environ.get("STAXLAB_OPINFO_SECONDS", "120"))
    limit = int(os.environ.get("STAXLAB_OPINFO_SAMPLES", "2"))
    found, left = surveyed(OPERATORS[part::PARTS], dtype, seconds, limit)
    torch.cuda.synchronize()  # a kernel that went wrong says so now, not in the next test
    if left:
        warnings.warn(f"out of time before {', '.join(left)}", stacklevel=1)
    assert not found.failures, "\n".join(found.failures)
    assert found.counts["native"] > 0


NATIVE = {
    "add", "mul", "exp", "nn.functional.relu", "sum", "amax", "mean", "var", "argmax", "where", "cat", "softmax",
    "nn.functional.layer_norm", "nn.functional.gelu", "cumsum", "index_add", "gather",
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(NATIVE))
def test_the_common_operators_are_compiled_natively(name):
    found, _ = surveyed([op for op in OPERATORS if op.name == name], torch.float32, 600, 4)
    assert not found.failures, "\n".join(found.failures)
    assert set(found.counts) == {"native"}


def test_what_time_does_not_allow_is_named():
    """Runs anywhere: the same function on the CPU."""
    chosen = [op for op in OPERATORS if op.name in ("add", "exp") and not op.variant_test_name]
    found, left = surveyed(chosen, torch.float32, 600, 1, "cpu")
    assert not left and sum(found.counts.values()) == len(chosen) and not found.failures
    found, left = surveyed(chosen, torch.float32, 0, 1, "cpu")
    assert left == [op.full_name for op in chosen] and not found.counts


def test_every_operator_belongs_to_one_part():
    parts = [op.full_name for part in range(PARTS) for op in OPERATORS[part::PARTS]]
    assert sorted(parts) == sorted(op.full_name for op in OPERATORS)
