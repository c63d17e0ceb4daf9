"""Attention as Triton kernels (Section 9.10): templates that have the user's score_mod and mask_mod in their loops.

:mod:`.pieces` is what every kernel of the family shares, :mod:`.forward` the general template, :mod:`.decoding` the one
that splits the keys of a few queries over the whole device.
"""
