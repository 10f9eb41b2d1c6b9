"""Static files of pages: vendored modules, the shared style and components, and the viewer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

WEB: Final = Path(__file__).parent / "web"

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

# Scripts and styles come from this origin, as files; pictures also from blobs that a script makes.
# Trusted types refuse markup that is made of text. Each server adds frame-ancestors.
PAGE_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data: blob:",
    "base-uri 'none'",
    "form-action 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

# Headers of each response with a page or a file of one.
HEADERS: Final = {
    "Content-Security-Policy": "; ".join([*PAGE_POLICY, "frame-ancestors 'none'"]),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """A static file and its media type."""

    content: bytes
    media_type: str


@cache
def web_files(folder: Path = WEB) -> dict[str, WebFile]:
    """Return the static files below `folder` by path, such as "shared/style.css".

    Only these names exist for a server, so no request names another file.
    """
    return {
        path.relative_to(folder).as_posix(): WebFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES
    }
