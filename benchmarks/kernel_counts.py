"""How many kernels a call consists of, under staxlab and ``torch.compile``: counted, not timed.

    python -m benchmarks.kernel_counts --out benchmarks/results/kernel_counts_cpu.json

For staxlab a kernel is a generated function or a call of a library (a matrix product, a sort). For ``torch.compile``
the same is read off the code the inductor wrote: calls of generated functions and of PyTorch's operators. Its generated
functions may hold several loop nests one after the other, each a pass over memory and each waiting for all threads;
``loop_nests`` counts them. The command exits with 1 where staxlab makes more kernels than a program's ``most`` allows.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import corpus, preallocated

FORMAT = "staxlab-kernel-counts-1"

#: The most kernels some programs may need: those of the chapter's examples and what one pass over a row allows.
MOST = {
    "example_1_1": 1,
    "example_7_1": 1,
    "example_7_2": 1,
    "softmax_five_operators": 1,
    "softmax_library": 1,
    "layer_norm": 1,
    "pointwise_chain": 1,
}

#: Programs that may not need more kernels than torch.compile makes.
NO_MORE_THAN_TORCH_COMPILE = ("block",)

#: A call in the code the inductor writes: of a generated function, of a library, of an operator.
_CALL = re.compile(
    r"^\s+(?:\w+ = )?(cpp_fused\w*|cpp_\w+|triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.M
)


def count_staxlab(program: corpus.Program) -> dict[str, Any]:
    """Generated kernels and library calls of a region, of both halves of a training step together."""
    import staxlab

    function, inputs = program.instance()
    compiled = staxlab.compile(function)
    corpus.call(program, compiled, inputs)
    compilation = compiled.versions[-1].compilation
    halves = [compilation, *([compilation.backward] if program.training and compilation.backward is not None else [])]
    kernels = []
    for half in halves:
        done = preallocated.nothing_left_to_copy(half.schedule)
        kernels += [kernel for kernel in half.kernels if not done.intersection(kernel.nodes)]
    library = sum(kernel.language == "extern" for kernel in kernels)
    return {
        "kernels": len(kernels),
        "generated": len(kernels) - library,
        "library_calls": library,
        "names": [kernel.name for kernel in kernels],
    }


def count_torch_compile(program: corpus.Program) -> dict[str, Any]:
    """The same of the code the inductor generated."""
    from torch._inductor.utils import run_and_get_code

    function, inputs = program.instance()
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)
    _, codes = run_and_get_code(lambda: corpus.call(program, compiled, inputs))
    return count_in_code(codes)


def count_in_code(codes: Sequence[str]) -> dict[str, Any]:
    """Calls in modules the inductor wrote. ``loop_nests`` counts the parallel loops of the generated functions (a
    function without any is one)."""
    names, nests = [], 0
    for code in codes:
        body = code[code.rindex("def call(") :] if "def call(" in code else code
        names += _CALL.findall(body)
        functions = code.split('extern "C"')[1:]
        nests += sum(max(text.count("#pragma omp for"), 1) for text in functions)
    generated = sum(name.startswith(("cpp_", "triton_")) for name in names)
    return {
        "kernels": len(names),
        "generated": generated,
        "library_calls": len(names) - generated,
        "loop_nests": nests,
        "names": names,
    }


def run(programs: Sequence[corpus.Program], peers: Sequence[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A record per program; ``excess`` says why it has too many kernels, or is None."""
    counters = {"staxlab": count_staxlab, "torch_compile": count_torch_compile}
    records = []
    for program in programs:
        record: dict[str, Any] = {"program": program.name, "title": program.title, "group": program.group, "peers": {}}
        for peer in peers:
            try:
                record["peers"][peer] = counters[peer](program)
            except Exception as error:  # a peer's failure is a finding, not the end of the run
                record["peers"][peer] = {"problem": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        record["most"] = most(record)
        record["excess"] = excess(record)
        say(line(record))
        records.append(record)
    return records


def most(record: dict[str, Any]) -> int | None:
    """The most kernels a program may have; None where nothing is required."""
    if record["program"] in NO_MORE_THAN_TORCH_COMPILE:
        return record["peers"].get("torch_compile", {}).get("kernels")
    return MOST.get(record["program"])


def excess(record: dict[str, Any]) -> str | None:
    count, allowed = record["peers"].get("staxlab", {}).get("kernels"), record["most"]
    if allowed is None or "staxlab" not in record["peers"]:
        return None
    if count is None:
        return f"failed, at most {allowed} wanted"
    return f"{count} kernels, at most {allowed} wanted" if count > allowed else None


def line(record: dict[str, Any]) -> str:
    parts = []
    for peer, found in record["peers"].items():
        if "problem" in found:
            parts.append(f"{peer} failed ({found['problem']})")
            continue
        more = f", {found['loop_nests']} loop nests" if "loop_nests" in found else ""
        parts.append(f"{peer} {found['kernels']} ({found['library_calls']} of a library{more})")
    return f"{record['title']}: {'; '.join(parts)}" + (f"  {record['excess'].upper()}" if record["excess"] else "")


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.kernel_counts", description=__doc__.split("\n")[0])
    p.add_argument("--programs", default="all", help="names, cases, fragments, training, or all, by commas")
    p.add_argument("--peers", default="staxlab,torch_compile")
    p.add_argument("--out", type=Path, help="write JSON")
    options = p.parse_args(arguments)
    from benchmarks.records import header, save

    try:
        programs = corpus.select(options.programs)
    except KeyError as error:
        p.error(error.args[0])
    records = run(programs, [name.strip() for name in options.peers.split(",")], lambda text: print(text, flush=True))
    over = [record["program"] for record in records if record["excess"]]
    print(f"{len(over)} of {len(records)} programs have more kernels than they should")
    if options.out:
        print(f"wrote {save({**header(FORMAT), 'programs': records, 'in_excess': over}, options.out)}")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
