"""Attention as a programmable template (Section 9.10): what a variant is, and how it becomes a kernel.

:mod:`.problem` is what a kernel is generated for, :mod:`.modification` a traced ``score_mod`` or ``mask_mod``,
:mod:`.block_mask` which blocks of scores are visited, :mod:`.reference` the specification on an N x M matrix,
:mod:`.operator` the operator that regions record, and :mod:`.omni` the function that users call.
"""
