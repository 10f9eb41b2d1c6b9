# Runs in the session of an evaluator: runs an evaluation script of MLGym's, and says its score.
# The submission's module is a stand-in, whose functions are called in the submission's session.
import contextlib
import io
import json
import os
import random
import runpy
import sys
import types


def _plain(value):
    """A value as JSON: what scripts hand over are lists of numbers, of NumPy's for some."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _stand_in(name):
    def function(attribute):
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return lambda *arguments: call(attribute, _plain(list(arguments)))

    module = types.ModuleType(name)
    module.__getattr__ = function
    return module


def _run(how):
    for path in how["read"]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(read(path))
    if how["module"] is not None:
        sys.modules[how["module"]] = _stand_in(how["module"])
    sys.path.insert(0, os.getcwd())
    random.seed(how["seed"])
    if "numpy" in how["packages"]:
        import numpy

        numpy.random.seed(how["seed"])
    printed = io.StringIO()
    sys.argv = [how["script"], *how["arguments"]]
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(how["script"], run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError(f"the script exited with {ended.code}") from None
    return printed.getvalue()


def _scores(printed):
    lines = [line for line in printed.splitlines() if line.strip().startswith("{")]
    for text in (printed, *lines[::-1]):
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
    raise ValueError(f"the script printed no JSON object: {printed[:200]!r}")


with open("mlgym.json", encoding="utf-8") as _file:
    _how = json.load(_file)
_found = _scores(_run(_how))
if _how["metric"] not in _found:
    raise KeyError(f"the script gave no {_how['metric']!r}, but {sorted(_found)}")
score(_found[_how["metric"]], _found)
