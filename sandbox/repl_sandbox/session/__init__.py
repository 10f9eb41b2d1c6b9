"""One session seen from the host: the logic once (`core`), and three thin drivers."""

from __future__ import annotations
