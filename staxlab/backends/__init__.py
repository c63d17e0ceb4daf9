"""Backends: what makes a captured graph run (Sections 11.3 and 11.4), ours and those of others.

A backend is a row of one table (:mod:`.table`). Three rows are prefixes of the pipeline; the others name a function
that is given the graph after one of our stages and returns something callable (:mod:`.delegate` calls it and holds it
to the contract). What stands around a region is ours in every case: specialization keys and guards, modified inputs,
results that are views, and, from the operator graph on, gradients.
"""
