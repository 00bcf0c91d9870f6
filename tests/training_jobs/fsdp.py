"""FSDP2 over two ranks on gloo."""

from __future__ import annotations

import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.sleep_s = sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return x + torch.relu(self.linear(x))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(0.02 if rank == 1 and index == 1 else 0.0) for index in range(3)], nn.Linear(32, 2))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        (model(torch.randn(8, 32, generator=generator)) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    local = b"".join(p.detach().to_local().numpy().tobytes() for p in model.parameters())
    print(f"digest {rank} {hashlib.sha256(local).hexdigest()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
