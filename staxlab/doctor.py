"""What this machine offers the compiler, and what to install for what is missing.

The compiler needs little: Python, PyTorch, a C++ compiler. Everything else opens one more door (GPU code, drawn graphs,
notebooks), and nothing is probed until it is asked for, so a missing piece would otherwise show itself only as an error
in the middle of something. ``staxlab doctor`` asks every question at once. The answers are a table in a terminal, a
table in a notebook, and JSON for a script.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import BuildError

# "ok": it is there; "missing": limits what can be done; "problem": stops the compiler; "note": only a fact.
STATUSES = ("ok", "note", "missing", "problem")
_SYMBOL = {"ok": "+", "note": " ", "missing": "-", "problem": "!"}


@dataclass(frozen=True)
class Finding:
    """One line of the report: a piece, its status, what was found, and what to do if it is not enough."""

    piece: str
    status: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """All findings. ``healthy`` is True when nothing stops the compiler itself."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return all(finding.status != "problem" for finding in self.findings)

    def __getitem__(self, piece: str) -> Finding:
        return next(finding for finding in self.findings if finding.piece == piece)

    def to_json(self) -> str:
        return json.dumps({"healthy": self.healthy, "findings": [asdict(f) for f in self.findings]}, indent=2)

    def __str__(self) -> str:
        width = max(len(finding.piece) for finding in self.findings)
        lines = []
        for finding in self.findings:
            lines.append(f"{_SYMBOL[finding.status]} {finding.piece.ljust(width)}  {finding.found}")
            if finding.remedy:
                lines.append(f"  {' ' * width}  -> {finding.remedy}")
        problems = [finding.piece for finding in self.findings if finding.status == "problem"]
        missing = [finding.piece for finding in self.findings if finding.status == "missing"]
        lines.append("")
        if problems:
            lines.append(f"the compiler cannot work here yet: {', '.join(problems)}")
        elif missing:
            lines.append(f"the compiler works here; not available: {', '.join(missing)}")
        else:
            lines.append("everything is here")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as a table that takes its colours from the notebook's theme."""
        from .measure.tables import Table
        from .view.benchmark import table_html

        rows = [(_SYMBOL[f.status], f.piece, f.status, f.found, f.remedy) for f in self.findings]
        columns = ("", "piece", "status", "found", "to do")
        return table_html(Table.build("What this machine offers", columns, rows, text_columns=len(columns)))


def examine() -> Report:
    """Look at everything. A check that itself fails becomes a finding; this function does not raise."""
    findings: list[Finding] = []
    for name, check in CHECKS:
        try:
            findings.extend(check())
        except Exception as error:
            findings.append(Finding(name, "problem", f"could not be examined: {type(error).__name__}: {_line(error)}"))
    return Report(tuple(findings))


def _python() -> list[Finding]:
    version = platform.python_version()
    return [Finding("Python", "ok", f"{version} ({sys.executable})")]


def _torch() -> list[Finding]:
    import torch

    build = "CUDA " + torch.version.cuda if torch.version.cuda else "CPU build"
    found = f"{torch.__version__} ({build})"
    if _release(torch.__version__) < (2, 11):
        return [Finding("PyTorch", "problem", found, "pip install 'torch>=2.11'")]
    return [Finding("PyTorch", "ok", found)]


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _processor() -> list[Finding]:
    import torch

    from .options import VECTOR_BYTES, host_instruction_set

    chosen = host_instruction_set()
    bits = VECTOR_BYTES[chosen] * 8
    status = "note" if chosen != "scalar" else "missing"
    words = f"{chosen}, {bits}-bit vectors, {platform.machine()}"
    remedy = "" if status == "note" else "kernels still run, one element at a time"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = f"{torch.get_num_threads()} used by PyTorch and by generated kernels, {cores} cores available"
    return [Finding("instruction set", status, words, remedy), Finding("threads", "note", threads)]


