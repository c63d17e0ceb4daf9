"""Dynamic shapes (Section 10): one compiled artifact for a class of shapes instead of one for each.

A shape abstraction says which shapes count as the same (Definition 10.1): concrete (equal shapes only), symbolic (equal
up to the dimensions declared variable, as far as the same constraints hold) or rank. The coarser it is, the fewer
versions are compiled, and the less each of them may assume; it is reliable exactly if an artifact is right for every
shape of its class (Proposition 10.1).

=================  =================================================================================================
module             question
=================  =================================================================================================
``relations``      What does a range say about a decision: true, false, or undetermined? (Definition 10.2)
``range_answers``  And for which of its sizes does it hold?
``environment``    Which decisions did a recording make about its size symbols? The shape guard
``integer``        What does a program get that reads a size?
``assertions``     How does a graph check what it relies on?
``bucketing``      Which few sizes may stand for all others, and at what cost? (Proposition 10.3)
``bucketed``       How is a function called with such sizes only? Padding, masks, lengths, and cutting the results
``neutrality``     Does the padding change what the function computes?
``results``        Where do padded sizes stand in a result?
=================  =================================================================================================
"""
