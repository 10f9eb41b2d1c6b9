"""`push_space`: the files of a Space to the hub, by `huggingface_hub` (extra `hf`).

Credentials are looked for in the files first: everybody may read a Space.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from repl_env.integrations.space import WHEELS, Files, subdomain

# How credentials look, by whom they are for. Each form is long and marked, so that no text of a
# program is taken for one.
_FORMS = {
    "a token of Hugging Face": rb"\bhf_[A-Za-z0-9]{30,}",
    "a key of repl-env": rb"\brepl_[A-Za-z0-9_-]{43}\b",
    # Of no use to whoever reads it, but whose keys a server knows is nobody's business.
    "a line of a key file": rb"(?:^|[^\w.@-])(?!sha256:)[A-Za-z0-9][\w.-]{0,63}:[0-9a-fA-F]{64}\b",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a key of a model's endpoint": rb"\bsk-[A-Za-z0-9_-]{20,}",
    "a token of GitHub": rb"\b(gh[opusr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22,})",
    "a key of AWS": rb"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a key of Google": rb"\bAIza[0-9A-Za-z_-]{35}",
    "a token of Slack": rb"\bxox[abprs]-[A-Za-z0-9-]{10,}",
}
# A value that is given to such a name in the settings of a Space. Not in programs, where what
# follows is an expression.
_SETTING = re.compile(
    rb"""(?i)\b[A-Z0-9_]*(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)["']?\s*[=:]\s*["']?[A-Z0-9+/_.~-]{16,}"""
)
# A wheel's RECORD lists random-looking digests, of which one may contain "-sk-" by chance.
_DIGEST = re.compile(rb",sha256=[A-Za-z0-9_-]{43},")
_ANY = {kind: re.compile(form) for kind, form in _FORMS.items()}


def credential_in(name: str, data: bytes, known: Iterable[str] = ()) -> str | None:
    """The kind of credential that a file has in it, for people; None if it has none.

    `known`: secrets of this process, which no file may hold whatever they look like.
    """
    values = [value.encode() for value in known if value]
    if name.endswith(".whl"):
        found = ((inside, _in(text, values)) for inside, text in _members(data))
        return next((f"{kind} in {inside}" for inside, kind in found if kind), None)
    return _in(data, values) or ("a secret" if _SETTING.search(data) else None)


def _in(data: bytes, values: Iterable[bytes]) -> str | None:
    if any(value in data for value in values):
        return "the token of this upload"
    text = _DIGEST.sub(b",,", data)
    return next((kind for kind, form in _ANY.items() if form.search(text)), None)


