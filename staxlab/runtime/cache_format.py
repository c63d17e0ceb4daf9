"""What an entry of the cache looks like on disk, and what a library must be before it is loaded (Section 11.1).

An entry is one line of text and the content after it::

    staxlab-entry-1 <SHA-256, 64 hexadecimal digits> <title>

The digest is over the entry's name, its title and its content. So an entry that was cut short, changed, or put under
another entry's name is told from a good one, with an error probability of 2^-256; and ``head -1`` tells a reader what
an entry is. A file without this line was not written by the store: it is foreign.

A right digest says that the bytes are those that were written, not that they suit this machine: a cache may have been
copied from another one. :func:`library_problem` compares a shared library's header with that of the running
interpreter, and checks that what the loader will map is there at all: the loader maps what a header says, and a
segment beyond the end of the file ends the process instead of raising an error.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import sys
from dataclasses import dataclass

MARKER = b"staxlab-entry-1 "
_HEAD = re.compile(re.escape(MARKER) + rb"([0-9a-f]{64}) ([^\n]*)\n")
LONGEST_TITLE = 200
#: As many bytes as a head can have.
LONGEST_HEAD = len(MARKER) + 64 + 1 + 4 * LONGEST_TITLE + 1


@dataclass(frozen=True)
class Parsed:
    """An entry taken apart: ``state`` is "sound", "damaged" (its digest is another) or "foreign" (it has none)."""

    state: str
    title: str = ""
    content: bytes = b""


def pack(name: str, content: bytes, title: str = "") -> bytes:
    """The bytes of an entry's file. Line breaks and the like in a title become spaces, and a long one is cut."""
    line = printable(title)[:LONGEST_TITLE].encode("utf-8", "replace")
    return MARKER + _digest(name, line, content).encode() + b" " + line + b"\n" + content


def unpack(name: str, data: bytes) -> Parsed:
    """The entry ``name`` in the bytes of its file. Linear in their number."""
    head = _HEAD.match(data[:LONGEST_HEAD])
    if head is None:
        return Parsed("damaged" if not data or MARKER.startswith(data[: len(MARKER)]) else "foreign")
    content = data[head.end() :]
    title = head[2].decode("utf-8", "replace")
    if _digest(name, head[2], content) != head[1].decode():
        return Parsed("damaged", title)
    return Parsed("sound", title, content)


def title_of(head: bytes) -> str:
    """The title in the first :data:`LONGEST_HEAD` bytes of a file, "" if there is none. Not verified: for display."""
    found = _HEAD.match(head)
    return printable(found[2].decode("utf-8", "replace")) if found else ""


def printable(text: str) -> str:
    """``text`` with a space for every character that could move a terminal's cursor or end a line."""
    return "".join(c if c.isprintable() else " " for c in text)


def _digest(name: str, title: bytes, content: bytes) -> str:
    return hashlib.sha256(b"\0".join((name.encode(), title, content))).hexdigest()


# --- Shared libraries -------------------------------------------------------------------------------------------------


def library_problem(library: bytes) -> str | None:
    """Why the loader of this process should not be given these bytes, in words; None if nothing speaks against it.

    Compares the format, word size, byte order and machine with the running interpreter's file, and for ELF checks that
    every segment lies within the bytes.
    """
    own = _machine(_interpreter_head())
    if own is None:
        return None  # a platform whose format is not known here: the loader has the say
    found = _machine(library[:64])
    if found is None:
        return "is no shared library"
    if found != own:
        return f"is made for another machine ({_in_words(found)}, this is {_in_words(own)})"
    return _missing_segment(library) if found[0] == "ELF" else None


def _machine(head: bytes) -> tuple[str, int, int, int] | None:
    """(format, bits, byte order, machine number) of an executable file, None for anything else."""
    if head[:4] == b"\x7fELF" and len(head) >= 20 and head[4] in (1, 2) and head[5] in (1, 2):
        order = "<" if head[5] == 1 else ">"
        return "ELF", 32 * head[4], head[5], struct.unpack_from(order + "H", head, 18)[0]
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe") and len(head) >= 8:
        return "Mach-O", 64 if head[0] == 0xCF else 32, 1, struct.unpack_from("<I", head, 4)[0]
    return None


_NAMES = {("ELF", 3): "x86", ("ELF", 40): "ARM", ("ELF", 62): "x86-64", ("ELF", 183): "AArch64", ("ELF", 243): "RISC-V",
          ("Mach-O", 0x01000007): "x86-64", ("Mach-O", 0x0100000C): "AArch64"}  # fmt: skip


def _in_words(machine: tuple[str, int, int, int]) -> str:
    form, bits, order, number = machine
    name = _NAMES.get((form, number), f"machine {number}")
    return f"{form} {name}, {bits} bits" + (", big-endian" if order == 2 else "")


@functools.lru_cache(maxsize=1)
def _interpreter_head() -> bytes:
    for path in ("/proc/self/exe", sys.executable):
        try:
            with open(path, "rb") as file:
                return file.read(64)
        except (OSError, TypeError, ValueError):
            continue
    return b""


def _missing_segment(library: bytes) -> str | None:
    """Checks an ELF file's table of segments (its fields are found as the System V ABI says)."""
    wide, order = library[4] == 2, "<" if library[5] == 1 else ">"
    kind, size = (16, 64) if wide else (16, 52)
    if len(library) < size:
        return "is cut short"
    if struct.unpack_from(order + "H", library, kind)[0] != 3:
        return "is no shared library"
    table = struct.unpack_from(order + ("Q" if wide else "I"), library, 32 if wide else 28)[0]
    each, count = struct.unpack_from(order + "HH", library, 54 if wide else 42)
    if not count or each < (56 if wide else 32) or table + each * count > len(library):
        return "is cut short"
    number, at_start, at_length = ("Q", 8, 32) if wide else ("I", 4, 16)
    for place in range(table, table + each * count, each):
        (segment,) = struct.unpack_from(order + "I", library, place)
        (start,) = struct.unpack_from(order + number, library, place + at_start)
        (length,) = struct.unpack_from(order + number, library, place + at_length)
        if segment == 1 and start + length > len(library):  # 1: what the loader maps
            return "is cut short"
    return None
