"""Pages about recorded runs, and the static files of pages."""

from __future__ import annotations