def _members(wheel: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in archive.namelist():
            yield name, archive.read(name)


# The variable that a server reads hashes of keys from; a Space has it as a secret.
KEYS = "REPL_ENV_API_KEYS"
# The files of a Space that somebody made on the pages of the hub and did not use.
_EMPTY = {".gitattributes", "README.md"}
# The base of failed requests, in either library of HTTP that `huggingface_hub` may use.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]


class PushError(Exception):
    """The Space was not pushed; the message says why.

    `passing`: the hub was not reached, or failed; the same may work later.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class Pushed:
    """A Space as it is on the hub: whether it is new, its last commit, and where it is."""

    created: bool
    changed: bool
    commit: str
    page: str
    url: str


def push_space(
    files: Files,
    repo: str,
    *,
    token: str,
    endpoint: str | None = None,
    private: bool = False,
    keys: str | None = None,
    replace: bool = False,
) -> Pushed:
    """Upload the files of a Space in one commit.

    A Space that is there is updated: files that are the same are not sent, and wheels of other
    versions go.

    Args:
        files: by `space_files` or `read_space`.
        repo: OWNER/NAME.
        token: with the right to write; in no message and no file.
        endpoint: of the hub; None: as `huggingface_hub` has it.
        private: of a Space that is new.
        keys: lines of a key file, for the Space's secret REPL_ENV_API_KEYS; None: leave that.
        replace: overwrite the files of a Space that this did not make.

    Raises:
        PushError: the hub refuses it, cannot be reached, or a file has a credential in it.
    """
    _check(files, (token, *(keys or "").split(",")))
    with _translate_errors(repo):
        api = HfApi(endpoint=endpoint, token=token)
        api.whoami()
        existing = _files_there(api, repo)
        if existing is None:
            api.create_repo(repo, repo_type="space", space_sdk="docker", private=private or None)
        elif not (replace or existing <= _EMPTY or any(map(_is_wheel, existing))):
            raise PushError(
                f"{repo} is another Space, which `repl-env space push` did not make: choose another"
                " name, or say --replace to overwrite its files"
            )
        if keys is not None:
            api.add_space_secret(repo, KEYS, keys)
        commit_before = api.space_info(repo).sha
        commit = _commit(api, repo, files, existing or set())
    return Pushed(
        created=existing is None,
        changed=commit != commit_before,
        commit=commit,
        page=f"{api.endpoint}/spaces/{repo}",
        url=f"https://{subdomain(repo)}.hf.space",
    )


def _check(files: Files, known: Iterable[str]) -> None:
    for name, data in files.items():
        if found := credential_in(name, data, known):
            raise PushError(f"{name} has {found}: everybody can read the files of a Space")


def _files_there(api: HfApi, repo: str) -> set[str] | None:
    """The files of the Space; None if there is no such Space."""
    try:
        return set(api.list_repo_files(repo, repo_type="space"))
    except RevisionNotFoundError:
        return set()  # it has no commit
    except RepositoryNotFoundError:
        return None


def _commit(api: HfApi, repo: str, files: Files, existing: set[str]) -> str:
    old = [name for name in existing - files.keys() if _is_wheel(name)]
    created = api.create_commit(
        repo,
        [
            *(CommitOperationAdd(name, data) for name, data in files.items()),
            *(CommitOperationDelete(name) for name in sorted(old)),
        ],
        commit_message=f"repl-env space push: {next(filter(_is_wheel, files))}",
        repo_type="space",
    )
    return str(created.oid)


def _is_wheel(name: str) -> bool:
    return Path(name).match(WHEELS) and "/" not in name


@contextmanager
def _translate_errors(repo: str) -> Iterator[None]:
    """Turn what `huggingface_hub` raises into messages for whoever pushes."""
    try:
        yield
    except PushError:
        raise
    except OfflineModeIsEnabled as error:
        raise PushError("HF_HUB_OFFLINE is set: nothing can be pushed") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        message = "what answers is no hub: its answer is not understood"
        raise PushError(message, passing=True) from error
    except ValueError as error:  # what the hub says of the files
        raise PushError(f"the hub refuses the files: {error}") from error
    except Exception as error:  # an upload's error is a RuntimeError around the cause
        cause = _cause(error)
        if isinstance(cause, HfHubHTTPError):
            raise _refused(cause, repo) from error
        if isinstance(cause, (_HTTP_ERROR, ConnectionError)):
            message = f"the hub was not reached: {str(cause) or type(cause).__name__}"
            raise PushError(message, passing=True) from error
        raise


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None and not isinstance(error, _HTTP_ERROR):
        error = error.__cause__
    return error


_REFUSALS = {
    401: "the hub does not accept the token",
    402: "the hub asks for a subscription or a payment for a Space of Docker",
    403: "the token may not write to {repo}: it needs the right to write, and the owner must be"
    " you or an organisation of yours",
    404: "the hub does not find {repo}, or the token may not see it",
    409: "{repo} is there already, or is being made: choose another name, or try again",
    412: "{repo} has changed meanwhile: push again",
    413: "the hub takes no files of this size",
    429: "the hub has had too many requests: try later",
}


def _refused(error: HfHubHTTPError, repo: str) -> PushError:
    response: Any = error.response
    status = 0 if response is None else int(response.status_code)
    message = _REFUSALS.get(status, f"the hub answers {status}").format(repo=repo)
    server_message = getattr(error, "server_message", None)
    return PushError(
        f"{message} ({server_message})" if server_message else message,
        passing=status == 429 or status >= 500,
    )
