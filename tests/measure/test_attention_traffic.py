"""Theorem 9.2 and the traffic of attention in tiles: exact, counted by running, and the chapter's numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.masks import causal, sliding_window
from staxlab.errors import OptionError
from staxlab.measure.attention_traffic import (
    attention_traffic,
    count_attention,
    largest_rows,
    operator_order,
    order_ratio,
    tile_elements,
    tiled_order,
)

sizes = st.integers(1, 9)


def test_the_chapters_numbers():
    assert [round(order_ratio(d, 100_000)) for d in (64, 128)] == [24, 6]
    exercise = attention_traffic(8192, 8192, 128, capacity=100 * 1024)
    assert exercise.theorem_ratio == Fraction(25, 4)
    p, lse = exercise.saved_bytes
    assert (p, lse, p // lse) == (128 << 20, 32 << 10, 4096)
    orders = operator_order(8192, 128) / tiled_order(8192, 128, 100 * 1024)
    assert orders == Fraction(25, 4) * (1 + Fraction(128, 8192)), "N^2 alone gives S / d^2, N d a little more"


def test_the_constants_behind_the_orders():
    n, d = 4096, 64
    traffic = attention_traffic(n, n, d, tile=(128, 64), itemsize=2)
    assert traffic.operator_elements == 4 * n * n + 4 * n * d
    assert traffic.elements == n * d + (n // 128) * 2 * n * d + n * d + n
    assert traffic.nbytes == 2 * (traffic.elements - n) + 4 * n
    assert traffic.compulsory_bytes == 2 * 4 * n * d + 4 * n
    assert traffic.ratio == traffic.operator_bytes / traffic.nbytes > 1


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, sizes, sizes, st.tuples(sizes, sizes))
def test_the_closed_form_is_what_the_loops_do(n, m, d, dv, tile):
    q, k, v = torch.ones(n, d).double(), torch.ones(m, d).double(), torch.ones(m, dv).double()
    counted = count_attention(q, k, v, tile)
    flows = {flow.name: flow for flow in attention_traffic(n, m, d, value_size=dv, tile=tile).flows}
    assert (flows["Q"].read, flows["K"].read, flows["V"].read) == (counted.read_q, counted.read_k, counted.read_v)
    assert (flows["O"].written, flows["LSE"].written) == (counted.written_o, counted.written_lse)
    assert counted.most_on_chip <= tile_elements(tile, d, dv)
    torch.testing.assert_close(counted.out, torch.ones(n, dv).double())


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([causal, sliding_window(4)]), st.sampled_from([1, 2, 4]))
def test_a_block_mask_is_counted_as_the_loops_visit_it(n, m, mask, rows):
    """Tiles of as many keys as a block, and of as many rows or fewer: instances of one row of blocks walk alike."""
    generator = torch.Generator().manual_seed(n * m)
    q, k, v = (torch.randn(x, 3, generator=generator, dtype=torch.float64) for x in (n, m, m))
    block_mask = create_block_mask(mask, None, None, n, m, BLOCK_SIZE=4)
    traffic = attention_traffic(n, m, 3, tile=(rows, 4), block_mask=block_mask)
    visits = (block_mask.classes() > 0)[0, 0].repeat_interleave(4, 0).repeat_interleave(4, 1)[:n, :m]
    # A tile of fewer rows than its block reads what the block visits, whether or not a position of it is visible.
    counted = count_attention(q, k, v, (rows, 4), visits)
    flows = {flow.name: flow for flow in traffic.flows}
    assert (flows["K"].read, flows["V"].read) == (counted.read_k, counted.read_v)
    assert sum(w.instances * w.blocks for w in traffic.walks) == counted.visits
    lists = sum(w.instances for w in traffic.walks) * 2 + counted.visits
    assert flows["lists of blocks"].read == lists and "lists of blocks" in str(traffic)


def test_result_of_the_counted_loops_is_attention():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(11, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    visible = torch.ones(11, 11).tril().bool()
    counted = count_attention(q, k, v, (4, 3), visible)
    truth = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    torch.testing.assert_close(counted.out, truth)


def test_causal_blocks_cost_a_little_more_than_half():
    """(n + 1) / (2n) of the blocks for n on a side (Figure 9.3)."""
    mask = create_block_mask(causal, None, None, 1024, 1024, BLOCK_SIZE=128)
    masked = attention_traffic(1024, 1024, 64, tile=(128, 64), block_mask=mask)
    dense = attention_traffic(1024, 1024, 64, tile=(128, 64))
    keys = [next(f.read for f in t.flows if f.name == "K") for t in (masked, dense)]
    assert Fraction(*keys) == masked.visible == Fraction(9, 16)


def test_heads_and_groups():
    one = attention_traffic(64, 96, 8, tile=(16, 16))
    many = attention_traffic(64, 96, 8, tile=(16, 16), batch=3, query_heads=8)
    grouped = attention_traffic(64, 96, 8, tile=(16, 16), batch=3, query_heads=8, key_heads=2)
    assert many.nbytes == 24 * one.nbytes == grouped.nbytes, "heads of a group read the same keys, each for itself"
    assert grouped.compulsory_bytes < many.compulsory_bytes == 24 * one.compulsory_bytes
    packed = attention_traffic(1, 4096, 8, tile=(16, 16), batch=3, query_heads=8, key_heads=2, packed=True)
    keys = next(f.read for f in packed.flows if f.name == "K")
    assert keys == 3 * 2 * 4096 * 8, "four queries are rows of one tile: each key is read once"
    apart = attention_traffic(1, 4096, 8, tile=(16, 16), batch=3, query_heads=8, key_heads=2)
    assert next(f.read for f in apart.flows if f.name == "K") == 4 * keys


def test_a_mask_that_varies_by_head_counts_each():
    def half(b, h, q_idx, kv_idx):
        return (h == 0) | (kv_idx < 32)

    mask = create_block_mask(half, None, 2, 64, 64, BLOCK_SIZE=32)
    traffic = attention_traffic(64, 64, 4, batch=5, query_heads=2, tile=(32, 32), block_mask=mask)
    assert next(f.read for f in traffic.flows if f.name == "K") == 5 * (2 * 64 + 2 * 32) * 4
    assert traffic.visible == Fraction(6, 8)


def test_splits_add_states_and_nothing_to_keys():
    whole = attention_traffic(1, 1000, 8, tile=(16, 16), query_heads=4, key_heads=1, packed=True)
    split = attention_traffic(1, 1000, 8, tile=(16, 16), query_heads=4, key_heads=1, packed=True, splits=5)
    added = {f.name: f.nbytes for f in split.flows}
    assert added["states (m, l, a) of splits"] == 2 * 4 * 5 * (8 + 2) * 4
    assert added["K"] == next(f.nbytes for f in whole.flows if f.name == "K")
    assert added["Q"] == 5 * next(f.nbytes for f in whole.flows if f.name == "Q")


def test_other_lengths_keep_what_is_not_changed():
    split = attention_traffic(1, 1000, 8, tile=(16, 16), query_heads=4, key_heads=1, packed=True, splits=5)
    longer = split.with_keys(2000)
    assert (longer.queries, longer.keys, longer.splits) == (1, 2000, 5)
    same = attention_traffic(1, 2000, 8, tile=(16, 16), query_heads=4, key_heads=1, packed=True, splits=5)
    assert longer == same
    assert attention_traffic(32, 32, 8).with_length(64) == attention_traffic(64, 64, 8)
    assert attention_traffic(32, 32, 8).with_tile((4, 8)) == attention_traffic(32, 32, 8, tile=(4, 8))


def test_the_largest_tile_fills_the_chip():
    for capacity, d, columns in ((100 * 1024, 128, 64), (5000, 16, 32), (200, 4, 1)):
        rows = largest_rows(capacity, d, columns).choice
        assert tile_elements((rows, columns), d) <= capacity < tile_elements((rows + 1, columns), d)
    with pytest.raises(OptionError, match="no tile fits"):
        largest_rows(100, 64, 64)


def test_more_storage_means_proportionally_less_traffic():
    curve = attention_traffic(16384, 16384, 64).against_capacity()
    shares = [t.capacity * next(f.read for f in t.flows if f.name == "K") for t in curve if t.capacity > 40_000]
    assert curve[-1].tile[0] == 16384 and next(f.read for f in curve[-1].flows if f.name == "K") == 16384 * 64
    assert max(shares[:-2]) / min(shares[:-2]) < 1.6, "N^2 d^2 / S up to the room for K, V and scores"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": 0}, "queries = 0 is no size"),
        ({"tile": (4,)}, "two sizes"),
        ({"query_heads": 3, "key_heads": 2}, "cannot share"),
        ({"block_mask": create_block_mask(causal, None, None, 8, 16, BLOCK_SIZE=8)}, "8 queries and 16 keys"),
        ({"block_mask": create_block_mask(causal, None, None, 16, 16, BLOCK_SIZE=8), "tile": (3, 8)}, "do not divide"),
        ({"block_mask": create_block_mask(causal, None, None, 16, 16, BLOCK_SIZE=8), "packed": True}, "packed"),
        ({"block_mask": create_block_mask(causal, 2, None, 16, 16, BLOCK_SIZE=8), "batch": 3}, "2 batch elements"),
    ],
)
def test_bad_sizes_are_refused(arguments, message):
    given = {"queries": 16, "keys": 16, "head_size": 4, "tile": (4, 8), **arguments}
    with pytest.raises(OptionError, match=message):
        attention_traffic(given.pop("queries"), given.pop("keys"), given.pop("head_size"), **given)


def test_the_theorem_has_a_range():
    with pytest.raises(OptionError, match="d <= S <= N d"):
        tiled_order(8, 4, 33)
