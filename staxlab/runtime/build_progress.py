"""A line about a build that takes long (Section 11.2).

Most builds are over before anybody wonders, and say nothing. After :data:`PATIENCE` seconds there is one line on
standard error: redrawn in a terminal, in a notebook a display that is updated, and elsewhere (a log file) a new line
for each quarter of the kernels. What every kernel took is said by ``STAXLAB_LOGS=build``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 2.0  # seconds before anything is said
INTERVAL = 0.5  # seconds between two looks
QUARTERS = 4


class Progress:
    """The progress of ``total`` tasks called ``what``; ``show`` says how many are done, ``end`` that it is over. No
    failure to print stops a build."""

    interval = INTERVAL

    def __init__(self, total: int, what: str = "kernels compiled"):
        self.total, self.what = total, what
        self._began = time.monotonic()
        self._line: _Line | None = None

    def show(self, done: int) -> None:
        seconds = time.monotonic() - self._began
        if seconds < PATIENCE or (self._line is None and done == self.total):
            return
        if self._line is None:
            self._line = _line()
        self._line.say(f"staxlab: {done} of {self.total} {self.what}, {seconds:.0f} s", done * QUARTERS // self.total)

    def end(self) -> None:
        if self._line is not None:
            self._line.end()


class _Line:
    """A line that nobody can redraw: said again when another quarter is done."""

    def __init__(self, stream: Any):
        self.stream, self.quarter = stream, -1

    def say(self, text: str, quarter: int) -> None:
        if quarter != self.quarter:
            self.quarter = quarter
            self._write(text + "\n")

    def end(self) -> None:
        pass

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or none at all
            pass


class _Redrawn(_Line):
    """A line of a terminal: the same one again, and gone at the end."""

    def say(self, text: str, quarter: int) -> None:
        self._write(f"\r\x1b[K{text}")

    def end(self) -> None:
        self._write("\r\x1b[K")


class _Displayed(_Line):
    """A text in the output of a notebook's cell, updated in place."""

    def __init__(self, display: Any):
        super().__init__(None)
        self.display, self.handle = display, None

    def say(self, text: str, quarter: int) -> None:
        content = {"text/plain": text}
        if self.handle is None:
            self.handle = self.display(content, raw=True, display_id=True)
        elif self.handle is not None:
            self.handle.update(content, raw=True)

    def end(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


def _line() -> _Line:
    if _in_notebook():
        from IPython.display import display

        return _Displayed(display)
    stream = sys.stderr
    try:
        redrawn = stream.isatty()
    except (AttributeError, ValueError):
        redrawn = False
    return (_Redrawn if redrawn else _Line)(stream)


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this: IPython is loaded then, and its shell talks to a front end."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None
