"""One kernel of every form under NVIDIA's compute-sanitizer: wrong accesses, and races in shared memory.

    python -m benchmarks.gpu_sanitizer --out benchmarks/results/sanitizer_h200.json
    python -m benchmarks.gpu_sanitizer --tools memcheck --forms softmax     one tool, forms whose names hold a text
    python -m benchmarks.gpu_sanitizer --smoke                              without a device: Triton's interpreter

The forms are those of :mod:`benchmarks.kernel_forms`, at small sizes. For each tool one process runs them all, each
compiled, launched twice and compared with eager execution; only kernels of ours are checked (their names begin with
``triton_``). For memcheck PyTorch's caching allocator is switched off, so that every tensor is an allocation of its own
and an access beyond it is one beyond what the device knows of. 0 when nothing was found, 1 if anything was, 2 where the
tool or the device is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernel_forms import FORMS, KernelForm, placed

FORMAT = "staxlab-gpu-sanitizer-1"
ROOT = Path(__file__).resolve().parent.parent
FOUND = 9  # the exit status that the tool is told to give if it finds anything

#: What each tool is told besides, and the variables its process gets.
TOOLS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "memcheck": (("--padding", "32"), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    "racecheck": (("--racecheck-report", "all"), {}),
    "initcheck": ((), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    "synccheck": ((), {}),
}
DEFAULT = ("memcheck", "racecheck")

_SUMMARY = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: (.*)")


def tool_path() -> str | None:
    """The sanitizer: $STAXLAB_COMPUTE_SANITIZER, on PATH, or in a toolkit's usual place; None if there is none."""
    named = os.environ.get("STAXLAB_COMPUTE_SANITIZER")
    places = [named, shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"]
    return next((place for place in places if place and Path(place).exists()), None)


def chosen_forms(part: str) -> list[KernelForm]:
    """The forms whose names hold ``part``; all of them for none."""
    return [form for form in FORMS if part in form.name]


def command(tool: str, sanitizer: str, part: str) -> list[str]:
    """The command line of one checked process."""
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--kernel-regex", "kns=triton_", *TOOLS[tool][0]]
    return [sanitizer, *options, sys.executable, "-m", "benchmarks.gpu_sanitizer", "--execute", "--forms", part]


def parse(output: str) -> dict[str, Any]:
    """What a checked process said: the forms that ran and how they ended, the tool's summaries, its first findings."""
    forms = dict(re.findall(r"^form (.*): (right|wrong|failed.*)$", output, re.MULTILINE))
    findings = [line for line in output.splitlines() if line.startswith("=========") and not _SUMMARY.match(line)]
    return {"forms": forms, "summaries": _SUMMARY.findall(output), "findings": findings[:200]}


def run(tool: str, sanitizer: str, part: str, limit: float) -> dict[str, Any]:
    """One tool over the forms, in a process of its own; ``clean`` if it found nothing and every form was right."""
    began = time.monotonic()
    line = command(tool, sanitizer, part)
    process = subprocess.Popen(
        line, cwd=ROOT, env={**os.environ, **TOOLS[tool][1]}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, status = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool and what it checks
        output, status = process.communicate()[0], None
    found = parse(output)
    wanted = [form.name for form in chosen_forms(part)]
    right = [found["forms"].get(name) == "right" for name in wanted]
    clean = status == 0 and all(right) and bool(found["summaries"])
    if not clean and not found["findings"]:
        found["output"] = output[-4000:]
    seconds = round(time.monotonic() - began)
    return {"tool": tool, "command": line[:-1], "status": status, "seconds": seconds, "clean": clean, **found}


def execute(forms: Sequence[KernelForm], device: str) -> int:
    """Compile, run twice and compare each form on a device, "cpu" for Triton's interpreter: one line for each. 1 if a
    value was wrong or a form raised. The values of the interpreter are those of ``values_at``."""
    bad = 0
    for form in forms:
        try:
            said = "right" if _agrees(form, device) else "wrong"
        except Exception as error:
            said = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        bad += said != "right"
        print(f"form {form.name}: {said}", flush=True)
    return int(bad > 0)


def _agrees(form: KernelForm, device: str) -> bool:
    import staxlab

    inputs = [placed(tensor, device) for tensor in form.inputs(form.values_at or form.sizes)]
    wanted = form.function(*inputs)
    if device == "cpu":
        results = [_interpreted(form, inputs)]
    else:
        compiled = staxlab.compile(form.function, strict_native=True)
        results = [compiled(*inputs) for _ in range(2)]
        torch.cuda.synchronize()
    bounds = {"rtol": max(form.tolerance, 1e-6), "atol": form.tolerance, "equal_nan": True}
    return all(
        torch.allclose(one.double(), other.double(), **bounds)
        for result in results
        for one, other in zip(_tuple(result), _tuple(wanted), strict=True)
    )


def _interpreted(form: KernelForm, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    import staxlab
    from staxlab.codegen.triton.interpreter import interpret
    from staxlab.runtime.artifact import load

    compilation = staxlab.explain(form.function, *inputs, target="sm_90", strict_native=True)
    launchers = {k.name: lambda *tensors, kernel=k: interpret(kernel, tensors) for k in compilation.kernels}
    return load(compilation.wrapper, launchers).call(list(inputs))


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_sanitizer", description=__doc__.splitlines()[0])
    parser.add_argument("--tools", default=",".join(DEFAULT), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--forms", default="", help="only forms whose names hold this")
    parser.add_argument("--limit", type=float, default=280, help="seconds that a tool may take (default 280)")
    parser.add_argument("--execute", action="store_true", help="run the forms in this process, unchecked")
    parser.add_argument("--smoke", action="store_true", help="run the forms without a device, in Triton's interpreter")
    parser.add_argument("--out", type=Path, help="where the record goes")
    options = parser.parse_args(arguments)
    tools = [name.strip() for name in options.tools.split(",") if name.strip()]
    for name in tools:
        if name not in TOOLS:
            parser.error(f"no tool named {name!r}; tools: {', '.join(TOOLS)}")
    forms = chosen_forms(options.forms)
    if not forms:
        parser.error(f"no form's name holds {options.forms!r}; forms: {', '.join(form.name for form in FORMS)}")
    if options.smoke:
        return execute(forms, "cpu")
    if not torch.cuda.is_available():
        print("no CUDA device here; --smoke runs the forms in Triton's interpreter", file=sys.stderr)
        return 2
    if options.execute:
        return execute(forms, "cuda")
    sanitizer = tool_path()
    if sanitizer is None:
        print(
            "compute-sanitizer is not here: it comes with the CUDA toolkit (package cuda-sanitizer), and "
            "STAXLAB_COMPUTE_SANITIZER names one elsewhere",
            file=sys.stderr,
        )
        return 2
    from benchmarks import records

    record: dict[str, Any] = {**records.header(FORMAT, "cuda"), "forms": [form.name for form in forms], "tools": []}
    for name in tools:
        found = run(name, sanitizer, options.forms, options.limit)
        record["tools"].append(found)
        right = sum(said == "right" for said in found["forms"].values())
        said = "; ".join(found["summaries"]) or "no summary"
        print(f"{name}: {right} of {len(forms)} forms right, {said}, {found['seconds']} s", flush=True)
        if options.out is not None:
            records.save(record, options.out)
    return int(not all(found["clean"] for found in record["tools"]))


if __name__ == "__main__":
    sys.exit(main())
