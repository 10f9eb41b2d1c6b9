"""Hints: one more sentence for errors whose cause the session knows."""

from __future__ import annotations

import errno

import pytest

TOTAL_LIMIT = 16 << 10

# ── hints ────────────────────────────────────────────────────────────────────────────────────────

COROUTINE = "import asyncio\nfrom contextlib import closing\nasync def f(): pass\nc = f()\n"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("counter = 1\ncuonter", "Did you mean: 'counter'?"),
        ("Counter_ = 1\ncounter_", "Did you mean: 'Counter_'?"),
        ("pritn(1)", "Did you mean: 'print'?"),
        ("def f(value):\n    return vaule\nf(1)", "Did you mean: 'value'?"),
        ("json.loads('1')", "Did you forget to import 'json'?"),
        ("asyncio.run(1)", "Did you forget to import 'asyncio'? Or did you mean: 'ascii'?"),
        ("import math\nmath.squrt(2)", "Did you mean: 'sqrt'?"),
        ("'a'.spilt()", "Did you mean: 'split'?"),
        ("raise MemoryError", "Limits.memory"),
        ("raise SystemExit", "the session goes on"),
        ('raise RuntimeError("can\'t start new thread")', "Limits.processes"),
        ("import asyncio\nawait asyncio.sleep(0)\nasyncio.run(None)", "use 'await' directly"),
        *(
            (f"{COROUTINE}try:\n    {code}\nfinally: c.close()", "use 'await' directly")
            for code in [
                "await asyncio.sleep(0); asyncio.get_event_loop().run_until_complete(c)",
                "await asyncio.sleep(0); asyncio.Runner().run(c)",
                "await asyncio.sleep(0)\n    with closing(asyncio.new_event_loop()) as loop:"
                " loop.run_until_complete(c)",
                "asyncio.get_running_loop().create_task(c)",
            ]
        ),
        *(
            (f"import asyncio\n{code}", "llm_query() is an ordinary function")
            for code in [
                "x = await llm_query('a')",
                "async def f(): return await llm_query('a')\nawait f()",
                "await asyncio.gather(*[llm_query('a') for _ in range(2)])",
                "asyncio.run(llm_query('a'))",
                "await asyncio.create_task(llm_query('a'))",
            ]
        ),
        ("context = 'text'\nfrom context import part", "'context' is a variable of this session"),
        ("import llm_query", "'llm_query' is a variable of this session"),
        *(
            (code, "subprocess.run()")
            for code in [
                "x = 1\n!ls",
                "if True:\n    !ls",
                "x = !ls -la",
                "a, b = !ls *.py",
                "d['k'] = !ls",
                '!echo "it\'s"',
                "!ls | grep '",
                "!cat < a.txt > 0123",
                "! ls",
                "%%bash\nls -la",
                "%who",
                "%timeit 1",
                "%%time\nsum(range(3))",
                "x = %timeit -o f()",
                "%matplotlib inline\nimport math",
                "!pip list",
                "pip list",
                "cat data.txt",
                "cd sub",
                "x = 1\ngit clone https://example.com/a.git",
                "mkdir -p out",
                "python main.py",
            ]
        ),
        ("x = 1\nget_ipython().run_line_magic('time', 'x')", "get_ipython() is IPython's"),
        ("Out[1]", "_out has earlier output"),
        ("ls -la", "os.listdir()"),
        ("cd /tmp", "os.chdir()"),
        (">>> x = 1", "prompts"),
        ("```python\nx = 1\n```", "fences"),
        ("~~~python\nx = 1\n~~~", "fences"),
        ("`print(1)`", "fences"),
        ("<code>\nx = 1\n</code>", "Tags around code"),
        ("<python>x = 1</python>", "Tags around code"),
        ("In [1]: print(1)", "prompt of IPython"),
        *(
            (f"{name}\nprint(1)", f"{name!r} names the language of a block")
            for name in [
                "python",
                "py",
                "python3",
                "Python",
                "repl",
                "ipython",
                "tool_code",
                "code",
            ]
        ),
        ("\n# so\npython\nprint(1)", "'python' names the language of a block"),
        ("bash\nls -l", "subprocess.run()"),
        ("sh\nx", "subprocess.run()"),
        *(
            (
                f"import matplotlib\nmatplotlib.use({backend!r})\nfrom matplotlib import pyplot\n"
                "pyplot.figure()",
                "leave the line out",
            )
            for backend in [
                "TkAgg",
                "QtAgg",
                "GTK3Agg",
                "WXAgg",
                "nbagg",
                "widget",
                "WebAgg",
                "macosx",
            ]
        ),
        ("raise ImportError(\"No module named 'repl_host'\")", "ThreadPoolExecutor"),
        ("raise ValueError from ImportError(\"No module named 'repl_host'\")", "joblib"),
        *(
            (code, "packages come from the host's environment; a session has no network")
            for code in [
                "pip install numpy",
                "import os\npip3 install -U 'numpy>=1'\nx = 1",
                "!pip install -q numpy",
                "! pip install numpy",
                "%pip install numpy",
                "%pip list",
                "out = !pip install numpy",
                "!{sys.executable} -m pip install numpy",
                "python -m pip install numpy",
                "uv pip install numpy",
                "conda install -y numpy",
                "!sudo apt-get install -y jq",
                "import nothing_like_this_name",
                "import nothing_like_this_name.part as n",
                "from nothing_like_this_name.part import n",
                "import importlib\nimportlib.import_module('nothing_like_this_name')",
                "try: import no_such_a\nexcept ImportError: import no_such_b",
                "try: import no_such_a\nexcept ImportError as e: raise ImportError('text') from e",
            ]
        ),
        *(
            (f"raise OSError({number}, 'text')", text)
            for number, text in [
                (errno.EAGAIN, "Limits.processes"),
                (errno.EMFILE, "Limits.open_files"),
                (errno.ENOSPC, "Limits.workspace"),
                (errno.EFBIG, "Limits.file_size"),
                (errno.EROFS, "/workspace"),
                (errno.ENETUNREACH, "no network"),
            ]
        ),
        ("import socket\nraise socket.gaierror(-3, 'text')", "no network"),
        *(
            (f"import errno, socket\ntry: raise {first}\nexcept OSError as e: raise {then}", text)
            for first, then, text in [
                ("socket.gaierror(-3, 'text')", "OSError(str(e))", "no network"),
                ("socket.gaierror(-3, 'text')", "ValueError from e", "no network"),
                ("OSError(errno.EACCES, 'text')", "OSError(str(e))", "no network"),
                ("OSError(errno.ENETUNREACH, 'text')", "KeyError", "no network"),
            ]
        ),
    ],
)
def test_a_hint_follows_as_one_line(error, namespace, source, hint):
    namespace.inject("llm_query", lambda prompt: prompt)
    last = error(source).traceback.splitlines()[-1]
    assert hint in last


