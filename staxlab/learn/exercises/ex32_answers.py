"""Answers to Exercise 32: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex32 import Variant


def key_of_proxies(shape, dtype, positive, k):
    return shape, dtype, positive, type(k), k


def key_of_abstract_values(shape, dtype, positive, k):
    return shape, dtype, type(k)


def graphs_of_bytecode(sizes):
    graphs = 1
    any_size = False
    one = sizes[0] == 1
    for size in sizes[1:]:
        if size == 1:
            if not one:
                graphs = graphs + 1
                one = True
        elif size != sizes[0] and not any_size:
            graphs = graphs + 1
            any_size = True
    return graphs


EXPLANATION = """A compiled version is the function specialized to its static inputs, and may be used again where
these are the same. With proxies that hold values, whatever Python asks for is static: shapes, dtypes, the value of a
number, and the answer to a question about data. A branch is then no problem: its answer joins the key, and is found
out again before a version is used; the price is a version for each answer and each number. Bytecode that is executed
symbolically has no data, so the answer cannot be static: the graph ends there, the branch is left to the
interpreter, and what follows is another graph. Abstract values have neither, and cannot leave anything to the
interpreter: the branch is an error, or has to be an operation of the graph with both sides in it. Side effects
belong to the evaluation of what is static, so with proxies and with abstract values they happen once for each
version; who reads bytecode sees them as instructions and repeats them at each call. The degree: a number's value is
static for the first two, so it can be folded, and each value is a version; TorchDynamo turns what has changed into a
symbol, which bounds their number; for JAX a number is an array without dimensions, and only its type is static.
Failure: with the whole graph at hand operators can be called one by one, so a backend may fail without a wrong
value; where nothing was captured there is nothing to call. TorchDynamo has the function itself to go back to, and
does so if it is allowed to; JAX and staxlab's capture report an error."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex32_runs import ending, final_counts

    return {
        "graphs_branch": list(final_counts("branch", variant.branch)),
        "lines_printed": list(final_counts("printing", variant.printing, effects=True)),
        "graphs_number": list(final_counts("scale", variant.scale)),
        "graphs_shapes": list(final_counts("shapes", variant.shapes)),
        "failure_proxies": ending("own"),
        "failure_bytecode": ending("dynamo"),
        "failure_abstract": ending("xla"),
        "key_of_proxies": key_of_proxies,
        "key_of_abstract_values": key_of_abstract_values,
        "graphs_of_bytecode": graphs_of_bytecode,
        "explanation_32": EXPLANATION,
    }


# The first size compared with itself changes nothing.
HARMLESS: dict[str, tuple[str, ...]] = {
    "graphs_of_bytecode": ("for size in sizes[1:]: -> for size in sizes[0:]:",),
}


def _no_data(shape, dtype, positive, k):
    return shape, dtype, type(k), k


def _no_type(shape, dtype, positive, k):
    return shape, dtype, positive, k


def _no_number(shape, dtype, positive, k):
    return shape, dtype, positive, type(k)


def _no_dtype(shape, dtype, positive, k):
    return shape, type(k)


def _no_shape(shape, dtype, positive, k):
    return len(shape), dtype, positive, type(k), k


def _with_number(shape, dtype, positive, k):
    return shape, dtype, type(k), k


def _with_data(shape, dtype, positive, k):
    return shape, dtype, positive, type(k)


def _nothing(shape, dtype, positive, k):
    return None


def _fails(shape, dtype, positive, k):
    return shape[1]


def _each_size(sizes):
    return len(set(sizes))


def _one_graph(sizes):
    return 1


def _two_graphs(sizes):
    return 1 if len(set(sizes)) == 1 else 2


def _text(sizes):
    return str(len(sizes))


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex32_runs import (
        ENDINGS,
        branch_slips,
        effect_slips,
        ending,
        final_counts,
        scale_slips,
        sequence,
        shape_slips,
    )

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    lines = final_counts("printing", variant.printing, effects=True)
    slips = {
        "graphs_branch": branch_slips(final_counts("branch", variant.branch)),
        "lines_printed": effect_slips(lines, sequence("printing", variant.printing)),
        "graphs_number": scale_slips(final_counts("scale", variant.scale)),
        "graphs_shapes": shape_slips(final_counts("shapes", variant.shapes)),
    }
    fields = {"failure_proxies": "own", "failure_bytecode": "dynamo", "failure_abstract": "xla"}
    return (
        *(slip(s.name, **{field: list(s.answer)}) for field, found in slips.items() for s in found),
        *(slip(f"chose-{other.replace(' ', '-')}", **{field: other}) for field, system in fields.items()
          for other in ENDINGS if other != ending(system)),
        slip("forgets-data", key_of_proxies=_no_data),
        slip("forgets-type", key_of_proxies=_no_type),
        slip("forgets-number", key_of_proxies=_no_number),
        slip("forgets-shape", key_of_proxies=_no_shape),
        slip("forgets-data", key_of_proxies=_nothing),
        slip("failed-call", key_of_proxies=_fails),
        slip("keeps-number", key_of_abstract_values=_with_number),
        slip("keeps-data", key_of_abstract_values=_with_data),
        slip("forgets-dtype", key_of_abstract_values=_no_dtype),
        slip("graph-for-each-size", graphs_of_bytecode=_each_size),
        slip("one-graph", graphs_of_bytecode=_one_graph),
        slip("one-is-a-size", graphs_of_bytecode=_two_graphs),
        slip("wrong-form", graphs_of_bytecode=_text),
    )  # fmt: skip
