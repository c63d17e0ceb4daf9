"""Whose code is it (Section 2.5): the user's program, or installed software?

A user's functions and objects are followed name by name. Installed software is taken as it is: its functions have no
state that a call could find changed, or so one trusts, and its objects are described in :mod:`.opaque`.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

import torch

_LIBRARY_ROOTS = tuple(
    os.path.abspath(path) + os.sep
    for path in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    | {os.path.dirname(os.path.dirname(torch.__file__))}
)
_COMPILER = tuple(
    f"{__name__.partition('.')[0]}.{stage}"
    for stage in ("specialize", "capture", "pipeline", "api", "runtime", "attention")
)


def is_library_file(file: str) -> bool:
    """Whether code in ``file`` is installed software (standard library, site-packages) and not the user's program."""
    return file.startswith(_LIBRARY_ROOTS) or file.startswith("<frozen")


def is_library_module(name: str) -> bool:
    """Whether the module of this name is installed software, or part of the compiler itself.

    ``__main__`` never is: under ``python -m pytest`` and the like its file is, but not what is defined in that name.
    """
    if name == "__main__":
        return False
    root = name.partition(".")[0]
    if root in sys.builtin_module_names or root in sys.stdlib_module_names or root == "torch":
        return True
    if root == __name__.partition(".")[0]:
        return name.startswith(_COMPILER)
    return is_library_file(getattr(sys.modules.get(name), "__file__", None) or "<dynamic>")


@functools.lru_cache(maxsize=4096)
def is_library_type(kind: type) -> bool:
    """Whether a class belongs to installed software."""
    return is_library_module(kind.__module__)
