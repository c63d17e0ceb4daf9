"""Products of matrices of 1 to 256: the library's routine, loops of our own, and eager (Sections 6.3 and 8.3).

    python -m benchmarks.products --threads 1,2 --out products.json

Each product is compiled twice, once with the library's call in it and once as a template, and timed in turn with the
eager operator on the same tensors. Their ratio is what a template saves or loses where the product is all there is; the
library's call goes through the Python wrapper, which costs a region with a second such call no second time. The file
holds the seconds of every product and, for each dtype, the border that ``staxlab.loops.lowering.products`` goes by: up
to so many multiplications every product is faster as a template. A thread count is measured in a process of its own.
About 15 minutes for one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import staxlab
from benchmarks.peers import limit_cores
from benchmarks.records import header
from staxlab.loops import product_limits
from staxlab.measure import tolerance
from staxlab.measure.timing import compare

FORMAT = "staxlab-products-1"

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8")

#: Families of shapes: (batch, rows, columns, depth) of size n, and whether the second factor is a transposed view.
FAMILIES: dict[str, tuple[Callable[[int], tuple[int, int, int, int]], bool]] = {
    "square": (lambda n: (1, n, n, n), False),
    "square, transposed": (lambda n: (1, n, n, n), True),
    "8 rows": (lambda n: (1, 8, n, n), False),
    "8 rows, transposed": (lambda n: (1, 8, n, n), True),
    "10 columns, transposed": (lambda n: (1, n, 10, n), True),
    "tall": (lambda n: (1, 8 * n, 8, n), False),
    "deep": (lambda n: (1, 8, 8, 8 * n), False),
    "8 batches": (lambda n: (8, n, n, n), False),
    "64 batches": (lambda n: (64, n, n, n), False),
    "matrix and vector": (lambda n: (1, n, 1, n), False),
    "two vectors": (lambda n: (1, 1, 1, n * n), False),
}

#: Above so many multiplications nothing is measured: hopeless for a template, and slow for eager's integers.
MOST = 1 << 24


def make_product(family: str, n: int, dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """A function and its arguments."""
    shape, transposed = FAMILIES[family]
    batch, rows, columns, depth = shape(n)
    generator = torch.Generator().manual_seed(n)

    def tensor(*extents: int) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.randn(extents, generator=generator).to(dtype)
        return torch.randint(-9, 10, extents, generator=generator).to(dtype)

    if family == "two vectors":
        return torch.dot, (tensor(depth), tensor(depth))
    if family == "matrix and vector":
        return torch.mv, (tensor(rows, depth), tensor(depth))
    if batch > 1:
        return torch.bmm, (tensor(batch, rows, depth), tensor(batch, depth, columns))
    right = tensor(columns, depth).t() if transposed else tensor(depth, columns)
    return torch.mm, (tensor(rows, depth), right)


def compiled(function: Callable[..., Any], inputs: Sequence[torch.Tensor], limit: int) -> Callable[..., Any]:
    """The function compiled with a border of our choice: 0 for the library."""
    result = staxlab.compile(lambda *operands: function(*operands))
    borders = dict.fromkeys(product_limits.LIMITS, limit)
    with (
        mock.patch.multiple(product_limits, LIMITS=borders, VECTOR_LIMITS=borders),
        mock.patch.dict(os.environ, STAXLAB_PLANS="0"),  # what was compiled with another border is not this
    ):
        result(*inputs)
    (version,) = result.versions
    languages = {kernel.language for kernel in version.compilation.kernels}
    assert languages == ({"cpp"} if limit else {"extern"}), languages
    return result


def measure(family: str, n: int, dtype: str, readings: int) -> dict[str, Any]:
    """One product: medians in seconds, and how many times faster a template is, with an interval."""
    function, inputs = make_product(family, n, getattr(torch, dtype))
    library, template = compiled(function, inputs, 0), compiled(function, inputs, 1 << 62)
    tolerance.of_product(*inputs).require(template(*inputs), function(*inputs))
    sides = {
        "eager": lambda: function(*inputs), "library": lambda: library(*inputs), "template": lambda: template(*inputs),
    }  # fmt: skip
    timings = compare(sides, readings=readings, warmup=3)
    batch, rows, columns, depth = FAMILIES[family][0](n)
    seconds = {t.name: t.median for t in timings.timings}
    return {
        "family": family,
        "size": n,
        "dtype": dtype,
        "shape": [batch, rows, columns, depth],
        "multiplications": batch * rows * columns * depth,
        "seconds": {name: float(f"{value:.4g}") for name, value in seconds.items()},
        "over_library": _ratio(timings, "library"),
        "over_eager": _ratio(timings, "eager"),
    }


def _ratio(timings: Any, name: str) -> list[float]:
    """How many times faster a template is than another: the median of paired readings, and an interval around it."""
    ratio = timings.ratio("template", name)
    interval = ratio.interval
    ends = [interval.low, interval.high] if interval is not None else [ratio.median, ratio.median]
    return [float(f"{value:.4g}") for value in (ratio.median, *ends)]


def cases(dtypes: Sequence[str], families: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int, str]]:
    for dtype in dtypes:
        for family in families:
            for n in sizes:
                batch, rows, columns, depth = FAMILIES[family][0](n)
                if batch * rows * columns * depth <= MOST:
                    yield family, n, dtype


def border(entries: Sequence[dict[str, Any]], vectors: bool) -> int:
    """The largest measured number of multiplications up to which every product was faster as a template (0: none)."""
    chosen = [
        (e["multiplications"], e["over_library"][0])
        for e in entries
        if (e["family"] in ("matrix and vector", "two vectors")) == vectors
    ]
    slower = min((count for count, ratio in chosen if ratio < 1), default=MOST + 1)
    return max((count for count, _ in chosen if count < slower), default=0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All products on one number of threads."""
    limit_cores(options.threads)
    entries = []
    for family, n, dtype in cases(options.dtypes, options.families, options.sizes):
        entry = {"threads": options.threads, **measure(family, n, dtype, options.readings)}
        entries.append(entry)
        micro = "  ".join(f"{name} {value * 1e6:9.2f} us" for name, value in entry["seconds"].items())
        ratio = entry["over_library"][0]
        print(f"{options.threads} threads  {dtype:9} {family:24} {n:4}  {micro}  x{ratio:.2f}", file=sys.stderr)
    return {"entries": entries}


