"""Fresh processes: run a snippet in a new interpreter and get the JSON it prints (Section 13.4).

What a first call costs can be read once per process only: modules are loaded, thread pools started and caches filled by
whatever ran before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The directory that holds the package; in a checkout, its root.
ROOT = Path(__file__).resolve().parents[2]


class ProcessFailed(RuntimeError):
    """The process ended with an error; the message is its last line."""


def run_python(code: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run ``code`` in a new process of this interpreter, from :data:`ROOT`; parse its last line as JSON.

    Raises ProcessFailed when the process fails or prints no JSON.
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        words = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ProcessFailed(f"ended with {done.returncode}: {words}")
    try:
        return json.loads(lines[-1])
    except ValueError:
        raise ProcessFailed(f"printed no JSON: {lines[-1][:200]}") from None
