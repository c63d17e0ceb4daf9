"""PyTorch's operator samples: no wrong value and no crash, and most of them lowered natively.

By default one float32 sample of every second operator, contiguous and strided; with ``--slow`` eight dtypes and more
samples (``STAXLAB_OPINFO_SAMPLES=all`` for every one there is).
"""

from __future__ import annotations

import os

import pytest
import torch

from .opinfo import DTYPES, survey

pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest (the dev extra)")


def test_a_float32_sample_of_every_second_operator():
    tally, failures = survey(torch.float32, 1, every=2)
    assert not failures, "\n".join(failures)
    assert tally["native"] > 0.5 * sum(tally.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
def test_samples_of_every_operator(name):
    wanted = os.environ.get("STAXLAB_OPINFO_SAMPLES", "4")
    tally, failures = survey(DTYPES[name], None if wanted == "all" else int(wanted))
    print(name, dict(tally))
    assert not failures, "\n".join(failures)
    assert tally["native"] > 0.3 * (tally["native"] + tally["library"] + tally["fallback"])
