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


def _run(script_call):
    for path in script_call["read"]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(read(path))
    if script_call["module"] is not None:
        sys.modules[script_call["module"]] = _stand_in(script_call["module"])
    sys.path.insert(0, os.getcwd())
    random.seed(script_call["seed"])
    if "numpy" in script_call["packages"]:
        import numpy

        numpy.random.seed(script_call["seed"])
    printed = io.StringIO()
    sys.argv = [script_call["script"], *script_call["arguments"]]
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(script_call["script"], run_name="__main__")
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
    _script_call = json.load(_file)
_found = _scores(_run(_script_call))
if _script_call["metric"] not in _found:
    raise KeyError(f"the script gave no {_script_call['metric']!r}, but {sorted(_found)}")
score(_found[_script_call["metric"]], _found)
