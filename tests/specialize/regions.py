"""A backend for dispatch tests: the captured graph itself."""

from __future__ import annotations

from staxlab.capture.tracer import trace
from staxlab.options import Options
from staxlab.specialize.dispatch import Dispatcher


class CapturedRegion:
    """Runs the captured graph; counts how often it is called."""

    def __init__(self, fn, args, kwargs):
        self.capture = trace(fn, args, kwargs)
        self.capture.release()
        self.calls = 0

    def call(self, flat):
        self.calls += 1
        return self.capture.flat_results(self.capture.module(*flat))


def dispatcher(fn, **options) -> Dispatcher:
    return Dispatcher(fn, lambda f, args, kwargs, key: CapturedRegion(f, args, kwargs), Options(**options))
