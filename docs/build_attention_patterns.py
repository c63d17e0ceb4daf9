"""Builds docs/attention_patterns.md: the spellings of attention that are recognised, from the tests that hold them.

Every row of the table (Section 9.10) is a program of ``tests/transform/attention_spellings.py``, which the tests
rewrite and compare with eager execution; every near miss is one of ``tests/transform/test_attention_patterns.py``,
which they see left alone. ``python docs/build_attention_patterns.py`` writes the page, ``--check`` only says whether
it is up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "attention_patterns.md"
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SHORT = {"scaled_dot_product_attention": "S", "attention operator": "A", None: "–"}

INTRODUCTION = """\
# Attention written out by hand, and what is recognised

`softmax(q @ k^T ...) @ v` is found on the captured graph, however it is spelled, and computed without its matrix of
scores (Section 9.10). There is no list of patterns. A canonicaliser looks for a product of two matrices, a softmax
and a second product, follows the axes by their strides, and reads what stands between as one function of the score
and its position:

    softmax over keys of  f(scale * query @ key^T, b, h, q, kv, captured tensors)   @   value

Section 9.10 counts 30 patterns, told apart by how the scale is written (multiplied or divided), whether there is
dropout, whether a mask is added, whether the key is transposed before or after, and whether they hold in inference
only. The tests go through all combinations of these; the rows below say which of them they are, if any: most are not.

What it becomes: **S** `torch.nn.functional.scaled_dot_product_attention`, where a scale and a mask are all that
stands between; **A** the operator behind `staxlab.omni_attention`, with a `score_mod` and a block mask read off the
graph, where anything else pointwise does. The option `attention` is "auto" (where it moves fewer bytes), "require" or
"off"; the log of `staxlab.explain(...).transforms` shows nodes before and after, and one decision with its reason for
each attention.
"""

NAN = """\
## What stays exactly as it was

* **NaN.** The softmax of a row that sees no key is NaN, where both operators say 0. A rewrite is made as it stands
  only where every query is proved to see a key: by its own key, the first, the last, or the one as far from the end,
  evaluated for every row. Otherwise NaN is put back, in the result and, in training, in the gradients. `-inf` that is
  added sends NaN into all gradients of a row, `masked_fill` into those of the values alone; where a program does
  both, all get it.
* **Hidden with a number.** `masked_fill(m, -1e4)` is not `-inf`: a row that is hidden throughout is uniform. It stays
  a choice in the `score_mod`. Only numbers below -1e30, and the lowest of the dtype, may be added instead, and not in
  training, where a gradient would go through the addition, unless every row is proved to see a key.
* **Infinity.** Where the program turns minus infinity into something else (`-masked`), nothing is rewritten.
* **Second derivatives, forward mode.** With `double_backward`, under `jvp` and `hvp`, and with `backend="eager"` in
  training, nothing is rewritten: the operators have one derivative.

Results round differently, within the error bound that `tests/transform/test_attention_compiled.py` derives. In half
precision scores are not rounded between operations, so scores that overflow in eager execution do not. Of keys and
values that are not finite at positions that nobody sees, eager's `0 * inf` is not reproduced.
"""


def rows(lines: Iterable[tuple[str, ...]], head: tuple[str, ...]) -> list[str]:
    """A table of Markdown."""
    table = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*table, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)]


def code(text: str) -> str:
    """A program in a cell: a line break is a semicolon, and what a table would take for a border is not one."""
    return "`" + "; ".join(text.strip().split("\n")) + "`"


SCALES = {"x * c": "multiplied", "x / c": "divided", "none": "no scale"}
BETWEEN = {"none": "", "none, dropout": "dropout", "added, data": "mask added"}
KEYS = {"transposed in the product": "key transposed after", "permuted before": "key transposed before"}


def kind(spelling: Any) -> str:
    """Which of the kinds that Section 9.10 tells apart a spelling is of; "beyond" if it is of none."""
    if any(part not in known for part, known in
           ((spelling.scale, SCALES), (spelling.mask, BETWEEN), (spelling.key, KEYS))):  # fmt: skip
        return "beyond"
    where = "" if spelling.training == spelling.inference else "inference"
    parts = (SCALES[spelling.scale], BETWEEN[spelling.mask], KEYS[spelling.key], where)
    return ", ".join(part for part in parts if part)


def page() -> str:
    """The whole page."""
    from tests.transform.attention_spellings import SPELLINGS
    from tests.transform.test_attention_patterns import MISSES

    spellings = [
        (str(number), s.name, kind(s), s.scale, s.mask, s.key, SHORT[s.inference], SHORT[s.training], code(s.text))
        for number, s in enumerate(SPELLINGS, 1)
    ]
    head = (
        "",
        "spelling",
        "kind in Section 9.10",
        "scale",
        "between",
        "key and layout",
        "inference",
        "training",
        "program",
    )
    misses = [(name, reason or "no candidate: the probabilities are none, or not what is multiplied", code(text))
              for name, (_, text, reason) in MISSES.items()]  # fmt: skip
    parts = [
        INTRODUCTION,
        f"## {len(SPELLINGS)} spellings, one form\n",
        *rows(spellings, head),
        "",
        NAN,
        f"## {len(misses)} near misses, left alone\n",
        *rows(misses, ("what is different", "reason in the decision", "program")),
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    if parser.parse_args().check:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("up to date" if fresh else f"{PAGE} is stale: run `make docs`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
