"""Side-by-side runs: eager PyTorch, torch.compile, XLA and staxlab on the same inputs, in alternation (Section 13).

``python -m benchmarks.run``       cases of Tables 13.1 and 13.2: medians, intervals, bytes, bandwidths, speedups
``python -m benchmarks.startup``   what the first call costs, cold and warm, stage by stage
``python -m benchmarks.overhead``  what a call costs when there is almost nothing to do

Nothing here is imported by the package. The peers are compilers to be compared with; only this directory calls them.
"""
