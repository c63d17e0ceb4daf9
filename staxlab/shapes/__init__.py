"""Dynamic shapes (Section 10): one compiled artifact for a class of shapes instead of one for each.

A shape abstraction says which shapes count as the same (Definition 10.1): concrete (equal shapes only), symbolic (equal
up to the dimensions declared variable, as far as the same constraints hold) or rank. The coarser it is, the fewer
versions are compiled, and the less each of them may assume; it is reliable exactly if an artifact is right for every
shape of its class (Proposition 10.1).

=============  =====================================================================================================
module         question
=============  =====================================================================================================
``bucketing``  Which few sizes may stand for all others, and at what cost? (Proposition 10.3)
``bucketed``   How is a function called with such sizes only? Padding, masks, lengths, and cutting the results
``neutrality`` Does the padding change what the function computes?
=============  =====================================================================================================
"""
