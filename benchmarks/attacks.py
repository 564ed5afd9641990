"""Attack run folders and data: SIGKILL, Ctrl-C, damaged files, several processes. Prints tables.

    python benchmarks/attacks.py [--kills 20] [--sweep-kills 5] [--races 5] [--interrupts 20]

The runs on the digits are very short. Each process is forked from this one, which has imported all
modules but computed nothing. So a forked process can be killed at any moment of its real work.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/steingrad-attacks")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides messages of XLA about the cache

import jax
from bad_data import BAD_DATA

from steingrad_lab import __main__ as entry
from steingrad_lab import cli
from steingrad_lab.sweeps.engines import Processes
from steingrad_lab.sweeps.plan import plan
from steingrad_lab.sweeps.sweep import sweep
from steingrad_lab.training import Config, Run, RunError, Schedule

TINY = Config(
    estimator="rloo", layer_sizes=(5,), hidden=(5,), steps=6000, batch_size=20, bound_samples=2
)
SCHEDULE = Schedule(report_every=100, checkpoint_every=100)
SMALL = dataclasses.replace(TINY, steps=60)
SMALL_SCHEDULE = Schedule(report_every=20, checkpoint_every=20)


def command(config: Config, schedule: Schedule, out: Path, *more: str) -> list[str]:
    settings = ("estimator", "layer_sizes", "hidden", "steps", "batch_size", "bound_samples")
    words = ["train", *more, "--out", str(out)]
    for name, value in [
        *((name, getattr(config, name)) for name in settings),
        *vars(schedule).items(),
    ]:
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name}", *map(str, values)]
    return words


def start(work: Callable[[], Any], log: Path) -> int:
    """Starts a process that writes its output to a file. Returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70  # stands for a traceback
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"Traceback: {error!r}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid: int, after: float) -> int | None:
    """Returns the exit code of a process, or `None` if it is still running after some seconds."""
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def content(path: Path) -> tuple[list[dict], bytes]:
    """Returns the metrics of a run without times, and the arrays of its last checkpoint."""
    run = Run(path)
    assert run.status == "finished"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `train` has given the same warnings
        metrics = list(run.metrics())
    lines = [{k: v for k, v in line.items() if k != "ms_per_step"} for line in metrics]
    return lines, run.checkpoints()[0].read_bytes().partition(b"\n")[2]


def whole(place: Path, name: str, config: Config, schedule: Schedule) -> tuple[Path, float]:
    """Returns an undisturbed run, and its duration when everything is already compiled."""
    seconds = 0.0
    for number in range(2):
        begun = time.monotonic()
        path = place / f"{name}-{number}"
        pid = start(lambda path=path: cli.main(command(config, schedule, path)), place / "log")
        assert ended(pid, 3600) == 0, (place / "log").read_text()
        seconds = time.monotonic() - begun
    assert content(place / f"{name}-0") == content(place / f"{name}-1")
    return place / f"{name}-1", seconds


def kills(place: Path, wanted: int, draw: random.Random) -> tuple[int, Counter]:
    """Kills a run at random moments, resumes it and kills it again."""
    reference, seconds = whole(place, "whole", TINY, SCHEDULE)
    expected, killed, outcomes, number = content(reference), 0, Counter(), 0
    while killed < wanted:
        number += 1
        out = place / f"killed-{number}"
        code = None
        while code is None:
            work = command(TINY, SCHEDULE, out, "--resume")
            pid = start(lambda work=work: cli.main(work), place / "log")
            patience = draw.uniform(0, seconds) if killed < wanted else 3600.0
            code = ended(pid, patience)
            if code is None:
                kill(pid)
                killed += 1
        same = code == 0 and content(out) == expected
        outcomes["run ended bit for bit" if same else f"run broken, code {code}"] += 1
    return killed, outcomes


