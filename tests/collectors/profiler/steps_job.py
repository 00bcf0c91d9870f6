"""A small training job for tests, under torchrun.

`steps_job.py SECONDS [--worker DIR] [--attach] [--hang RANK [--gil]] [--profiler]`
"""

import argparse
import ctypes
import os
import time

import torch
import torch.distributed as dist


def stuck_here() -> None:
    time.sleep(600)


def gil_held_here() -> None:
    ctypes.PyDLL(None).sleep(600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("--worker", default="")
    parser.add_argument("--hang", type=int, default=-1)
    parser.add_argument("--profiler", action="store_true")
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("--gil", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.attach:
        import flightwatch

        flightwatch.attach()
    dist.init_process_group("gloo")
    rank, end = dist.get_rank(), time.time() + given.seconds
    if given.worker:
        from torch._C._distributed_c10d import _WorkerServer

        path = os.path.join(given.worker, f"worker-{os.getpid()}.sock")
        keep = _WorkerServer(path)
        os.chmod(path, 0o600)
        assert keep is not None
    own = torch.profiler.profile() if given.profiler else None
    if own is not None:
        own.start()
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    while True:
        with torch.profiler.record_function(f"train step {number}"):
            model(torch.randn(4, 32)).square().mean().backward()
            if number == 5 and rank == given.hang:
                print("hangs", flush=True)
                gil_held_here() if given.gil else stuck_here()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.03)
        number += 1
        if number == 10 and rank == 0:
            print("stepping", flush=True)
        stop = torch.tensor([1.0 if time.time() > end else 0.0])
        dist.broadcast(stop, 0)
        if stop.item():
            break
    if own is not None:
        own.stop()
    print(f"rank {rank} made {number} steps", flush=True)


main()
