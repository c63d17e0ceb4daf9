"""The command line: ``staxlab tour | explain | locate | roofline | reproduce | doctor | cache``.

Each command imports what it needs when it runs. A command that cannot do what was asked says so on standard error
(what, where, and the remedy, a line each) and ends with status 2 (the request was wrong) or 1 (it failed);
``STAXLAB_DEBUG=1`` shows the traceback instead.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import __version__
from .errors import BuildError, FallbackWarning, MissingDependencyError, OptionError, StaxError
from .options import GPU_SPECS

BAD_REQUEST, FAILED, INTERRUPTED = 2, 1, 130
MACHINE_CODE = ("asm", "ttir", "ttgir", "llir", "ptx", "sass")


def build_parser() -> argparse.ArgumentParser:
    """The parser, separate from :func:`main` so that documentation can be checked against it."""
    parser = argparse.ArgumentParser(prog="staxlab", description="A tensor compiler you can stand inside of.")
    parser.add_argument("--version", action="version", version=f"staxlab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    tour = commands.add_parser("tour", help="one example from Python to a running kernel, every stage printed")
    tour.add_argument("--html", metavar="FILE", help="also write a page with all stages linked to each other")
    tour.add_argument("--size", metavar="RxC", type=_size, default=(8192, 2048), help="rows x columns (8192x2048)")
    tour.add_argument("--peers", action="store_true", help="also measure torch.compile (its first call takes long)")
    tour.add_argument("--all", action="store_true", help="print machine code whole, not only its first lines")
    tour.set_defaults(run=_tour)

    explain = commands.add_parser(
        "explain",
        help="show any stage of the compilation of any expression",
        epilog=_explain_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("-c", dest="expression", metavar="EXPRESSION", required=True, help=_EXPRESSION_HELP)
    explain.add_argument("--stage", metavar="NAME", action="append", help="only this stage; may be given again")
    explain.add_argument("--target", metavar="NAME", help="what to generate code for; see below")
    explain.add_argument("--html", metavar="FILE", help="write a page with all stages linked to each other")
    explain.add_argument("--strict", action="store_true", help="fail at an operator without a lowering; see below")
    explain.set_defaults(run=_explain)

    locate = commands.add_parser("locate", help="find the layer in which compiled and eager execution part")
    locate.add_argument("-c", dest="expression", metavar="EXPRESSION", required=True, help=_EXPRESSION_HELP)
    locate.add_argument("--samples", metavar="N", type=int, default=1, help="how many inputs to try (1)")
    locate.add_argument("--script", metavar="FILE", help="write a small program there that shows the error")
    locate.add_argument("--html", metavar="FILE", help="write a page with the location")
    locate.set_defaults(run=_locate)

    roofline = commands.add_parser("roofline", help="measure what this machine can do, in under a minute")
    roofline.add_argument(
        "--out", metavar="DIR", help="write roofline.json, pictures and a page there; or this .json and SVG beside it"
    )
    roofline.add_argument("--quick", action="store_true", help="fewer rounds, rougher numbers")
    roofline.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure (cpu)")
    roofline.add_argument("--json", action="store_true", help="print the record as JSON, for a script")
    roofline.add_argument("--from", dest="saved", metavar="FILE", help="draw a roofline.json again; measures nothing")
    roofline.add_argument("--nominal", metavar="GPU", help="draw a data sheet, as 'H100 SXM'; measures nothing")
    roofline.set_defaults(run=_roofline)

    reproduce = commands.add_parser("reproduce", help="the tables and figures of Section 13, measured on this machine")
    reproduce.add_argument("what", nargs="?", default="all", metavar="WHAT", help=_REPRODUCE_HELP)
    reproduce.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu or cuda (cpu)")
    reproduce.add_argument("--scale", type=float, default=1.0, metavar="X", help="X times the rows of the text (1)")
    reproduce.add_argument("--rounds", type=int, metavar="N", help="how often all cases are measured (2)")
    reproduce.add_argument("--readings", type=int, metavar="N", help="readings per side and round (15)")
    reproduce.add_argument("--quick", action="store_true", help="few readings, rougher numbers")
    reproduce.add_argument("--peers", action="store_true", help="also measure torch.compile")
    reproduce.add_argument("--json", action="store_true", help="print the records as JSON, for a script")
    reproduce.add_argument("--out", metavar="DIR", help="write JSON, text and pictures there; or into this .json")
    reproduce.add_argument("--from", dest="saved", metavar="PATH", help="show what --out wrote; measures nothing")
    reproduce.set_defaults(run=_reproduce)

    doctor = commands.add_parser("doctor", help="what is installed here, what is missing, what to do about it")
    doctor.add_argument("--json", action="store_true", help="for a script")
    doctor.set_defaults(run=_doctor)

    cache = commands.add_parser("cache", help="the compiled kernels kept on disk")
    cache.add_argument("action", choices=("info", "list", "verify", "export", "clear"), help=_CACHE_HELP)
    cache.add_argument("directory", nargs="?", metavar="DIR", help="where export puts its copy")
    cache.add_argument("--remove", action="store_true", help="verify: also delete what is not sound")
    cache.set_defaults(run=_cache)
    return parser


def _explain_epilog() -> str:
    architectures = ", ".join(GPU_SPECS)
    return f"""\
