"""The wheel of `openenv-repl-env`: the same files as `repl-env`, under the name of AutoEnv's."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

import repl_env
from repl_env.integrations import space as packing
from repl_env.integrations.space import PackingError, pack_wheel
from repl_sandbox.native import build as native
from repl_sandbox.native import library
from tests.repl_env.environment_internals import renamed_metadata

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_wheel(tmp_path_factory.mktemp("wheel") / "not there yet")


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_of_a_space_has_the_files_of_the_checkout_s_wheel(
    packed: Path, wheel_file: Path
) -> None:
    ours, built = contents(packed), contents(wheel_file)
    renamed = {
        name.replace("/repl_env-", "/").replace("repl_env-", "openenv_repl_env-", 1)
        if ".dist-info/" in name
        else name: data
        for name, data in built.items()
    }

    assert packed.name == f"openenv_repl_env-{repl_env.__version__}-py3-none-any.whl"
    # A plugin that verifiers finds by its name; the wheel of a Space has none.
    del renamed["repl_env_verifiers.py"]
    assert ours.keys() == renamed.keys()
    differ = {name for name in ours if ours[name] != renamed[name]}
    assert {name.partition(".dist-info/")[2] for name in differ} <= {"METADATA", "RECORD", "WHEEL"}


def test_the_metadata_of_the_wheel_is_that_of_the_project_except_the_name(packed: Path) -> None:
    (text,) = (data for name, data in contents(packed).items() if name.endswith("/METADATA"))
    found, project = Parser().parsestr(text.decode()), metadata.metadata("repl-env")

    assert found["Name"] == "openenv-repl-env"
    assert found["Version"] == project["Version"]
    assert found.get_all("Requires-Dist") == project.get_all("Requires-Dist")


def test_extras_of_the_wheel_have_its_name() -> None:
    given = b"Name: repl-env\nRequires-Dist: repl-env[mcp]; extra == 'server'\n\nName: repl-env\n"

    assert renamed_metadata(given) == (
        b"Name: openenv-repl-env\nRequires-Dist: openenv-repl-env[mcp]; extra == 'server'\n\n"
        b"Name: repl-env\n"
    )


def test_the_same_packages_make_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    assert pack_wheel(tmp_path).read_bytes() == packed.read_bytes()


def test_untracked_files_of_a_checkout_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "stray_package"
    kept = {"__init__.py", "py.typed", "data/rows.csv", "files/Dockerfile.in"}
    stray = {
        ".env",
        "local.env",
        ".git/config",
        "__pycache__/a.pyc",
        "a.pyc",
        "server.key",
        "cert.pem",
        ".idea/x.py",
        "a.py~",
        "a.py.orig",
    }
    for name in kept | stray:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x")
    (package / "link.py").symlink_to("/etc/passwd")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packing, "PACKAGES", ("stray_package",))
    found = contents(pack_wheel(tmp_path / "out"))

    assert {name for name in found if name.startswith("stray_package/")} == {
        f"stray_package/{name}" for name in kept
    }


@pytest.mark.parametrize(
    ("files", "told"), [({}, "is not here"), ({"__init__.py", "fast.so"}, "compiled")]
)
def test_a_package_that_cannot_be_packed_is_named(
    files, told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / "odd_package").mkdir(exist_ok=True)
        (tmp_path / "odd_package" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packing, "PACKAGES", ("odd_package",))

    with pytest.raises(PackingError, match=f"odd_package.*{told}"):
        pack_wheel(tmp_path / "out")


@pytest.mark.parametrize("compiler", [True, False])
def test_the_library_of_spaces_is_compiled_where_it_is_not_installed(
    compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other machines and systems; ziglang counts as not installed."""
    name = library.file_name("x86_64")
    monkeypatch.setattr(native, "FOLDER", tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    if not compiler:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        with pytest.raises(PackingError, match="pip install 'ziglang"):
            pack_wheel(tmp_path / "out")
        return
    if native.requirements("x86_64"):
        pytest.skip("no compiler for x86-64 here")
    assert f"repl_sandbox/native/{name}" in contents(pack_wheel(tmp_path / "out"))


def test_an_installed_package_repacks_itself(packed: Path, tmp_path: Path) -> None:
    """In a Space, or from an index: no checkout is there, and the name is the other one."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", tmp_path / "site", packed], check=True)
    program = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from pathlib import Path\n"
        "import repl_env.integrations.space as packing\n"
        "assert packing.__file__.startswith(sys.argv[1])\n"
        "packing._SOURCES = ('openenv-repl-env',)\n"
        "print(packing.pack_wheel(Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "site", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()).read_bytes() == packed.read_bytes()


def test_the_manifest_in_the_package_is_that_of_the_repository() -> None:
    """AutoEnv reads the one, `openenv validate` the other; both may be no links."""
    inside = (ROOT / "repl_env" / "openenv.yaml").read_text()

    assert inside == (ROOT / "openenv.yaml").read_text()
    assert f"\nversion: {repl_env.__version__}\n" in inside
