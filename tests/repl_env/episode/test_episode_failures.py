"""After any failure of code the step reports it and the episode goes on."""

import psutil
import pytest

from repl_env import LocalREPLEnv
from repl_env.errors import EpisodeAborted, NotReset
from repl_sandbox import Sandbox
from tests.internals import worker_pid
from tests.limits import GROWING, PATIENT

FAILURES = {
    "x = = 1": "syntax",
    "x = '\0'": "syntax",
    "x = '\ud800": "syntax",
    "1/0": "exception",
    "import sys; sys.exit(3)": "exception",
    "x = bytearray(4 * 2**30)": "memory",
    "import os; os._exit(3)": "crash",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "crash",
    "while True: pass": "timeout",
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_failure_has_a_kind_and_lets_the_episode_go_on(env, code):
    env.reset(context="still here")
    step = env.execute(code, timeout_s=0.5 if FAILURES[code] == "timeout" else None)
    assert step.observation.error_kind == FAILURES[code]
    assert not step.observation.result.success
    assert step.observation.result.exception
    assert not step.metadata["mask"]
    assert step.reward == -0.05
    assert env.execute("context").observation.result.value == "'still here'"


@pytest.mark.parametrize("code", [code for code, kind in FAILURES.items() if kind != "syntax"])
def test_the_output_before_a_failure_is_kept(env, code):
    for limit in GROWING if FAILURES[code] == "timeout" else (None,):
        env.reset()
        step = env.execute(f"print('before', flush=True)\n{code}", timeout_s=limit)
        if step.observation.result.stdout:
            break
    assert step.observation.result.stdout == "before\n"


def test_a_recovered_session_is_reported_and_has_its_variables(env):
    env.reset(contexts={"doc": "text"})
    env.execute("import os\nx = 1")
    step = env.execute("y = 2\nos._exit(1)")
    assert "back in the state before this code" in step.observation.result.stderr
    assert "x" in step.observation.available_variables
    assert "y" not in step.observation.available_variables
    assert env.execute("doc, x").observation.result.value == "('text', 1)"
    assert env.execute("FINAL(doc)").done


def test_lost_resources_are_named(env):
    env.reset()
    env.execute("import os, threading")
    env.execute("wait = threading.Event().wait\nthreading.Thread(target=wait, name='w1').start()")
    step = env.execute("os._exit(1)")
    assert "Not brought back: thread 'w1'." in step.observation.result.stderr


def test_a_restarted_session_is_reported_and_has_its_context_again(restarting):
    with LocalREPLEnv(sandbox=restarting) as env:
        env.reset(contexts={"doc": "text"})
        env.execute("x = 1")
        step = env.execute("import os; os._exit(1)")
        assert "variables are gone" in step.observation.result.stderr
        assert "x" not in step.observation.available_variables
        assert env.execute("doc").observation.result.value == "'text'"
        assert env.execute("FINAL(doc)").done


def test_an_error_shows_the_line_of_the_cell(env):
    env.reset()
    result = env.execute("a = 1\nb = a + 'x'").observation.result
    assert "TypeError" in result.exception
    assert "b = a + 'x'" in result.stderr


def test_too_much_code_is_a_clear_error_and_no_step(env):
    env.reset()
    with pytest.raises(ValueError, match="code"):
        env.execute("#" * 100_000_000)
    assert env.state().iteration == 0
    assert env.execute("1 + 1").observation.result.value == "2"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_an_invalid_timeout_is_an_error_and_no_step(env, timeout):
    env.reset()
    with pytest.raises(ValueError, match="timeout_s must"):
        env.execute("1", timeout_s=timeout)
    assert env.state().iteration == 0


@pytest.mark.parametrize("action", ["1 + 1", None, {"code": "1"}])
def test_an_invalid_action_is_a_type_error(env, action):
    env.reset()
    with pytest.raises(TypeError, match="REPLAction"):
        env.step(action)


def test_a_session_that_is_lost_aborts_the_episode(env):
    env.reset()
    env.session.close()
    with pytest.raises(EpisodeAborted) as raised:
        env.execute("1")
    assert raised.value.kind == "sandbox"
    with pytest.raises(NotReset):
        env.execute("1")
    env.reset()
    assert env.execute("1 + 1").observation.result.value == "2"


def test_a_long_output_is_cut_and_the_rest_can_be_read(make):
    env = make(max_output_length=100)
    env.reset()
    env.execute("pass")
    step = env.execute("print('a' * 1000 + 'the middle' + 'z' * 1000)")
    assert step.metadata["truncated"]
    assert "the middle" not in step.observation.result.stdout
    assert "_out[2]" in step.observation.result.stdout
    assert "the middle" in env.execute("_out[2][990:1020]").observation.result.value


@pytest.fixture(scope="module")
def restarting():
    """A sandbox whose sessions restart empty when their worker dies."""
    with Sandbox(limits=PATIENT, recovery="restart") as sandbox:
        yield sandbox


def lose_the_worker(env):
    """End the worker, as a thread of the session can."""
    worker = psutil.Process(worker_pid(env.session))
    worker.kill()
    _, alive = psutil.wait_procs([worker], timeout=60)
    assert not alive


@pytest.fixture
def between_cells(restarting):
    """An episode one cell old, whose worker has died since; y was its variable."""
    env = LocalREPLEnv(sandbox=restarting)
    env.reset(context="still here")
    env.execute("y = 1")
    lose_the_worker(env)
    yield env
    env.close()


def bring_back(env):
    """The same with a snapshot of the worker that takes over."""
    env.reset(context="still here")
    env.execute("y = 1")
    env.session.variables()  # answered after the snapshot was taken
    lose_the_worker(env)


@pytest.fixture
def brought_back(env):
    bring_back(env)
    return env


def test_code_after_a_death_without_losses_counts_and_the_death_is_reported(brought_back):
    step = brought_back.execute("x = y + len(context)")
    assert step.observation.result.success
    assert step.observation.error_kind is None
    assert "died before this code ran" in step.observation.result.stderr
    assert {"context", "x", "y"} <= set(step.observation.available_variables)


def test_an_exception_after_a_death_without_losses_is_a_policy_error(brought_back):
    step = brought_back.execute("1 / 0")
    assert step.observation.error_kind == "exception"
    assert not step.metadata["mask"]
    assert step.observation.result.exception.startswith("ZeroDivisionError")
    assert "died before this code ran" in step.observation.result.stderr


def test_an_exception_after_a_loss_is_a_policy_error(env):
    env.reset(context="still here")
    env.execute("import threading\nthreading.Thread(target=threading.Event().wait).start()")
    env.session.variables()
    lose_the_worker(env)
    step = env.execute("1 / 0")
    assert step.observation.error_kind == "exception"
    assert not step.metadata["mask"]
    assert "Not brought back: thread " in step.observation.result.stderr


def test_code_stopped_after_a_death_is_not_reported_as_undone(env):
    for limit in GROWING:
        bring_back(env)
        step = env.execute("x = 1\nwhile True: pass", timeout_s=limit)
        if "x" in step.observation.available_variables:
            break
    assert step.observation.error_kind == "timeout"
    assert "died before this code ran" in step.observation.result.stderr
    assert "before this code." not in step.observation.result.stderr
    assert env.execute("x + y").observation.result.value == "2"


def test_an_exception_due_to_a_loss_between_cells_is_a_policy_error(between_cells):
    step = between_cells.execute("x = 1\nlen(context)")
    assert step.observation.error_kind == "exception"
    assert not step.metadata["mask"]
    assert step.reward == -0.05
    assert "NameError" in step.observation.result.stderr
    assert "before this code" in step.observation.result.stderr
    assert {"context", "x"} <= set(step.observation.available_variables)
    assert "y" not in step.observation.available_variables
    again = between_cells.execute("len(context) + x")
    assert again.observation.result.value == "11"
    assert not again.metadata["mask"]


def test_a_cell_that_did_not_use_the_lost_variables_counts_and_the_loss_is_reported(between_cells):
    step = between_cells.execute("x = 1")
    assert step.observation.result.success
    assert step.observation.error_kind is None
    assert not step.metadata["mask"]
    assert "before this code" in step.observation.result.stderr
    assert {"context", "x"} <= set(step.observation.available_variables)
    assert "y" not in step.observation.available_variables
    assert between_cells.execute("context").observation.result.value == "'still here'"


def test_all_variables_of_a_cell_after_a_death_are_known(between_cells):
    step = between_cells.execute("globals().update({f'v{n}': n for n in range(300)})")
    names = set(step.observation.available_variables)
    assert {"context", "v0", "v299"} <= names
    assert "y" not in names


def test_an_answer_refused_after_a_death_between_cells_is_a_policy_error(restarting):
    with LocalREPLEnv(sandbox=restarting) as env:
        env.reset(answer_schema=int)
        lose_the_worker(env)
        step = env.execute("FINAL('no number')")
        assert step.observation.error_kind == "answer"
        assert not step.done
