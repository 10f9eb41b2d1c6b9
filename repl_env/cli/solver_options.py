"""What `repl-env eval` evaluates, made of its options. Keys are read here, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from .references import named

if TYPE_CHECKING:
    from repl_env.evaluation.scores import Metric
    from repl_env.evaluation.solvers import Solver
    from repl_env.rlm.budget import Budget
    from repl_env.rlm.model import ChatModel

_SCRIPT = "script:"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models of a run and its bounds, as options name them."""

    model: str | None
    sub_model: str | None
    base_url: str | None
    budget: Budget
    max_iterations: int
    max_depth: int
    isolation: str | None
    require: str | None


def rlm_solver(choice: ModelChoice) -> tuple[Solver, dict[str, Any]]:
    """A recursive language model as a solver, and what its results depend on."""
    from repl_env.evaluation.solvers import RLMSolver

    _find_runner()
    options: dict[str, Any] = {
        "budget": choice.budget,
        "max_iterations": choice.max_iterations,
        "max_depth": choice.max_depth,
    }
    # Where code is held does not change an answer, so this is not among the settings.
    tiers = {"isolation": choice.isolation, "require": choice.require}
    options |= {name: value for name, value in tiers.items() if value is not None}
    base_url = choice.base_url or os.environ.get("OPENAI_BASE_URL")
    model, source = model_of(choice.model, base_url, "--model")
    settings = {
        "model": choice.model,
        "sub_model": choice.sub_model,
        "base_url": _without_secrets(base_url),
        "source": source,
        "budget": asdict(choice.budget),
        "max_iterations": choice.max_iterations,
        "max_depth": choice.max_depth,
    }
    if choice.sub_model is not None:
        sub_model, settings["sub_source"] = model_of(choice.sub_model, base_url, "--sub-model")
        options["sub_model"] = sub_model
    return RLMSolver(model, options), settings


def function_solver(reference: str) -> tuple[Solver, dict[str, Any]]:
    """The function that `reference` names as a solver, and what its results depend on."""
    from repl_env.evaluation.solvers import FunctionSolver

    found = named(reference, "--solver")
    return FunctionSolver(found.function), {"solver": reference, "source": found.digest}


def metric_of(rubric: str | None) -> tuple[Metric | None, dict[str, Any]]:
    """The metric for all tasks, and what scores depend on; None: what each task names."""
    from repl_env.evaluation import scores

    if rubric is None or rubric in scores.RUBRICS:
        return scores.RUBRICS[rubric] if rubric else None, {"rubric": rubric}
    if ":" not in rubric:
        message = f"{rubric!r} is none of {', '.join(scores.RUBRICS)}, and no module:function"
        raise typer.BadParameter(message, param_hint="'--rubric'")
    found = named(rubric, "--rubric")
    return scores.metric_of(found.function), {"rubric": rubric, "rubric_source": found.digest}


def model_of(
    name: str | None, base_url: str | None, option: str, environ: Mapping[str, str] = os.environ
) -> tuple[ChatModel, str]:
    """The model `name`, and a digest of the script if it is one.

    `script:FILE.py:function` is a function of the request that returns text. With a `base_url` the
    model is behind that endpoint, and its key is OPENAI_API_KEY; else it is one of Hugging Face's,
    and its key HF_TOKEN.
    """
    if name is not None and name.startswith(_SCRIPT):
        from repl_env.rlm.scripted import ScriptedModel

        found = named(name.removeprefix(_SCRIPT), option)
        return ScriptedModel(found.function, name=name), found.digest
    from repl_env.llm import LLM

    # A key goes only to where it is meant for: not that of the one to an endpoint of the other.
    key = environ.get("OPENAI_API_KEY" if base_url else "HF_TOKEN")
    llm = LLM(model=name, base_url=base_url, api_key=key)
    try:
        endpoints: Any = import_module("repl_env.rlm.endpoints")
        model: ChatModel = endpoints.model_of(llm)
    except ImportError as error:  # an extra that is not installed; the message names it
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error
    return model, ""


def _find_runner() -> None:
    try:
        import_module("repl_env.rlm.runner")
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"runs of models are not in this version: {error}") from error


def _without_secrets(url: str | None) -> str | None:
    """`url` without user, password and query: results are shown around."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
