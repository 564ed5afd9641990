"""How far the code of one estimate is spread: calls of our functions, and changes of file.

`jit(grad(expectation))` is traced once. A profiler counts each call of a function in
`src/steingrad`, and each time that the called function is in another file than the one called
before it. Functions without a name (lambdas, comprehensions) do not count. The counts do not depend
on the machine, so that they can be compared between versions.

    python benchmarks/calls.py           # the counts
    python benchmarks/calls.py --each    # and the calls of each function
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import steingrad as sg

SOURCE = str(Path(sg.__file__).parent)


def count(trace: Callable[[], object]) -> tuple[int, int, Counter]:
    """Calls, changes of file, and the calls of each function, while `trace` runs."""
    calls: Counter = Counter()
    changes, last = 0, None

    def profile(frame, event, _):
        nonlocal changes, last
        code = frame.f_code
        ours = code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<")
        if event != "call" or not ours:
            return
        calls[f"{code.co_filename[len(SOURCE) + 1 :]}:{code.co_qualname}"] += 1
        changes += last is not None and last != code.co_filename
        last = code.co_filename

    sys.setprofile(profile)
    try:
        trace()
    finally:
        sys.setprofile(None)
    return calls.total(), changes, calls


def rodeo_on_bits() -> Callable[[], object]:
    logits = jnp.zeros((10, 20))
    return problem(sg.Rodeo(2), sg.Bernoulli, logits, lambda x: jnp.sum(x, -1) ** 2)


def bronco_on_a_joint() -> Callable[[], object]:
    joint = lambda p: sg.Joint(gates=sg.Bernoulli(p["gates"]), codes=sg.Categorical(p["codes"]))
    parameters = {"gates": jnp.zeros((10, 5)), "codes": jnp.zeros((10, 4, 3))}
    f = lambda x: jnp.sum(x["gates"], -1) * jnp.sum(x["codes"][..., 0], -1)
    return problem(sg.Bronco(), joint, parameters, f)


def problem(estimator, dist, parameters, f) -> Callable[[], object]:
    cv = estimator.init(jax.random.key(0), dist(parameters))

    def loss(parameters, cv, key):
        return sg.expectation(f, dist(parameters), estimator, cv, key=key)

    step = jax.jit(jax.grad(loss, (0, 1)))
    return lambda: step.lower(parameters, cv, jax.random.key(1))


PROBLEMS = {"RODEO on bits": rodeo_on_bits, "Bronco on a Joint": bronco_on_a_joint}


if __name__ == "__main__":
    for name, make in PROBLEMS.items():
        calls, changes, each = count(make())
        print(f"{name}: {calls} calls, {changes} changes of file")
        if "--each" in sys.argv:
            for function, number in each.most_common():
                print(f"  {number:4d} {function}")