def _entry() -> list[Finding]:
    from . import native

    if native.available:
        return [Finding("call entry", "ok", "in C: calls and results without the interpreter")]
    remedy = "with a C compiler and Python's headers: pip install --force-reinstall --no-deps staxlab (or -e .)"
    return [Finding("call entry", "missing", f"in Python, some microseconds slower: {native.reason}", remedy)]


def _compiler() -> list[Finding]:
    from .runtime import toolchain

    try:
        found = toolchain.find()
    except BuildError as error:
        return [Finding("C++ compiler", "problem", error.what, error.remedy or toolchain.REMEDY)]
    command = " ".join(found.command)
    for variable in ("STAXLAB_CXX", "CXX"):
        named = os.environ.get(variable, "").split()
        if named and shutil.which(named[0]) == found.command[0]:
            command += f", named by {variable}"
            break
    version = next(iter(found.version.splitlines()), "version unknown")
    return [Finding("C++ compiler", "ok", f"{version} ({command})"), *_openmp(found.openmp)]


def _openmp(compiler_knows_it: bool) -> list[Finding]:
    import torch

    from .runtime import toolchain

    if not torch.backends.openmp.is_available():
        return [Finding("OpenMP", "missing", "PyTorch was built without it", "kernels run on one thread")]
    if not compiler_knows_it:
        remedy = "kernels run on one thread; install g++, or clang++ with libomp"
        return [Finding("OpenMP", "missing", "the C++ compiler does not know it", remedy)]
    runtime = toolchain.openmp_runtime()
    name = os.path.basename(runtime) if runtime else "PyTorch's runtime"
    return [Finding("OpenMP", "ok", f"{name}, one pool of threads for PyTorch and generated kernels")]


def _gpu() -> list[Finding]:
    import torch

    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = sorted({torch.cuda.get_device_name(index) for index in range(count)})
        major, minor = torch.cuda.get_device_capability()
        return [Finding("GPU", "ok", f"{count} x {', '.join(names)} (sm_{major}{minor})")]
    if shutil.which("nvidia-smi"):
        remedy = "install a CUDA build of PyTorch to run kernels on it"
        return [Finding("GPU", "missing", "an NVIDIA driver, but this PyTorch cannot use it", remedy)]
    remedy = "not needed: --target sm_90 generates and compiles GPU code, and an interpreter runs it"
    return [Finding("GPU", "note", "none", remedy)]


def _package(piece: str, module: str, extra: str, purpose: str, minimum: tuple[int, ...] = ()) -> Finding:
    """Whether a Python package is installed, without importing it."""
    remedy = f"for {purpose}: pip install 'staxlab[{extra}]'"
    if not _has_module(module):
        return Finding(piece, "missing", "not installed", remedy)
    version = _version_of(module)
    if minimum and _release(version) < minimum:
        return Finding(piece, "missing", f"{version}, older than {'.'.join(map(str, minimum))}", remedy)
    return Finding(piece, "ok", version)


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version_of(module: str) -> str:
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


def _triton() -> list[Finding]:
    if sys.platform != "linux":
        return [Finding("Triton", "missing", f"not made for {sys.platform}", "GPU code can be read here, not compiled")]
    triton = _package("Triton", "triton", "gpu", "GPU code", (3, 6))
    findings = [triton]
    if triton.status == "ok":
        root = Path(importlib.util.find_spec("triton").origin).parent
        for tool, purpose in (("ptxas", "machine code"), ("cuobjdump", "showing machine code")):
            path = next(iter(sorted(root.rglob(f"bin/{tool}"))), None) or shutil.which(tool)
            if path:
                findings.append(Finding(tool, "ok", _first_line([str(path), "--version"], "release") or str(path)))
            else:
                findings.append(Finding(tool, "missing", "not found", f"for {purpose}: install the CUDA toolkit"))
    return findings


def _dot() -> list[Finding]:
    path = shutil.which("dot")
    if path:
        return [Finding("graphviz dot", "ok", _first_line([path, "-V"]) or path)]
    remedy = (
        "graphs are drawn by a simpler layout; apt install graphviz, brew install graphviz, or conda install graphviz"
    )
    return [Finding("graphviz dot", "missing", "not found", remedy)]


