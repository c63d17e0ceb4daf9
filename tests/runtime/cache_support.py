"""Programs that use the store alone: importing PyTorch would take longer than what they test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from staxlab.runtime import cache

PACKAGE = str(Path(cache.__file__).parent.parent)

_ALONE = f"""
import os, sys, types
for package, path in (("staxlab", {PACKAGE!r}), ("staxlab.runtime", {PACKAGE + "/runtime"!r})):
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [path]
logs = sys.modules["staxlab.logs"] = sys.modules["staxlab"].logs = types.ModuleType("staxlab.logs")
logs.say = lambda *_: None
from staxlab.runtime import cache
assert "torch" not in sys.modules
"""


def start(program: str, directory: Path, **options: Any) -> subprocess.Popen:
    """A process that runs ``program`` after ``from staxlab.runtime import cache``, without PyTorch."""
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(directory)}
    return subprocess.Popen([sys.executable, "-c", _ALONE + program], env=environment, **options)
