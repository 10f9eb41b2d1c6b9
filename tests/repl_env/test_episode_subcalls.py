"""Code in the session asks models and tools of the host."""


def test_sub_calls_reach_the_functions_given(make):
    env = make(llm_query_fn=lambda p: f"<{p}>", llm_batch_fn=list)
    env.reset(context="c")
    assert {"llm_query", "llm_batch", "rlm_query"} <= set(env.list_variables())
    assert env.execute("llm_query(context)").observation.result.value == "'<c>'"
    assert env.execute("llm_batch(['a', 'b'])").observation.result.value == "['a', 'b']"
    assert env.execute("rlm_query('x', model='m')").observation.result.value == "'<x>'"


def test_a_sub_call_that_is_not_configured_says_so(env):
    env.reset()
    step = env.execute("llm_query('x')")
    assert "llm_query is not configured" in step.observation.result.stderr
    assert (step.observation.error_kind, step.metadata["mask"]) == ("exception", False)


def test_a_sub_call_that_fails_masks_the_episode_from_then_on(make):
    answers = iter(["fine"])

    def once(prompt):
        return next(answers, None) or fail()

    def fail():
        raise ConnectionError("no route")

    env = make(llm_query_fn=once)
    env.reset(expected_answer="x")
    assert not env.execute("llm_query('a')").metadata["mask"]
    failed = env.execute("text = llm_query('a')\n1/0")
    assert (failed.observation.error_kind, failed.metadata["mask"]) == ("llm", True)
    assert failed.reward == 0.0
    text = env.get_variable("text")
    assert text.observation.result.stdout == "'Error: ConnectionError: no route'\n"
    assert (text.observation.error_kind, text.metadata["mask"]) == (None, True)
    assert env.execute("FINAL('x')").metadata["mask"]
    env.reset()
    assert not env.execute("1").metadata["mask"]


def test_waiting_for_a_sub_call_is_not_execution(make):
    import threading

    waited = threading.Event()
    env = make(llm_query_fn=lambda p: str(waited.wait(1.0)))
    env.reset()
    step = env.execute("llm_query('slow')", timeout_s=0.5)
    assert step.observation.result.value == "'False'"
    assert step.metadata["waiting_time"] > step.metadata["execution_time"]


def test_tools_are_functions_of_the_host(make):
    def lookup(key, default=None):
        return {"a": [1, 2]}.get(key, default)

    env = make(tools={"lookup": lookup})
    env.reset()
    assert "lookup" in env.list_variables()
    assert env.execute("lookup('a')").observation.result.value == "[1, 2]"
    assert env.execute("lookup('b', default={'n': 1})").observation.result.value == "{'n': 1}"


def test_an_asynchronous_function_serves_a_plain_episode(make):
    async def ask(prompt):
        return prompt.upper()

    env = make(llm_query_fn=ask)
    env.reset()
    assert env.execute("llm_query('a')").observation.result.value == "'A'"
    assert env.execute("llm_query_batched(['a', 'b'])").observation.result.value == "['A', 'B']"


def test_a_tool_that_steps_its_own_episode_is_told_that_the_session_is_busy(make):
    def again():
        env.execute("1")

    env = make(tools={"again": again})
    env.reset()
    step = env.execute("again()")
    assert "SessionBusy" in step.observation.result.stderr
    assert (step.observation.error_kind, env.state().iteration) == ("exception", 1)
    assert env.execute("1 + 1").observation.result.value == "2"
