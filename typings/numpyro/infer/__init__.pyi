# numpyro is not in the environment that types are checked in (see `make test-numpyro`).
from typing import Any

def __getattr__(name: str) -> Any: ...
