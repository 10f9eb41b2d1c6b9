"""Text from the other side, cleaned so that it can be encoded again."""

from __future__ import annotations

import re

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return `text` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else LONE_SURROGATE.sub("\ufffd", text)


def read_text(data: bytes) -> str:
    """Return text that travels in a blob as UTF-8, possibly with lone surrogates.

    Raises:
        UnicodeDecodeError: `data` is not UTF-8.
    """
    return clean_text(data.decode("utf-8", "surrogatepass"))