def sweep_kills(place: Path, wanted: int, draw: random.Random) -> tuple[int, Counter]:
    """Kills a sweep and its workers, and starts the sweep again."""
    runs = {f"seed{seed}": dataclasses.replace(TINY, seeds=(seed,)) for seed in (1, 2)}

    def carry_out(out: Path) -> None:
        broken = sweep(plan(runs, out), out, Processes(2), schedule=SCHEDULE, quiet=True)
        assert not broken, broken

    begun = time.monotonic()
    code = ended(start(lambda: carry_out(place / "sweep-whole"), place / "log"), 3600)
    assert code == 0, (code, (place / "log").read_text()[-2000:])
    seconds = time.monotonic() - begun
    killed, outcomes, number = 0, Counter(), 0
    while killed < wanted:
        number += 1
        out, code = place / f"sweep-killed-{number}", None
        while code is None:
            pid = start(lambda out=out: carry_out(out), place / "log")
            code = ended(pid, draw.uniform(0, seconds) if killed < wanted else 3600.0)
            if code is None:
                kill(pid)
                killed += 1
        for name in runs:
            same = code == 0 and content(out / name) == content(place / "sweep-whole" / name)
            outcomes["run ended bit for bit" if same else f"run broken, code {code}"] += 1
    return killed, outcomes


def races(place: Path, wanted: int, unlock: bool = False) -> tuple[int, Counter]:
    """Starts four processes on the same folder, half of them with --resume.

    With `unlock`, the file .lock is deleted again and again, from before the second one starts.
    """
    reference, _ = whole(place, f"small{'-unlocked' * unlock}", SMALL, SMALL_SCHEDULE)
    outcomes: Counter = Counter()
    for number in range(wanted):
        out, pids = place / f"race-{number}{'-unlocked' * unlock}", []
        logs = [place / f"{out.name}-{rival}.log" for rival in range(4)]
        stop = threading.Event()
        thief = threading.Thread(target=_delete, args=(out / ".lock", stop))
        for rival, log in enumerate(logs):
            words = command(SMALL, SMALL_SCHEDULE, out, *["--resume"][: rival % 2])
            pids.append(start(lambda words=words: cli.main(words), log))
            if unlock and rival == 0:
                while not (out / ".owner").exists():
                    time.sleep(0.005)
        if unlock:
            thief.start()
        for pid, log in zip(pids, logs, strict=True):
            code, said = ended(pid, 3600), log.read_text()
            if code == 0:
                outcomes["trained, or found it finished"] += 1
            elif "is in use by" in said:
                outcomes["told who is at work"] += 1
            elif "contains a run already" in said:
                outcomes["told that a run is there"] += 1
            else:
                outcomes[f"code {code}: {said[-200:]}"] += 1
        stop.set()
        same = content(out) == content(reference)
        outcomes["folder as by one process" if same else "FOLDER MIXED"] += 1
    return wanted, outcomes


def _delete(path: Path, stop: threading.Event) -> None:
    while not stop.is_set():
        path.unlink(missing_ok=True)
        time.sleep(0.001)


