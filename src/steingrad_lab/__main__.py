"""The command `steingrad`, also `python -m steingrad_lab`: signals, imports, exit codes.

It imports JAX only after the signal handler is in place. Otherwise Ctrl-C during that import, which
takes a second, would end in a traceback.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
IGNORED = ("_xla_gc_callback", "__del__")
"""Functions whose exceptions Python prints and forgets."""


def main() -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # and not ignored, as in the background of a shell
        # Nothing is open yet that would need closing, and modules may swallow a KeyboardInterrupt.
        signal.signal(signal.SIGINT, _stop_at_once)
    try:
        from .cli import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steingrad"):
            raise
        package = error.name.partition(".")[0]
        sys.exit(
            f"The command steingrad needs {package}, which comes with an extra: "
            "pip install 'steingrad[experiments]'."
        )
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        command()
    except KeyboardInterrupt:  # a second time, while the first one was dealt with
        _leave(INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.code, int) or end.code == 0:
            raise
        _leave(end.code)
    except Exception:
        traceback.print_exc()
        _leave(1)


def _stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"stopped.\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, though not where Python ignores what is raised: try again then.

    JAX is called back by the garbage collector so often that one Ctrl-C in five was lost there.
    """
    while frame is not None:
        if frame.f_code.co_name in IGNORED:
            threading.Timer(0.02, _again, [number]).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _again(number: int) -> None:
    if hasattr(signal, "pthread_kill"):  # to the main thread, which it wakes if it sleeps
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        _thread.interrupt_main(signal.Signals(number))


def _leave(code: int) -> NoReturn:
    """End without taking the interpreter apart.

    A thread of XLA that still compiles may touch what is gone by then, which is a segmentation
    fault in place of an exit code. And one of several processes would wait at its end for the
    others, which wait for its part of a sum: once it is gone, they are told.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
