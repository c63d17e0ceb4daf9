"""Which module draws which record: one table, by the name of the record's type.

The table holds names, not functions: a rendering module is imported when the first record of its kind is drawn. A
record type is looked up along its bases, so a subclass is drawn as its parent until it has a rendering of its own.
Every rendering module has ``panes(record) -> list[Pane]``; a module that wants more say (several panes, names for the
status line) has ``view(record, full) -> View`` instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .document import Pane, View
from .listing import listing, plain_lines

RENDERERS: dict[str, str] = {
    "Graph": "graph",
    "GraphModule": "graph",
    "Key": "specialization",
    "Guard": "specialization",
    "Dispatcher": "dispatch",
    "DispatchReport": "dispatch",
    "Recompile": "dispatch",
    "RecompileReport": "dispatch",
    "Version": "dispatch",
    "VersionReport": "dispatch",
    "Capture": "capture",
    "Replay": "capture",
    "TransformLog": "transforms",
    "OperatorGraph": "operators",
    "Expansion": "expansions",
    "DecompositionTable": "expansions",
    "Functionalization": "functionalization",
    "StorageRow": "functionalization",
    "Reversal": "reversal",
    "ReverseSweep": "straightline",
    "TradeOff": "tradeoff",
    "JointGraph": "joint",
    "Partition": "partition",
    "FlowNetwork": "flow",
    "Flow": "flow",
    "Frontier": "frontier",
    "MemoryTimeline": "memory",
    "MemoryStats": "pool",
    "LoopProgram": "loops",
    "LoopBody": "loops",
    "Composition": "composition",
    "ViewMap": "viewmap",
    "SplitMap": "splitting",
    "RealizationTable": "what_if",
    "WhatIf": "what_if",
    "Interpretations": "interpretations",
    "Schedule": "schedule",
    "MemoryPlan": "lifetimes",
    "OrderComparison": "lifetimes",
    "FusionHistory": "fusion",
    "FusionGap": "fusion",
    "LoopNest": "iteration_space",
    "Dependences": "iteration_space",
    "Transformation": "iteration_space",
    "TransformedNest": "iteration_space",
    "AffineSchedule": "iteration_space",
    "NoSchedule": "iteration_space",
    "Kernel": "kernels",
    "KernelSet": "kernels",
    "Assembly": "assembly",
    "InnerLoop": "inner_loop",
    "LaneReduction": "lanes",
    "CacheLines": "cache_lines",
    "LittlesLaw": "little",
    "Occupancy": "occupancy",
    "Coalescing": "coalescing",
    "LoweringSteps": "lowering_steps",
    "TilingComparison": "coalescing",
    "Search": "searches",
    "SideBySide": "searches",
    "Sharing": "sharing",
    "Depth": "sharing",
    "Wrapper": "wrapper",
    "GraphReport": "graphs",
    "LaunchTimeline": "launch_timeline",
    "BuildReport": "build_chart",
    "ListSchedule": "build_chart",
    "Decision": "decisions",
    "TrafficModel": "traffic",
    "TileTraffic": "matrix_traffic",
    "ProductModels": "product_models",
    "EpilogueSaving": "matrix_traffic",
    "Projections": "projections",
    "PebbleRun": "projections",
    "Numbering": "grouped_numbering",
    "Pipeline": "pipeline_stages",
    "StageBudget": "pipeline_stages",
    "Roofline": "roofline",
    "RoundingStudy": "rounding_study",
    "SizeSweep": "size_sweep",
    "SavedRun": "saved_runs",
    "Reproduction": "reproduce",
    "Amortization": "amortization",
    "Behaviour": "comparison",
    "HloStages": "comparison",
    "LoopsBeside": "comparison",
    "DialectCounts": "comparison",
    "TransformationMap": "transformation_map",
    "TreatmentTable": "treatments",
    "Accuracy": "accuracy",
    "FunctionAccuracy": "accuracy",
    "Validation": "validation",
    "Location": "location",
    "PassCosts": "pass_costs",
    "Tabular": "measures",
    "BlockMask": "block_mask",
    "Modification": "modification",
    "AdjointBody": "modification",
    "InstanceRun": "attention_state",
    "AttentionTraffic": "attention_traffic",
    "AttentionLengths": "attention_lengths",
    "Contents": "cache_browser",
    "Verification": "cache_browser",
    "CompilationFlow": "pipeline_flow",
    "BackendTable": "backends",
    "ModeTable": "backends",
    "Delegated": "backends",
    "BirthdayBound": "birthday",
    "VersionHistory": "version_counts",
    "ShapeGuard": "shape_guard",
    "RangeAnswers": "range_answers",
    "ExportedProgram": "exported",
    "Compilation": "explorer",
}


def register(type_name: str, module: str) -> None:
    """Let ``module`` (dotted, or the name of a module of this package) draw records whose type has this name."""
    RENDERERS[type_name] = module


def _renderer(record: Any) -> Any:
    for ancestor in type(record).__mro__:
        name = RENDERERS.get(ancestor.__name__)
        if name is not None and (ancestor.__module__ or "").startswith("staxlab"):
            return importlib.import_module(name if "." in name else f"{__package__}.{name}")
    return None


def panes_of(record: Any, *, full: bool = False) -> View:
    """The view of a record, of a sequence of records, or of a mapping from headings to records."""
    if isinstance(record, Mapping):
        return _combined([(str(heading), part) for heading, part in record.items()], full)
    if isinstance(record, (list, tuple)) and not hasattr(record, "_fields"):
        if record and all(type(part).__name__ == "Decision" for part in record):
            from .decisions import panes

            return View("decisions", tuple(panes(record)))
        return _combined([(None, part) for part in record], full)
    module = _renderer(record)
    if module is None:
        return _fallback(record)
    if callable(getattr(module, "view", None)):
        return module.view(record, full)
    return View(type(record).__name__, tuple(module.panes(record)))


def sections_of(record: Any) -> list[tuple[str, View]]:
    """What a page shows: (heading, view) for each entry of a mapping, else the one view without a heading."""
    if isinstance(record, Mapping):
        return [(str(heading), panes_of(part, full=True)) for heading, part in record.items()]
    return [("", panes_of(record, full=True))]


def _combined(parts: list[tuple[str | None, Any]], full: bool) -> View:
    """The panes of several records below one root; keys are numbered where they would repeat."""
    panes: list[Pane] = []
    names: dict[int, str] = {}
    taken: set[str] = set()
    for heading, part in parts:
        inner = panes_of(part, full=full)
        names.update(inner.names)
        for pane in inner.panes:
            key, count = pane.key, 2
            while key in taken:
                key, count = f"{pane.key}-{count}", count + 1
            taken.add(key)
            title = pane.title if heading is None else heading if len(inner.panes) == 1 else f"{heading}: {pane.title}"
            panes.append(Pane(key, title, pane.body, pane.summary, pane.plain))
    return View("records", tuple(panes), names=names)


def _fallback(record: Any) -> View:
    """A record without a drawing of its own is shown as its text. Foreign objects are refused."""
    if not (type(record).__module__ or "").startswith("staxlab"):
        raise TypeError(f"no rendering for a {type(record).__module__}.{type(record).__name__}")
    plain = plain_text(record)
    title = type(record).__name__
    return View(title, (Pane(title.lower(), title, listing(plain_lines(plain), "text", name=title), plain=plain),))


def plain_text(record: Any) -> str:
    """``format()`` where the record has it, else ``str``; several records one below the other."""
    if isinstance(record, Mapping):
        return "\n\n".join(f"== {heading} ==\n{plain_text(part)}" for heading, part in record.items())
    if isinstance(record, (list, tuple)) and not hasattr(record, "_fields"):
        return "\n".join(plain_text(part) for part in record)
    module = _renderer(record)
    if module is not None and hasattr(module, "text"):
        return module.text(record)
    formatter = getattr(record, "format", None)
    if callable(formatter) and not isinstance(record, str):
        return formatter()
    return str(record)
