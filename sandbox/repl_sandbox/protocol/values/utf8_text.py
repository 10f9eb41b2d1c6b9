"""Text that came from the other side: whatever it was, none that cannot be encoded again."""

from __future__ import annotations

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else LONE_SURROGATE.sub("\ufffd", text)


def read_text(data: bytes) -> str:
    """Text that travels in a blob as it is, lone surrogates and all.

    Raises:
        UnicodeDecodeError: it is none.
    """
    return clean_text(data.decode("utf-8", "surrogatepass"))
