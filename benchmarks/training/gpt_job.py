"""The benchmark's job: a 6-layer GPT of width 256 trained on random tokens by DDP, in alternating blocks of steps
with the probe's hooks on and off. Prints one JSON line per rank.

Runs under torchrun with FLIGHTWATCH=1; with `probe.off` set a hook returns at once, so that both halves of the
comparison run in the same process, at the same temperature, interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, VOCABULARY = 256, 6, 4, 1024


class Block(nn.Module):
    """A pre-norm transformer block: causal attention, then a feed-forward of four times the width."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens (batch x length) to logits (batch x length x vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def noise(values: list[float]) -> float:
    """Return the standard error of a ratio of two means of such values."""
    return float(statistics.stdev(values) / statistics.mean(values) / len(values) ** 0.5 * 1.41)


def main() -> None:
    """Train in blocks of steps, alternately with and without the probe, and print what each step took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=6, help="blocks of steps, alternately with and without")
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> tuple[float, float]:
        started, used = time.perf_counter(), time.process_time()
        tokens = torch.randint(0, VOCABULARY, (arguments.batch, arguments.length))
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.perf_counter() - started, time.process_time() - used

    from flightwatch.collectors.training.attaching import attached

    probe = attached()
    assert probe is not None, "FLIGHTWATCH=1 is not set, or Flightwatch is not installed in this Python"
    for _ in range(3):
        step()
    both: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    watched_steps, hook_ns, sent = 0, probe.self_ns, probe.wire.sent_bytes
    for block in range(arguments.blocks):
        probe.off = block % 2 == 1
        both[not probe.off].extend(step() for _ in range(arguments.steps))
        watched_steps += 0 if probe.off else arguments.steps
    hook_ns = probe.self_ns - hook_ns
    probe.off = False
    time.sleep(1.5)
    times = {watched: [wall for wall, _ in both[watched]] for watched in both}
    cpu = {watched: [used for _, used in both[watched]] for watched in both}
    result = {
        "rank": dist.get_rank(),
        "step_ms": statistics.median(times[True]) * 1e3,
        "hook_ms": hook_ns / 1e6 / watched_steps,
        "hook_ratio": hook_ns / 1e9 / sum(times[True]),
        "ab_ratio": statistics.median(times[True]) / statistics.median(times[False]),
        "noise": noise(times[False]),
        "cpu_ratio": statistics.median(cpu[True]) / statistics.median(cpu[False]),
        "cpu_noise": noise(cpu[False]),
        "wire_bytes_per_step": (probe.wire.sent_bytes - sent) / watched_steps,
        "errors": probe.errors,
    }
    print("RESULT " + json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
