"""Replies of scripted policies."""

from __future__ import annotations


def code(*blocks: str) -> str:
    """A reply with these code blocks."""
    return "\n\n".join(f"```python\n{block}\n```" for block in blocks)
