"""The exercises, one module each (``ex01``, ``ex02``, ...), found by listing this package.

How to write one is in the docstring of :mod:`staxlab.learn`.
"""
