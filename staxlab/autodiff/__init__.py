"""Section 5: differentiation, and what to keep of the forward pass for it.

Gradients are a second program, derived from the first, that runs backwards and reads values of the first on its way.
So there are two questions: how is the second program obtained, and where do the values come from that it reads?

* What a gradient costs, counted operation by operation: ``straightline`` (the programs), ``sweeps`` (Theorem 5.1).
* Which steps of a chain are kept and which are done again when memory is limited: ``reversal`` (the moves and their
  rules, Definition 5.3), ``checkpoint`` (schedules of such moves, Theorems 5.3 and 5.4), ``tradeoff`` (what each of
  them pays), ``chain`` (the same moves carried out on tensors).

The remaining modules take a compiled region through the same two questions: its joint graph, and the minimum cut that
parts it into a forward and a backward graph.
"""
