"""The command `steingrad`, also `python -m steingrad_lab`: signals, imports, exit codes.

JAX is imported only after the signal handler is installed. The import takes a second, and without
the handler Ctrl-C during that second would print a traceback.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code that shells use after Ctrl-C."""
IGNORED = ("_xla_gc_callback", "__del__")
"""Names of functions whose exceptions Python prints and then ignores."""


def main() -> None:
    _occupy_closed_streams()
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell's background jobs ignore SIGINT instead
        # Exit without an exception: a module being imported may swallow a KeyboardInterrupt, and
        # there is nothing to clean up yet.
        signal.signal(signal.SIGINT, _stop_at_once)
    try:
        from .cli import main as command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("steingrad"):
            raise
        package = error.name.partition(".")[0]
        sys.exit(
            f"The command steingrad needs the package {package}, which is not installed: "
            "run pip install 'steingrad[experiments]'."
        )
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _carry_out(command)
    except KeyboardInterrupt:  # a second Ctrl-C, while the command was handling the first
        _leave(INTERRUPTED)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        _leave(end.code)
    except OSError as error:  # of the output, because the command reports all others
        with contextlib.suppress(OSError):
            os.write(2, f"error: The output cannot be written ({error}).\n".encode())
        _leave(1)
    except Exception:
        traceback.print_exc()
        _leave(1)


def _occupy_closed_streams() -> None:
    """Puts the null device in the place of standard streams that are closed.

    Otherwise the next file that is opened would get the number of the closed stream, and whatever
    a library prints would be written into this file. `sys.__stdout__` stays `None`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 (it has the lowest number that is free)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _carry_out(command: Callable[[], None]) -> None:
    """Runs the command and flushes its output. At exit, a failure would print a traceback."""
    try:
        command()
    except SystemExit as end:
        if end.code not in (0, None):
            raise
    sys.stdout.flush()


def _stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"stopped.\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, or tries again shortly if Python would ignore the exception here.

    The garbage collector calls back into JAX so often that one Ctrl-C in five was lost there.
    """
    while frame is not None:
        if frame.f_code.co_name in IGNORED:
            threading.Timer(0.02, _again, [number]).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _again(number: int) -> None:
    if hasattr(signal, "pthread_kill"):  # also wakes the main thread if it is sleeping
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:  # Windows
        _thread.interrupt_main(signal.Signals(number))


def _leave(code: int) -> NoReturn:
    """Exits without the interpreter's usual cleanup, which can go wrong in two ways.

    An XLA thread that is still compiling may use memory that was freed, and the process then ends
    with a segmentation fault. In a run of several processes, the cleanup would wait for the other
    processes while they wait for this one; they are only notified once this process is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader of a pipe may be gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
