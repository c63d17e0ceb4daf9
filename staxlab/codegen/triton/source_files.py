"""Kernel texts as importable files: Triton compiles from *source*, so a generated kernel has to live somewhere.

A text is written once to ``<cache>/triton/<hash>/<kernel>.py`` and executed from there; line numbers in PTX and machine
code then point into a file a reader can open. The text is also kept in :mod:`linecache`, so that deleting the cache
directory under a running program changes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import MissingDependencyError
from ...files import write_whole
from ...runtime import cache_directory
from ..kernel import Kernel
from . import verified_store

_modules: dict[str, dict[str, Any]] = {}


def clear() -> None:
    """Forget every executed kernel text (files on disk stay)."""
    _modules.clear()


def require_triton() -> Any:
    """The ``triton`` package. MissingDependencyError, naming the extra, where it is not installed."""
    try:
        import triton
    except ImportError as error:
        raise MissingDependencyError(
            "compiling or running Triton kernels needs the package triton",
            remedy='pip install "staxlab[gpu]" (Linux); generating and reading kernels needs no Triton',
        ) from error
    return triton


def source_hash(kernel: Kernel) -> str:
    """The content address of a kernel text, 16 hexadecimal digits."""
    return hashlib.sha256(kernel.source.encode()).hexdigest()[:16]


def cache_root() -> Path:
    """Where GPU artifacts live: in the cache, beside what the C++ compiler makes."""
    return cache_directory.directory() / "triton"


def source_path(kernel: Kernel) -> Path:
    """Where the text of a kernel lives."""
    return cache_root() / source_hash(kernel) / f"{kernel.name}.py"


def named_by_the_user() -> str | None:
    """$TRITON_CACHE_DIR, unless it lies in $TORCHINDUCTOR_CACHE_DIR: torch.compile sets both for its process when it
    first compiles, and what it keeps there nobody verifies."""
    named, inductor = os.environ.get("TRITON_CACHE_DIR"), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return None if named and inductor and Path(named).is_relative_to(inductor) else named


@contextlib.contextmanager
def compiler_cache() -> Iterator[None]:
    """Triton's own content-addressed cache, put beside the sources and verified when read (:mod:`.verified_store`);
    where $TRITON_CACHE_DIR names another, that one, as it is."""
    require_triton()
    from triton import knobs

    if named_by_the_user() is not None:
        yield
        return
    with knobs.cache.scope():
        verified_store.SHARED = tuple(
            str(shared / "triton" / "compiled") for shared in cache_directory.shared_directories()
        )
        knobs.cache.dir = str(cache_root() / "compiled")
        knobs.cache.manager_class = verified_store.manager()
        yield


def write_source(kernel: Kernel) -> str:
    """Put the text where :func:`source_path` says (best effort) and into linecache; returns the file name."""
    path, text = source_path(kernel), kernel.source
    try:
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode(), private=False)
    except OSError:
        pass  # a read-only or full disk: linecache still has the text
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    return str(path)


def execute(kernel: Kernel) -> dict[str, Any]:
    """A fresh namespace in which the kernel's text has been executed."""
    require_triton()
    path = write_source(kernel)
    namespace: dict[str, Any] = {"__name__": f"staxlab_kernel_{source_hash(kernel)}", "__file__": path}
    exec(compile(kernel.source, path, "exec"), namespace)
    return namespace


def jit_function(kernel: Kernel) -> Any:
    """The kernel as Triton's ``JITFunction``, also while TRITON_INTERPRET is set."""
    key = source_hash(kernel)
    if key not in _modules:
        _modules[key] = execute(kernel)
    function = _modules[key][kernel.name]
    from triton.runtime.jit import JITFunction

    if not isinstance(function, JITFunction):
        raise MissingDependencyError(
            "TRITON_INTERPRET is set, so Triton can only interpret kernels in this process, not compile them",
            remedy="unset TRITON_INTERPRET; staxlab's interpreter does not need it",
        )
    return function
