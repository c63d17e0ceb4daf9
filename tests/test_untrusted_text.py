"""No text of the user's becomes code or markup: names, constants, file names and comments, in C++, Triton, the wrapper
and pages.

The strongest thing that can be said of a name is that it changes nothing: kernels compiled for a program with hostile
names have the same keys in the cache as those for the same program with plain ones.
"""

from __future__ import annotations

import ast
import enum
import keyword
import linecache
import math
import struct
import unicodedata
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import staxlab
from staxlab import view
from staxlab.provenance import Line
from staxlab.runtime import build, toolchain
from tests.view.reading import read

#: Words that mean something in one of the languages, or that the generators use themselves.
WORDS = (
    "int double auto register namespace template float32 torch inputs results arena empty call check tl triton xindex "
    "xmask tmp0 in_ptr0 out_ptr0 XBLOCK buf0 buf1 i0 r0 acc lanes kernel argument_0 argument_1 stax splat load store "
    "main self f ñ é 变量 µ ℌ __init__ __name__ _ __ asm NAN INFINITY uint8_t exp relu true NULL inf nan _Pragma"
).split()
ATTACKS = (
    '"; system("touch /tmp/owned"); //', "*/ int x; /*", '"""\nimport os\n"""', "\\", "??/", "a\nb", "'", "%s {0} {}",
    '</pre><script>alert("x")</script>', "]]>-->", "\u2028\u2029\u202e", "\x00\x1b[31m", "\ud800", "$(touch x)`",
    'R"(',
)  # fmt: skip

#: Every example compiles a program: making a failing one smaller would take longer than reading it.
NO_SHRINKING = (Phase.explicit, Phase.generate)

identifiers = st.one_of(
    st.sampled_from(WORDS),
    st.text(min_size=1, max_size=6).filter(lambda text: text.isidentifier() and not keyword.iskeyword(text)),
).filter(lambda name: name not in ("torch", "self"))
four = st.lists(identifiers, min_size=4, max_size=4, unique_by=lambda name: unicodedata.normalize("NFKC", name))
texts = st.one_of(st.sampled_from(ATTACKS), st.text(max_size=12))


def program(function: str, first: str, second: str, local: str, comment: str = "", file: str = "plain.py") -> Any:
    """Example 1.1 and a product, with these names. A comment's line breaks would end it in Python itself."""
    bare = "".join(c for c in comment if c.isprintable())
    source = (
        f"def {function}({first}, {second}):\n"
        f"    {local} = torch.relu({first} + {second}) \\\n"
        f"        * 2.5  # {bare} \\\n"
        f"    return {local}.sum(-1), torch.mm({first}, {second}.t()).tanh()\n"
    )
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, file.replace("\0", "0"), "exec"), space)
    return next(value for value in space.values() if isinstance(value, FunctionType))


def keys(compilation: Any) -> list[str]:
    tools = toolchain.find()
    return [build.key_of(build.anonymous(k), tools) for k in compilation.kernels if k.language == "cpp"]


X, W = torch.randn(5, 7), torch.randn(5, 7)
PLAIN = keys(staxlab.explain(program("f", "x", "w", "y"), X, W, strict_native=True))


def statements(source: str) -> list[type]:
    return [type(node) for node in ast.parse(source).body]


@settings(max_examples=12, phases=NO_SHRINKING)
@given(names=four, comment=texts, file=texts, called=texts)
@example(["int", "float32", "results", "double"], "*/ \\", 'a"b\\\n*/"""', '"""\n*/')
@example(["ñ", "é", "_", "__"], '" \\', "", "\ud800")
@example(["main", "buf0", "buf1", "buf2"], "", "f.py", "main")
@example(["f", "buf1", "buf0", "i0"], "", "f.py", "f")
def test_names_and_comments_change_nothing(names, comment, file, called):
    function = program(*names, comment, file)
    function.__name__ = function.__qualname__ = called
    compilation = staxlab.explain(function, X, W, strict_native=True)
    assert keys(compilation) == PLAIN
    for call in (compilation.artifact.call, compilation.artifact.wrapper_call):
        for ours, theirs in zip(call([X, W]), function(X, W), strict=True):
            torch.testing.assert_close(ours, theirs)
    compilation.artifact.check([X, W])
    assert statements(compilation.wrapper.source) == [ast.FunctionDef, ast.FunctionDef]
    for kernel in compilation.kernels:
        assert all(not line.text.rstrip().endswith("\\") for line in kernel.lines), "the next line would be a comment"


