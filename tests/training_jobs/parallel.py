"""Parallel ways of training over two gloo ranks, forked with torch imported once: `parallel.py NAME...`."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable

import torch
import torch._dynamo  # Imported by optimizers on first use: once here, not in every fork.
import torch.distributed as dist
from torch import nn

from flightwatch._autoload import autoload

STEPS = 8


class Block(nn.Module):
    """Two linear layers; sleeps in forward on the slow rank."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.sleep_s = sleep_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return x + self.down(torch.tanh(self.up(x)))


def sleep_of(rank: int) -> float:
    return 0.1 if rank == 1 else 0.0


def train(model: nn.Module, rank: int, same_data: bool) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0 if same_data else rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(8, 16, generator=generator)) ** 2).mean().backward()
        optimizer.step()


def tensor_parallel(rank: int) -> Iterable[torch.Tensor]:
    """DTensor tensor parallelism: functional collectives in forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = nn.Sequential(*[Block(sleep_of(rank) if index == 1 else 0.0) for index in range(3)])
    plan = {f"{index}.{name}": style for index in range(3)
            for name, style in (("up", ColwiseParallel()), ("down", RowwiseParallel()))}  # fmt: skip
    parallelize_module(model, mesh, plan)
    train(model, rank, same_data=True)
    return [parameter.detach().to_local() for parameter in model.parameters()]


def fsdp1(rank: int) -> Iterable[torch.Tensor]:
    """FullyShardedDataParallel, the first one."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = nn.Sequential(*[Block(sleep_of(rank) if index == 1 else 0.0) for index in range(3)])
    sharded = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True
    )
    train(sharded, rank, same_data=False)
    return [parameter.detach() for parameter in sharded.parameters()]


def pipeline(rank: int) -> Iterable[torch.Tensor]:
    """A pipeline of two stages under the 1F1B schedule, four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage_module = nn.Sequential(*[Block(sleep_of(rank) if index == 1 else 0.0) for index in range(2)])
    stage = PipelineStage(stage_module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, target = torch.randn(8, 16, generator=generator), torch.zeros(8, 16)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target)
        optimizer.step()
    return [parameter.detach() for parameter in stage_module.parameters()]


def functional(rank: int) -> Iterable[torch.Tensor]:
    """Functional collectives called by the job itself, on a group of its own."""
    import torch.distributed._functional_collectives as funcol

    group = dist.new_group([0, 1], group_desc="data_parallel_group")
    model = nn.Sequential(*[Block(sleep_of(rank) if index == 1 else 0.0) for index in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(torch.randn(8, 16)) ** 2).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = funcol.wait_tensor(funcol.all_reduce(parameter.grad, "avg", group))
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def checkpoints(rank: int) -> Iterable[torch.Tensor]:
    """A distributed restore, and an asynchronous save in the middle of the training."""
    import tempfile

    import torch.distributed.checkpoint as dcp

    folder = os.path.join(tempfile.gettempdir(), f"fw-dcp-{os.environ['MASTER_PORT']}")
    model = nn.Sequential(*[Block() for _ in range(2)])
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    train(model, rank, same_data=True)
    future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder + "-later")
    train(model, rank, same_data=True)
    future.result()  # type: ignore[union-attr,unused-ignore]
    return [parameter.detach() for parameter in model.parameters()]


def released(rank: int) -> Iterable[torch.Tensor]:
    """A data-parallel model that the job gives up is freed, with its reducer's threads, before the job ends."""
    import gc
    import weakref

    model = Block()
    ddp = nn.parallel.DistributedDataParallel(model)
    train(ddp, rank, same_data=False)
    gone = weakref.ref(ddp)
    del ddp
    gc.collect()
    assert gone() is None, "somebody still holds the model"
    return [parameter.detach() for parameter in model.parameters()]


def one(name: str, rank: int, port: str, watched: bool) -> None:
    """Run one rank of a scenario in this (forked) process."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        FLIGHTWATCH="1" if watched else "0", FLIGHTWATCH_JOB=name,
    )  # fmt: skip
    autoload()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in globals()[name](rank))).hexdigest()
    errors = ""
    if watched:
        from flightwatch.collectors.training.attaching import attached

        probe = attached()
        errors = f"{probe.errors} {probe.last_error}" if probe else "no probe"
    print("|".join((name, str(int(watched)), str(rank), digest, errors)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def fork(name: str, rank: int, port: str, watched: bool) -> int:
    import atexit

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            one(name, rank, port, watched)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code)
    return pid


def main() -> None:
    """Run each scenario over two ranks, with the probe and without."""
    for name in sys.argv[1:]:
        for watched in (True, False):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            pids = [fork(name, rank, port, watched) for rank in (0, 1)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            print(f"exit|{name}|{int(watched)}|{codes}", flush=True)


if __name__ == "__main__":
    main()
