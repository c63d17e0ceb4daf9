"""Finding the C++ compiler and knowing exactly which one it is (Section 11.1).

A content-addressed cache is sound only if its key covers everything the artifact depends on (Proposition 11.1), and the
compiler is one of those things. Its *identity* is what ``--version`` prints, the machine it compiles for, and what its
assembler and linker say of themselves; of a compiler that is a script, its text as well. Asking costs processes, so the
answers are remembered on disk under the executable's path, size and modification time: a warm start asks nobody. The
headers of the system are no part of it: generated kernels include none (:func:`.build.key_of` reads what other sources
include).

The OpenMP runtime is part of the picture too. PyTorch has already loaded one; kernels must use the very same, or two
pools of threads would fight over the cores. Its file is found among the process's loaded libraries and linked by path,
so that whatever its name (CUDA wheels rename theirs) there is one pool.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import BuildError
from . import cache

#: Every kernel is compiled so. What a kernel's meaning or instruction set needs comes with the kernel.
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti")

REMEDY = (
    "install g++ or clang++ through your system (Debian and Ubuntu: apt install g++; macOS: xcode-select --install), "
    "or `pip install ziglang`, or use backend='aot_eager', which needs no compiler"
)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: the command that starts it, what it says it is, and whose OpenMP runtime it generates calls for:
    "gnu", "llvm", or "" if it knows no OpenMP."""

    command: tuple[str, ...]
    version: str
    openmp: str
    target: str = ""  # the machine: x86_64-linux-gnu
    helpers: str = ""  # the versions of the assembler and the linker that it starts
    script: str = ""  # SHA-256 of the command's file if that is a script, which may add flags and say nothing of it

    @property
    def identity(self) -> str:
        """What the cache key folds in: the version text, machine, assembler and linker, a script's content, and the
        arguments every call is given, but not the path, so that equal compilers share artifacts."""
        return "\0".join((self.version, self.target, self.helpers, self.script, *self.command[1:]))


def candidates() -> list[tuple[str, ...]]:
    """Commands that may be C++ compilers, in the order they are tried."""
    found: list[tuple[str, ...]] = []
    for variable in ("STAXLAB_CXX", "CXX"):
        value = os.environ.get(variable)
        if value:
            parts = tuple(value.split())
            path = shutil.which(parts[0])
            if path:
                found.append((path, *parts[1:]))
            elif variable == "STAXLAB_CXX":
                raise BuildError(f"STAXLAB_CXX names {value!r}, which is not an executable", remedy=REMEDY)
    for name in ("g++", "clang++"):
        path = shutil.which(name)
        if path:
            found.append((path,))
    if _has_ziglang():
        found.append((sys.executable, "-m", "ziglang", "c++"))
    return found


def _has_ziglang() -> bool:
    import importlib.util

    return importlib.util.find_spec("ziglang") is not None


@lru_cache(maxsize=8)
def _find(commands: tuple[tuple[str, ...], ...]) -> Toolchain:
    complaints = []
    for command in commands:
        try:
            return _identify(command)
        except (OSError, subprocess.SubprocessError, BuildError) as error:
            complaints.append(f"{' '.join(command)}: {error}")
    tried = "; ".join(complaints) or "no compiler is on PATH"
    raise BuildError(f"no working C++ compiler was found ({tried})", remedy=REMEDY)


def find() -> Toolchain:
    """The compiler to use: $STAXLAB_CXX, $CXX, g++, clang++, or the ziglang wheel. BuildError if there is none."""
    return _find(tuple(candidates()))


def clear() -> None:
    """Forget what was found in this process."""
    _find.cache_clear()
    openmp_runtime.cache_clear()


#: Variables that let a compiler start another assembler or linker.
_REDIRECTIONS = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "PATH")


