"""Section 5: differentiation, and what to keep of the forward pass for it.

Gradients are a second program, derived from the first, that runs backwards and reads values of the first on its way.
So there are two questions: how is the second program obtained, and where do the values come from that it reads?

* What a gradient costs, counted operation by operation: ``straightline`` (the programs), ``sweeps`` (Theorem 5.1).
* Which steps of a chain are kept and which are done again when memory is limited: ``reversal`` (the moves and their
  rules, Definition 5.3), ``checkpoint`` (schedules of such moves, Theorems 5.3 and 5.4), ``tradeoff`` (what each of
  them pays), ``chain`` (the same moves carried out on tensors).

The remaining modules take a compiled region through the same two questions:

* its gradient is recorded together with it, as a joint graph: ``graph``, ``joint`` (Algorithm 5.1);
* what to save is a minimum cut: ``values`` (what each value costs, and which must not be computed again), ``network``
  (maximum flow, Theorem 5.2), ``partition`` (Proposition 5.1), ``split`` (the two graphs that come out);
* with a limit on memory it is an integer program: ``budget``, ``frontier`` (memory against work);
* and the two graphs run as one node of autograd's graph: ``runtime``, ``second_order`` (second derivatives).
"""
