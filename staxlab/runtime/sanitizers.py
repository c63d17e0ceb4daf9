"""Kernels that check every access they make: compiling them under AddressSanitizer and UndefinedBehaviorSanitizer.

A kernel is given bare pointers. If it reads one element too many, the result is often still right, because the element
falls into a lane that is thrown away, and the fault shows on the day that memory ends there. The sanitizers
(Serebryany, Bruening, Potapenko, Vyukov, 2012, "AddressSanitizer: a fast address sanity checker") make it show every
time: the compiler puts a check in front of each load and store, and an allocator of their own leaves a forbidden zone
around each block.

``STAXLAB_SANITIZE=address,undefined`` switches the checks on. They become flags of the compiler's command and with
that part of every kernel's key, so checked and unchecked kernels live side by side in one cache. The allocator must be
in the process before anything else: such a process is started with the variables that :func:`environment` gives.
``make test-sanitized`` does all of it (``docs/sanitizers.md``).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ..errors import BuildError, OptionError

VARIABLE = "STAXLAB_SANITIZE"

#: What may be asked for, the flags it stands for, and the library that must be loaded first. Checks are calls rather
#: than inline code, and the bounds of local arrays are left to the address sanitizer: a kernel whose loops over lanes
#: are unrolled compiles eight times as fast. ``vptr`` needs the type information that kernels are compiled without;
#: overflow of signed integers is no fault in them (``-fwrapv``).
KNOWN: dict[str, tuple[tuple[str, ...], str]] = {
    "address": (
        ("-fsanitize=address", "-fsanitize-recover=address", "--param=asan-instrumentation-with-call-threshold=0"),
        "libasan.so",
    ),
    "undefined": (("-fsanitize=undefined", "-fno-sanitize=vptr,bounds,object-size"), "libubsan.so"),
}

#: Line numbers and whole call stacks, without which a finding is of little use. And little optimization, which comes
#: before the checks are put in: it would remove accesses whose values are not needed, faulty ones among them.
SETTINGS = ("-O1", "-g1", "-fno-omit-frame-pointer")

_MARKS = {"address": "__asan_init", "undefined": "__ubsan_handle_out_of_bounds"}


def requested() -> tuple[str, ...]:
    """The sanitizers that ``$STAXLAB_SANITIZE`` names, in the order of :data:`KNOWN`.

    Raises OptionError for a name that is not known: a check that silently does not happen would be worse than none.
    """
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    if unknown := sorted(names - set(KNOWN)):
        known = ", ".join(KNOWN)
        raise OptionError(f"{VARIABLE} names {', '.join(unknown)}", remedy=f"known sanitizers: {known}")
    return tuple(name for name in KNOWN if name in names)


def flags() -> tuple[str, ...]:
    """Compiler flags of the sanitizers asked for: empty where none is."""
    names = requested()
    return (*(flag for name in names for flag in KNOWN[name][0]), *SETTINGS) if names else ()


def libraries(command: tuple[str, ...], names: tuple[str, ...] = tuple(KNOWN)) -> tuple[str, ...]:
    """The files of the sanitizers' libraries that belong to a compiler, found by asking it.

    The C++ library comes last: the allocator wraps its ``throw``, and must find it there when the process starts.
    Raises BuildError where the compiler has no such library.
    """
    wanted = [*(KNOWN[name][1] for name in names), "libstdc++.so.6"]
    found = []
    for name in wanted:
        answer = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, timeout=60)
        path = Path(answer.stdout.strip())
        if answer.returncode or not path.is_absolute() or not path.exists():
            raise BuildError(
                f"{' '.join(command)} has no {name}",
                remedy="install GNU's compiler with its sanitizers (Debian and Ubuntu: apt install g++), and name it "
                "in STAXLAB_CXX",
            )
        found.append(str(path.resolve()))
    return tuple(found)


def environment(
    command: tuple[str, ...], log: str | os.PathLike[str] | None = None, names: tuple[str, ...] = tuple(KNOWN)
) -> dict[str, str]:
    """Variables for a process whose kernels are to be checked; ``command`` starts the compiler.

    Findings go to ``log`` followed by a dot and the process's number (None: to the standard error), and the process
    goes on after one. What the interpreter and PyTorch keep until the end is not reported as leaked.
    """
    common = {"print_stacktrace": 1, **({"log_path": os.fspath(log)} if log is not None else {})}
    address = {"detect_leaks": 0, "halt_on_error": 0, "allocator_may_return_null": 1, **common}
    return {
        VARIABLE: ",".join(names),
        "LD_PRELOAD": ":".join(libraries(command, names)),
        "ASAN_OPTIONS": _spelled(address),
        "UBSAN_OPTIONS": _spelled({"halt_on_error": 0, **common}),
    }


def _spelled(settings: Mapping[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in settings.items())


def compiler_environment() -> dict[str, str] | None:
    """The variables a compiler is started with (None: this process's own). The compiler is not what is checked, and
    would only be slowed down by the libraries that its kernels need."""
    if not requested():
        return None
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def missing() -> tuple[str, ...]:
    """Sanitizers that are asked for and whose library this process was started without."""
    process = ctypes.CDLL(None)
    return tuple(name for name in requested() if not hasattr(process, _MARKS[name]))
