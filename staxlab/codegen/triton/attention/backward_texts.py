"""The backward pass of attention as text: three kernels laid out by hand, with holes for what varies (Section 9.10).

With ``S`` the modified scores, ``P = exp(S - LSE)`` and ``O = P V``, the chain rule gives (Dao et al., 2022,
"FlashAttention", Appendix B.2)::

    dV = P^T dO        dP = dO V^T        dS = P * (dP - delta + dLSE)        delta = rowsum(dO * O)

and ``dQ``, ``dK`` follow from ``dS`` through the derivative of ``score_mod`` and the scale. ``P`` is computed again
from the queries, the keys and one number per row, which is why nothing quadratic is kept from the forward pass.

Index vectors are ``m`` of queries and ``n`` of keys, ``d`` of the elements of a query or key and ``e`` of those of a
value. A hole ``<<visit>>`` is filled with the lines that treat one tile of scores (``VISIT_...``), its own holes with
what :mod:`.backward_tile` writes; a word in braces is a number or an address. Read them as programs.
"""

from __future__ import annotations

#: What both other kernels need of every row, made once: ``shift = LSE log2(e)``, so that ``P = 2**(S log2(e) -
#: shift)``, and ``delta - dLSE``. A row in which nothing is visible gets an infinite shift, and with it ``P = 0``
#: everywhere: it needs no case of its own later.
ROWS = """\
tile = tl.program_id(0) % {tiles}
head = tl.program_id(0) // {tiles}  # batch and query head, flattened
b = head // {heads}
h = head % {heads}
row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
m = row[:, None]
e = tl.arange(0, {value_block})[None, :]
result = {result}.to(tl.float32)
upstream = {upstream}.to(tl.float32)
total = tl.sum(result * upstream, 1)  # of a row: the sum of P * dP, made of neither
place = head.to(tl.int64) * {queries} + row
exists = row < {queries}
normalizer = tl.load(lse + place, exists, other=0.0)
empty = normalizer == float("-inf")
<<d_lse>>
tl.store(shift + place, tl.where(empty, float("inf"), normalizer * {log2_e}), exists)
tl.store(delta + place, tl.where(empty, 0.0, total), exists)
"""

#: One program instance makes the gradients of BLOCK_N keys and values of one key head. It walks along the queries that
#: see them, of all query heads that share the key head, so that no other instance adds to the same elements. Tiles of
#: scores are made transposed, keys along rows: then P and dS are left operands of the products that follow, and those
#: the matrix units take from registers.
KEYS = """\
tile = tl.program_id(0) % {tiles}
head = tl.program_id(0) // {tiles}  # batch and key head, flattened
b = head // {key_heads}
key_head = head % {key_heads}
n = tile * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]  # the keys of this program instance
<<n_mask>>
d = tl.arange(0, {head_block})[None, :]
e = tl.arange(0, {value_block})[None, :]
keys = {keys}
values = {values}
dk = tl.zeros([BLOCK_N, {head_block}], tl.float32)
dv = tl.zeros([BLOCK_N, {value_block}], tl.float32)
<<heads>>
dk = dk * {scale}
{store_dk}
{store_dv}
"""

#: The query heads that an instance of the kernel over keys walks along: the one that has the key head for itself, or
#: all that share it.
ONE_HEAD = """\
h = key_head
query_start = {query_base}
d_result_start = {d_result_base}
first_row = head.to(tl.int64) * {queries}
<<loops>>
"""

SHARED_HEADS = """\
for member in tl.range({group}, num_stages=1):  # the query heads that share these keys
    h = key_head * {group} + member
    query_start = {query_base}
    d_result_start = {d_result_base}
    first_row = (b * {heads} + h).to(tl.int64) * {queries}
    <<loops>>
"""

#: One program instance makes the gradients of BLOCK_M queries and walks along the keys they see.
QUERIES = """\
tile = {tile}
head = tl.program_id(0) // {tiles}  # batch and query head, flattened
b = head // {heads}
h = head % {heads}
key_head = {key_head_of}
row = tile * BLOCK_M + tl.arange(0, BLOCK_M)  # the queries of this program instance
m = row[:, None]
<<m_mask>>
d = tl.arange(0, {head_block})[None, :]
e = tl.arange(0, {value_block})[None, :]
queries = {query_tile}
upstream = {upstream}
first_row = head.to(tl.int64) * {queries}
row_shift = {row_shift}[:, None]
row_delta = {row_delta}[:, None]
key_start = {key_base}
value_start = {value_base}
dq = tl.zeros([BLOCK_M, {head_block}], tl.float32)
<<loops>>
dq = dq * {scale}
{store_dq}
"""

#: All tiles along the other side, where no block mask says that some may be left out.
EVERY_TILE = """\
<<before>>
for start in tl.range(0, {extent}, {step}):
    <<visit>>
"""

#: The blocks of one list. The number of the next block is read while the present one is treated, so that no address
#: waits for it.
LISTED_TILES = """\
# {what}
count = tl.load({counts} + own)
listed = {indices} + own.to(tl.int64) * {length}
block = tl.load(listed)
<<before>>
for step in tl.range(0, count{steps}):
    start = {start}
    block = tl.load(listed + tl.minimum({following}, count - 1))
    <<visit>>
"""

#: A tile of the kernel over keys: scores of BLOCK_N keys (rows) and BLOCK_M queries (columns).
VISIT_KEYS = """\
row = start + tl.arange(0, BLOCK_M)
m = row[None, :]
<<m_mask>>
<<rows>>
queries = {query_tile}
upstream = {upstream}
row_shift = {row_shift}[None, :]
row_delta = {row_delta}[None, :]
scores = tl.dot(keys, tl.trans(queries){precision})
<<probabilities>>
dv = tl.dot(p{rounded}, upstream, dv{precision})
dp = tl.dot(values, tl.trans(upstream){precision})
ds = p * (dp - row_delta)
<<adjoint>>
dk = tl.dot({ds}{rounded}, queries, dk{precision})
"""

#: A tile of the kernel over queries: scores of BLOCK_M queries (rows) and BLOCK_N keys (columns).
VISIT_QUERIES = """\
n = start + tl.arange(0, BLOCK_N)[None, :]
<<n_mask>>
<<rows>>
keys = {keys}
values = {values}
scores = tl.dot(queries, tl.trans(keys){precision})
dp = tl.dot(upstream, tl.trans(values){precision})
<<probabilities>>
ds = p * (dp - row_delta)
<<adjoint>>
dq = tl.dot({ds}{rounded}, keys, dq{precision})
"""
