"""A lock, so that no two processes write to the same run folder."""

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import filelock

from .stored import RunError

LOCK, OWNER = ".lock", ".owner"


@contextlib.contextmanager
def sole_owner(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Locks a folder, which is created if missing. Raises if it stays locked for `wait` seconds.

    The operating system releases the lock when the process ends, however it ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=wait, poll_interval=0.1)
    except filelock.Timeout:
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
        lock.release()


def owner(folder: Path) -> str:
    """Describes the process that holds the lock, as far as it is known."""
    try:
        note = json.loads((folder / OWNER).read_bytes())
        return f"process {note['pid']} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # not written yet, or just deleted
        return "another process"