@pytest.mark.parametrize(
    "source",
    [
        "zzqqxx",
        "x = 1\npython",
        "def f(): return python\nf()",
        "python + 1",
        "raise ValueError('the backend of the text')",
        "1 / 0",
        "raise OSError(2, 'no file')",
        "raise OSError('no number')",
        "raise NameError('made by hand')",
        "raise RuntimeError(object())",
        "class C: pass\nC().atribute",
        "del nothing_like_this_name",
        "await 5",
        "import socket\ntry: raise socket.gaierror\nexcept OSError: raise ValueError from None",
        "try: raise OSError(28, 'no space')\nexcept OSError: raise ValueError",
        "import os.pathh",
        "import json.nothing_like_this_name",
        "from json import nothing_like_this_name",
        "raise ModuleNotFoundError('made by hand')",
        "try: import no_such_a\nexcept ImportError: int('a')",
        "try: import no_such_a\nexcept ImportError: from json import no_such_b",
        "nope?",
        "Is it true?",
        "x = 'pip install numpy",
        "x = (1\n%x 3)",
        "x = 1 if x else !",
        "llm_query = lambda: 1\nawait llm_query()",
        "int('a') + llm_query('a')",
        "x = 5 ! 6",
        "raise SyntaxError('made by hand')",
        "x" * 10_000,
        f"{' ' * 300}={' ' * 300}{'python' * 60}",
        f"{' ' * 400}={' ' * 500}a b",
    ],
)
def test_unknown_errors_have_no_hint(error, namespace, source):
    namespace.inject("llm_query", lambda prompt: prompt)
    found = error(source)
    last = f"{found.type}: {found.message}" if found.message else found.type
    assert found.traceback.rstrip("\n").endswith(last.rpartition("\n")[2][-100:])


def test_a_hint_suggests_no_name_of_the_module_itself(error):
    assert "__name__" not in error("_name_").traceback


def test_the_hint_stands_after_a_text_that_is_cut(error):
    found = error("raise MemoryError('x' * 100_000)")
    assert "Limits.memory" in found.traceback.splitlines()[-1]
    assert len(found.traceback) < TOTAL_LIMIT + 200


def test_names_are_not_compared_without_end(error, namespace):
    namespace.globals.update({f"variable_{n}": n for n in range(20_000)})
    assert error("variabel_7").type == "NameError"
