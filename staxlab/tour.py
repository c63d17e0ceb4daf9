"""The tour: Example 1.1 from Python to a kernel that runs, with every stage on the way.

``(torch.relu(x + w) * 2).sum(-1)`` is four operators. Run one at a time they move ``8N + n`` elements through main
memory, for ``N`` elements in each input and ``n`` rows; Proposition 1.1 says no program can do it with fewer than
``2N + n``, and one fused kernel does it with exactly that. The tour compiles the function for this machine's processor
and for a GPU that need not be here, prints what each stage made of it, checks the values against a float64 reference,
and measures whether the time follows the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MissingDependencyError, StaxError
from .oneliner import define

if TYPE_CHECKING:
    import torch

    from .compilation import Compilation
    from .measure.bytes import SpeedupDecomposition, TrafficModel
    from .measure.roofline import Roofline
    from .measure.timing import Comparison

SOURCE = """\
def f(x, w):
    return (torch.relu(x + w) * 2).sum(-1)
"""
ROWS, COLUMNS = 8192, 2048
CACHED_COLUMNS = 1024  # of the smaller one that a cache holds
GPU_TARGET = "sm_90"
LISTING_HEAD = 40  # lines of a machine-code listing that the tour prints


@dataclass
class Tour:
    """Everything the tour saw, for whoever wants to look again (``tour.html`` and the notebook show the same)."""

    rows: int
    columns: int
    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, torch.Tensor]
    processor: Compilation | None = None
    graphics: Compilation | None = None
    traffic: TrafficModel | None = None
    comparison: Comparison | None = None
    decomposition: SpeedupDecomposition | None = None
    errors: dict[str, float] = field(default_factory=dict)

    def page(self) -> dict[str, Any]:
        """What ``tour.html`` shows, by heading."""
        parts = {
            "On this processor": self.processor,
            f"For a GPU ({GPU_TARGET})": self.graphics,
            "Memory traffic": self.traffic,
            "Measured": self.comparison,
            "Where the speedup comes from": self.decomposition,
        }
        return {heading: record for heading, record in parts.items() if record is not None}


def example(rows: int = ROWS, columns: int = COLUMNS) -> tuple[Callable[..., Any], tuple[torch.Tensor, torch.Tensor]]:
    """Example 1.1 and its inputs: two float32 tensors ``[rows, columns]`` of the same standard normal numbers."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(rows, columns, generator=generator) for _ in range(2))
    return define(SOURCE, file="<Example 1.1>"), (x, w)


def run(
    rows: int = ROWS,
    columns: int = COLUMNS,
    *,
    page: str | Path | None = None,
    peers: bool = False,
    whole: bool = False,
    show: Callable[[str], None] = print,
) -> Tour:
    """Take the tour, handing each part of the text to ``show``. ``page`` is where to write the HTML page.

    ``whole`` prints machine code to its last line. ``peers`` also measures ``torch.compile``, whose first compilation
    takes many seconds. Raises BuildError without a C++ compiler. Without Triton the GPU part is left out, and said to
    be.
    """
    import staxlab

    function, arguments = example(rows, columns)
    tour = Tour(rows, columns, function, arguments)
    show(f"Example 1.1 on two float32 tensors of {rows} x {columns}\n\n{SOURCE}")

    tour.processor = staxlab.explain(function, *arguments, target="cpu")
    for heading, text in stages(tour.processor):
        show(_headed(heading, text))
    show(_headed("Machine code (Section 8)", _assembly(tour.processor, "asm", whole)))
    show(_time_split(tour.processor))

    tour.graphics = staxlab.explain(function, *arguments, target=GPU_TARGET)
    kernels = "\n".join(kernel.source for kernel in tour.graphics.kernels)
    show(_headed(f"The same loops for a GPU, {GPU_TARGET} (Section 9)", kernels))
    try:
        show(_headed(f"Machine code for {GPU_TARGET}, which need not be here", _assembly(tour.graphics, "sass", whole)))
    except MissingDependencyError as error:
        show(_headed(f"Machine code for {GPU_TARGET}", f"left out: {error}"))

    tour.traffic = tour.processor.traffic
    show(_headed("Memory traffic, before anything is timed (Sections 1.1 and 13.2)", str(tour.traffic)))

    compiled = staxlab.compile(function, strict_native=True)
    tour.errors = _errors(function, compiled, arguments)
    show(_headed("Values against float64 (Section 6.5)", _error_text(tour.errors)))

    tour.comparison = _measure(function, compiled, arguments, peers)
    measured = [str(tour.comparison)]
    if tour.traffic.compiled is not None and tour.traffic.compiled.nbytes:
        tour.decomposition = tour.traffic.decompose(tour.comparison["eager"], tour.comparison["staxlab"])
        measured.append(str(tour.decomposition))
    measured.append(_conclusion(tour.comparison))
    show(_headed("Measured (Section 13)", "\n\n".join(measured)))

    if page is not None:
        from .view.tour import write_tour

        written = write_tour(page, tour.page())
        show(f"All of this, with every line linked to where it came from: {written}")
    return tour


