"""A small data-parallel job: a stack of blocks, the slow one sleeps on one rank. Prints a digest of its parameters."""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, sleep_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.sleep_s = sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return x + torch.relu(self.linear(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--sleep-ms", type=float, default=20.0)
    parser.add_argument("--accumulate", type=int, default=1)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sleep_s = arguments.sleep_ms / 1000 if rank == arguments.slow_rank else 0.0
    model = nn.Sequential(*[Block(32, sleep_s if index == 1 else 0.0) for index in range(4)], nn.Linear(32, 1))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        for micro in range(arguments.accumulate):
            x = torch.randn(8, 32, generator=generator)
            ddp.require_backward_grad_sync = micro == arguments.accumulate - 1
            loss = (ddp(x) ** 2).mean() / arguments.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"digest {rank} {digest}", flush=True)
    # Together to the end: gloo can abort in a rank whose peer has gone while it still closes.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
