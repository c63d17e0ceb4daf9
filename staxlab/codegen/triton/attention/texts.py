"""The forward templates of attention as text (Section 9.10): loops laid out by hand, with holes for what varies.

A line ``<<hole>>`` is replaced by the lines that belong there, ``{word}`` by a word. Read them as programs: what is
written here is what the listing of a kernel shows. The running state is that of the chapter, ``row_max`` for m and
``row_sum`` for l and ``acc`` for the weighted sum of values, except that m and every exponent are in powers of two:
``exp(x - m)`` is ``2 ** (x log2(e) - m log2(e))``, and the factor merges with the scale of the scores.
"""

from __future__ import annotations

#: One program instance makes the results of BLOCK_M queries of one head.
FORWARD = """\
<<asserts>>
program = tl.program_id(0)
position = program % {rows}  # the rows of a head one after the other: their keys stay in the cache
head = program // {rows}
b = head // {heads}
h = head % {heads}
key_head = h // {group}
<<row>>
rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
m = rows[:, None]  # the queries of this tile
<<edges>>
q = {query}
<<operands>>
<<state>>
<<loops>>
<<results>>
"""

#: One program instance takes a share of the keys for all queries of the heads that read them.
PACKED = """\
program = tl.program_id(0)
split = program % SPLITS  # which share of the keys
unit = program // SPLITS
b = unit // {key_heads}
key_head = unit % {key_heads}
rows = tl.arange(0, BLOCK_M)  # the queries of one head after those of the other
h = (key_head * {group} + rows // {queries})[:, None]
m = (rows % {queries})[:, None]
m_mask = (rows < {used})[:, None]
<<edges>>
q = {query}
<<operands>>
<<state>>
<<loops>>
<<results>>
"""

#: The same for the queries of a single head, where blocks or captured lists differ between heads that share keys.
UNPACKED = """\
program = tl.program_id(0)
split = program % SPLITS  # which share of the keys
head = program // SPLITS
b = head // {heads}
h = head % {heads}
key_head = h // {group}
rows = tl.arange(0, BLOCK_M)
m = rows[:, None]
m_mask = m < {queries}
<<edges>>
q = {query}
<<operands>>
<<state>>
<<loops>>
<<results>>
"""

STATE = """\
row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)  # of the scores so far, in powers of two
row_sum = tl.zeros([BLOCK_M], tl.float32)  # of 2 ** (score - row_max)
acc = tl.zeros([BLOCK_M, VALUE], tl.float32)  # of the values, weighted likewise
"""

#: Tiles that lie side by side.
EVERY = """\
for start in tl.range({first}, {last}, BLOCK_N):
    <<visit>>
"""

#: Tiles of the blocks in a list. The number of the next block is read a step ahead, so that its keys can be fetched
#: while this one is worked on.
LISTED = """\
<<count>>
<<share>>
number = {number}
for step in tl.range({first}, {last}):
    start = number * {size}{inside}
    <<coming>>
    <<visit>>
"""

COUNT = """\
{kind}_steps = tl.load({counts} + list_row){times}
{kind}_list = {indices} + list_row * {columns}
"""

#: Where the last column of blocks hangs over the last key, a full block of it is visited with the partial ones, so that
#: no other tile of a full block needs a bound. Lists are ascending: it is the last.
COUNT_FULL = """\
full_blocks = tl.load(full_kv_num_blocks + list_row)
full_list = full_kv_indices + list_row * {columns}
last_block = tl.load(full_list + tl.maximum(full_blocks, 1) - 1)
hanging = ((full_blocks > 0) & (last_block == {columns} - 1)).to(tl.int32)  # over the last key
full_steps = (full_blocks - hanging){times}
"""
COUNT_PARTIAL = """\
partial_blocks = tl.load(kv_num_blocks + list_row)
partial_list = kv_indices + list_row * {columns}
partial_steps = (partial_blocks + hanging){times}  # and the full one that hangs over
"""

#: What one tile of keys adds to the state: the merge of the online softmax, with the user's functions in the middle.
VISIT = """\
<<positions>>
k = {key}
score = tl.dot(q, k.T{precision}){scale}
<<modified>>
new_max = tl.maximum(row_max, tl.max({score}, 1) * {factor})
<<shift>>
p = tl.exp2({score} * {factor} - {shift}[:, None])
alpha = tl.exp2(row_max - {shift})  # the sums so far, relative to the new maximum
row_sum = row_sum * alpha + tl.sum(p, 1)
acc = acc * alpha[:, None]
v = {value}
acc = tl.dot({p}, v, acc{precision})
row_max = new_max
"""

#: The same with sums relative to a number near the maximum, which any number may be in exact arithmetic: they follow it
#: once one of the rows has grown by more than 2 ** 8 (Zadouri et al., 2026, "FlashAttention-4"). Mostly none has, and
#: nothing is multiplied; P is at most 2 ** 8 then, which float16 holds.
VISIT_LAZILY = """\
<<positions>>
k = {key}
score = tl.dot(q, k.T{precision}){scale}
<<modified>>
new_max = tl.maximum(row_max, tl.max({score}, 1) * {factor})
if tl.max((new_max > row_max + 8.0).to(tl.int32), 0) > 0:  # of some row
    <<shift>>
    alpha = tl.exp2(row_max - {shift})  # the sums so far, relative to the new maximum
    row_sum = row_sum * alpha
    acc = acc * alpha[:, None]
    row_max = new_max
<<kept_shift>>
p = tl.exp2({score} * {factor} - {kept_shift}[:, None])
row_sum = row_sum + tl.sum(p, 1)
v = {value}
acc = tl.dot({p}, v, acc{precision})
"""

#: A row in which nothing is visible has no maximum to be relative to, and keeps sums of zero.
SHIFT = 'shift = tl.where({of} == float("-inf"), 0.0, {of})  # rows that have seen nothing stay at zero'

RESULTS = """\
acc = acc * (1.0 / tl.where(row_sum == 0, 1.0, row_sum))[:, None]  # a row that sees nothing is zero
tl.store({out}, {result}{mask})
tl.store({lse}, (row_max + tl.log2(row_sum)) * {ln_2}{lse_mask})
"""

#: The state of a share, for the kernel that merges them.
PARTS = """\
tl.store(part_acc + part[:, None] * {value_size} + e, acc{mask})
tl.store(part_max + part, row_max{lse_mask})
tl.store(part_sum + part, row_sum{lse_mask})
"""

#: One program instance merges the shares of one row.
MERGE = """\
row = tl.program_id(0).to(tl.int64)
split = tl.arange(0, SHARES)
e = tl.arange(0, VALUE)
part = split * {rows} + row
<<edges>>
maxima = tl.load(part_max + part, split < {splits}, other=float("-inf"))
sums = tl.load(part_sum + part, split < {splits}, other=0.0)
acc = tl.load(part_acc + part[:, None] * {value_size} + e[None, :], {mask}, other=0.0)
row_max = tl.max(maxima, 0)
shift = tl.where(row_max == float("-inf"), 0.0, row_max)
weight = tl.exp2(maxima - shift)
row_sum = tl.sum(weight * sums, 0)
total = tl.sum(weight[:, None] * acc, 0) * (1.0 / tl.where(row_sum == 0, 1.0, row_sum))
<<place>>
tl.store({out}, {result}{store_mask})
tl.store(lse + row, (row_max + tl.log2(row_sum)) * {ln_2})
"""
