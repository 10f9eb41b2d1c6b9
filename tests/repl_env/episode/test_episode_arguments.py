"""Arguments of resets and environments, accepted and refused."""

import sys

import numpy
import pytest

from repl_env import LocalREPLEnv
from repl_env.llm.spec import LLM
from repl_sandbox import Limits, Sandbox


@pytest.mark.parametrize(
    ("context", "code", "value"),
    [
        ("ä text", "context", "'ä text'"),
        ("", "context", "''"),
        (b"\x00\xff", "context", "b'\\x00\\xff'"),
        ([1, {"a": None}], "context", "[1, {'a': None}]"),
        ({"k": [1.5]}, "context['k']", "[1.5]"),
    ],
)
def test_a_context_arrives_as_it_was_given(env, context, code, value):
    env.reset(context=context)
    assert env.execute(code).observation.result.value == value


def test_lone_surrogates_arrive_and_are_replaced_in_observations(env):
    first = env.reset(context="a\ud800", task_prompt="\ud801", episode_id="\ud802")
    step = env.execute("context == 'a' + chr(0xd800)")
    assert step.observation.result.value == "True"
    for model in (first.observation, step.observation, env.state()):
        model.model_dump_json().encode("utf-8")


def test_a_file_is_a_context(env, tmp_path):
    file = tmp_path / "doc.txt"
    file.write_text("from a file")
    first = env.reset(context=file)
    assert first.observation.context_length == 11
    assert env.execute("context").observation.result.value == "'from a file'"
    assert str(tmp_path) not in first.observation.model_dump_json()


def test_files_are_in_the_working_directory(env, tmp_path):
    source = tmp_path / "table.csv"
    source.write_bytes(b"a,b\r\n1,2\r\n")
    env.reset(files={"data/table.csv": source, "note.txt": "ä", "raw.bin": b"\x00\xff"})
    step = env.execute("open('data/table.csv', 'rb').read(), open('note.txt').read()")
    assert step.observation.result.value == "(b'a,b\\r\\n1,2\\r\\n', 'ä')"
    assert env.execute("len(open('raw.bin', 'rb').read())").observation.result.value == "2"
    assert env.execute("print('x' * 10_000)").metadata["truncated"]
    assert env.execute("len(_out[-1])").observation.result.value == "10001"


def test_files_are_not_retained_by_the_environment(env):
    data = b"x" * 1000
    before = sys.getrefcount(data)
    env.reset(files={"a": data})
    env.follow_up(task_prompt="more")
    assert sys.getrefcount(data) == before


def test_a_local_file_over_the_limit_is_not_read(make, tmp_path):
    """A sparse file takes no space in the workspace, but all of it on the host."""
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    env = make()
    env.reset(context="kept")
    with pytest.raises(OSError, match=r"File too large; .*file_size.*'big'"):
        env.reset(files={"big": tmp_path / "holes"})
    assert env.execute("context").observation.result.value == "'kept'"


def test_files_that_a_sandbox_of_the_callers_cannot_hold_are_refused_before_the_last_episode_ends():
    with Sandbox(limits=Limits(file_size="1MiB")) as sandbox, LocalREPLEnv(sandbox=sandbox) as env:
        env.reset(context="kept")
        with pytest.raises(OSError, match=r"File too large; the limit is 1,048,576 bytes"):
            env.reset(files={"big": b"x" * ((1 << 20) + 1)})
        assert env.execute("context").observation.result.value == "'kept'"
        env.reset(files={"fits": b"x" * (1 << 20)})


@pytest.mark.parametrize("code", [None, ["x"], b"x"])
def test_code_that_is_no_str_is_a_type_error(env, code):
    env.reset()
    with pytest.raises(TypeError, match=f"^code must be a str, not {type(code).__name__}$"):
        env.execute(code)
    assert env.execute(42).observation.result.value == "42"