@settings(max_examples=6, phases=NO_SHRINKING)
@given(names=four, comment=texts, file=texts, called=texts)
@example(["tl", "triton", "tmp0", "xindex"], '"""', "'''", '"""\nimport os')
def test_nor_do_they_on_a_gpu(names, comment, file, called):
    plain = staxlab.explain(program("f", "x", "w", "y"), X, W, target="sm_90")
    function = program(*names, comment, file)
    function.__name__ = function.__qualname__ = called
    compilation = staxlab.explain(function, X, W, target="sm_90")

    def code(record: Any) -> list[str]:
        """Triton kernels without comments."""
        return [ast.dump(ast.parse(kernel.source)) for kernel in record.kernels if kernel.language == "triton"]

    assert code(compilation) == code(plain) != []
    assert statements(compilation.wrapper.source) == [ast.FunctionDef, ast.FunctionDef]


@pytest.mark.parametrize(
    "text", [ATTACKS[8], pytest.param("\"' onload=alert(1) <img src=x>-->", marks=pytest.mark.slow)]
)
def test_a_page_shows_text_as_text(text):
    def page(function: Any) -> Any:
        return read(view.html(staxlab.explain(function, {text: X}, W)))

    def plain(first, w):
        return torch.relu(*first.values()) + w

    hostile = program("f", "x", "w", "y", text, text)
    hostile.__name__ = hostile.__qualname__ = text
    found, expected = page(lambda first, w: hostile(first[text], w)), page(plain)
    for tag in ("script", "style", "img", "iframe"):
        assert len(found.find(tag)) == len(expected.find(tag)), tag
    assert not any("onload" in element.attributes for element in found.walk())
    assert text.split()[-1] in found.text, "it is shown nowhere"


def bits(number: int) -> float:
    return struct.unpack("<f", struct.pack("<I", number))[0]


floats = st.one_of(
    st.floats(width=32), st.floats(), st.integers(0, 2**32 - 1).map(bits),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e-45, 1.7976931348623157e308, 3.4028236e38]),
)  # fmt: skip


@settings(max_examples=8, phases=NO_SHRINKING)
@given(scale=floats, whole=st.integers(-(2**63), 2**63 - 1), small=st.integers(-5, 5), double=floats)
@example(math.nan, -(2**63), 0, -math.inf)
@example(-0.0, 2**63 - 1, -1, 5e-324)
def test_every_constant_is_the_number_it_was(scale, whole, small, double):
    def function(x, n, d):
        return x * scale, n + whole, torch.where(n > small, n, small), d + double, torch.maximum(x, x * 0 + small)

    given = torch.tensor([1.5, -0.0, math.inf]), torch.tensor([0, 3, -7]), torch.tensor([0.0, 1.0, -2.0]).double()
    compiled = staxlab.compile(function, strict_native=True)
    for ours, theirs in zip(compiled(*given), function(*given), strict=True):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        if ours.is_floating_point():
            assert torch.equal(ours.signbit() & ~ours.isnan(), theirs.signbit() & ~theirs.isnan())


class Axis(enum.IntEnum):
    """A number with a text of its own."""

    LAST = -1

    def __str__(self):
        return "__import__('os').abort()"

    __repr__ = __str__


class Loud(str):
    def __repr__(self):
        return "__import__('os').abort()"

    __str__ = __repr__


class Number(float):
    def __repr__(self):
        return "__import__('os').abort()"

    __str__ = __repr__


def test_numbers_and_strings_with_a_text_of_their_own_are_only_values():
    def function(x):
        padded = torch.nn.functional.pad(x, (1, 1), mode=Loud("reflect"))
        return torch.cumsum(x, Axis.LAST) * Number(2.5), torch.sort(padded, dim=Axis.LAST)[0], x.sum(Axis.LAST)

    compiled = staxlab.compile(function)
    for ours, theirs in zip(compiled(X), function(X), strict=True):
        torch.testing.assert_close(ours, theirs)
    compilation = compiled.versions[0].compilation
    assert "abort" not in compilation.wrapper.source + "".join(kernel.source for kernel in compilation.kernels)
    for ours, theirs in zip(compilation.artifact.wrapper_call([X]), function(X), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("key", [text for text in ATTACKS if "." not in text and "\ud800" not in text])
def test_keys_of_parameters_inputs_and_results_are_only_keys(key):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterDict({key: torch.ones(7)})
            self.register_buffer("plain", torch.zeros(7))

        def forward(self, given):
            return {key: given[key] * self.weights[key] + self.plain}

    model = Model()
    compiled = staxlab.compile(model, strict_native=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled({key: X})[key], X)
    compilation = compiled.versions[0].compilation
    assert statements(compilation.wrapper.source) == [ast.FunctionDef, ast.FunctionDef]


def test_the_lines_of_a_listing_are_lines():
    """What a page shows of a source is its text, whatever the text is."""
    from staxlab.view.listing import listing

    for text in ATTACKS:
        shown = read(listing([Line(text)], "cpp", name=text))
        assert not shown.find("script")
