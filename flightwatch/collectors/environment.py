"""What a collector gets when it is made: the machine's files, settings, and the node's shared summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flightwatch.collectors.device_board import DeviceBoard
from flightwatch.collectors.fact_board import FactBoard
from flightwatch.collectors.ownership.board import OwnerBoard
from flightwatch.collectors.port_board import PortBoard
from flightwatch.collectors.receiver_settings import ReceiverSettings
from flightwatch.collectors.redfish_settings import RedfishSettings
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.summary import NodeSummary
from flightwatch.collectors.tree import FolderTree, Tree
from flightwatch.core.protocols import Row

if TYPE_CHECKING:
    from flightwatch.collectors.op_ring import OpRing
    from flightwatch.collectors.profiler.block_times import BlockTimes

#: Runs a command (program and arguments, never a shell) and returns its standard output.
#: Raises NoData when the program is not installed, TransientError when it fails or exceeds its time in seconds.
RunCommand = Callable[[Sequence[str], float], bytes]


@dataclass
class Environment:
    """Surroundings of one agent's collectors.

    Attributes
    ----------
    tree: files of the machine.
    live: False over a recorded tree: system calls, libraries and commands are then not used.
    summary: where collectors leave their part of the `node_samples` row.
    facts: where collectors leave configuration values.
    ports: where collectors leave columns for a port's next row.
    devices: which device index stands at which PCI address.
    owners: which job and rank owns each device.
    redfish: the section `[redfish]`.
    receiver: the section `[receiver]`, with the path of its socket decided.
    op_ring: where the receiver keeps per-op detail, None: nowhere.
    block_times: told which ranks send and what they answer to requests; set by the agent.
    run_watch: shown rows of `runs` that are not stored: phases and ends that ranks on this node tell; set by the agent.
    nvml_answers: set by the NVML collector, so that nvidia-smi is not asked besides.
    kernel_log_answers: set while /dev/kmsg is read, so that the journal's copy is not.
    settings: the section `[agent]`.
    run_command: how vendor commands are run.
    state_dir: folder for positions that outlive a restart; empty: none are kept.
    figures: returns `self_metrics` values of the running agent; set by the agent.
    """

    tree: Tree
    live: bool
    settings: AgentSettings
    run_command: RunCommand
    summary: NodeSummary = field(default_factory=NodeSummary)
    facts: FactBoard = field(default_factory=FactBoard)
    ports: PortBoard = field(default_factory=PortBoard)
    devices: DeviceBoard = field(default_factory=DeviceBoard)
    owners: OwnerBoard = field(default_factory=OwnerBoard)
    redfish: RedfishSettings = field(default_factory=RedfishSettings)
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)
    op_ring: OpRing | None = None
    block_times: BlockTimes | None = None
    run_watch: Callable[[Row], None] | None = None
    nvml_answers: bool = False
    kernel_log_answers: bool = False
    state_dir: str = ""
    figures: Callable[[int], list[Row]] | None = None


def environment_at(
    root: str, settings: AgentSettings | None = None, state_dir: str = "", redfish: RedfishSettings | None = None
) -> Environment:
    """Return the surroundings for a root folder: "/" is this machine, anything else a recorded tree."""
    from flightwatch.collectors.command import run_command

    chosen = settings or AgentSettings()
    live = root == "/"
    tree = FolderTree(root, keep_open=chosen.open_files if live or chosen.keep_recorded_open else 0)
    return Environment(tree, live, chosen, run_command, state_dir=state_dir, redfish=redfish or RedfishSettings())