def test_an_unknown_argument_of_reset_is_a_type_error(env):
    with pytest.raises(TypeError, match="contxt"):
        env.reset(contxt="x")


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"context": 5}, TypeError, "context"),
        ({"context": [float("nan")]}, ValueError, "context must hold JSON values only"),
        ({"contexts": {"a": {"b": float("inf")}}}, ValueError, "contexts: a must hold JSON"),
        ({"context": [object()]}, TypeError, "context must hold JSON values only"),
        ({"context": [{"a": ({1: "x", "1": "y"},)}]}, ValueError, "context: the keys 1 and '1'"),
        ({"context": {None: "x", "null": "y"}}, ValueError, "context: the keys None and 'null'"),
        ({"contexts": ["x"]}, TypeError, "contexts must be"),
        ({"task_prompt": 5}, TypeError, "task_prompt must be"),
        ({"episode_id": 5}, TypeError, "episode_id must be"),
        ({"llm": {"model": "m"}}, TypeError, "llm must be"),
        ({"contexts": {"a b": "x"}}, ValueError, "a b"),
        ({"contexts": {"FINAL": "x"}}, ValueError, "FINAL"),
        ({"contexts": {"class": "x"}}, ValueError, "contexts: 'class' is a keyword of Python"),
        ({"contexts": {"HostCallError": "x"}}, ValueError, "'HostCallError' is taken"),
        ({"contexts": {"llm_query": "x"}}, ValueError, "llm_query"),
        ({"files": {"../x": b""}}, ValueError, "files"),
        ({"files": {"/etc/x": b""}}, ValueError, "files"),
        ({"files": {"x": 5}}, TypeError, "files"),
        ({"files": ["x"]}, TypeError, "files"),
        ({"files": {"x" * 300: b""}}, ValueError, "files: path has a name of 300 bytes"),
        ({"files": {"a": "\ud800"}}, ValueError, "files: 'a'"),
        ({"contexts": ["a"]}, TypeError, "contexts must be a dict"),
        ({"contexts": {1: "a"}}, TypeError, "contexts: 1 must be a str"),
        ({"contexts": {"a b": "a"}}, ValueError, "contexts: 'a b' is not a name"),
        ({"max_iterations": 0}, ValueError, "max_iterations"),
        ({"max_iterations": "3"}, TypeError, "max_iterations"),
        ({"seed": -1}, TypeError, "seed"),
        ({"seed": "1"}, TypeError, "seed"),
        ({"seed": 1 << 63}, ValueError, "seed"),
        ({"answer_schema": 5}, TypeError, "answer_schema"),
        ({"rlm_max_depth": 0}, ValueError, "rlm_max_depth"),
        ({"llm": LLM(), "llm_model": "m"}, TypeError, "llm"),
        ({"llm": LLM(base_url="http://127.0.0.1:1")}, ValueError, "llm.model is missing"),
        ({"llm": LLM("m", "models.example")}, ValueError, "base_url must begin with http"),
        (
            {"llm": LLM("m", api_key="k", headers=dict.fromkeys("a"))},
            TypeError,
            "headers: a must be",
        ),
        ({"hf_token": 3}, TypeError, "hf_token must be a str"),
        ({"llm_model": 3}, TypeError, "llm_model must be a str"),
        ({"contexts": {"a b": 3}}, TypeError, "contexts: a b must be"),
        ({"contexts": {"a": {1}}}, TypeError, "contexts: a must be"),
        ({"contexts": {"a": [{1}]}}, TypeError, "contexts: a must hold JSON values only"),
        ({"contexts": {"__builtins__": "x"}}, ValueError, "'__builtins__' is the session's own"),
        ({"contexts": {"_out": "x"}}, ValueError, "'_out' is the session's own"),
        ({"contexts": {"\ufb01": "x"}}, ValueError, r"'\\ufb01' is read as 'fi'"),
        ({"contexts": {"e\u0301": "x"}}, ValueError, r"'e\\u0301' is read as '\\xe9'"),
        ({"files": {"a": "x", "a/b": "y"}}, ValueError, "files: 'a' is a file, and 'a/b' is below"),
        ({"files": {"a/b": "y", "a": "x"}}, ValueError, "files: 'a' is a file, and 'a/b' is below"),
        ({"files": {"a//b": "x", "a/b": "y"}}, ValueError, "files: 'a/b' is given twice"),
        ({"files": {"big": b"x" * (300 << 20)}}, OSError, "File too large; .*file_size.*'big'"),
        (
            {"files": dict.fromkeys("ab", b"x" * (200 << 20))},
            OSError,
            "No space left on device; .*workspace.*'b'",
        ),
    ],
)
def test_a_bad_argument_is_named_and_leaves_the_episode_alone(env, arguments, error, named):
    env.reset(context="kept")
    with pytest.raises(error, match=named):
        env.reset(**arguments)
    assert env.execute("context").observation.result.value == "'kept'"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"answers": "loose"}, ValueError),
        ({"preview": "tail"}, ValueError),
        ({"max_output_length": 0}, ValueError),
        ({"context_preview_length": -1}, ValueError),
        ({"tools": {"FINAL": print}}, ValueError),
        ({"tools": [print]}, TypeError),
        ({"preload": 5}, TypeError),
        ({"tools": {"a b": print}}, ValueError),
        ({"tools": {"_private": print}}, ValueError),
        ({"tools": {"t": 5}}, TypeError),
        ({"tools": {"\ufb01": print}}, ValueError),
        ({"llm_query_fn": "model"}, TypeError),
        ({"limits": Limits(memory="1GiB")}, TypeError),
        ({"limits": {"memory": "1GiB"}}, TypeError),
        ({"preload": "numpy"}, TypeError),
        ({"unknown": 1}, TypeError),
    ],
)
def test_a_bad_argument_of_the_environment_is_an_error_at_once(make, arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        make(**arguments)


def test_previews_can_be_chosen(make):
    env = make(preview="structure", context_preview_length=80)
    preview = env.reset(context=["ab"] * 1000).observation.context_preview
    assert preview == "list (1,000) of str (2)"
    env = make(preview="none")
    assert env.reset(context="x").observation.context_preview is None


@pytest.mark.parametrize("key", [1, 2.5, True, None])
def test_keys_that_are_no_str_are_refused_by_name(env, key):
    kind = type(key).__name__
    with pytest.raises(TypeError, match=f"context: the key {key} is {kind}; JSON has texts alone"):
        env.reset(context=[{"a": {key: 1}}])


@pytest.mark.parametrize(
    ("variables", "error", "named"),
    [
        ({"a": 1, "b": float("nan")}, ValueError, "variables: b must hold JSON values only"),
        ({"a": 1, "b": {1, 2}}, TypeError, "variables: b must hold JSON values only"),
        ({"a": 1, "b": {1: 2, "1": 3}}, ValueError, "variables: b: the keys 1 and '1'"),
        (["a"], TypeError, "variables must be a dict"),
        ([], TypeError, "variables must be a dict"),
        ({"a": 1, "__name__": 2}, ValueError, "variables: '__name__' is the session's own"),
        ({"a": 1, "\ufb01": 2}, ValueError, r"variables: '\\ufb01' is read as 'fi'"),
    ],
)
def test_a_bad_variable_is_named_and_leaves_the_episode_alone(env, variables, error, named):
    env.reset(expected_answer="7")
    with pytest.raises(error, match=named):
        env.follow_up(task_prompt="more", expected_answer="8", variables=variables)
    assert "a" not in env.list_variables()
    assert env.execute("FINAL(7)").reward == 1.0


@pytest.mark.parametrize("name", ["class", "a.class", "", "a b", "x[0]"])
def test_an_invalid_variable_name_uses_no_step(env, name):
    env.reset()
    with pytest.raises(ValueError, match="is not the name of a variable"):
        env.get_variable(name)
    assert env.state().iteration == 0


@pytest.mark.parametrize("path", [None, 3, b"x"])
def test_an_invalid_path_of_a_saved_episode_is_named(env, path):
    env.reset(context="kept")
    for call in (env.save, env.load):
        with pytest.raises(TypeError, match="path must be a str or a Path"):
            call(path)
    assert env.execute("context").observation.result.value == "'kept'"


def test_numpy_numbers_are_accepted(make):
    env = make(max_output_length=numpy.int32(1000), rlm_max_depth=numpy.int64(2))
    first = env.reset(max_iterations=numpy.int64(3), seed=numpy.int64(7))
    drawn = env.execute("import random\nrandom.random()", timeout_s=numpy.float32(20))
    assert type(first.observation.max_iterations) is int
    assert first.observation.model_dump_json()
    env.reset(seed=7)
    assert env.execute("import random\nrandom.random()").observation.result.value == (
        drawn.observation.result.value
    )
    with env.branch(seed=numpy.uint8(7)) as branch:
        assert branch.execute("random.random()").observation.result.value == (
            drawn.observation.result.value
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": numpy.float64(1)},
        {"seed": numpy.bool_(True)},
        {"seed": numpy.int64(-1)},
        {"max_iterations": numpy.int64(0)},
        {"max_iterations": numpy.arange(3)},
    ],
)
def test_invalid_numpy_numbers_are_refused(env, arguments):
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        env.reset(**arguments)


@pytest.mark.parametrize("seconds", [numpy.arange(3), 10**400, numpy.float64("nan"), "1", True])
def test_an_invalid_timeout_is_refused(env, seconds):
    env.reset()
    with pytest.raises((TypeError, ValueError), match="timeout_s must be"):
        env.execute("1", timeout_s=seconds)