def borders(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each dtype and number of threads, the border for matrices and the one for vectors."""
    found = []
    for dtype in dict.fromkeys(e["dtype"] for e in entries):
        for threads in dict.fromkeys(e["threads"] for e in entries):
            part = [e for e in entries if e["dtype"] == dtype and e["threads"] == threads]
            found.append(
                {"dtype": dtype, "threads": threads, "matrices": border(part, False), "vectors": border(part, True)}
            )
    return found


def text(record: dict[str, Any]) -> str:
    """JSON with a line for each product."""
    rows = ",\n".join("    " + json.dumps(row, allow_nan=False) for row in record["entries"])
    head = json.dumps({key: value for key, value in record.items() if key != "entries"}, indent=2)
    return f'{head[:-2]},\n  "entries": [\n{rows}\n  ]\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(value: str) -> list[str]:
            chosen = [name.strip() for name in value.split(";" if ";" in value else ",") if name.strip()]
            unknown = [name for name in chosen if name not in known]
            if unknown:
                raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(known)}")
            return chosen

        return parse

    p = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__.split("\n")[0])
    p.add_argument("--dtypes", type=names(DTYPES), default=list(DTYPES), help=f"of {', '.join(DTYPES)}")
    p.add_argument("--families", type=names(tuple(FAMILIES)), default=list(FAMILIES), help="separated by semicolons")
    p.add_argument("--sizes", default=",".join(map(str, SIZES)), help="whole numbers, separated by commas")
    p.add_argument("--threads", default="1", help="numbers of threads, separated by commas (default 1)")
    p.add_argument("--readings", type=int, default=9, help="readings of each side (default 9)")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    threads = [int(count) for count in options.threads.split(",")]
    options.sizes = [int(size) for size in options.sizes.split(",")]
    if len(threads) == 1:
        options.threads = threads[0]
        entries = run(options)["entries"]
    else:
        entries = []
        for count in threads:
            command = [sys.executable, "-m", "benchmarks.products", "--threads", str(count), "--out", "/dev/stdout"]
            command += ["--dtypes", ",".join(options.dtypes), "--families", ";".join(options.families) + ";"]
            command += ["--sizes", ",".join(map(str, options.sizes)), "--readings", str(options.readings)]
            finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            entries += json.loads(finished.stdout)["entries"]
    record = {**header(FORMAT), "borders": borders(entries), "entries": entries}
    if options.out:
        if str(options.out) != "/dev/stdout":
            options.out.parent.mkdir(parents=True, exist_ok=True)
            print(f"writing {options.out}")
        options.out.write_text(text(record))
    if str(options.out) != "/dev/stdout":
        for row in record["borders"]:
            print(", ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