def place(
    roofline: Roofline, rows: int = ROWS, columns: int = COLUMNS, *, readings: int = 15, device: str = "cpu"
) -> Roofline:
    """The same roofline with Example 1.1 on it, eager and compiled: model bytes and operations, measured medians with
    their intervals, and working sets. Eager holds two intermediate tensors beside the inputs.

    Ctrl-C gives the roofline with what was measured, marked incomplete. Raises BuildError without a C++ compiler.
    """
    import staxlab

    from .measure.roofline import measured_point
    from .measure.timing import compare

    function, arguments = example(rows, columns)
    arguments = tuple(argument.to(device) for argument in arguments)
    try:
        compiled = staxlab.compile(function, strict_native=True)
        compiled(*arguments)
        traffic = staxlab.explain(function, *arguments, target=device).traffic
    except KeyboardInterrupt:
        return replace(roofline, complete=False)
    sides = {"eager": lambda: function(*arguments), "compiled": lambda: compiled(*arguments)}
    timed = compare(sides, readings=readings, device=device)
    held = {"eager": 4 * rows * columns, "compiled": 2 * rows * columns + rows}  # float32 elements
    size = "" if (rows, columns) == (ROWS, COLUMNS) else f", {rows} x {columns}"
    placed = roofline.with_points(
        measured_point(f"Example 1.1, {name}{size}", timed[name], side.operations, side.bytes_read, side.bytes_written,
                       working_set=4 * held[name])
        for name, side in (("eager", traffic.eager), ("compiled", traffic.compiled))
        if timed[name].readings
    )  # fmt: skip
    return replace(placed, complete=roofline.complete and timed.complete)


def place_in_cache(roofline: Roofline, *, readings: int = 15, device: str = "cpu") -> Roofline:
    """Example 1.1 once more, as large as eager's working set may be to fill half of the last cache that was measured;
    the roofline as it is where none was. Same interruptions and errors as :func:`place`."""
    capacities = [roofline.of("bandwidth", level)[0].capacity for level in roofline.levels]
    last = max((capacity for capacity in capacities if capacity), default=0)
    rows = last // 2 // (4 * 4 * CACHED_COLUMNS)
    if rows < 1:
        return roofline
    return place(roofline, 1 << (rows.bit_length() - 1), CACHED_COLUMNS, readings=readings, device=device)


def stages(compilation: Compilation) -> Iterator[tuple[str, str]]:
    """(heading, text) of every stage that ran, with the time it took. What ran last has no text of its own."""
    for stage, record in compilation.stages():
        if stage.name == "artifact":
            continue
        milliseconds = compilation.timings.get(stage.name, 0.0) * 1e3
        yield f"{stage.title} ({stage.section}), {milliseconds:.1f} ms", str(record)


