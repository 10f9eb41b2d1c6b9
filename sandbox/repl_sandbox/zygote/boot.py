"""The program of the zygote's interpreter: `python -I boot.py SOCKET TIER`.

SOCKET is an open descriptor, or, in a container, the path of a socket to connect to, or "stream":
standard input and output. `boot.py relay STREAM LIFELINE QUERIES MAX_SIZE` is the host's end of
that stream.

Makes this copy of the package importable, wherever it lies and whatever the interpreter has
installed, without putting its neighbours on the path.

In tier `jailed` an ordinary user's zygote enters a user namespace and starts itself again there:
the memory of a process belongs to the namespace in which its program was started, also after forks
(mm->user_ns in the kernel). The host's user owns that namespace and so may inspect the sessions'
processes, which hide their memory; otherwise only root could (__ptrace_may_access). The namespace
has no uid 0, which would own the files in /proc of such processes (task_dump_owner); so no user
owns them.
"""

import importlib.util
import os
import sys

# The image of a container may have any Python, or another program of that name.
_MIN_VERSION = (3, 11)


def _load_package() -> None:
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "repl_sandbox", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["repl_sandbox"] = package
    spec.loader.exec_module(package)


def _enter_user_namespace(fd: int) -> None:
    """Start this program again in a user namespace of its own; returns only on failure."""
    from repl_sandbox.jail import steps, users

    try:
        users.enter_namespace(users.CODE_ID)
        os.set_inheritable(fd, True)
        *start, _, tier = sys.orig_argv
        os.execv(sys.executable, [*start, str(fd), tier, "inside"])
    except OSError as error:
        from repl_sandbox.zygote.main import refuse

        refuse(fd, steps.step_error("namespaces", error))


def _connected(address: str) -> int:
    """Return the descriptor of the socket to the host."""
    if address.isdigit():
        return int(address)
    if address == "stream":
        from repl_sandbox.zygote.stream import container

        return container.split_streams()
    import socket  # imported late, because the names come first

    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.connect(address)
    return host.detach()


def _main(fd: int, tier: str, *, inside: bool) -> None:
    if tier == "jailed" and not inside and os.geteuid() != 0:
        _enter_user_namespace(fd)
    from repl_sandbox.zygote.main import serve

    serve(fd, tier, privileged=os.geteuid() == 0 and not inside)


if __name__ == "__main__":
    if sys.version_info < _MIN_VERSION or sys.implementation.name != "cpython":
        sys.exit("sessions need CPython 3.11 or later, and this is " + sys.version)
    _load_package()
    if sys.argv[1] == "relay":
        from repl_sandbox.zygote.stream import host_relay

        host_relay.serve(*map(int, sys.argv[2:]))
        sys.exit()
    importlib.import_module(
        "repl_sandbox.zygote.intern_names"
    )  # before everything that uses the names
    _main(_connected(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
