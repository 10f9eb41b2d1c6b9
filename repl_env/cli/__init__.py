"""The command line, `repl-env`. Each command is one module, found by an entry point."""

from __future__ import annotations
