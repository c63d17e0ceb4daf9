"""Block masks against a dense evaluation of the same function, and what is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab import omni_attention
from staxlab.attention import mask_evaluation
from staxlab.attention.block_mask import EMPTY, FULL, PARTIAL, BlockMask, coarsened, create_block_mask
from staxlab.attention.mask_evaluation import block_extremes, rectangles
from staxlab.attention.masks import (
    and_masks,
    at_offset,
    causal,
    dilated,
    document,
    not_mask,
    or_masks,
    prefix_lm,
    sliding_window,
)
from staxlab.errors import CaptureError, OptionError, SubscriptError

CPU = torch.device("cpu")


def dense(mask_mod, batch, heads, queries, keys):
    """The specification: the function on every position, one after the other."""
    found = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    indices = [torch.arange(n).view([-1 if d == k else 1 for d in range(4)]) for k, n in enumerate(found.shape)]
    return found | mask_mod(*indices)


def dense_classes(visible, block):
    """The class of each block, by looking at its positions."""
    batch, heads, queries, keys = visible.shape
    grid = (batch, heads, -(-queries // block[0]), -(-keys // block[1]))
    classes = torch.zeros(grid, dtype=torch.int8)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, grid)).tolist() if classes.numel() else ():
        part = visible[b, h, i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        classes[b, h, i, j] = FULL if part.all() else PARTIAL if part.any() else EMPTY
    return classes


def assert_lists(mask, classes):
    """The eight lists hold exactly these classes, in ascending order, and only numbers of blocks."""
    prefix = {PARTIAL: "", FULL: "full_"}
    for axis, grid in (("kv", classes), ("q", classes.transpose(2, 3))):
        for kind, start in prefix.items():
            count = getattr(mask, f"{start}{axis}_num_blocks")
            indices = getattr(mask, f"{start}{axis}_indices")
            assert count.dtype == indices.dtype == torch.int32
            assert indices.shape == grid.shape and count.shape == grid.shape[:3]
            if indices.numel():
                assert 0 <= int(indices.min()) and int(indices.max()) < grid.shape[3]
            for b, h, i in torch.cartesian_prod(*map(torch.arange, grid.shape[:3])).tolist() if count.numel() else ():
                listed = indices[b, h, i, : int(count[b, h, i])].tolist()
                assert listed == (grid[b, h, i] == kind).nonzero().flatten().tolist()


def by_head(b, h, q_idx, kv_idx):
    return q_idx - kv_idx >= h * 3


TABLE = torch.arange(40).view(1, 40).expand(3, 40).clone() // torch.tensor([[4], [7], [40]])


@st.composite
def mask_mods(draw, depth=2):
    """Masks of every kind, combined."""
    leaf = st.one_of(
        st.just(causal),
        st.just(by_head),
        st.integers(0, 9).map(sliding_window),
        st.integers(0, 9).map(prefix_lm),
        st.integers(1, 5).map(dilated),
        st.just(document(TABLE)),
        st.just(document(TABLE[0])),
    )
    if depth == 0 or draw(st.booleans()):
        return draw(leaf)
    kind = draw(st.sampled_from((and_masks, or_masks, not_mask)))
    count = 1 if kind is not_mask else draw(st.integers(0, 3))
    return kind(*(draw(mask_mods(depth=depth - 1)) for _ in range(count)))


@settings(max_examples=60)
@given(mask_mods(), st.integers(0, 40), st.integers(0, 40), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3),
       st.integers(1, 2))  # fmt: skip
def test_the_lists_are_those_of_a_dense_evaluation(mask_mod, queries, keys, rows, columns, batch, heads):
    mask = create_block_mask(mask_mod, batch, heads, queries, keys, BLOCK_SIZE=(rows, columns))
    visible = dense(mask_mod, batch, heads, queries, keys)
    classes = dense_classes(visible, (rows, columns))
    assert torch.equal(mask.classes(), classes)
    assert torch.equal(mask.to_dense(), classes != EMPTY)
    assert_lists(mask, classes)
    counts, total = mask.counts(), classes[0, 0].numel()
    for kind, count in zip((PARTIAL, FULL, EMPTY), counts, strict=True):
        assert torch.equal(count, (classes == kind).sum((2, 3)))
    assert mask.sparsity() == (100 * int(counts.empty.sum()) / (total * batch * heads) if total else 0)
    assert torch.equal(mask.positions(batch - 1, heads - 1), visible[-1, -1])


@settings(max_examples=60)
@given(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 20), st.integers(1, 20)),
       st.tuples(st.integers(1, 8), st.integers(1, 8)), st.integers(1, 200))  # fmt: skip
def test_rectangles_cover_every_position_once_and_are_small(sizes, block, most):
    seen = torch.zeros(sizes, dtype=torch.int64)
    for part in rectangles(sizes, block, most):
        assert part.shape[0] * part.shape[1] * part.shape[2] * part.shape[3] <= most
        spans = (part.batch, part.heads, part.queries, part.keys)
        seen[tuple(slice(span.start, span.stop) for span in spans)] += 1
        for span, size in ((part.queries, block[0]), (part.keys, block[1])):
            inside_one = span.start // size == (span.stop - 1) // size
            assert inside_one or span.start % size == 0
    assert (seen == 1).all()


@settings(max_examples=40)
@given(mask_mods(depth=1), st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.integers(1, 300))
def test_the_result_does_not_depend_on_how_many_positions_are_held(mask_mod, queries, keys, size, most):
    sizes = (2, 2, queries, keys)
    whole = block_extremes(mask_mod, sizes, (size, size), CPU)
    for one, other in zip(whole, block_extremes(mask_mod, sizes, (size, size), CPU, most), strict=True):
        assert torch.equal(one, other)


def test_no_more_positions_are_evaluated_at_once_than_allowed(monkeypatch):
    asked = []

    def watched(b, h, q_idx, kv_idx):
        asked.append(b.numel() * h.numel() * q_idx.numel() * kv_idx.numel())
        return causal(b, h, q_idx, kv_idx)

    monkeypatch.setattr(mask_evaluation, "MOST_POSITIONS_CPU", 1 << 14)
    mask = create_block_mask(watched, None, None, 1024, 1024, BLOCK_SIZE=64)
    assert max(asked) <= 1 << 14 and sum(asked) >= 1024 * 1024
    assert mask.totals() == (16, 120, 120)


def test_a_causal_mask_of_eight_by_eight_blocks():
    mask = create_block_mask(causal, None, None, 1024, 1024)
    assert mask.totals() == (8, 28, 28) and mask.sparsity() == 100 * 28 / 64
    assert mask.shape == (1, 1, 1024, 1024) and mask.grid == (8, 8) and mask.block_size == (128, 128)
    assert mask.kv_num_blocks.tolist() == [[[1] * 8]] and mask.full_kv_num_blocks.tolist() == [[list(range(8))]]
    assert mask.full_q_num_blocks.tolist() == [[list(range(7, -1, -1))]]


def test_a_ragged_block_is_full_if_all_that_exists_is_visible():
    everything = create_block_mask(or_masks(causal, not_mask(causal)), None, None, 130, 200)
    assert everything.totals() == (0, 4, 0)
    # The last block of a causal mask is one position, and that one is visible.
    assert create_block_mask(causal, None, None, 129, 129).totals() == (1, 2, 1)


@pytest.mark.parametrize(("queries", "keys", "grid"), [(0, 0, (0, 0)), (0, 5, (0, 2)), (5, 0, (2, 0))])
def test_nothing_to_visit(queries, keys, grid):
    mask = create_block_mask(causal, None, 2, queries, keys, BLOCK_SIZE=3)
    assert mask.grid == grid and mask.totals() == (0, 0, 0) and mask.sparsity() == 0
    assert "nothing to visit" in str(mask) and "text/html" in mask._repr_mimebundle_()
    mask.check(torch.zeros(4, 2, queries, 8), torch.zeros(4, 1, keys, 8))


def test_lists_are_shared_where_the_mask_does_not_vary():
    assert create_block_mask(causal, None, None, 8, 8, BLOCK_SIZE=4).shape == (1, 1, 8, 8)
    varying = create_block_mask(and_masks(document(TABLE), by_head), 3, 2, 40, 40, BLOCK_SIZE=8)
    assert varying.shape == (3, 2, 40, 40) and (varying.reads_batch, varying.reads_head) == (True, True)
    alike = create_block_mask(causal, 3, 2, 8, 8, BLOCK_SIZE=4)
    assert alike.shape == (3, 2, 8, 8) and not alike.reads_batch and not alike.reads_head
    assert alike.kv_indices.is_contiguous()


@pytest.mark.parametrize(("mask_mod", "argument"), [(document(TABLE), "reads b"), (by_head, "reads h")])
def test_a_mask_that_varies_is_not_made_for_all_alike(mask_mod, argument):
    with pytest.raises(OptionError, match=argument):
        create_block_mask(mask_mod, None, None, 8, 8)


def test_offset_of_a_decoder():
    whole = dense(causal, 1, 1, 12, 12)[0, 0]
    for offset in (5, torch.tensor(5), torch.tensor(5, dtype=torch.int32)):
        mask = create_block_mask(at_offset(causal, offset), None, None, 7, 12, BLOCK_SIZE=3)
        assert torch.equal(mask.positions(), whole[5:])


# --- What is refused --------------------------------------------------------------------------------------------------


def returns_a_bool(b, h, q_idx, kv_idx):
    return True


def returns_numbers(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx).float()


def returns_another_shape(b, h, q_idx, kv_idx):
    return torch.ones(3, 5, dtype=torch.bool)


def returns_five_dimensions(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx).unsqueeze(0)


def decides_in_python(b, h, q_idx, kv_idx):
    return q_idx if q_idx > kv_idx else kv_idx


def says_and(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx and kv_idx > 2


def asks_for_a_number(b, h, q_idx, kv_idx):
    return q_idx >= int(kv_idx)


def reads_beyond(b, h, q_idx, kv_idx):
    return TABLE[0][q_idx] == TABLE[0][kv_idx]


def fails(b, h, q_idx, kv_idx):
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("mask_mod", "kind", "words"),
    [
        (returns_a_bool, CaptureError, "returns a bool, not a tensor"),
        (returns_numbers, CaptureError, "returns float32, not bool"),
        (returns_another_shape, CaptureError, "does not broadcast to"),
        (returns_five_dimensions, CaptureError, "does not broadcast to"),
        (decides_in_python, CaptureError, "into a Python value"),
        (says_and, CaptureError, "into a Python value"),
        (asks_for_a_number, CaptureError, "into a Python value"),
        (reads_beyond, SubscriptError, "reads beyond a tensor"),
    ],
)
def test_a_function_that_is_no_mask(mask_mod, kind, words):
    with pytest.raises(kind, match=words) as caught:
        create_block_mask(functools.partial(mask_mod), 1, 1, 64, 48)
    error = caught.value
    assert mask_mod.__name__ in error.what and error.remedy
    code = mask_mod.__code__
    assert error.where.file == code.co_filename
    assert code.co_firstlineno <= error.where.line <= code.co_firstlineno + 1


def test_a_decision_in_python_is_found_out_on_a_single_position():
    for mask_mod in (decides_in_python, says_and, asks_for_a_number):
        with pytest.raises(CaptureError, match="into a Python value"):
            create_block_mask(mask_mod, None, None, 1, 1)


def test_where_a_named_mask_reads_beyond_a_tensor():
    with pytest.raises(SubscriptError, match="kv_idx from 0 to 63"):
        create_block_mask(document(torch.zeros(32, dtype=torch.int64)), None, None, 32, 64)


def test_an_exception_of_the_users_passes_through():
    with pytest.raises(ZeroDivisionError, match="mine"):
        create_block_mask(fails, None, None, 4, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_mod": 3}, "not a function"),
        ({"B": -1}, "B is -1"),
        ({"H": 2.0}, "H is 2.0"),
        ({"H": True}, "H is True"),
        ({"Q_LEN": None}, "Q_LEN is None"),
        ({"KV_LEN": -1}, "KV_LEN is -1"),
        ({"BLOCK_SIZE": 0}, "BLOCK_SIZE is 0"),
        ({"BLOCK_SIZE": (8, 8, 8)}, "BLOCK_SIZE is"),
        ({"BLOCK_SIZE": (8, 0.5)}, "BLOCK_SIZE is"),
        ({"BLOCK_SIZE": None}, "BLOCK_SIZE is None"),
    ],
)
def test_arguments_that_are_none(changes, words):
    arguments = {"mask_mod": causal, "B": None, "H": None, "Q_LEN": 8, "KV_LEN": 8} | changes
    with pytest.raises(OptionError, match=words):
        create_block_mask(**arguments)


@pytest.mark.parametrize(
    ("made", "query", "key", "words"),
    [
        ((causal, None, None, 8, 8), (2, 4, 9, 3), (2, 4, 8, 3), "made for 8 queries, and there are 9"),
        ((causal, None, None, 8, 8), (2, 4, 8, 3), (2, 4, 16, 3), "made for 8 keys, and there are 16"),
        ((causal, 3, None, 8, 8), (2, 4, 8, 3), (2, 4, 8, 3), "made for 3 batch elements, and there are 2"),
        ((causal, None, 2, 8, 8), (2, 4, 8, 3), (2, 2, 8, 3), "made for 2 query heads, and there are 4"),
        ((by_head, None, 1, 8, 8), (2, 4, 8, 3), (2, 4, 8, 3), "made for 1 query heads, and there are 4"),
    ],
)
def test_a_mask_for_other_tensors(made, query, key, words):
    with pytest.raises(OptionError, match=words):
        create_block_mask(*made).check(torch.zeros(query), torch.zeros(key))


def test_a_mask_that_fits():
    for made in ((causal, None, None), (causal, 2, None), (causal, 1, 1), (by_head, None, 4), (causal, 2, 4)):
        create_block_mask(*made, 8, 6).check(torch.zeros(2, 4, 8, 3), torch.zeros(2, 2, 6, 3))  # grouped queries
    with pytest.raises(OptionError, match="on cpu, the query on meta"):
        create_block_mask(causal, None, None, 8, 8).check(
            torch.zeros(1, 1, 8, 3, device="meta"), torch.zeros(1, 1, 8, 3)
        )


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (sliding_window, -1), (sliding_window, 1.5), (prefix_lm, -2), (dilated, 0), (dilated, True), (and_masks, 3),
        (or_masks, None), (not_mask, "causal"), (document, [0, 1]), (document, torch.zeros(4)),
        (document, torch.zeros(1, 2, 3, dtype=torch.int64)), (functools.partial(at_offset, causal), -1),
        (functools.partial(at_offset, causal), "x"),
    ],
)  # fmt: skip
def test_masks_that_are_none(make, wrong):
    with pytest.raises(OptionError) as caught:
        make(wrong)
    assert caught.value.remedy


def test_classes_of_another_grid_are_refused():
    with pytest.raises(OptionError, match="for 2 x 2 blocks"):
        BlockMask.from_classes(torch.zeros(1, 1, 2, 3), causal, (8, 8), (4, 4))


# --- What it is -------------------------------------------------------------------------------------------------------


def test_equal_masks():
    one = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)
    assert one == create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16) and one == one.to("cpu")
    assert hash(one) == hash(create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16))
    others = [
        create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=(16, 32)),
        create_block_mask(causal, None, None, 63, 64, BLOCK_SIZE=16),
        create_block_mask(causal, None, 2, 64, 64, BLOCK_SIZE=16),
        create_block_mask(sliding_window(3), None, None, 64, 64, BLOCK_SIZE=16),
        BlockMask.from_classes(one.classes().clamp(max=PARTIAL), causal, (64, 64), (16, 16)),
        "a mask",
    ]
    assert all(one != other for other in others)


def test_to_moves_the_lists():
    mask = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)
    assert mask.to("cpu") is mask and mask.to(torch.device("cpu")) is mask
    moved = mask.to("meta")
    assert {str(one.device) for one in moved.lists().values()} == {"meta"} and len(moved.lists()) == 8
    assert moved.mask_mod is causal and moved.shape == mask.shape


def test_names_say_what_a_mask_is():
    assert and_masks(causal, sliding_window(4)).__name__ == "and_masks(causal, sliding_window(4))"
    assert not_mask(or_masks(prefix_lm(3), dilated(2))).__name__ == "not_mask(or_masks(prefix_lm(3), dilated(2)))"
    assert at_offset(causal, 7).__name__ == "at_offset(causal, 7)"
    mask = create_block_mask(functools.partial(by_head), None, 2, 8, 8)
    assert mask.name == "by_head" and mask.location.text.startswith("def by_head")


def test_it_prints_its_grid():
    lines = str(create_block_mask(causal, None, None, 1024, 1024)).splitlines()
    assert lines[0].startswith("causal: 1 x 1 x 1024 x 1024 in blocks of 128 x 128: 8 partial, 28 full, 28 empty")
    assert lines[1] == "▒·······" and lines[8] == "███████▒" and lines[9] == "█ full   ▒ partial   · empty"
    long = str(create_block_mask(causal, None, 2, 1000, 1000, BLOCK_SIZE=8)).splitlines()
    assert "head 0 of 2" in long[1] and all(len(line) == 32 for line in long[2:-1]) and "4 x 4 blocks" in long[-1]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.data())
def test_a_coarse_cell_is_of_a_class_only_if_all_its_blocks_are(rows, columns, most, data):
    cells = data.draw(st.lists(st.sampled_from((EMPTY, PARTIAL, FULL)), min_size=rows * columns,
                               max_size=rows * columns))  # fmt: skip
    classes = torch.tensor(cells, dtype=torch.int8).view(rows, columns)
    shown, step = coarsened(classes, most)
    assert max(shown.shape) <= most
    for i, row in enumerate(shown.tolist()):
        for j, one in enumerate(row):
            inside = set(classes[i * step : (i + 1) * step, j * step : (j + 1) * step].flatten().tolist())
            assert one == (inside.pop() if len(inside) == 1 else PARTIAL)


def test_a_mask_made_in_inference_mode_serves_training_too():
    """A training loop may well validate first, and keep the mask that it then made."""
    with torch.inference_mode():
        mask = create_block_mask(causal, None, None, 5, 5, BLOCK_SIZE=2)
    assert not any(one.is_inference() for one in mask.lists().values())
    x = torch.randn(1, 2, 5, 8, requires_grad=True)
    found = omni_attention(x, x, x, block_mask=mask, kernel_options={"BACKEND": "reference"})
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert gradient.any()


@pytest.mark.parametrize("function", [lambda b, h, q_idx: q_idx > 0, lambda b, h, q, k, least: q > least])
def test_a_function_of_other_arguments_is_refused(function):
    with pytest.raises(CaptureError, match=r"does not take \(b, h, q_idx, kv_idx\): (too many|missing)") as caught:
        create_block_mask(function, None, None, 5, 5)
    assert caught.value.where.file == __file__