def _notebook() -> list[Finding]:
    wanted = ("ipywidgets", "jupyterlab", "nbconvert", "nbclient", "matplotlib", "graphviz", "mpmath", "pygments")
    missing = [module for module in wanted if not _has_module(module)]
    if missing:
        remedy = "for notebooks and plots: pip install 'staxlab[notebook]'"
        return [Finding("notebook packages", "missing", f"not installed: {', '.join(missing)}", remedy)]
    return [Finding("notebook packages", "ok", f"jupyterlab {_version_of('jupyterlab')} and the rest")]


def _grading() -> list[Finding]:
    missing = [module for module in ("nbformat", "scipy", "sympy") if not _has_module(module)]
    if missing:
        remedy = "for checking exercises: pip install 'staxlab[grading]'"
        return [Finding("grading packages", "missing", f"not installed: {', '.join(missing)}", remedy)]
    return [Finding("grading packages", "ok", f"sympy {_version_of('sympy')} and the rest")]


def _proof() -> list[Finding]:
    missing = [name for name, module in (("z3-solver", "z3"), ("mpmath", "mpmath")) if not _has_module(module)]
    if missing:
        remedy = "for proofs about float32 and errors against exact values: pip install 'staxlab[proof]'"
        return [Finding("proof packages", "missing", f"not installed: {', '.join(missing)}", remedy)]
    return [Finding("proof packages", "ok", f"z3-solver {_version_of('z3-solver')} and mpmath")]


def _backends() -> list[Finding]:
    wanted = (("onnx", "onnx"), ("onnxruntime", "onnxruntime"), ("apache-tvm", "tvm"))
    missing = [name for name, module in wanted if not _has_module(module)]
    if missing:
        remedy = "for backend='onnxrt' and 'tvm': pip install 'staxlab[backends]'"
        return [Finding("backend packages", "missing", f"not installed: {', '.join(missing)}", remedy)]
    return [Finding("backend packages", "ok", f"onnxruntime {_version_of('onnxruntime')} and the rest")]


def _kernel_cache() -> list[Finding]:
    from .runtime import cache, cache_directory

    wanted = cache.requested_directory()
    reason = writable(wanted)
    problem = f"cannot be written: {reason}" if reason else None
    if problem is None and wanted.exists():
        problem = cache_directory.distrust(wanted.resolve())
    if problem is not None:
        remedy = "kernels are compiled anew in every process; set STAXLAB_CACHE_DIR to a directory of your own"
        return [Finding("kernel cache", "missing", f"{wanted} {problem}", remedy)]
    cache.limit()  # a value that is no number of bytes is a problem
    shared = os.environ.get(cache_directory.SHARED)
    return [Finding("kernel cache", "ok", f"{wanted}" + (f", and {shared} (shared)" if shared else ""))]


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _first_line(command: list[str], containing: str = "") -> str:
    """The first non-empty line a tool prints (that contains a word), or "" if it cannot be run."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = [line.strip() for line in (result.stdout + "\n" + result.stderr).splitlines() if line.strip()]
    return next((line for line in lines if containing in line), "")


def writable(directory: Path) -> str:
    """ "" if files can be made in a directory (or in what would be made), else the reason they cannot."""
    existing = directory
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return error.strerror or str(error)


# In the order of the report: what the compiler needs first, then what opens further doors.
CHECKS = (
    ("Python", _python),
    ("PyTorch", _torch),
    ("call entry", _entry),
    ("C++ compiler", _compiler),
    ("processor", _processor),
    ("kernel cache", _kernel_cache),
    ("GPU", _gpu),
    ("Triton", _triton),
    ("graphviz dot", _dot),
    ("notebook packages", _notebook),
    ("grading packages", _grading),
    ("proof packages", _proof),
    ("backend packages", _backends),
)
