"""An image that holds one empty file, for what needs no more or mounts the rest."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def loaded(client: list[str], name: str, architecture: str) -> None:
    """Give the engine an image that holds one empty file."""
    layer = _archive({"nothing": b""})
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"{name}:latest"], "Layers": ["layer.tar"]}]
    whole = _archive(
        {
            "config.json": json.dumps(config).encode(),
            "manifest.json": json.dumps(manifest).encode(),
            "layer.tar": layer,
        }
    )
    subprocess.run([*client, "load"], input=whole, check=True, capture_output=True)


def _archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()
