"""The daemon's refusals as errors that name a remedy."""

from __future__ import annotations

from ...errors import SandboxError

_LOGIN = ("pull access denied", "unauthorized", "no basic auth")


def refusal(image: str, answer: str) -> SandboxError:
    """Return the error for `answer`, the daemon's, about a container of `image`."""
    lower = answer.lower()
    if "no space left on device" in lower:
        return SandboxError(f"the daemon's disk is full: {answer}")
    if any(each in lower for each in _LOGIN):
        return SandboxError(
            f"image {image}: the registry requires a login (docker login), or "
            f"has no such image: {answer}"
        )
    if "bind source path does not exist" in lower:
        return SandboxError(
            "the daemon does not see this process's files, as where a service has its own /tmp "
            f"(set TMPDIR to a directory that both see): {answer}"
        )
    if "executable file not found" in lower or "no such file or directory" in lower:
        return SandboxError(
            f"image {image} has no such program, or lacks what is to be mounted; python= names the "
            f"image's interpreter: {answer}"
        )
    return SandboxError(f"image {image}: the daemon refuses: {answer}")