def interrupts(place: Path, wanted: int, draw: random.Random) -> tuple[int, Counter]:
    """Sends Ctrl-C at random moments, most of them while XLA compiles."""
    outcomes: Counter = Counter()

    def work(out: Path) -> None:
        jax.config.update("jax_enable_compilation_cache", False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["steingrad", *command(SMALL, SMALL_SCHEDULE, out)]
        print("begun", flush=True)
        entry.main()

    for number in range(wanted):
        log = place / f"interrupt-{number}.log"
        pid = start(lambda out=place / f"interrupt-{number}": work(out), log)
        while not (log.exists() and "begun" in log.read_text()):
            time.sleep(0.01)
        code = ended(pid, draw.uniform(0.1, 8.0))
        if code is None:
            os.kill(pid, signal.SIGINT)
            code = ended(pid, 3600.0)
        said = log.read_text()
        words = "a traceback" if "Traceback" in said else "a sentence" if "stopped." in said else ""
        outcomes[f"code {code}" + (f" and {words}" if words else "")] += 1
    return wanted, outcomes


def _edit_json(**fields: Any) -> Callable[[Path], Any]:
    def edit(path: Path) -> None:
        record = json.loads((path / "config.json").read_bytes())
        (path / "config.json").write_text(json.dumps({**record, **fields}))

    return edit


def _newest(path: Path) -> Path:
    return max(path.glob("checkpoint-*.eqx"))


def _metrics(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    def edit(path: Path) -> None:
        file = path / "metrics.jsonl"
        file.write_bytes(change(file.read_bytes()))

    return edit


def _checkpoint(change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda path: _newest(path).write_bytes(change(_newest(path).read_bytes()))


def _as(kind: str) -> Callable[[Path], Any]:
    """Returns a function that replaces the newest checkpoint by another kind of file."""

    def edit(path: Path) -> None:
        newest = _newest(path)
        newest.unlink()
        newest.mkdir() if kind == "folder" else newest.symlink_to("nowhere")

    return edit


def _first_step(line: bytes, value: bytes) -> bytes:
    return line.replace(b'"step": 20', b'"step": ' + value, 1)


def _objective(value: bytes) -> Callable[[Path], Any]:
    """Returns a function that replaces the value of the first `objective` in the metrics."""
    return _metrics(lambda text: re.sub(rb'("objective": )[^,]*', rb"\g<1>" + value, text, count=1))


def _dataset(name: str) -> Callable[[Path], Any]:
    return lambda path: _edit_json(config={**Run(path).record["config"], "dataset": name})(path)


def _results(**fields: Any) -> Callable[[Path], Any]:
    """Returns a function that writes a damaged `results.jsonl` beside the run."""

    def write(path: Path) -> None:
        metrics = [{"step": 60, "seed": 1, "objective": fields.pop("objective", -30.0)}]
        record = {**Run(path).record, "name": "copy", "metrics": metrics, "ms_per_step": 1.0}
        del record["run"]
        (path.parent / "results.jsonl").write_text(json.dumps({**record, **fields}) + "\n")

    return write


NASTY = "\x1b[31m</script><b>|`$x$`\n# ](x)"
"""A name that breaks pages and tables unless it is escaped."""


ZOO: dict[str, Callable[[Path], Any]] = {
    "metrics deleted": lambda path: (path / "metrics.jsonl").unlink(),
    "metrics empty": _metrics(lambda text: b""),
    "metrics cut in a line": _metrics(lambda text: text[: len(text) // 2]),
    "metrics with a line that is no object": _metrics(lambda text: b"[1]\n" + text),
    "metrics with a number alone": _metrics(lambda text: b"3\n" + text),
    "metrics not UTF-8": _metrics(lambda text: b"\xff\xfe\n" + text),
    "metrics nested without end": _metrics(lambda text: b"[" * 100_000 + b"\n" + text),
    "metrics without a step": _metrics(lambda text: text.replace(b'"step"', b'"stop"', 1)),
    "metrics with a step that is text": _metrics(lambda text: _first_step(text, b'"20"')),
    "metrics with a step that is null": _metrics(lambda text: _first_step(text, b"null")),
    "metrics with a step beyond all bounds": _metrics(lambda text: _first_step(text, b"9" * 400)),
    "metrics with a number too large": _metrics(
        lambda text: text.replace(b'"train_elbo": -', b'"train_elbo": -' + b"9" * 400, 1)
    ),
    "metrics with 1e308": _objective(b"1e308"),
    "metrics with an integer of 300 digits": _objective(b"9" * 300),
    "metrics with NaN": _objective(b"NaN"),
    "metrics with true": _objective(b"true"),
    "metrics with a nested value": _objective(b"[" * 500 + b"]" * 500),
    "metrics with another seed": _metrics(lambda text: text.replace(b'"seed": 1', b'"seed": 7', 1)),
    "metrics twice": _metrics(lambda text: text + text),
    "metrics of another run": _metrics(lambda text: text.replace(b'"run": "', b'"run": "x')),
    "metrics a folder": lambda path: (
        (path / "metrics.jsonl").unlink(),
        (path / "metrics.jsonl").mkdir(),
    ),
    "checkpoint cut": _checkpoint(lambda data: data[: len(data) // 2]),
    "checkpoint empty": _checkpoint(lambda data: b""),
    "checkpoint with a bit flipped": _checkpoint(lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:]),
    "checkpoint of another run": _checkpoint(lambda d: d.replace(b'"run": "', b'"run": "x', 1)),
    "checkpoint of format 99": _checkpoint(lambda d: d.replace(b'"format": 2', b'"format": 99')),
    "checkpoint with an infinite header": _checkpoint(
        lambda d: d.replace(b'"lines": ', b'"lines": Infinity, "x": ', 1)
    ),
    "checkpoint renamed": lambda path: _newest(path).rename(path / "checkpoint-0000000077.eqx"),
    "checkpoint a folder": _as("folder"),
    "checkpoint a dangling link": _as("link"),
    "stray checkpoint-best.eqx": lambda path: (path / "checkpoint-best.eqx").write_bytes(b"x"),
    "all checkpoints empty": lambda path: [p.write_bytes(b"") for p in path.glob("*.eqx")],
    "no checkpoints": lambda path: [p.unlink() for p in path.glob("*.eqx")],
    "config.json deleted": lambda path: (path / "config.json").unlink(),
    "config.json cut": lambda path: (path / "config.json").write_text('{"format": 2, "con'),
    "config.json not UTF-8": lambda path: (path / "config.json").write_bytes(b"\xff\xfe{}"),
    "config.json of another program": lambda path: (path / "config.json").write_text('{"a": 1}'),
    "config.json nested without end": lambda p: (p / "config.json").write_text("[" * 100_000),
    "config.json a folder": lambda path: (
        (path / "config.json").unlink(),
        (path / "config.json").mkdir(),
    ),
    "config.json of format 99": _edit_json(format=99),
    "config.json with another status": _edit_json(status="lost"),
    "config.json with data files that are numbers": _edit_json(data_files={"digits": 5}),
    "config.json with versions that are a number": _edit_json(environment={"versions": 3}),
    "config.json without environment": _edit_json(environment=None),
    "config.json with settings that are text": _edit_json(config={"steps": "many"}),
    "config.json with steps that are a fraction": _edit_json(
        config={**dataclasses.asdict(SMALL), "steps": 60.5}
    ),
    "config.json without settings": _edit_json(config=[]),
    "config.json with NUL in the dataset": _dataset("/a\0b.npz"),
    "config.json with a dataset of 5000 letters": _dataset(f"/{'x' * 5000}.npz"),
    "config.json with a nasty dataset": _dataset(f"/data/{NASTY}.npz"),
    "config.json with nasty data files": _edit_json(data_files={NASTY: NASTY}),
    "config.json with a nasty device": _edit_json(environment={"device": NASTY}),
    "config.json with a nested environment": _edit_json(environment={"a": [[[]]]}),
    "results.jsonl with 1e308": _results(objective=1e308),
    "results.jsonl with an integer of 300 digits": _results(objective=10**299),
    "results.jsonl with NaN": _results(objective=math.nan),
    "results.jsonl with a time that is true": _results(ms_per_step=True),
    "results.jsonl with NUL in the name": _results(name="a\0b"),
    "results.jsonl with a nasty name": _results(name=NASTY, status="running"),
    ".lock deleted": lambda path: (path / ".lock").unlink(missing_ok=True),
    ".lock a folder": lambda path: (
        (path / ".lock").unlink(missing_ok=True),
        (path / ".lock").mkdir(),
    ),
    ".owner nested without end": lambda path: (path / ".owner").write_text("[" * 100_000),
}


def attack(arguments: list[str]) -> tuple[str, str]:
    """Returns how a command ends (`went on`, `a sentence` or `TRACEBACK`) and its output."""
    out, said = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(said),
    ):
        warnings.simplefilter("always")
        try:
            cli.main(arguments)
        except SystemExit as end:
            return ("a sentence" if end.code == 1 else f"code {end.code}"), said.getvalue()
        except BaseException as error:
            return "TRACEBACK", repr(error)
    return "went on", said.getvalue()


def zoo(place: Path, reference: Path) -> dict[str, tuple[str, str, str]]:
    """Returns how `train --resume`, `evaluate` and `report` end on each damaged folder."""
    expected, found = content(reference), {}
    for name, damage in ZOO.items():
        path = place / "zoo" / name.replace(" ", "-") / "run"
        shutil.copytree(reference, path)
        damage(path)
        reported = attack(["report", str(path.parent), "--out", str(place / "report")])
        evaluated = attack(["evaluate", str(path), "--samples", "2"])
        resumed, said = attack(command(SMALL, SMALL_SCHEDULE, path, "--resume"))
        if resumed == "went on":
            try:
                resumed = "bit for bit" if content(path) == expected else "goes on"
            except (RunError, AssertionError, OSError) as error:
                resumed = f"TRACEBACK {error!r}"
            resumed += ", with a warning" if "warning" in said else ""
        found[name] = (resumed, evaluated[0], reported[0])
        for outcome, words in ((resumed, said), evaluated, reported):
            if "TRACEBACK" in outcome:
                print(f"{name}: {words}", file=sys.stderr)
    return found


def bad_data(place: Path, patience: float = 60.0) -> dict[str, tuple[str, int]]:
    """Returns how `train --data` ends on each bad file of images, and the megabytes it took."""
    memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {}

    def work(path: Path) -> None:
        before = memory()
        try:
            cli.main(["train", "--data", str(path), "--out", str(path.parent / "run")])
        finally:
            print(f"{(memory() - before) // 1024} MB more", flush=True)

    for number, (name, write) in enumerate(BAD_DATA.items()):
        log, folder = place / f"bad-{number}.log", place / f"bad-{number}" / "data"
        folder.mkdir(parents=True)
        path = write(folder)
        pid = start(lambda path=path: work(path), log)
        code = ended(pid, patience)
        if code is None:
            kill(pid)
        said = log.read_text()
        outcomes = {None: "HANGS", 0: "READ", 1: "a sentence", 70: "TRACEBACK"}
        outcome = outcomes.get(code, f"KILLED, code {code}")
        if outcome == "a sentence" and "error: " not in said:
            outcome = "NO SENTENCE"
        more = re.search(r"(\d+) MB more", said)
        found[name] = outcome, int(more[1]) if more else 0
        if outcome != "a sentence":
            print(f"{name}: {said}", file=sys.stderr)
        shutil.rmtree(folder.parent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Attack run folders and data.")
    defaults = {"kills": 20, "sweep-kills": 5, "races": 5, "interrupts": 20, "seed": 0}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        print("| attack | tries | what happened |\n|---|--:|---|", flush=True)
        attacks = {
            "four processes at once on one folder": lambda: races(place, given.races),
            "the same, while its `.lock` is deleted": lambda: races(place, given.races, True),
            "SIGKILL of a run, at random moments": lambda: kills(place, given.kills, draw),
            "Ctrl-C at random moments": lambda: interrupts(place, given.interrupts, draw),
            "SIGKILL of a sweep of two runs": lambda: sweep_kills(place, given.sweep_kills, draw),
        }
        for name, carry_out in attacks.items():
            tries, outcomes = carry_out()
            said = "; ".join(f"{count} × {outcome}" for outcome, count in outcomes.items())
            print(f"| {name} | {tries} | {said} |", flush=True)
        bad_files = bad_data(place)
        outcomes = Counter(outcome for outcome, _ in bad_files.values())
        said = "; ".join(f"{count} × {outcome}" for outcome, count in outcomes.items())
        print(f"| bad data files: `train --data` | {len(bad_files)} | {said} |", flush=True)
        # This runs in the main process and comes last, since no process may be forked after JAX
        # has computed something here.
        found = zoo(place, place / "small-1")
        words = "damaged folders: `train --resume`, `evaluate`, `report`"
        bad = sum("TRACEBACK" in outcome for outcomes in found.values() for outcome in outcomes)
        print(f"| {words} | {len(found)} × 3 | {bad} × a traceback; the rest below |")
        print("\n| damage | `train --resume` | `evaluate` | `report` |\n|---|---|---|---|")
        for name, outcomes in found.items():
            print(f"| {name} | {' | '.join(outcomes)} |")
        print("\n| bad data files | `train --data` | memory taken |\n|---|---|--:|")
        for name, (outcome, megabytes) in bad_files.items():
            print(f"| {name} | {outcome} | {megabytes} MB |")


if __name__ == "__main__":
    main()
