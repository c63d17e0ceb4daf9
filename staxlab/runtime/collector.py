"""Python's garbage collector during a compilation (Section 13.4).

A full collection looks at every object there is, and PyTorch alone makes several hundred thousand: it takes longer than
all of a warm first call, and some first call triggers it, since loading modules makes objects. What was there before a
compilation is not garbage of the compilation's. So it is set aside (``gc.freeze`` and ``gc.unfreeze``, each a matter of
microseconds); what is made meanwhile is collected as ever, and the full collection comes when it is next due.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Collections look at what is made from now on. Nothing is changed where objects have been set aside before, by an
    application that forks or by another thread's compilation."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
