"""With several processes, control variates are synchronised like other buffers."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make test-torch`")

import os
import subprocess
import sys

PROGRAM = """
import os, torch, torch.distributed as dist
import steingrad.torch as sgt
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)
        self.estimator = sgt.Bronco()

    def forward(self, y):
        f = lambda x: -(self.decoder(x) - y).square().sum(-1)
        return self.estimator(f, self.encoder(y))

dist.init_process_group("gloo")
rank = dist.get_rank()
for sync in (True, False):
    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(100 + rank)
    parallel = DDP(model, forward_sync_buffers=sync)
    for _ in range(3):
        parallel(torch.randn(4, 3)).neg().backward()
    parallel(torch.randn(4, 3))  # begins with the broadcast
    for tensor, same in [
        (model.encoder.weight.grad, True),
        (model.decoder.weight.grad, True),
        (model.estimator.cv_numbers, sync),
    ]:
        both = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(both, tensor)
        assert torch.equal(*both) == same, (sync, tensor.shape)
dist.destroy_process_group()
print("agreed")
"""


def test_distributed_data_parallel(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, tmp_path / "program.py"],
            env={**common, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert [p.communicate(timeout=240)[0].strip() for p in processes] == ["agreed"] * 2
    finally:
        for process in processes:
            process.kill()


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
