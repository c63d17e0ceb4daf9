"""What the cache on disk costs (Section 11.1): a hit, its parts, a lock, a write, a look at everything.

    python -m benchmarks.cache_store --out benchmarks/results/cache_store_cpu.json

A hit is reading a file, verifying it, and loading the library from a private copy. Each part is timed beside the others
in turn, and each is also given as a share of what it saves: the compiler's run for the same kernel. Eviction and
verifying all are timed on a cache of many small entries, to show that both grow in proportion to what is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import header, save

FORMAT = "staxlab-cache-store-1"


def kernel_and_library() -> tuple[Any, bytes, Any]:
    """Example 1.1's kernel without the names of its region, its library, and the compiler."""
    import torch

    import staxlab
    from staxlab.runtime import build, toolchain

    x, w = torch.randn(64, 128), torch.randn(64, 128)
    (kernel,) = staxlab.explain(lambda x, w: (torch.relu(x + w) * 2).sum(-1), x, w, strict_native=True).kernels
    bare, tools = build.anonymous(kernel), toolchain.find()
    return bare, build.compile_kernel(bare, tools), tools


def parts(readings: int) -> dict[str, Any]:
    """Seconds of each part of a hit, of a lock and of a write, in turns; and of the compiler's run, less often."""
    from staxlab.measure.timing import compare
    from staxlab.runtime import build, cache, cache_format

    kernel, library, tools = kernel_and_library()
    key = build.key_of(kernel, tools)
    cache.write_verified(key, library, title="a kernel")
    data = cache.path_of(key).read_bytes()

    def lock() -> None:
        with cache.locked(key):
            pass

    sides: dict[str, Callable[[], Any]] = {
        "key": lambda: build.key_of(kernel, tools),
        "file": lambda: cache.path_of(key).read_bytes(),
        "digest": lambda: cache_format.unpack(key, data),
        "header of the library": lambda: cache_format.library_problem(library),
        "read and verified": lambda: cache.read_library(key),
        "private copy and dlopen": lambda: build._open(library, "kernel"),
        "lock": lock,
        "write": lambda: cache.write_verified(key, library, title="a kernel"),
        "compiler": lambda: build.compile_kernel(kernel, tools),
    }
    comparison = compare(sides, readings=readings, warmup=2)
    shares = {name: comparison.ratio(faster=name, slower="compiler").to_json() for name in sides if name != "compiler"}
    return {"library_bytes": len(library), "comparison": comparison.to_json(), "compiler_over_part": shares}


def growth(sizes: Sequence[int], nbytes: int) -> dict[str, Any]:
    """Seconds to look at, list, verify and evict from a cache of n entries."""
    from time import perf_counter

    from staxlab.runtime import cache, cache_entries, cache_upkeep

    found: dict[str, Any] = {}
    for count in sizes:
        with tempfile.TemporaryDirectory(prefix="staxlab-benchmark-") as directory:
            os.environ["STAXLAB_CACHE_DIR"] = directory
            for number in range(count):
                name = "plan-" + hashlib.sha256(str(number).encode()).hexdigest()
                cache.write_verified(name, bytes(nbytes), title=f"entry {number}")
            row: dict[str, float] = {}
            for what, work in (
                ("info", cache.info), ("list", cache.browse), ("verify", cache_upkeep.verify),
                ("evict a tenth", lambda n=count: cache_entries.evict(Path(directory), n * nbytes)),
            ):  # fmt: skip
                begun = perf_counter()
                work()
                row[what] = perf_counter() - begun
            found[str(count)] = row
    return {"entry_bytes": nbytes, "seconds": found}


def table(record: dict[str, Any]) -> Any:
    """The record as a text table."""
    from staxlab.measure.tables import Table, seconds_text
    from staxlab.measure.timing import Comparison

    parts = record["parts"]
    rows = []
    for timing in Comparison.from_json(parts["comparison"]).timings:
        share = parts["compiler_over_part"].get(timing.name)
        fewer = "" if share is None else f"1/{share['median']:,.0f}"
        rows.append((*timing.row()[:4], fewer))
    notes = [
        f"{count} entries of {record['growth']['entry_bytes']:,} bytes: "
        + ", ".join(f"{what} {seconds_text(seconds)}" for what, seconds in row.items())
        for count, row in record["growth"]["seconds"].items()
    ]
    columns = ("what", "minimum", "median", "interval of the median", "of the compiler's run")
    return Table.build(f"A hit of {parts['library_bytes']:,} bytes, and its parts", columns, rows, notes)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.cache_store", description=__doc__.split("\n")[0])
    p.add_argument("--readings", type=int, default=15, help="readings per figure (default 15)")
    p.add_argument("--sizes", default="100,400,1600", help="entries of the caches that are looked at whole")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    try:
        sizes = [int(size) for size in options.sizes.split(",")]
    except ValueError:
        p.error(f"sizes are whole numbers, not {options.sizes!r}")
    if options.readings < 2 or min(sizes) < 1:
        p.error("give at least 2 readings and 1 entry")
    with tempfile.TemporaryDirectory(prefix="staxlab-benchmark-") as directory:
        os.environ["STAXLAB_CACHE_DIR"] = directory
        record = {**header(FORMAT), "parts": parts(options.readings), "growth": growth(sizes, 4096)}
    print(table(record).text())
    if options.out:
        print(f"wrote {save(record, options.out)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