def _time_split(compilation: Compilation) -> str:
    """Seconds from the Python function to a callable kernel, stage by stage."""
    parts = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in compilation.timings.items())
    total = sum(compilation.timings.values())
    return f"From Python to a kernel ready to run: {total:.2f} s (milliseconds: {parts})\n{_origin_of(compilation)}\n"


def _origin_of(compilation: Compilation) -> str:
    """Whether the kernels were compiled for this or found in the disk cache: the time says little without it."""
    hits = list(compilation.artifact.cache_hits.values()) if compilation.artifact is not None else []
    if not hits:
        return "no kernel had to be compiled"
    if not any(hits):
        return "compiled now; the next time it comes from the disk cache"
    found = "found compiled, in the disk cache" if all(hits) else f"{sum(hits)} of {len(hits)} found in the disk cache"
    return f"{found} (staxlab cache clear, and the C++ compiler's time is in it again)"


def _headed(heading: str, text: str) -> str:
    return f"{heading}\n{'=' * len(heading)}\n{text.rstrip()}\n"


def _assembly(compilation: Compilation, kind: str, whole: bool) -> str:
    parts = []
    for kernel in compilation.kernels:
        lines = kernel.assembly(kind).text.splitlines()
        more = 0 if whole else len(lines) - LISTING_HEAD
        rest = f"... {more} more lines: staxlab tour --all, or make tour TOUR_ARGS=--all"
        head = lines if more <= 0 else [*lines[:LISTING_HEAD], rest]
        parts.append("\n".join(head))
    return "\n".join(parts)


def _errors(function: Callable, compiled: Callable, arguments: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Largest absolute distance from the float64 value, eager and compiled, and the bound both must keep.

    Every summand is non-negative, so the sum of magnitudes that the bound of Section 6.5 multiplies is the sum itself.
    ``x + w`` rounds once, the sum at most ``columns - 1`` times whatever its order; doubling is exact.
    """
    from .measure.rounding import gamma

    exact = function(*(argument.double() for argument in arguments))
    columns = arguments[0].shape[-1]
    distances = {
        "eager": (function(*arguments).double() - exact).abs(),
        "compiled": (compiled(*arguments).double() - exact).abs(),
    }
    if exact.numel() == 0:
        return {"eager": 0.0, "compiled": 0.0, "bound": 0.0}
    bound = gamma(max(columns, 1)) * exact
    outside = distances["compiled"] > bound
    if outside.any():
        row = int(outside.nonzero()[0, 0])
        raise StaxError(f"row {row} of the compiled result is outside the rounding bound: this is a defect of staxlab")
    return {name: float(distance.max()) for name, distance in distances.items()} | {"bound": float(bound.max())}


def _error_text(errors: dict[str, float]) -> str:
    return (
        f"largest distance from the float64 value: eager {errors['eager']:.3g}, compiled {errors['compiled']:.3g}\n"
        f"every row is within its rounding bound, which in the worst row is {errors['bound']:.3g}"
    )


def _measure(function: Callable, compiled: Callable, arguments: tuple, peers: bool) -> Comparison:
    from .measure.timing import compare

    sides: dict[str, Callable[[], Any]] = {
        "eager": lambda: function(*arguments),
        "staxlab": lambda: compiled(*arguments),
    }
    if peers:
        import torch

        peer = torch.compile(function)
        sides["torch.compile"] = lambda: peer(*arguments)
    return compare(sides, readings=21, warmup=5)


def _conclusion(comparison: Comparison) -> str:
    lines = [f"staxlab is {comparison.ratio('staxlab').median:.2f} times as fast as eager"]
    if any(timing.name == "torch.compile" for timing in comparison.timings):
        lines.append(f"and {comparison.ratio('staxlab', 'torch.compile').median:.2f} times as fast as torch.compile")
    return ", ".join(lines) + " (medians of pairwise ratios, alternating)"
