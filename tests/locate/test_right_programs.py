"""Where nothing is wrong, nothing is found, however ill-conditioned the data are (Section 11.4)."""

from __future__ import annotations

import pytest

from staxlab import locate_error
from tests.locate.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_has_no_error(name):
    function, inputs = PROGRAMS[name]
    location = locate_error(function, *inputs())
    assert location.found == "no error", location
    assert not location.notes and not location.script, location
