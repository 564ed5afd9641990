# PyTorch is not in the environment that types are checked in (see `make test-torch`): without this
# file its name would be taken for `steingrad.torch`, which is near it.
from typing import Any

def __getattr__(name: str) -> Any: ...
