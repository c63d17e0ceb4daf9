"""Files that are whole or were not touched.

A student's answers, a grade, a compiled kernel and a page all survive a crash, a full disk and Ctrl-C for one reason:
what is new is written under another name in the same folder, and then put in the place of the old in one step.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

#: How the names of files begin that were being written, if their process died then.
WRITING = ".writing-"


def write_whole(path: Path, content: bytes, *, private: bool = True, sync: bool = False) -> Path:
    """Write a file so that a reader sees the old content or the new one, never a part; returns its path.

    A ``private`` one is for this user alone, any other as the umask says. ``sync``: it is on the disk, and not only on
    its way there, before it takes the old one's place. Raises OSError, and leaves nothing behind then.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=WRITING, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
