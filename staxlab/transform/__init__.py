"""Section 4: rewriting the captured graph until no rule applies."""

from .rewrite import Applied, PassRun, TransformLog, transform

__all__ = ["Applied", "PassRun", "TransformLog", "transform"]
