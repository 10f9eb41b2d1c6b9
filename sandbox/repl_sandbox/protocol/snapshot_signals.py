"""The signals by which init, the host and the snapshots of a worker coordinate."""

from __future__ import annotations

import _signal

# Sent by init to a snapshot: the next message is addressed to it.
WAKE_SIGNAL = _signal.SIGUSR1
# Blocked in a waiting snapshot: the mark by which the host recognises it. WAKE_SIGNAL cannot be the
# mark: while a process waits for a signal in sigtimedwait, the kernel shows it as not blocked.
SNAPSHOT_SIGNAL = _signal.SIGRTMAX
HELD_SIGNALS = (WAKE_SIGNAL, SNAPSHOT_SIGNAL)
