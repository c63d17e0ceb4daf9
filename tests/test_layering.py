"""Imports point downwards, third-party packages stay lazy, and no module grows past reading size.

The whole order is :data:`ORDER`. A module may import at its top only from its own layer or below. An import inside a
function may reach upwards only where a record fetches its own rendering (:data:`RENDERING`), because a record must be
able to draw itself without its stage knowing how.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 600

# Lowest first; names on one line share a layer. The longest matching prefix decides a module's layer.
ORDER: tuple[tuple[str, ...], ...] = (
    ("staxlab.errors", "staxlab.files", "staxlab.options", "staxlab.modes", "staxlab.provenance", "staxlab.logs",
     "staxlab.native", "staxlab.backends.table", "staxlab.runtime.cache_directory"),
    ("staxlab.loops.expressions",),  # integer expressions, of sizes as well as of subscripts
    ("staxlab.shapes",),
    ("staxlab.capture.graph", "staxlab.capture.module"),
    ("staxlab.specialize", "staxlab.shapes.bucketed"),  # which asks whether its call is being recorded
    ("staxlab.capture",),
    ("staxlab.transform",),
    ("staxlab.operators",),
    ("staxlab.autodiff",),
    ("staxlab.loops",),
    ("staxlab.schedule",),
    ("staxlab.polyhedral",),
    ("staxlab.attention",),  # what generators of attention kernels read; what calls the generators is further up
    ("staxlab.codegen",),
    ("staxlab.runtime",),
    ("staxlab.attention.backends", "staxlab.attention.operator", "staxlab.attention.omni",
     "staxlab.attention.ready", "staxlab.attention.recorded"),
    ("staxlab.measure",),
    ("staxlab.compilation",),
    ("staxlab.around_calls", "staxlab.instances"),
    ("staxlab.fallbacks", "staxlab.remarks", "staxlab.restoring"),
    ("staxlab.backends",),
    ("staxlab.pipeline",),
    ("staxlab.api", "staxlab.exporting"),
    ("staxlab.derivatives",),
    ("staxlab.locate",),
    ("staxlab.view",),
    ("staxlab.learn",),
    ("staxlab.doctor", "staxlab.oneliner", "staxlab.reproducing", "staxlab.tour"),
    ("staxlab.cli",),
    ("staxlab.__main__",),
)
RANK = {prefix: level for level, names in enumerate(ORDER) for prefix in names}
# The package root republishes the public names: it stands beside the API, and may name what is above lazily.
FACADE = "staxlab"
RANK[FACADE] = RANK["staxlab.derivatives"]

EAGER_THIRD_PARTY = {"torch", "numpy"}
RENDERING = (
    "_repr_", "__repr__", "__str__", "_ipython_display_", "show", "stepper", "write_html", "assembly", "inner_loop",
    "occupancy", "coalescing", "lowering_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One imported module: who, which, on what line, inside which functions, only for the type checker or not."""

    importer: str
    target: str
    line: int
    scope: tuple[str, ...]
    type_checking: bool


def rank(module: str) -> int:
    """The layer of a module: that of its longest listed prefix. KeyError for one that the order does not place."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        prefix = ".".join(parts[:length])
        if prefix in RANK:
            return RANK[prefix]
    if module == FACADE:
        return RANK[FACADE]
    raise KeyError(module)


def imports_of(name: str, source: str, known: set[str], is_package: bool) -> Iterator[Import]:
    """Every import in a module, relative ones resolved, ``from package import submodule`` counted as the submodule."""
    package = name.split(".") if is_package else name.split(".")[:-1]

    def visit(node: ast.AST, scope: tuple[str, ...], type_checking: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, node.lineno, scope, type_checking)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                submodule = f"{origin}.{alias.name}"
                yield Import(name, submodule if submodule in known else origin, node.lineno, scope, type_checking)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, (*scope, node.name), type_checking)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, scope, True)
            for child in node.orelse:
                yield from visit(child, scope, type_checking)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, scope, type_checking)

    yield from visit(ast.parse(source), (), False)


def violations(modules: dict[str, str], packages: set[str]) -> list[str]:
    """What a set of modules ({dotted name: source}) does against the rules of this file, one line per offence."""
    known = set(modules)
    found: list[str] = []
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in sorted(modules.items()):
        length = source.count("\n")
        if length > LONGEST_MODULE:
            found.append(f"{name}: {length} lines, more than {LONGEST_MODULE}; split it by idea")
        try:
            own = rank(name)
        except KeyError:
            found.append(f"{name}: has no place in the order of layers; add it to ORDER")
            continue
        for item in imports_of(name, source, known, name in packages):
            where = f"{name}:{item.line}"
            top = item.target.split(".")[0]
            if top != "staxlab":
                eager = not item.scope and not item.type_checking
                if eager and top not in EAGER_THIRD_PARTY and top not in sys.stdlib_module_names:
                    found.append(f"{where}: imports {top} at module level; import it where it is used")
                continue
            if item.target not in known:
                found.append(f"{where}: imports {item.target}, which does not exist")
                continue
            if not item.scope and not item.type_checking:
                edges[name].add(item.target)
            draws = any(function.startswith(RENDERING) for function in item.scope)
            lazy_facade = name == FACADE and item.scope == ("__getattr__",)
            if rank(item.target) > own and not draws and not lazy_facade:
                found.append(f"{where}: imports {item.target}, which is above it")
    found.extend(f"modules import each other: {' -> '.join(cycle)}" for cycle in cycles(edges))
    return found


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The import cycles among modules, each once, found by depth-first search."""
    state: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        state[node] = 1
        stack.append(node)
        for successor in sorted(edges.get(node, ())):
            if state.get(successor) == 1:
                found.append([*stack[stack.index(successor) :], successor])
            elif successor not in state:
                visit(successor)
        stack.pop()
        state[node] = 2

    for node in sorted(edges):
        if node not in state:
            visit(node)
    return found


