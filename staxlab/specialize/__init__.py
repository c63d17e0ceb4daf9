"""Section 2: specialization keys, guards, dispatch, and the lifting of free variables."""