def _fingerprint(command: tuple[str, ...]) -> str:
    """Names an executable without starting it: path, size and modification time of everything the command names, and
    the variables by which it finds its assembler."""
    parts = [*command]
    for part in command:
        path = Path(part)
        if path.is_absolute() and path.exists():
            status = path.resolve().stat()
            parts += [str(path.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    parts += [f"{name}={os.environ[name]}" for name in _REDIRECTIONS if name in os.environ]
    if "ziglang" in command:
        import importlib.metadata

        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(importlib.metadata.version("ziglang"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _identify(command: tuple[str, ...]) -> Toolchain:
    name = f"compiler-{_fingerprint(command)}.json"
    known = cache.read_verified(name)
    if known is not None:
        try:
            facts = json.loads(known)
            if facts["openmp"] in ("gnu", "llvm", ""):
                return Toolchain(command, **{name: str(facts[name]) for name in _FACTS})
        except (ValueError, KeyError, TypeError):
            pass
    version = _run([*command, "--version"]).strip()
    target, helpers = _said([*command, "-dumpmachine"]), _helpers(command)
    toolchain = Toolchain(command, version, _openmp_calls(command), target, helpers, _script(command[0]))
    facts = {fact: getattr(toolchain, fact) for fact in _FACTS} | {"command": list(command)}
    cache.write_verified(name, json.dumps(facts).encode(), title=_first_line(version))
    return toolchain


_FACTS = ("version", "openmp", "target", "helpers", "script")


def _script(file: str) -> str:
    """The digest of an executable that is a script, "" for any other."""
    try:
        with open(file, "rb") as opened:
            content = opened.read(2)
            content += opened.read() if content == b"#!" else b""
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if content[:2] == b"#!" else ""


def _said(command: list[str]) -> str:
    """What a command prints, "" if it cannot be run."""
    try:
        return _run(command).strip()
    except (OSError, subprocess.SubprocessError, BuildError):
        return ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _helpers(command: tuple[str, ...]) -> str:
    """The first line that the assembler and the linker say of themselves. A compiler that has its own says nothing."""
    found = []
    for name in ("as", "ld"):
        path = shutil.which(_first_line(_said([*command, f"-print-prog-name={name}"])))
        found.append(_first_line(_said([path, "--version"])) if path else "")
    return "\n".join(found)


def _run(command: list[str], text: str | None = None) -> str:
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    if result.returncode:
        raise BuildError(f"it ended with status {result.returncode}: {result.stderr.strip()[:500]}")
    return result.stdout


def openmp_flags(tools: Toolchain) -> tuple[str, ...]:
    """What makes a loop parallel with this compiler and the OpenMP runtime that PyTorch has loaded; nothing (kernels
    run on one thread) if either is missing. LLVM's runtime also answers GNU's calls; for the other direction the
    package brings the few functions that are needed."""
    runtime = openmp_runtime()
    if not tools.openmp or runtime is None:
        return ()
    mismatch = tools.openmp == "llvm" and os.path.basename(runtime).startswith("libgomp")
    return ("-fopenmp", "-DSTAX_OPENMP_SHIM") if mismatch else ("-fopenmp",)


def _openmp_calls(command: tuple[str, ...]) -> str:
    program = "int f(int* x) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; ++i) x[i] = i;\nreturn 0; }\n"
    with tempfile.TemporaryDirectory(prefix="staxlab-openmp-") as directory:
        # Not every compiler takes "-o -" for its output: some write a file of that name where the user is.
        assembly = os.path.join(directory, "loop.s")
        try:
            _run([*command, "-fopenmp", "-x", "c++", "-S", "-o", assembly, "-"], program)
            with open(assembly, encoding="utf-8", errors="replace") as written:
                text = written.read()
        except (BuildError, OSError):
            return ""
    return "gnu" if "GOMP_parallel" in text else "llvm" if "__kmpc_fork_call" in text else ""


@lru_cache(maxsize=1)
def openmp_runtime() -> str | None:
    """The file of the OpenMP runtime this process has loaded (PyTorch's), or None if there is none to be seen."""
    import torch  # noqa: F401  (loads it)

    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}
    except OSError:
        return None
    loaded = [p for p in paths if _is_openmp(os.path.basename(p))]
    # PyTorch's own comes first if several are loaded.
    loaded.sort(key=lambda p: ("torch" not in p, p))
    return loaded[0] if loaded else None


def _is_openmp(name: str) -> bool:
    return name.startswith(("libgomp", "libiomp5", "libomp"))


def link_flags(parallel: bool) -> tuple[str, ...]:
    """What comes after the source in the command. Nothing but the OpenMP runtime is linked: the C and mathematics
    libraries a kernel may call are in the process already, and not naming them halves the time the linker takes."""
    if not parallel:
        return ("-nostdlib",)
    runtime = openmp_runtime()
    return ("-nostdlib", runtime) if runtime else ()
