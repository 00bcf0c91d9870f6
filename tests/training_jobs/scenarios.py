"""Many ways of training, each in a process of its own: `scenarios.py NAME...`. Prints digests of the parameters."""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import sys
import warnings
from collections.abc import Callable

import torch
import torch._dynamo  # Imported by optimizers and compilers on first use: once here, not in every fork.
from torch import nn
from torch.utils.checkpoint import checkpoint

from flightwatch._autoload import autoload

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class PoisonForward(Block):
    """Gives one NaN from the third training call on."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out = super().forward(x)
        if self.calls < 3:
            return out
        mask = torch.zeros_like(out)
        mask[0, 0] = float("nan")
        return out + mask


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf")


class PoisonBackward(Block):
    """Its forward is fine; its backward gives infinities from the third call on."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(_BadGradient.apply(x) if self.calls >= 3 else x)


class Model(nn.Module):
    def __init__(self, middle: type[Block] = Block, recompute: bool = False, at: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.blocks[at] = middle()
        self.head = nn.Linear(WIDTH, 1)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def batch() -> torch.Tensor:
    return torch.randn(4, WIDTH)


def train(model: Callable[[torch.Tensor], torch.Tensor], parameters: object, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type,unused-ignore]
    for _ in range(steps):
        optimizer.zero_grad()
        (model(batch()) ** 2).mean().backward()
        optimizer.step()


def plain() -> nn.Module:
    model = Model()
    train(model, model.parameters())
    return model


def nan_forward() -> nn.Module:
    model = Model(PoisonForward)
    train(model, model.parameters())
    return model


def nan_backward() -> nn.Module:
    model = Model(PoisonBackward)
    train(model, model.parameters())
    return model


def nan_backward_first() -> nn.Module:
    model = Model(PoisonBackward, at=0)
    train(model, model.parameters())
    return model


def nan_loss() -> nn.Module:
    """Every block is fine, the loss is not."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(4):
        optimizer.zero_grad()
        loss = (model(batch()) ** 2).mean()
        (loss * float("nan") if number == 2 else loss).backward()
        optimizer.step()
    return model


def nan_parameters() -> nn.Module:
    model = Model()
    train(model, model.parameters(), 2)
    with torch.no_grad():
        model.blocks[1].linear.weight[0, 0] = float("nan")
    train(model, model.parameters(), 2)
    return model


def recompute() -> nn.Module:
    model = Model(PoisonForward, recompute=True)
    train(model, model.parameters())
    return model


def compiled() -> nn.Module:
    model = Model()
    train(torch.compile(model, backend="aot_eager", fullgraph=True), model.parameters())
    return model


def compiled_in_place() -> nn.Module:
    model = Model()
    model.compile(backend="aot_eager", fullgraph=True)
    train(model, model.parameters())
    return model


def compiled_late() -> nn.Module:
    """Compiled around a model that the probe has hooked before."""
    model = Model()
    train(model, model.parameters(), 2)
    train(torch.compile(model, backend="aot_eager", fullgraph=True), model.parameters(), 3)
    return model


def evaluation() -> nn.Module:
    model = Model()
    training = torch.utils.data.DataLoader([batch()[0] for _ in range(24)], batch_size=4)
    held_out = torch.utils.data.DataLoader([batch()[0] for _ in range(400)], batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, x in enumerate(training):
        model.train()
        (model(x) ** 2).mean().backward()
        optimizer.step()
        if number == 2:
            model.eval()
            with torch.no_grad():
                for y in held_out:
                    model(y)
    return model


def optimizers() -> nn.Module:
    model = Model()
    first = torch.optim.SGD(model.blocks.parameters(), lr=0.01)
    second = torch.optim.AdamW([*model.embed.parameters(), *model.head.parameters()], lr=0.01)
    for _ in range(6):
        (model(batch()) ** 2).mean().backward()
        first.step()
        second.step()
    return model


def scaled() -> nn.Module:
    """Mixed precision with a loss scaler that skips one step."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(batch()) ** 2).mean()
        scaler.scale(loss * (float("inf") if number == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def saving() -> nn.Module:
    model = Model()
    train(model, model.parameters(), 3)
    torch.save(model.state_dict(), "/dev/null")
    train(model, model.parameters(), 2)
    return model


def workers() -> nn.Module:
    """A data loader with forked worker processes."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader([batch()[0] for _ in range(24)], batch_size=4, num_workers=1):
        (model(x) ** 2).mean().backward()
        optimizer.step()
    return model


def nan_in_place() -> nn.Module:
    """Block 3 changes what block 2 gave in place, so that a look at it later would blame block 2."""

    class InPlace(Block):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            out = x.add_(torch.tanh(self.linear(x.clone())))
            return out.mul_(float("nan")) if self.calls >= 6 else out

    model = Model(InPlace, at=3)
    train(model, model.parameters(), 8)
    return model


def own_hooks() -> nn.Module:
    """The job's own hooks on what a block gave, before and behind a change in place, in single steps; a saved output.

    A hook of the probe on the same tensor may neither keep them for later steps nor make saving warn.
    """

    class Hooking(Model):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x = self.blocks[1](self.blocks[0](self.embed(x)))
            if self.calls == 3:
                torch.save(x, io.BytesIO())
                x.register_hook(lambda gradient: gradient * 0.5)
            if self.calls == 4:
                x.register_hook(lambda gradient: gradient * 0.25)
                x.mul_(2.0)
                x.register_hook(lambda gradient: gradient * 3.0).remove()
                x.register_hook(lambda gradient: gradient * 0.125)
            return self.head(self.blocks[3](self.blocks[2](x)))

    model = Hooking()
    train(model, model.parameters(), 8)
    return model


def nan_in_second_micro_batch() -> nn.Module:
    model = Model(PoisonForward)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            (model(batch()) ** 2).mean().backward()
        optimizer.step()
    return model


def masked_infinity() -> nn.Module:
    """An infinity that a mask takes out again reaches neither loss nor gradients: nothing is wrong."""

    class Masked(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return torch.where(out > 1e9, out, torch.softmax(torch.where(out > 0, out, float("-inf")), dim=-1))

    model = Model(Masked)
    train(model, model.parameters())
    return model


class _Scaling:
    """Stands for Transformer Engine's state of one direction."""

    def __init__(self, amax: float, scale: float) -> None:
        self.amax_history = torch.tensor([[amax, 1.0], [0.5, 2.0]])
        self.scale = torch.tensor([scale, 3.0])


def fp8() -> nn.Module:
    """A module with Transformer Engine's state, and values that the job gives."""
    import flightwatch

    model = Model()
    model.blocks[1].linear.fp8_meta = {"scaling_fwd": _Scaling(7.0, 100.0), "scaling_bwd": _Scaling(2.0, 8.0)}
    flightwatch.attach(fp8=lambda: {"given": {"amax": 3.0, "overflow": 0.25}})
    train(model, model.parameters(), 22)
    return model


def many_steps() -> nn.Module:
    """Enough steps for rows of blocks."""
    model = Model()
    train(model, model.parameters(), 40)
    return model


def attached_late() -> nn.Module:
    """`flightwatch.attach` after the model was made, with role, work counters and a name."""
    import flightwatch

    model = Model()
    flightwatch.attach(job="named", role={"tp": 1, "dp": 2}, work=lambda: {"tokens": 64.0, "squared": 8.0})
    train(model, model.parameters())
    return model


def failing() -> nn.Module:
    """Ends with an exception of its own."""
    model = Model()
    train(model, model.parameters(), 3)
    sys.exit(17)


def broken_hooks() -> nn.Module:
    """Every hook of the probe fails; the training must not notice."""
    from flightwatch.collectors.training import hooks

    def broken(*_arguments: object) -> None:
        raise RuntimeError("a hook is broken")

    hooks.before_update.insert(0, broken)
    hooks.before_backward.insert(0, broken)
    model = Model()
    train(model, model.parameters(), 30)
    return model


def one(name: str, watched: bool) -> None:
    """Run a scenario in this (forked) process; `watched`: with the probe, loaded as torch loads it.

    `name` may end in ":" and another socket.
    """
    name, _, given_socket = name.partition(":")
    os.environ.update(FLIGHTWATCH="1" if watched else "0", FLIGHTWATCH_JOB=name)
    if given_socket:
        os.environ["FLIGHTWATCH_SOCKET"] = given_socket
    autoload()
    warnings.simplefilter("error", UserWarning)
    torch.manual_seed(0)
    model = globals()[name]()
    content = b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())
    errors = ""
    if watched:
        from flightwatch.collectors.training.attaching import attached

        probe = attached()
        errors = f"{probe.errors} {probe.last_error}" if probe else "no probe"
    print(
        "|".join(
            (
                name + (":" + given_socket if given_socket else ""),
                str(int(watched)),
                hashlib.sha256(content).hexdigest(),
                errors,
            )
        ),
        flush=True,
    )


def main() -> None:
    """Fork one process for each scenario and each of with and without the probe: torch is imported once."""
    for name in sys.argv[1:]:
        for watched in (True, False):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    one(name, watched)
                    code = 0
                except SystemExit as wanted:
                    code = int(wanted.code or 0)
                finally:
                    # What the interpreter does at its end, without taking the forked copy of torch apart.
                    atexit._run_exitfuncs()
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            print(f"exit|{name}|{int(watched)}|{os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
