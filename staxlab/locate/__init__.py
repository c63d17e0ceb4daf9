"""Locating errors by layer (Section 11.4, Algorithm 11.1): the shortest prefix of the pipeline that goes wrong.

:mod:`.search` runs the algorithm on samples (:mod:`.sample`), :mod:`.prefixes` the backends as prefixes, judged by bits
or by bounds that follow the condition of the data (:mod:`.criterion`, :mod:`staxlab.measure.program_bounds`,
:mod:`staxlab.measure.agreement`). Inside the prefix at fault :mod:`.front_end`, :mod:`.training`, :mod:`.back_end` and
:mod:`.dispatching` tell layers apart, and :mod:`.minimise` makes a failing graph a small program (:mod:`.script`). The
result is a :class:`Location`.
"""

from __future__ import annotations

from .record import Check, Culprit, Location
from .search import locate_error

__all__ = ["Check", "Culprit", "Location", "locate_error"]
