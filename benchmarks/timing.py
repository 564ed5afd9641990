"""Compare times within rounds, in each of which every contestant runs in turn."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def race(
    contestants: Mapping[str, Callable[[], Any]], rounds: int = 15, least_seconds: float = 0.3
) -> dict[str, list[float]]:
    """Returns the seconds per call of each contestant in each round, after a warm-up."""
    calls = {}
    for name, call in contestants.items():
        jax.block_until_ready(call())
        start = time.perf_counter()
        jax.block_until_ready(call())
        calls[name] = max(1, round(least_seconds / (time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                jax.block_until_ready(call())
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return seconds


def summarise(seconds: Mapping[str, list[float]], reference: str) -> dict[str, dict[str, float]]:
    """Returns medians and ratios to the reference of the same round, with their quartiles."""
    out = {}
    for name, times in seconds.items():
        ratios = np.asarray(times) / np.asarray(seconds[reference])
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        out[name] = {
            "ms": 1000 * float(np.median(times)),
            "ratio": float(middle),
            "ratio_low": float(low),
            "ratio_high": float(high),
        }
    return out


def show(title: str, summary: Mapping[str, Mapping[str, float]], notes: Mapping[str, str]) -> None:
    table = Table(title=title)
    for column in ("", "ms", "ratio", "quartiles", "target or published"):
        table.add_column(column, justify="left" if not column else "right")
    for name, numbers in summary.items():
        table.add_row(
            name,
            f"{numbers['ms']:.3f}",
            f"{numbers['ratio']:.2f}",
            f"{numbers['ratio_low']:.2f}–{numbers['ratio_high']:.2f}",
            notes.get(name, ""),
        )
    Console(width=110).print(table)


def save(name: str, results: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }
    content = {"environment": machine, **results}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
