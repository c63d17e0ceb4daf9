"""What tests of dispatch share: a backend that is the captured graph itself, and what a call comes to."""

from __future__ import annotations

from staxlab.capture.tracer import trace
from staxlab.errors import StaxError
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


def outcome(fn, args):
    """What a call returns, or the type of what it raises; an error of the package's own is raised."""
    try:
        return fn(*args)
    except StaxError:
        raise
    except Exception as error:
        return type(error)