def package_sources() -> tuple[dict[str, str], set[str]]:
    modules: dict[str, str] = {}
    packages: set[str] = set()
    for path in sorted((ROOT / "staxlab").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            packages.add(".".join(parts))
        modules[".".join(parts)] = path.read_text(encoding="utf-8")
    return modules, packages


def test_the_package_keeps_its_layers():
    modules, packages = package_sources()
    assert "staxlab.options" in modules, "the package was not found"
    offences = violations(modules, packages)
    assert not offences, "\n".join(offences)


def test_every_package_directory_is_a_package():
    missing = [
        str(directory.relative_to(ROOT))
        for directory in {path.parent for path in (ROOT / "staxlab").rglob("*.py")}
        if not (directory / "__init__.py").exists()
    ]
    assert not missing, f"no __init__.py in {missing}: an installed staxlab would lack these modules"


def test_every_module_opens_with_a_lesson():
    """A module says in its docstring what it is about. An ``__init__`` may stay empty."""
    modules, packages = package_sources()
    bare = [name for name, source in modules.items() if not ast.get_docstring(ast.parse(source)) and source.strip()]
    assert not bare, f"modules without a docstring: {bare}"


# Each planted offence must be found, and nothing else.
BASE = {"staxlab": "", "staxlab.options": "import torch\n", "staxlab.loops": "", "staxlab.loops.ir": ""}
PACKAGES = {"staxlab", "staxlab.loops", "staxlab.schedule", "staxlab.view"}
IR, OPS, FUSION = "staxlab.loops.ir", "staxlab.loops.ops", "staxlab.schedule.fusion"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..schedule import fusion\n"
GUARDED = "try:\n    import triton\nexcept ImportError:\n    pass\n"
PLANTED = {
    "upward": ({IR: "from ..schedule import fusion\n", FUSION: ""}, "is above it"),
    "upward, absolute": ({IR: "import staxlab.view.graph\n", "staxlab.view.graph": ""}, "is above it"),
    "upward, lazily": ({IR: "def lower():\n    from ..schedule.fusion import fuse\n", FUSION: ""}, "is above it"),
    "upward, for types": ({IR: FOR_TYPES, FUSION: ""}, "is above it"),
    "from the facade": ({IR: "from .. import compile\n"}, "imports staxlab, which is above it"),
    "third party": ({IR: "import jinja2\n"}, "imports jinja2 at module level"),
    "third party, submodule": ({IR: "from matplotlib import pyplot\n"}, "imports matplotlib"),
    "third party, guarded": ({IR: GUARDED}, "imports triton"),
    "unplaced": ({"staxlab.surprise": ""}, "has no place"),
    "missing": ({IR: "from . import gone, ops\nfrom .gone import x\n", OPS: ""}, "does not exist"),
    "cycle": ({IR: "from . import ops\n", OPS: "from . import ir\n"}, "import each other"),
    "length": ({IR: "\n" * (LONGEST_MODULE + 1)}, "lines, more than"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_checker_finds_a_planted_offence(name):
    extra, expected = PLANTED[name]
    offences = violations({**BASE, **extra}, PACKAGES)
    assert len(offences) == 1 and expected in offences[0], offences


def test_the_checker_accepts_what_is_allowed():
    allowed = {
        "staxlab.loops.ir": "import math\nimport torch\nfrom ..options import Options\nfrom . import ops\n",
        "staxlab.loops.ops": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import jinja2\n"
            "class Program:\n"
            "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
            "        from ..view import loops\n"
            "    def source(self):\n        import jinja2\n"
        ),
        "staxlab.view": "",
        "staxlab.view.loops": "from ..loops.ir import x\n",
        "staxlab": "from .loops import ir\ndef __getattr__(name):\n    from .view import loops\n",
    }
    assert violations({**BASE, **allowed}, PACKAGES) == []


HEAVY = ("sympy", "jinja2", "triton", "matplotlib", "IPython", "ipywidgets", "graphviz", "scipy", "torch._dynamo")


def test_importing_staxlab_adds_no_heavy_package():
    """Only what ``import staxlab`` adds to ``import torch`` counts: torch is not ours to slim."""
    program = (
        "import json, sys, torch\n"
        "before = set(sys.modules)\n"
        "import staxlab\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    added = json.loads(result.stdout)
    assert "staxlab" in added
    heavy = [name for name in added if any(name == h or name.startswith(h + ".") for h in HEAVY)]
    assert not heavy, heavy
    foreign = {name.split(".")[0] for name in added} - {"staxlab"} - set(sys.stdlib_module_names)
    foreign = {name for name in foreign if not name.startswith("_sysconfigdata")}  # part of the standard library too
    assert not foreign, f"import staxlab pulls in {sorted(foreign)}"
