"""Origins and the code writer."""

from __future__ import annotations

import warnings

from staxlab.provenance import CodeWriter, Line, source_of, unite, user_location, warn_user


def test_lines_keep_indentation_and_origins():
    writer = CodeWriter()
    writer.emit("for:", {1})
    with writer.indent():
        writer.emit("a\n\nb", {2, 3})
        writer.extend([Line("c", frozenset({4}))])
    assert writer.lines() == (
        Line("for:", frozenset({1})),
        Line("    a", frozenset({2, 3})),
        Line("", frozenset({2, 3})),
        Line("    b", frozenset({2, 3})),
        Line("    c", frozenset({4})),
    )
    assert writer.source() == source_of(writer.lines()) == "for:\n    a\n\n    b\n    c\n"


def test_indentation_survives_an_exception():
    writer = CodeWriter()
    try:
        with writer.indent():
            raise RuntimeError
    except RuntimeError:
        pass
    writer.emit("x")
    assert writer.source() == "x\n"


def test_uniting_nothing_is_nothing():
    assert unite([]) == frozenset()
    assert unite([frozenset({1}), frozenset({2, 1})]) == frozenset({1, 2})


def test_the_user_location_is_the_calling_line():
    here = user_location()
    assert here is not None
    assert here.file == __file__
    assert here.text == "here = user_location()"
    assert here.function == "test_the_user_location_is_the_calling_line"


def test_a_warning_stands_at_the_users_line_and_is_repeated_as_the_caller_wishes():
    class Told(UserWarning):
        pass

    def shown(*seens):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for seen in seens:
                warn_user("again", Told, seen)
        return caught

    one, two = {}, {}
    (first, second) = shown(one, one, two, one)
    assert first.filename == __file__ and first.category is Told
    assert len(shown(None, None)) == 2  # Python itself would have shown one
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", category=Told, module=__name__)
        warn_user("again", Told)
    assert not caught  # the user's own filters hold