stages, in order:
  capture (its graph alone: graph), transforms, joint, partition, operators, loops, schedule, kernels, wrapper
  (joint and partition where an input requires grad: torch.randn(8, requires_grad=True))
beside them:
  backward (the compilation of the backward half), assembly or asm (what the target executes), ttir, ttgir, llir, ptx,
  sass (the steps of a GPU kernel), decisions, traffic

targets:
  cpu            this machine's processor; the default
  cuda           the GPU that is here
  {architectures:<14} these architectures, without having one

What a kernel is: "cpp" and "triton" are generated. "extern" is a routine of PyTorch's: a *library* call on purpose
(large products, convolution, sort: no generated loop would be better), or a *fallback*, because no lowering rule covers
the operator. --strict refuses fallbacks and accepts library calls.
"""


_EXPRESSION_HELP = (
    "such as 'F.softmax(torch.randn(64, 1000), -1)'; torch, F, nn and math are at hand, and assignments may stand "
    "before it: 'x = torch.randn(8, 8); x + x.t()'"
)


_REPRODUCE_HELP = (
    "table-13.1, table-13.2, figure-1.1, figure-13.1, amortisation, all (the default), or one case, such as example_7_1"
)


_CACHE_HELP = (
    "info: how much there is; list: every entry; verify: read each and say what is damaged, foreign or another "
    "machine's (status 1 if any stays); export: a copy for others to share (STAXLAB_CACHE_SHARED); clear: delete all"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Argparse itself exits with status 2 on a malformed command line."""
    options = build_parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows '?', not a traceback
    try:
        with _notes():
            status = options.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader (head, less) has what it wants. Keep the interpreter from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("staxlab: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("STAXLAB_DEBUG") == "1":
            raise
        print(f"staxlab: {error if isinstance(error, StaxError) else _one_line(error)}", file=sys.stderr)
        return BAD_REQUEST if isinstance(error, OptionError) else FAILED


def _one_line(error: Exception) -> str:
    if isinstance(error, StaxError):
        return " ".join(part.strip() for part in str(error).splitlines() if part.strip())
    text = str(error).strip()
    first = text.splitlines()[0] if text else "no details"
    return f"{type(error).__name__}: {first} (STAXLAB_DEBUG=1 shows more)"


@contextmanager
def _notes() -> Iterator[None]:
    """Show the compiler's warnings on standard error as notes, without a line of ours to point at, each once."""
    seen: set[str] = set()

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        text = str(message)
        if issubclass(category, FallbackWarning) and text not in seen:
            seen.add(text)
            print(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        warnings.showwarning = show
        yield


def _size(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdigit() and columns.isdigit() and int(rows) > 0 and int(columns) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 8192x2048")
    return int(rows), int(columns)


def _tour(options: argparse.Namespace) -> int:
    from . import tour

    _check_writable(options.html)
    show = lambda text: print(text, flush=True)  # noqa: E731
    tour.run(*options.size, page=options.html, peers=options.peers, whole=options.all, show=show)
    return 0


def _explain(options: argparse.Namespace) -> int:
    import torch

    import staxlab

    from .oneliner import parse

    wanted = [_known_stage(name) for name in options.stage or ()]
    _check_writable(options.html)
    line = parse(options.expression)
    # Parameters of a module alone do not ask for gradients; an input that requires grad does.
    with torch.set_grad_enabled(any(value.requires_grad for _, _, value in line.inputs)):
        _run_eagerly(line)
        compilation = staxlab.explain(
            line.function, *line.arguments, target=options.target, strict_native=options.strict
        )
    if not wanted:
        print(line, end="\n\n")
    for text in _shown(compilation, wanted):
        print(text)
    if options.html:
        compilation.write_html(options.html)
        print(f"wrote {options.html}", file=sys.stderr)
    return 0


def _run_eagerly(line: Any) -> None:
    """OptionError for an expression that PyTorch refuses."""
    try:
        line.function(*line.arguments)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise OptionError(
            f"PyTorch itself cannot run this: {type(error).__name__}: {reason[0] if reason else ''}"
        ) from error


def _locate(options: argparse.Namespace) -> int:
    import torch

    from .locate import locate_error
    from .oneliner import parse
    from .view import write_page

    for file in (options.script, options.html):
        _check_writable(file)
    line = parse(options.expression)
    with torch.set_grad_enabled(any(value.requires_grad for _, _, value in line.inputs)):
        _run_eagerly(line)
        location = locate_error(
            line.function, *line.arguments, samples=options.samples, save=options.script,
            progress=lambda text: print(f"{text} ...", file=sys.stderr),
        )  # fmt: skip
    print(line, end="\n\n")
    print(location)
    if options.html:
        write_page(options.html, location, title=location.verdict)
        print(f"wrote {options.html}", file=sys.stderr)
    if options.script and location.culprit is None:
        print(f"{options.script} is not written: there is no error to show", file=sys.stderr)
    return 0 if location.culprit is None else FAILED


def _stage_names() -> tuple[str, ...]:
    from .pipeline import STAGES

    names = [stage.name for stage in STAGES if stage.name != "artifact" and not stage.option]
    return (*names, "graph", "backward", "assembly", *MACHINE_CODE, "decisions", "traffic")


def _known_stage(name: str) -> str:
    import difflib

    known = _stage_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise OptionError(f"there is no stage {name!r}: {hint}known: {', '.join(known)}")
    return name


def _shown(compilation: Any, wanted: Sequence[str]) -> Iterator[str]:
    """The texts of the wanted stages, or of all stages under headings."""
    if not wanted:
        from .tour import stages

        for heading, text in stages(compilation):
            yield f"{heading}\n{'=' * len(heading)}\n{text.rstrip()}\n"
        if compilation.backward is not None:
            yield "These are the stages of the forward half; --stage backward shows the other.\n"
    for name in wanted:
        if name in ("assembly", *MACHINE_CODE):
            yield from _machine_code(compilation, None if name in ("assembly", "asm") else name)
        elif name == "decisions":
            yield "\n".join(map(str, compilation.decisions)) or "no decisions were taken"
        elif (record := getattr(compilation, name)) is None:
            if name in ("joint", "partition", "backward") and not compilation.trains:
                raise StaxError(
                    f"there is no stage {name} here: no input requires grad (parameters of modules alone do not count)",
                    remedy="torch.randn(8, requires_grad=True), for example",
                )
            raise StaxError(
                f"the compilation did not reach the stage {name}: {compilation.fallback_reason}",
                remedy=compilation.fallback_remedy,
            )
        else:
            yield str(record).rstrip()


def _machine_code(compilation: Any, kind: str | None) -> Iterator[str]:
    if kind in MACHINE_CODE[1:] and not compilation.device.is_gpu:
        raise OptionError(
            f"{kind} is {'machine code' if kind in ('ptx', 'sass') else 'a step'} of a GPU, and the target is cpu",
            remedy="--stage asm, or --target sm_90",
        )
    native = [kernel for kernel in compilation.kernels or () if kernel.is_generated]
    if not native:
        why = compilation.fallback_reason or "PyTorch's own routines do all of it"
        raise StaxError(f"there is no generated kernel, hence no machine code: {why}")
    for kernel in native:
        listing = kernel.assembly(kind)
        yield f"{kernel.name} ({listing.kind})\n{listing.text.rstrip()}"


def _roofline(options: argparse.Namespace) -> int:
    import json

    out = Path(options.out) if options.out else None
    if out:
        _check_writable(out if out.suffix == ".json" else out / "roofline.json", made=True)
    saved = options.saved or options.nominal
    if saved and (options.device != "cpu" or options.quick or (options.saved and options.nominal)):
        raise OptionError("--from and --nominal measure nothing: one of them, without --device and --quick")
    record = _saved_roofline(options) if saved else _measured_roofline(options.device, options.quick)
    print(json.dumps(record.to_json(), indent=1, allow_nan=False) if options.json else record)
    if record.sweep is not None and not options.json:
        print(f"\n{record.sweep}")
    if out:
        _write_roofline(record, out, keep=options.saved)
    return 0 if saved or record.complete else INTERRUPTED


def _saved_roofline(options: argparse.Namespace) -> Any:
    """The roofline of a file, or of a data sheet. OptionError for a file that holds none."""
    from .measure.roofline import Roofline
    from .measure.roofline_nominal import nominal_roofline

    if options.nominal:
        return nominal_roofline(options.nominal)
    try:
        return Roofline.load(options.saved)
    except OSError as error:
        raise OptionError(f"{options.saved} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{options.saved} holds no roofline: {error}",
                          remedy="staxlab roofline --out DIR writes one") from None  # fmt: skip


def _measured_roofline(device: str, quick: bool) -> Any:
    """Limits, levels, working sets and Example 1.1, until something or somebody stops it."""
    from dataclasses import replace

    from . import tour
    from .measure import roofline, size_sweep
    from .measure.roofline_nominal import beside_data_sheet

    shown = _progress()

    def part(begin: float, end: float) -> Callable[[float, str], None]:
        # Only the last part ends the line.
        return lambda fraction, message: shown(min(begin + (end - begin) * fraction, 0.99), message)

    readings, measured = 7 if quick else 15, None
    try:
        measured = roofline.measure(part(0.0, 0.6), quick, device=device, levels=True)
        measured = replace(measured, notes=(*measured.notes, *beside_data_sheet(measured)))
        try:
            if measured.complete:
                sweep = size_sweep.sweep(part(0.6, 0.9), quick, device=device)
                measured = replace(measured, sweep=sweep, complete=sweep.complete)
        except (BuildError, MissingDependencyError) as error:
            print(f"note: working sets were not swept: {_one_line(error)}", file=sys.stderr)
        try:
            for place in (tour.place, tour.place_in_cache):
                if measured.complete:
                    shown(0.9, "Example 1.1")
                    measured = place(measured, readings=readings, device=device)
        except (BuildError, MissingDependencyError) as error:
            print(f"note: Example 1.1 is not on the plot: {_one_line(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        if measured is None:
            raise
        measured = replace(measured, complete=False)
    shown(1.0, "finished" if measured.complete else "interrupted")
    return measured


def _write_roofline(record: Any, out: Path, keep: str | None) -> None:
    """The record as JSON and its pictures: in a directory, with a page, or as a file that ends in .json, with SVG
    alone. Each file is whole or is not there. ``keep`` is a file that was read and is not to be written again."""
    from .view import write_page

    file = out if out.suffix == ".json" else out / "roofline.json"
    written = []
    if keep is None or not (file.exists() and file.samefile(keep)):
        written.append(record.save(file))
    try:
        written += [record.plot(file.with_suffix(kind)) for kind in ((".svg",) if file == out else (".png", ".svg"))]
        if record.sweep is not None and record.sweep.curves:
            written.append(record.sweep.show(file.with_name(f"{file.stem}_sizes.svg")))
    except MissingDependencyError as error:
        print(f"note: no pictures were drawn: {_one_line(error)}", file=sys.stderr)
    if file != out:
        written.append(file.with_suffix(".html"))
        write_page(written[-1], record, title=record.title)
    if written:
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)


def _reproduce(options: argparse.Namespace) -> int:
    import json

    from . import reproducing

    out = Path(options.out) if options.out else None
    if out:
        _check_writable(out if out.suffix == ".json" else out / "tables.json", made=True)
    if options.saved:
        done = _saved_reproduction(Path(options.saved))
    else:
        settings = reproducing.Settings(
            readings=options.readings if options.readings is not None else 5 if options.quick else 15,
            rounds=options.rounds if options.rounds is not None else 2,
            scale=options.scale,
            device=options.device,
        )
        done = reproducing.run(options.what, settings, quick=options.quick, peers=options.peers, progress=_progress())
    print(json.dumps(done.to_json(), indent=1, allow_nan=False) if options.json else done.text())
    if out:
        written, remarks = reproducing.write(done, out)
        for remark in remarks:
            print(f"note: {remark}", file=sys.stderr)
        print(f"wrote {', '.join(map(str, written)) or 'nothing'}", file=sys.stderr)
    if not done.complete:
        return INTERRUPTED
    return FAILED if done.problems else 0


def _saved_reproduction(directory: Path) -> Any:
    """What was written there. OptionError for a directory that holds nothing of the kind."""
    from . import reproducing

    try:
        done = reproducing.load(directory)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{directory} holds no reproduction: {error}",
                          remedy="staxlab reproduce --out DIR writes one") from None  # fmt: skip
    if not done.parts:
        raise OptionError(f"{directory} holds no reproduction", remedy="staxlab reproduce --out DIR writes one")
    return done


def _progress() -> Callable[[float, str], None]:
    """Progress on standard error: one line redrawn in a terminal, a line per step elsewhere."""
    last = [""]

    def report(fraction: float, message: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{fraction:4.0%} {message}", end="\n" if fraction >= 1 else "", file=sys.stderr, flush=True)
        elif message != last[0]:
            print(f"{fraction:4.0%} {message}", file=sys.stderr, flush=True)
        last[0] = message

    return report


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import examine

    report = examine()
    print(report.to_json() if options.json else report)
    return 0 if report.healthy else FAILED


def _cache(options: argparse.Namespace) -> int:
    from .runtime import cache

    if (options.directory is None) == (options.action == "export"):
        needs = "needs a directory to copy to" if options.directory is None else "takes no directory"
        raise OptionError(f"cache {options.action} {needs}")
    if options.remove and options.action != "verify":
        raise OptionError("--remove belongs to cache verify")
    if options.action in ("verify", "export"):
        from .runtime import cache_upkeep

        if options.action == "export":
            print(cache_upkeep.export(options.directory))
            return 0
        verified = cache_upkeep.verify(remove=options.remove)
        print(verified)
        return 0 if verified.clean else FAILED
    if options.action == "list":
        print(cache.browse())
        return 0
    found = cache.info()
    if options.action == "clear":
        cache.clear()
    print(f"{'removed ' if options.action == 'clear' else ''}{found}")
    return 0


def _check_writable(file: str | Path | None, *, made: bool = False) -> None:
    """Refuse an output file that cannot be written before working a minute for it. OptionError if so.

    ``made``: its directory will be made if it is missing.
    """
    if not file:
        return
    from .doctor import writable

    path = Path(file).absolute()
    if path.is_dir():
        raise OptionError(f"{file} is a directory, not a file to write")
    if not made and not path.parent.exists():
        missing = path.parent
        while not missing.parent.exists():
            missing = missing.parent
        raise OptionError(
            f"{file} cannot be written: there is no directory {missing}",
            remedy=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    if reason := writable(path.parent):
        raise OptionError(f"{file} cannot be written: {reason}")


if __name__ == "__main__":
    sys.exit(main())
