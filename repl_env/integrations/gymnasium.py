"""Gymnasium: the REPL as an environment whose observations and actions are texts.

Needs `pip install 'repl-env[gymnasium]'`. Gymnasium 1.0 and later look for no plugins, so that the
import of this module registers `repl_env/REPL-v0`, as that of `ale_py` registers Atari's games:

```python
import gymnasium
import repl_env.integrations.gymnasium

env = gymnasium.make("repl_env/REPL-v0")
```
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from repl_env.common.values import at_least, one_of
from repl_env.env.rows import EpisodeRows, RowResult
from repl_env.episode.observations import clip
from repl_env.integrations import needing
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction

with needing("Gymnasium: pip install 'repl-env[gymnasium]'", "gymnasium", "numpy"):
    import gymnasium
    import numpy as np
    from gymnasium.envs.registration import register, registry
    from gymnasium.error import ClosedEnvironmentError, ResetNeeded
    from gymnasium.spaces import Text
    from gymnasium.utils import seeding
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space, read_from_shared_memory

__all__ = ["ENV_ID", "REPLGymEnv", "REPLGymVectorEnv", "UnicodeText", "register_envs"]

ENV_ID = "repl_env/REPL-v0"


# Episodes as Gymnasium has them: tasks are drawn, observations are texts, facts are infos.

Request: TypeAlias = Mapping[str, Any]
Tasks: TypeAlias = Sequence[Request] | Callable[[np.random.Generator], Request]
Actions: TypeAlias = Literal["code", "replies"]

# Entries of an observation's metadata that are the same in each run of the same code: no times.
_FACTS = ("error_kind", "mask", "task_reward", "final_answer", "stop_reason")
_MARK = 100  # characters, at most, of the mark where a text was cut


class GymEpisodes:
    """n episodes side by side, for the environments of this module.

    Args:
        n: the episodes.
        tasks: what episodes are about: a list of arguments of `LocalREPLEnv.reset`, of which each
            reset draws one, or a function that makes them of a random number generator. An entry
            `task_id` is no argument, but in the infos. None: each reset says it in its options.
        actions: "code": an action is a cell. "replies": an action is a reply of a model, whose
            code blocks are run and whose prose is not.
        max_iterations: steps of an episode whose task does not say.
        max_length: characters of an observation. Of a longer one the middle is left out.
        arguments: those of `LocalREPLEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        n: int,
        *,
        tasks: Tasks | None,
        actions: Actions,
        max_iterations: int | None,
        max_length: int,
        arguments: Mapping[str, Any],
    ) -> None:
        one_of(actions, get_args(Actions), "actions")
        if max_iterations is not None:
            at_least(max_iterations, 1, "max_iterations")
        self.max_length = at_least(max_length, 2 * _MARK, "max_length")
        self._tasks = _checked(tasks)
        self._reads_replies = actions == "replies"
        self._defaults = {} if max_iterations is None else {"max_iterations": max_iterations}
        self._rows = _rows_with(n, arguments)
        self._labels: list[dict[str, str]] = [{} for _ in range(n)]

    def begin(
        self, rows: Mapping[int, np.random.Generator], options: Mapping[int, Request]
    ) -> dict[int, tuple[str, dict[str, Any]]]:
        """Reset these rows, each by its own random numbers; the observation and info of each.

        Options are the arguments of a row's reset. A task is drawn where there are none.
        """
        requests, labels = [], []
        for row, rng in rows.items():
            request = dict(options.get(row) or self._drawn(rng))
            task = request.pop("task_id", None)
            labels.append({} if task is None else {"task_id": str(task)})
            # Drawn in any case, so that the numbers after it do not depend on the options.
            seed = int(rng.integers(2**31))
            requests.append({**self._defaults, "seed": seed, **request})
        results = self._rows.reset(requests, only=list(rows))
        for row, label in zip(rows, labels, strict=True):
            self._labels[row] = label
        return {row: self.shown(row, result) for row in rows if (result := results[row])}

    def act(self, actions: Mapping[int, str]) -> dict[int, RowResult]:
        """Take a step in each of these rows, side by side."""
        replies: list[str | REPLAction | None] = [None] * len(self._rows)
        for row, action in actions.items():
            if not isinstance(action, str):
                raise TypeError(f"an action must be a str, not {type(action).__name__}")
            replies[row] = str(action) if self._reads_replies else REPLAction(code=str(action))
        results = self._rows.step(replies)
        return {row: result for row, result in enumerate(results) if result is not None}

    def shown(self, row: int, result: RowResult) -> tuple[str, dict[str, Any]]:
        """The observation and the info of a result."""
        metadata = result.observation.metadata
        info = {name: metadata.get(name) for name in _FACTS}
        info["reward_components"] = dict(metadata.get("reward_components") or {})
        info["iteration"] = result.observation.iteration
        text = result.message
        if len(text) > self.max_length:
            text = clip(text, self.max_length - _MARK)
        return text, {**info, **self._labels[row]}

    def close(self) -> None:
        """Close all sessions."""
        self._rows.close()

    def _drawn(self, rng: np.random.Generator) -> Request:
        if self._tasks is None:
            return {}
        if callable(self._tasks):
            return self._tasks(rng)
        number = int(rng.integers(len(self._tasks)))
        return {"task_id": number, **self._tasks[number]}


def _rows_with(n: int, arguments: Mapping[str, Any]) -> EpisodeRows:
    try:
        return EpisodeRows(n, **arguments)
    except TypeError as error:
        known = signature(LocalREPLEnv).parameters
        unknown = next((name for name in arguments if name not in known), None)
        if unknown is None:
            raise
        # In Python's words: TorchRL's GymEnv looks for them, and leaves its `frameskip` out then.
        raise TypeError(f"unexpected keyword argument {unknown!r}: {error}") from None


def _checked(tasks: Tasks | None) -> Tasks | None:
    if tasks is None or callable(tasks):
        return tasks
    if isinstance(tasks, (str, bytes, Mapping)) or not isinstance(tasks, Sequence):
        raise TypeError(f"tasks must be a list or a function, not {type(tasks).__name__}")
    if not tasks:
        raise ValueError("tasks must hold at least one task")
    for number, task in enumerate(tasks):
        if not isinstance(task, Mapping):
            raise TypeError(f"tasks[{number}] must be a mapping, not {type(task).__name__}")
    return tasks


# `REPLGymEnv`: one episode at a time, as `gymnasium.make("repl_env/REPL-v0")` gives it.

# Characters. A step shows at most 20,000 of what a cell printed, and why it failed.
OBSERVATION = 25_000
ACTION = 100_000


RENDER_MODES = ("ansi",)


def check_render_mode(render_mode: str | None) -> None:
    """ValueError, unless the environments have this mode."""
    if render_mode is not None:
        one_of(render_mode, RENDER_MODES, "render_mode")


class REPLGymEnv(gymnasium.Env[str, str]):
    """A session that is reset and stepped as an environment of Gymnasium's.

    ```python
    env = gymnasium.make("repl_env/REPL-v0")
    options = {"context": "a b c", "task_prompt": "How many words?", "expected_answer": 3}
    observation, info = env.reset(seed=1, options=options)
    observation, reward, terminated, truncated, info = env.step("FINAL(len(context.split()))")
    print(reward, terminated)  # 1.0 True
    env.close()
    ```
    An observation is the text that a policy is shown; no token of a chat template stands in it. An
    answer terminates an episode; a limit, or the loss of its session, truncates it. `info` has
    `error_kind`, `task_reward`, `final_answer`, `stop_reason`, `reward_components`, `iteration`,
    `mask` (the infrastructure failed: the episode is no measure of the policy) and `task_id`.

    Args:
        tasks: a list of arguments of `LocalREPLEnv.reset`, of which each reset without options
            draws one, or a function that makes them of a `numpy.random.Generator`. A task may
            have a `task_id`; in a list it is else the task's number.
        actions: "code": an action is a cell. "replies": an action is a reply of a model, whose
            code blocks are run and whose prose is not.
        max_iterations: steps of an episode whose task or options do not say.
        max_length: characters of an observation. Of a longer one the middle is left out.
        render_mode: None or "ansi", the last action and what it came to.
        arguments: those of `LocalREPLEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        *,
        tasks: Tasks | None = None,
        actions: Actions = "code",
        max_iterations: int | None = None,
        max_length: int = OBSERVATION,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        check_render_mode(render_mode)
        self._episodes = GymEpisodes(
            1,
            tasks=tasks,
            actions=actions,
            max_iterations=max_iterations,
            max_length=max_length,
            arguments=arguments,
        )
        self.render_mode = render_mode
        self.observation_space = UnicodeText(max_length)
        self.action_space = UnicodeText(ACTION)
        self._scene = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a new session.

        `options` are arguments of `LocalREPLEnv.reset`, in place of a drawn task. The random
        numbers of the session follow from those of this environment.
        """
        super().reset(seed=seed)
        observation, info = self._episodes.begin({0: self.np_random}, {0: options or {}})[0]
        self._scene = observation
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the code of `action`."""
        result = self._episodes.act({0: action})[0]
        observation, info = self._episodes.shown(0, result)
        self._scene = f"{action}\n\n{observation}"
        return observation, result.reward, result.terminated, result.truncated, info

    def render(self) -> Any:
        """The last action and the observation after it, if `render_mode` is "ansi"."""
        return self._scene if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the session. A later reset opens another."""
        self._episodes.close()


# `REPLGymVectorEnv`: episodes side by side, for `gymnasium.make_vec("repl_env/REPL-v0")`.

Observations = tuple[str, ...]
Step = tuple[Observations, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class REPLGymVectorEnv(VectorEnv[Observations, Sequence[str], np.ndarray]):
    """n sessions of one process, stepped side by side.

    ```python
    envs = gymnasium.make_vec("repl_env/REPL-v0", num_envs=8, tasks=tasks)
    observations, infos = envs.reset(seed=1)
    observations, rewards, terminations, truncations, infos = envs.step(["print(context)"] * 8)
    envs.close()
    ```
    Each row does what a `REPLGymEnv` of the same arguments and seed does. Observations and actions
    are tuples of texts.

    Args:
        num_envs: the rows.
        autoreset_mode: "NextStep": the step after the end of a row's episode ignores its action
            and begins the next. "SameStep": the step that ends the episode begins the next;
            `infos["final_obs"]` and `infos["final_info"]` are of the end. "Disabled": `reset` with
            a mask begins it. It is `metadata["autoreset_mode"]` too.
        arguments: those of `REPLGymEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        tasks: Tasks | None = None,
        actions: Actions = "code",
        max_iterations: int | None = None,
        max_length: int = OBSERVATION,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        check_render_mode(render_mode)
        self.num_envs = at_least(num_envs, 1, "num_envs")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._episodes = GymEpisodes(
            num_envs,
            tasks=tasks,
            actions=actions,
            max_iterations=max_iterations,
            max_length=max_length,
            arguments=arguments,
        )
        self.metadata = {**REPLGymEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = render_mode
        self.single_observation_space = UnicodeText(max_length)
        self.single_action_space = UnicodeText(ACTION)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = [""] * num_envs
        self._scenes = [""] * num_envs
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._rngs = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode in every row, or in those of `options["reset_mask"]`.

        `seed` is that of the first row, which the others count on from, or one for each row.
        `options` are arguments of `LocalREPLEnv.reset` for all rows; `options["requests"]` has
        a mapping of them, or None, for each row that is reset. A task is drawn where a row has
        neither.
        """
        self._check_open()
        shared = dict(options or {})
        rows = self._rows_in(shared.pop("reset_mask", None))
        requests = shared.pop("requests", None)
        if requests is None:
            requests = [None] * len(rows)
        if len(requests) != len(rows):
            raise ValueError(f"options['requests']: {len(requests)} for {len(rows)} rows")
        seeds = self._seeds_of(seed)
        for row in rows:
            if seeds[row] is not None:
                self._rngs[row] = seeding.np_random(seeds[row])[0]
        each = {
            row: {**shared, **(request or {})} for row, request in zip(rows, requests, strict=True)
        }
        infos: dict[str, Any] = {}
        self._begin(rows, each, infos)
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str]) -> Step:
        """Take each row's action, all side by side."""
        self._check_open()
        actions = list(actions)
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: {len(actions)} for {self.num_envs} rows")
        ended_rows = np.flatnonzero(self._ended).tolist()
        if ended_rows and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of the rows {ended_rows} are over: reset them by a mask"
            )
        infos: dict[str, Any] = {}
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations, truncations = np.zeros((2, self.num_envs), dtype=np.bool_)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._begin(ended_rows, {}, infos)
        active = {row: action for row, action in enumerate(actions) if row not in set(ended_rows)}
        for row, result in self._episodes.act(active).items():
            observation, info = self._episodes.shown(row, result)
            rewards[row] = result.reward
            terminations[row], truncations[row] = result.terminated, result.truncated
            self._observations[row] = observation
            self._scenes[row] = f"{active[row]}\n\n{observation}"
            if result.done and self.autoreset_mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": observation, "final_info": info}
            infos = self._add_info(infos, info, row)
        over = terminations | truncations
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._begin(np.flatnonzero(over).tolist(), {}, infos)
        else:
            self._ended = over
        return tuple(self._observations), rewards, terminations, truncations, infos

    def render(self) -> Any:
        """Each row's last action and the observation after it, if `render_mode` is "ansi"."""
        return tuple(self._scenes) if self.render_mode == "ansi" else None

    def close_extras(self, **_: Any) -> None:
        """Close all sessions."""
        self._episodes.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed")

    def _begin(
        self, rows: Collection[int], options: Mapping[int, Request], infos: dict[str, Any]
    ) -> None:
        """Reset these rows, and add what they tell to `infos`."""
        if not rows:
            return
        results = self._episodes.begin({row: self._rngs[row] for row in rows}, options)
        for row, (observation, info) in results.items():
            self._observations[row] = self._scenes[row] = observation
            self._ended[row] = False
            self._add_info(infos, info, row)

    def _rows_in(self, mask: Any) -> list[int]:
        """The rows that a mask of a reset names; all without one."""
        if mask is None:
            return list(range(self.num_envs))
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must be {self.num_envs} bools, one of them True"
            )
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    def _seeds_of(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed: {len(seed)} seeds for {self.num_envs} rows")
        return seed


# `UnicodeText`: Gymnasium's space of texts, over all characters that a Python text can hold.

# Characters of a sample that nobody gave a length for.
_SAMPLED = 100
_SURROGATES = range(0xD800, 0xE000)


class _CodePoints(Sequence[str]):
    """All characters, each at the index that is its code point, without a list of them."""

    def __len__(self) -> int:
        return sys.maxunicode + 1

    def __getitem__(self, index: Any) -> Any:
        try:
            return chr(index)
        except ValueError:
            raise IndexError(f"no character has the code point {index}") from None

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and len(character) == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CodePoints)

    def __hash__(self) -> int:
        return hash(_CodePoints)


class UnicodeText(Text):
    """Texts of `min_length` to `max_length` characters of any kind.

    `gymnasium.spaces.Text` lists its characters; this space has them all, in the order of their
    code points. Flattened texts and those in shared memory are arrays of code points, padded by
    one that is no character.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        max_length: int,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(max_length, min_length=min_length, seed=seed)
        self._all = _CodePoints()

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text of an admitted length."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of random characters that can be encoded, of at most 100 unless it must be longer.

        `mask` and `probability` are those of `Text`, for the length; a choice of characters is a
        ValueError.
        """
        chosen = mask if mask is not None else probability
        length = None
        if chosen is not None:
            length, characters = chosen
            if characters is not None:
                raise ValueError("UnicodeText samples from all characters: give a length only")
        if length is None:
            max_length = min(self.max_length, max(self.min_length, _SAMPLED))
            length = int(self.np_random.integers(self.min_length, max_length + 1))
        codes = self.np_random.integers(len(self._all) - len(_SURROGATES), size=length)
        codes[codes >= _SURROGATES.start] += len(_SURROGATES)
        return "".join(map(chr, codes))

    @property
    def character_set(self) -> Any:
        """All characters."""
        return self._all

    @property
    def character_list(self) -> Any:
        """All characters, in the order of their code points."""
        return self._all

    def character_index(self, char: str) -> np.int32:
        """The code point of a character."""
        return np.int32(ord(char))

    @property
    def characters(self) -> Any:
        """All characters: a sequence in place of a text of a million."""
        return self._all

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length}, min_length={self.min_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnicodeText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )


class _SharedTexts(Sequence[str]):
    """Texts in the memory that `AsyncVectorEnv` shares with its processes; its copies are tuples.

    Gymnasium reads that memory once, when the environments are made, because what it reads of its
    own spaces are views of the memory. Of texts it would give those of that moment for ever.
    """

    def __init__(self, codes: np.ndarray, end: int) -> None:
        self._codes = codes
        self._end = end

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, index: Any) -> Any:
        codes = self._codes[index]
        length = int(np.argmax(codes == self._end)) if codes[-1] == self._end else len(codes)
        return codes[:length].tobytes().decode("utf-32", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> _SharedTexts:
    codes = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, space.max_length)
    return _SharedTexts(codes, len(space.character_set))


def register_envs() -> None:
    """Register `repl_env/REPL-v0`, unless it is registered: the entry point of `gymnasium.envs`."""
    if ENV_ID not in registry:
        register(
            ENV_ID,
            entry_point=f"{__name__}:REPLGymEnv",
            vector_entry_point=f"{__name__}:REPLGymVectorEnv",
            nondeterministic=True,  # code can read the clock
        )


register_envs()
