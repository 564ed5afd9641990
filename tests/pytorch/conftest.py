import pytest

try:
    import torch
except ImportError:
    collect_ignore = ["problem.py"]  # no test, but looked into for examples
else:
    # Small tensors: a second thread would do nothing but wait for the first.
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _seed():
        torch.manual_seed(0)
