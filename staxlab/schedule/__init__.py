"""Section 7: which computations become one kernel, in what order, and which memory they use."""
