"""Section 3: graph capture by hybrid run-time tracing."""
