"""The demo's training job: four ranks of a small transformer on gloo, one of which becomes slow. Needs torch; runs
until SIGTERM.

Started by torchrun through `flightwatch up --demo`. After a minute of equal ranks, rank 2 sleeps in one of its blocks:
its compute gets long and its wait short while all step times are equal. (Three peers are too few to blame a rank that
was slow from its first step; a change against its own past is what shows.) This file is run as a script inside the
training's Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

SLOW_RANK = 2
SLEEP_SECONDS = 0.03
#: Steps in which all ranks are equal.
EQUAL_STEPS = int(os.environ.get("DEMO_EQUAL_STEPS", "180"))
#: How long the loader of every rank takes for a batch: a demo leaves the machine to its user.
LOADING_SECONDS = 0.3
WIDTH = 64


def main() -> None:
    """Train until the process is ended."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, IterableDataset

    import flightwatch

    class Batches(IterableDataset[torch.Tensor]):
        """Batches without end; each takes a while to come, as from a shared file system."""

        def __iter__(self) -> Iterator[torch.Tensor]:
            generator = torch.Generator().manual_seed(rank)
            while True:
                time.sleep(LOADING_SECONDS)
                yield torch.randn(8, 16, WIDTH, generator=generator)

    class Block(nn.Module):
        """A residual block that can sleep."""

        def __init__(self, sleep_seconds: float) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.sleep_seconds = sleep_seconds

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return x plus its transformation."""
            if self.sleep_seconds:
                time.sleep(self.sleep_seconds)
            return x + self.down(torch.relu(self.up(self.norm(x))))

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    flightwatch.attach(work=lambda: {"tokens": 16.0 * 8})
    blocks = [Block(0.0) for _ in range(3)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH)))
    # Slow enough that the gradient norm falls calmly as long as a demo runs.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, x in enumerate(DataLoader(Batches(), batch_size=None)):
        if rank == SLOW_RANK and step == EQUAL_STEPS:
            blocks[1].sleep_seconds = SLEEP_SECONDS
        optimizer.zero_grad()
        (model(x) - x.roll(1, -1)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    os.nice(10)
    main()
