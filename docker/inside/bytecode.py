"""Amid the build of the server's image: write the bytecode of what a server loads, and of no more.

The user who serves may write none, and that of everything installed would be a fifth of the image.
"""

from __future__ import annotations

import compileall
import importlib
import importlib.util
from contextlib import suppress

OURS = ("repl_env", "repl_sandbox", "repl_server")
LOADED = (
    "repl_env.cli.main",
    "repl_server.cli",
    "repl_server.app",
    "repl_server.serving",
    "repl_env.llm.openai",
    "openai.resources.chat.completions",
    "huggingface_hub.inference._generated._async_client",
)


def main() -> None:
    """Compile our packages, and import the rest."""
    for name in OURS:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"{name} is not installed")
        for folder in spec.submodule_search_locations:
            if not compileall.compile_dir(folder, quiet=1):
                raise SystemExit(f"{folder} does not compile")
    for name in LOADED:
        with suppress(ModuleNotFoundError):  # of an extra that this image is without
            importlib.import_module(name)


if __name__ == "__main__":
    main()
