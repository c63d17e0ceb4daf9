"""Syntax colouring, line by line: pygments for programming languages, a few patterns for our own listings.

Colour is a courtesy here, never information: without pygments the code is the same, in one colour. Colouring works on
the whole text (a string may span lines) and is then cut at the line ends, because every line is an element of its own
that carries its origins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from .markup import Html, escape

# Long listings are shown plain: colouring costs about 10 microseconds a token, and nobody reads 20,000 lines for it.
LONGEST_COLOURED = 20_000

_LEXERS = {"cpp": "cpp", "python": "python", "triton": "python", "ptx": "ptx", "llir": "llvm"}

# Token types of pygments, the most specific first, and the role (a colour of ``theme``) they take.
_ROLES = (
    ("Comment.Preproc", "directive"),
    ("Comment", "comment"),
    ("Keyword.Type", "type"),
    ("Keyword", "keyword"),
    ("Operator.Word", "keyword"),
    ("Name.Decorator", "directive"),
    ("Name.Function", "function"),
    ("Name.Builtin", "type"),
    ("Name.Class", "type"),
    ("Name.Label", "function"),
    ("Name.Constant", "type"),
    ("Literal.String", "string"),
    ("Literal.Number", "number"),
)

_OWN_LANGUAGE = re.compile(
    r"(?P<comment>\#.*$)"
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>%\w+)"
    r"|(?P<type>\b(?:b?float(?:8\w*|16|32|64)|u?int(?:8|16|32|64)|bool|complex\d+)\b)"
    r"|(?P<keyword>\b(?:for|input|output|return|merge|yield|load|store|constant|index_value|where|if|else|extern|over|in"
    r"|reads|writes|placeholder|get_attr|call_function|call_method|call_module|graph)\b)"
    r"|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)"
    r"|(?P<function>\b[A-Za-z_][\w.]*(?=\())",
)
# "    5b:  shl  $0xd,%rax   # 19: ...": address, mnemonic, operands, and the source line as a comment.
_ASSEMBLY = re.compile(
    r"(?P<comment>(?:^|\s)(?:\#|//).*$|^\s*[0-9a-f]+:(?=\s))"
    r"|(?P<function>^[\w.$]+(?=.*:$))"
    r"|(?P<keyword>(?:(?<=:)|^)\s+[a-z][a-z0-9.]*\b)"
    r"|(?P<type>%\w+|\b[xyz]mm\d+\b|\b[vqdswx]\d+\b)"
    r"|(?P<number>\$?-?\b0x[0-9a-f]+\b|\$-?\d+\b|(?<![\w.])-?\d+\b)"
)
_SASS = re.compile(
    r"(?P<comment>/\*.*?\*/|//.*$)"
    r"|(?P<keyword>\b[A-Z][A-Z0-9]{1,}(?:\.[A-Z0-9_]+)*\b(?=[ ;]))"
    r"|(?P<type>\b(?:U?R\d+|U?P\d|RZ|URZ|PT|SR_\w+(?:\.\w+)?)\b)"
    r"|(?P<number>\b0x[0-9a-f]+\b|(?<![\w.])-?\d+(?:\.\d+)?\b)"
)

_MLIR = re.compile(
    r"(?P<comment>//.*$)"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>%[\w.$]+(?:\#\d+)?|@\w+)"
    r"|(?P<directive>\#[\w.]+)"
    r"|(?P<type>\b(?:tensor|i\d+|b?f\d+|index)\b|!tt\.ptr)"
    r"|(?P<keyword>\b(?:module|tt|ttg|ttng|arith|scf|math|cf|gpu)\.?[a-z_.0-9]*\b)"
    r"|(?P<number>(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)"
)

_PATTERNS = {"ir": _OWN_LANGUAGE, "asm": _ASSEMBLY, "sass": _SASS, "ttir": _MLIR, "ttgir": _MLIR}


def coloured(lines: Sequence[str], language: str) -> list[Html]:
    """Each line as markup. ``language`` is "cpp", "python", "triton", "asm", "ttir", "ttgir", "llir", "ptx", "sass",
    "ir" or anything else."""
    if len(lines) > LONGEST_COLOURED:
        return [escape(line) for line in lines]
    if language in _PATTERNS:
        return [_by_pattern(line, _PATTERNS[language]) for line in lines]
    if language in _LEXERS:
        return _by_pygments(lines, _LEXERS[language]) or [escape(line) for line in lines]
    return [escape(line) for line in lines]


def _span(role: str, text: str) -> str:
    return f'<span class="sx-{role}">{escape(text)}</span>'


def _by_pattern(line: str, pattern: re.Pattern[str]) -> Html:
    pieces, position = [], 0
    for match in pattern.finditer(line):
        pieces.append(escape(line[position : match.start()]))
        pieces.append(_span(match.lastgroup or "name", match.group()))
        position = match.end()
    pieces.append(escape(line[position:]))
    return Html("".join(pieces))


def _by_pygments(lines: Sequence[str], name: str) -> list[Html] | None:
    """None where pygments is missing, or where its lexer loses a character (then plain text is right)."""
    try:
        from pygments.lexers import get_lexer_by_name
    except ImportError:
        return None
    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    role_of = _role_table()
    finished: list[Html] = []
    current: list[str] = []
    seen: list[str] = []
    for kind, text in lexer.get_tokens("\n".join(lines)):
        seen.append(text)
        role = role_of(kind)
        for number, part in enumerate(text.split("\n")):
            if number:
                finished.append(Html("".join(current)))
                current = []
            if part:
                current.append(_span(role, part) if role else escape(part))
    finished.append(Html("".join(current)))
    return finished if "".join(seen) == "\n".join(lines) and len(finished) == len(lines) else None


@lru_cache(maxsize=1)
def _role_table() -> Callable[[Any], str | None]:
    from pygments.token import string_to_tokentype

    known = [(string_to_tokentype(name), role) for name, role in _ROLES]

    @lru_cache(maxsize=256)
    def role_of(kind: Any) -> str | None:
        return next((role for ancestor, role in known if kind in ancestor), None)

    return role_of
