"""A lock, so that no two processes write to the same run folder."""

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

try:
    import fcntl
except ImportError:  # Windows, where a file that is in use cannot be deleted
    fcntl = None

from .stored import RunError

LOCK, OWNER = ".lock", ".owner"
POLL_SECONDS = 0.1


@contextlib.contextmanager
def sole_owner(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Locks a folder, which is created if missing. Raises if it stays locked for `wait` seconds.

    The folder itself is locked, and a file in it. The lock of the folder holds even if somebody
    deletes the file. The lock of the file works on network shares that cannot lock folders. The
    operating system releases both when the process ends, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + wait
    with contextlib.ExitStack() as stack:
        try:
            _lock_folder(folder, until, stack)
            left = max(0.0, until - time.monotonic())
            lock = filelock.FileLock(folder / LOCK)
            stack.enter_context(lock.acquire(timeout=left, poll_interval=POLL_SECONDS))
        except (BlockingIOError, filelock.Timeout):
            raise RunError(
                f"{folder} is in use by {owner(folder)}. Wait for that process to end, or stop it."
            ) from None
        # A file of its own, because an attempt to take a lock may empty the file of the lock.
        note = folder / OWNER
        try:
            note.write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
            yield
        finally:
            with contextlib.suppress(OSError):
                note.unlink()


def _lock_folder(folder: Path, until: float, stack: contextlib.ExitStack) -> None:
    """Locks the folder itself if the system can. Raises BlockingIOError if another process has."""
    if fcntl is None:
        return
    place = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, place)  # also releases the lock
    while True:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(POLL_SECONDS)
            continue
        except OSError:  # a file system that cannot lock folders
            pass
        return


def owner(folder: Path) -> str:
    """Describes the process that holds the lock, as far as it is known."""
    try:
        note = json.loads((folder / OWNER).read_bytes())
        return f"process {note['pid']} on {note['host']}"
    # Not written yet, just deleted, or damaged.
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
