"""The same functions through several compilers, watched and timed (Section 12).

``python -m benchmarks.systems observe`` calls small programs in sequences and counts what each system does: graphs,
effects, errors (the four aspects of Exercise 32), and what became of three functions that all of them take.
``python -m benchmarks.systems time`` measures those functions side by side. A system that is not installed is left out
and named.

=================  ====================================================================================================
:mod:`.programs`   the programs, in PyTorch's words and in JAX's, and the sequences of calls
:mod:`.watching`   calling, and writing down what happened after every call
:mod:`.own`        staxlab: versions, warnings, kernels
:mod:`.dynamo`     TorchDynamo with a backend that counts the graphs it is given
:mod:`.xla`        JAX: how often a function is traced; its jaxpr, its HLO before and after XLA's optimisation
:mod:`.halide`     algorithms and schedules, apart; the loops that Halide makes of them
:mod:`.tvm`        TVM's loops before and after its schedule rules
:mod:`.timing`     the peers of a side-by-side run
=================  ====================================================================================================
"""
