import pytest

try:
    import torch
except ImportError:
    collect_ignore = ["problem.py"]  # not a test, but searched for doctests
else:
    # The tensors are small, so a second thread would only wait for the first.
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _seed():
        torch.manual_seed(0)
