"""Section 4: rewriting the captured graph until no rule applies.

A rule of your own, and what it does::

    from staxlab.transform import Rule, Var, apply, transform

    x = Var("x")
    rule = Rule("twice the negative", apply("neg", x) * -1, x)
    log = transform(staxlab.trace(f, sample), rules=[rule])      # prints, or draws, what it changed

``staxlab.measure.identities.decide(rule)`` says whether it holds for floating-point numbers.
"""

from .patterns import Rule, Var, apply
from .rewrite import Applied, PassRun, TransformLog, transform

__all__ = ["Applied", "PassRun", "Rule", "TransformLog", "Var", "apply", "transform"]
