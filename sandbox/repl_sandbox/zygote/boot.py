"""What the zygote's interpreter runs: `python -I boot.py FD`.

Makes this copy of the package importable, wherever it lies and whatever the interpreter has
installed, without putting its neighbours on the path.
"""

import importlib.util
import os
import sys


def _load_package() -> None:
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "repl_sandbox", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["repl_sandbox"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _load_package()
    from repl_sandbox.zygote.main import serve

    serve(int(sys.argv[1]))
