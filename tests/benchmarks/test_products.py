"""The benchmark of products: both forms are what they claim to be, the border is where a template first loses, and the
limits of lowering agree with the result file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import products
from staxlab.loops.product_limits import LIMITS, VECTOR_LIMITS

RESULT = Path(products.__file__).parent / "results" / "products_cpu.json"


@pytest.mark.parametrize("family", ["square, transposed", "8 batches", "matrix and vector", "two vectors"])
def test_a_product_is_measured_in_both_forms(family):
    entry = products.measure(family, 2, "float32", readings=2)
    assert set(entry["seconds"]) == {"eager", "library", "template"}
    batch, rows, columns, depth = entry["shape"]
    assert entry["multiplications"] == batch * rows * columns * depth
    assert len(entry["over_library"]) == 3


def test_the_border_is_below_the_first_product_that_loses():
    def entry(count: int, ratio: float, family: str = "square") -> dict:
        return {"multiplications": count, "over_library": [ratio, ratio, ratio], "family": family}

    found = [entry(8, 3.0), entry(64, 1.2), entry(100, 0.9), entry(200, 2.0), entry(300, 0.5, "two vectors")]
    assert products.border(found, vectors=False) == 64
    assert products.border([entry(8, 0.9)], vectors=False) == 0
    assert products.border([entry(8, 2.0), entry(9, 1.0)], vectors=False) == 9


def test_the_limits_of_lowering_are_those_measured():
    """Powers of two, none above the border that the result file has for its dtype."""
    record = json.loads(RESULT.read_text())
    assert record["borders"] == products.borders(record["entries"])
    for row in record["borders"]:
        dtype = getattr(torch, row["dtype"])
        assert LIMITS[dtype] <= row["matrices"] < 2 * LIMITS[dtype]
        assert VECTOR_LIMITS[dtype] <= row["vectors"]
    assert all(limit & (limit - 1) == 0 for limit in (*LIMITS.values(), *VECTOR_LIMITS.values()))


def test_the_command_writes_a_line_for_each_product(tmp_path, capsys):
    out = tmp_path / "products.json"
    command = ["--dtypes", "float32", "--families", "square;two vectors", "--sizes", "1,2", "--readings", "2"]
    assert products.main([*command, "--threads", str(torch.get_num_threads()), "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["format"] == products.FORMAT and len(record["entries"]) == 4
    assert "dtype float32" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        products.main(["--families", "triangles"])
