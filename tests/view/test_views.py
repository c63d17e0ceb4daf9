"""Every record, drawn: well formed, self-contained, linked, the same every time, and readable with nothing but HTML."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from staxlab import view
from staxlab.capture.graph import Graph
from staxlab.codegen.kernel import KernelSet, Wrapper
from staxlab.options import Decision
from staxlab.provenance import Line, SourceLocation
from staxlab.view import document, registry
from staxlab.view.diagram import graph_diagram
from staxlab.view.listing import listing
from tests.view import examples
from tests.view.reading import read, references, stripped

RECORDS = examples.records()
ATTACK = '</pre><script>alert("x")</script>&amp;'


@pytest.fixture(scope="module")
def compilation():
    return examples.compilation()


def everything(compilation):
    named = dict(RECORDS)
    for stage, record in compilation.stages():
        named[f"compiled {stage.name}"] = record
    named |= {"key": compilation.key, "traffic": compilation.traffic, "compilation": compilation}
    return named


NAMES = [*RECORDS, *(f"compiled {n}" for n in ("capture", "transforms", "operators")), "key", "traffic", "compilation"]


@pytest.mark.parametrize("name", NAMES)
def test_every_record_has_text_and_wellformed_html(name, compilation):
    record = everything(compilation)[name]
    bundle = view.mimebundle(record)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"].strip()
    tree = read(bundle["text/html"])
    (root,) = tree.find(class_="sx-root")
    assert root.has("class_", "staxlab") and "drawing failed" not in root.text
    assert view.html(record) == bundle["text/html"] == view.html(record), "drawn differently the second time"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_from_a_network(name, compilation):
    assert references(view.html(everything(compilation)[name])) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_identifier_is_unique_and_no_object_address_leaks(name, compilation):
    html = view.html(everything(compilation)[name])
    ids = [e.attributes["id"] for e in read(html).walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert " at 0x" not in html


@pytest.mark.parametrize("name", NAMES)
def test_the_content_survives_without_styles_and_scripts(name, compilation):
    record = everything(compilation)[name]
    tree = read(stripped(view.html(record)))
    assert not tree.find("script") and not tree.find("style")
    for stage in [e for e in tree.walk() if "data-stage" in e.attributes]:
        summary = [e for e in stage.find("summary") if e.parent is stage]
        assert (stage.tag == "details") == bool(summary)
        if summary:
            assert stage.attributes["data-title"] in summary[0].text
        assert len(stage.text.strip()) > len(stage.attributes["data-title"])
    # Lines stay lines, because they are lines of a <pre>.
    for code in tree.find("pre"):
        lines = [e for e in code.walk() if "data-line" in e.attributes]
        assert code.text.count("\n") >= len(lines) - 1
    assert not any("hidden" in e.attributes for e in tree.walk()), "hidden content would stay hidden"


def test_the_origins_of_a_kernel_are_on_its_lines():
    tree = read(view.html(examples.kernel()))
    lines = tree.find("span", class_="sx-line")
    assert len(lines) == len(examples.KERNEL_LINES)
    for drawn, line in zip(lines, examples.KERNEL_LINES, strict=True):
        expected = " ".join(map(str, sorted(line.origins))) or None
        assert drawn.attributes.get("data-origins") == expected
        number, _, text = drawn.text.lstrip().partition(" ")
        assert number == drawn.attributes["data-line"] and text == line.text


def test_every_line_of_every_stage_that_has_origins_shows_them(compilation):
    for name in ("graph", "loops", "assembly", "wrapper", "schedule"):
        tree = read(view.html(RECORDS[name]))
        linked = [e for e in tree.walk() if "data-origins" in e.attributes]
        assert linked, name
        assert all(all(part.isdigit() for part in e.attributes["data-origins"].split(" ")) for e in linked)


def test_the_same_ids_run_through_all_stages(compilation):
    tree = read(view.html(compilation))
    relu = compilation.graph.find("relu")
    linked = {
        stage.attributes["data-stage"]
        for stage in tree.walk()
        if "data-stage" in stage.attributes
        for e in stage.walk()
        if str(relu.id) in e.attributes.get("data-origins", "").split(" ")
    }
    assert linked >= {"capture", "transforms", "operators", "loops", "schedule", "kernels", "asm", "wrapper", "traffic"}


def test_a_source_line_is_linked_through_the_nodes_recorded_on_it(compilation):
    (stage,) = [e for e in read(view.html(compilation)).walk() if e.attributes.get("data-stage") == "capture"]
    source = stage.find("pre")[0]
    lines = source.find("span", class_="sx-line")
    assert [line.attributes["data-line"] for line in lines] == ["1", "2", "3", "4"]
    of = {node.name: str(node.id) for node in compilation.graph}
    assert lines[1].attributes["data-origins"].split() == [of["add"], of["relu"]]
    chips = lines[1].find("span", class_="sx-chip")
    assert [(c.text, c.attributes["data-origins"]) for c in chips] == [("%add", of["add"]), ("%relu", of["relu"])]
    assert lines[0].attributes["data-origins"].split() == [of["x"], of["w"]]


def test_data_gates_and_shape_reads_are_linked_to_their_nodes():
    from staxlab.capture.tracer import trace
    from staxlab.oneliner import define
    from staxlab.options import Options

    source = "def f(x):\n    if x.sum() > -1000.0:\n        x = x * x.shape[0]\n    return x + 1\n"
    captured = trace(define(source, file="gates.py"), (torch.zeros(3, 4),), {}, options=Options())
    (gate,) = captured.gates
    tree = read(view.html(captured))
    (asked,) = [t for t in tree.find("table") if "Data gates" in t.text]
    (row,) = [r for r in asked.find("tr") if "data-origins" in r.attributes]
    assert row.attributes["data-origins"] == str(gate.node.id) and "True" in row.text and "gates.py:2" in row.text
    assert [r.attributes["data-line"] for r in tree.find("pre")[0].find("span", class_="sx-line")] == list("1234")


def test_several_results_of_one_kind_are_counted():
    from staxlab.view.diagram import shortened, value_text

    assert value_text((examples.meta(8),) * 3) == "3 × float32[8]"
    assert value_text((examples.meta(8), examples.meta(2))) == "(float32[8], float32[2])"
    assert value_text(5) == "5"
    assert shortened("abcdefghij", 7) == "abc…hij"


def test_one_tab_stop_per_listing():
    for name in ("kernel", "graph", "loops", "schedule"):
        for group in read(view.html(RECORDS[name])).walk():
            if "data-group" in group.attributes:
                stops = [e for e in group.walk() if e.attributes.get("tabindex") == "0"]
                linked = [e for e in group.walk() if "data-origins" in e.attributes]
                assert len(stops) == bool(linked)
                assert all("tabindex" in e.attributes for e in linked)


def test_nodes_of_a_diagram_speak():
    (picture,) = read(graph_diagram(examples.graph(), "captured graph")).find("svg")
    assert picture.attributes["role"] == "group" and "7 nodes, 6 edges" in picture.attributes["aria-label"]
    nodes = picture.find("g", class_="sx-node")
    said = [node.attributes["aria-label"] for node in nodes]
    assert said[2].startswith("%add: operator.add float32[64, 128], reads %x, %w; line 2:")
    assert all(node.attributes["role"] == "button" and node.find("title") for node in nodes)
    assert nodes[2].text.replace(said[2], "").startswith("%addoperator.addfloat32[64, 128]")
    # Kinds differ in shape, not only in colour.
    shapes = {node.attributes["class"].split()[-1]: str(node.find("rect")[0].attributes["rx"]) for node in nodes}
    assert shapes["sx-node-input"] != shapes["sx-node-call"]
    assert len(nodes[-1].find("rect")) == 2


def test_a_huge_graph_is_listed_and_not_drawn():
    graph = Graph()
    value = graph.placeholder("x", val=examples.meta(4))
    for _ in range(300):
        value = graph.call_function(torch.relu, (value,), val=examples.meta(4))
    graph.set_output(value)
    tree = read(view.html(graph))
    assert not tree.find("svg") and len(tree.find("span", class_="sx-line")) == 302
    assert read(view.page(graph)).find("svg"), "a page of its own draws it"


# -- text of the user's ------------------------------------------------------------------------------------------------


def test_text_of_the_users_stays_text():
    graph = Graph()
    where = SourceLocation(f"{ATTACK}.py", 3, f"return {ATTACK}", ATTACK)
    x = graph.placeholder("x", location=where)
    x.name = ATTACK
    graph.set_output(graph.call_function(torch.relu, (x, ATTACK), location=where))
    kernel = dataclasses.replace(
        examples.kernel(), name=ATTACK, lines=(Line(f"// {ATTACK}", frozenset({1})),), launch={ATTACK: ATTACK}
    )
    decision = Decision(ATTACK, ATTACK, ATTACK, ATTACK, (ATTACK,), ((ATTACK, ATTACK),))
    wrapper = Wrapper((Line(ATTACK),), {ATTACK: ATTACK})
    for record in (graph, kernel, KernelSet((kernel,)), decision, wrapper):
        html = view.html(record)
        tree = read(html)
        assert len(tree.find("script")) == 1, "a second script element appeared"
        assert 'alert("x")' not in "".join(map(str, tree.find("script")[0].children))
        assert ATTACK in tree.text or ATTACK in html.replace("&lt;", "<")
    assert ATTACK in read(view.page(graph, title=ATTACK)).find("title")[0].text


# -- dispatch ----------------------------------------------------------------------------------------------------------


def test_a_subclass_is_drawn_as_its_parent():
    class Special(KernelSet):
        pass

    Special.__module__ = "staxlab.somewhere"
    assert "fused_add_relu_mul_sum_0" in view.html(Special((examples.kernel(),)))


def test_a_record_without_a_drawing_is_shown_as_text():
    @dataclasses.dataclass
    class Fresh:
        def __str__(self):
            return "two\nlines <here>"

    Fresh.__module__ = "staxlab.fresh"
    assert read(view.html(Fresh())).find("pre")[0].text.splitlines()[1].endswith("lines <here>")


def test_a_foreign_object_is_refused():
    with pytest.raises(TypeError, match="no rendering"):
        view.html(object())


def test_a_drawing_that_fails_leaves_the_text(monkeypatch):
    def broken(record):
        raise RuntimeError("planted <fault>")

    monkeypatch.setattr("staxlab.view.wrapper.panes", broken)
    bundle = view.mimebundle(examples.wrapper())
    assert bundle["text/plain"] == examples.wrapper().source
    tree = read(bundle["text/html"])
    assert "planted <fault>" in tree.text and "def call(inputs):" in tree.text


def test_several_records_share_one_root_and_keys_stay_unique():
    tree = read(view.html([examples.kernel(), examples.kernel(), examples.wrapper()]))
    assert len(tree.find(class_="sx-root")) == 1
    keys = [e.attributes["data-stage"] for e in tree.walk() if "data-stage" in e.attributes]
    assert keys == ["kernels", "kernels-2", "wrapper"]


def test_a_module_can_register_its_record(monkeypatch):
    class Invented:
        pass

    Invented.__module__ = "staxlab.invented"
    monkeypatch.setattr(registry, "RENDERERS", dict(registry.RENDERERS))
    registry.register("Invented", "tests.view.test_views")
    assert read(view.html(Invented())).find(class_="sx-stage-title")[0].text == "Drawn by the test"


def panes(record):
    return [document.Pane("invented", "Drawn by the test", document.note("x"))]


# -- pages and sizes ---------------------------------------------------------------------------------------------------


def test_a_page_is_complete_and_written_whole(tmp_path, compilation):
    path = view.write_page(
        tmp_path / "deep" / "page.html", {"One": compilation, "Two": examples.kernel()}, title="Title"
    )
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and list(path.parent.iterdir()) == [path]
    tree = read(text.removeprefix("<!doctype html>"))
    assert tree.find("title")[0].text == "Title"
    assert [e.text for e in tree.find("h2")] == ["One", "Two"]
    assert len(tree.find("style")) == 1 and references(text.removeprefix("<!doctype html>")) == []


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        view.write_page(path, examples.kernel())
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_large_view_is_cut_and_says_so(compilation):
    lines = tuple(Line(f"line {k} " + "x" * 150, frozenset({k % 6})) for k in range(8000))
    large = dataclasses.replace(examples.kernel(), lines=lines)
    html = view.html(large)
    assert len(html.encode()) <= document.SIZE_CAP
    tree = read(html)
    assert "cut here" in tree.text and "write" in tree.text and "line 100 " in tree.text
    assert len(view.html(large, full=True).encode()) > document.SIZE_CAP
    assert len(view.page(large).encode()) > document.SIZE_CAP


def test_a_long_text_is_cut_in_a_bundle_and_whole_elsewhere():
    wrapper = Wrapper(tuple(Line("z" * 100) for _ in range(5000)))
    plain = view.mimebundle(wrapper)["text/plain"]
    assert len(plain) < view.LONGEST_TEXT + 100 and "more characters" in plain
    assert view.text(wrapper) == wrapper.source


def test_only_the_stage_that_is_too_large_is_cut(compilation):
    lines = tuple(Line("y" * 300, frozenset({k % 6})) for k in range(5000))
    records = compilation.records | {"wrapper": Wrapper(lines)}
    tree = read(view.html(dataclasses.replace(compilation, records=records)))
    cut = [e.attributes["data-stage"] for e in tree.walk() if "data-stage" in e.attributes and "cut here" in e.text]
    assert cut == ["wrapper"]
    assert "write_html" in tree.text


def test_a_notebook_output_makes_machine_code_of_a_few_kernels_only(compilation):
    made = []

    class Counted(examples.DisassembledKernel):
        def assembly(self, kind=None):
            made.append(self.name)
            return examples.assembly()

    original = vars(examples.kernel())
    many = [Counted(**original | {"name": f"k{k}"}) for k in range(9)]
    extern = dataclasses.replace(examples.kernel(), name="library", language="extern")
    records = compilation.records | {"kernels": KernelSet((extern, *many))}
    large = dataclasses.replace(compilation, records=records)
    text = read(view.html(large)).text
    assert made == ["k0", "k1", "k2", "k3"]
    assert "5 of 9 kernels are left out here" in text and "kernels[5].assembly()" in text
    made.clear()
    assert "left out" not in view.page(large) and made == [f"k{k}" for k in range(9)]
    long = Counted(**original | {"lines": examples.KERNEL_LINES * 60})
    made.clear()
    view.html(dataclasses.replace(compilation, records=compilation.records | {"kernels": KernelSet((long,))}))
    assert made == []


def test_a_kernel_without_machine_code_says_why(compilation):
    from staxlab.errors import BuildError

    class Uncompiled(examples.DisassembledKernel):
        def assembly(self, kind=None):
            raise BuildError("no compiler", remedy="install <one>")

    records = compilation.records | {"kernels": KernelSet((Uncompiled(**vars(examples.kernel())),))}
    tree = read(view.html(dataclasses.replace(compilation, records=records)))
    (pane,) = [e for e in tree.walk() if e.attributes.get("data-stage") == "asm"]
    assert "no compiler" in pane.text and "install <one>" in pane.text


# -- colours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["cpp", "python", "triton", "asm", "ttir", "llir", "ptx", "sass", "ir", "text"])
def test_colouring_never_changes_the_text(language):
    texts = [
        'auto s = "a\\"b"; // x',
        "'''not",
        "closed",
        "",
        "\t@p1 bra $L <&>;",
        "%x : float32[64, 128] = f[y](%z, 2.5)",
    ]
    tree = read(listing([Line(text) for text in texts], language, name="n"))
    lines = tree.find("span", class_="sx-line")
    assert [line.text.removeprefix(f"{k + 1} ") for k, line in enumerate(lines)] == texts


def test_without_pygments_code_is_plain(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pygments", None)
    monkeypatch.setitem(sys.modules, "pygments.lexers", None)
    tree = read(view.html(examples.kernel()))
    assert not tree.find("span", class_="sx-keyword") and "#pragma omp parallel for" in tree.text


def test_a_graph_draws_itself():
    from staxlab.capture.tracer import trace

    graph = trace(lambda x: x + 1, (torch.ones(2),), {}).graph
    bundle = graph._repr_mimebundle_()
    assert "<svg" in bundle["text/html"] and "add" in bundle["text/plain"] and repr(graph) == "<graph of 3 nodes>"
