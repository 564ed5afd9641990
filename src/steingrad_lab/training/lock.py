"""One owner at a time: no two processes write to one run folder."""

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
    """Hold a folder, which is made if it is not there; after `wait` seconds say who holds it.

    The system gives the lock back when its process dies, however it dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=wait, poll_interval=0.1)
    except filelock.Timeout:
        raise RunError(
            f"{owner(folder)} is at work in {folder}. Wait for it, or stop it."
        ) from None
    # Beside the lock, not in it: whoever tries to take a lock may empty its file.
    note = folder / OWNER
    try:
        note.write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink()
        lock.release()


def owner(folder: Path) -> str:
    """Who holds a folder, as far as is known."""
    try:
        note = json.loads((folder / OWNER).read_bytes())
        return f"Process {note['pid']} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # it is about to say so, or to end
        return "Another process"
