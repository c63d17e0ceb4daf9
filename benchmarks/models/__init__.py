"""Whole models, written here in plain ``torch.nn`` with random weights: what a compiler is used for in the end.

They are models of their kinds, no copies of anybody's: a decoder of the Llama family, a vision transformer, ResNet-18,
and a gated recurrence whose time steps are a Python loop. :mod:`.cases` says in which sizes they are run and what a
step of inference and of training is.
"""
