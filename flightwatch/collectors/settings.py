"""The section `[agent]` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class AgentSettings:
    """How the node agent collects."""

    root: str = setting("/", "folder read as the machine's root; another one replays a recorded tree")
    disabled: tuple[str, ...] = setting((), "collectors that do not run, by name")
    library_interval_seconds: float = setting(1.0, "interval of vendor libraries (NVML)", minimum=0.1)
    sysfs_interval_seconds: float = setting(5.0, "interval of /proc and /sys readers", minimum=0.5)
    command_interval_seconds: float = setting(30.0, "interval of vendor commands", minimum=30.0)
    command_timeout_seconds: float = setting(20.0, "time a vendor command may take", minimum=1.0)
    heartbeat_seconds: float = setting(5.0, "interval of the agent's own figures", minimum=1.0)
    facts_interval_seconds: float = setting(60.0, "interval of looking for changed configuration", minimum=5.0)
    facts_repeat_seconds: float = setting(3600.0, "unchanged configuration is sent again this often", minimum=60.0)
    link_interval_seconds: float = setting(30.0, "interval of per-link NVLink rows", minimum=1.0)
    log_files: tuple[str, ...] = setting(
        (), "logs whose new lines are read for events (shell patterns); the kernel's own log is read without this"
    )
    training_log_files: tuple[str, ...] = setting(
        (),
        "training logs (shell patterns) whose new lines are read for events and, while one job alone owns this node's"
        " devices, for its training scalars; for jobs without the probe",
    )
    journal_units: tuple[str, ...] = setting(
        ("nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-persistenced.service"),
        "systemd units whose journal entries are read for events; the kernel's too where /dev/kmsg is not readable",
    )
    slurm_accounting: bool = setting(
        False, "ask Slurm's accounting how job steps ended; on one node of a cluster, where sacct is"
    )
    torchelastic_error_files: tuple[str, ...] = setting(
        (), "error files of torchrun's workers (shell patterns), for example /logs/*/attempt_*/*/error.json"
    )
    scrape_urls: tuple[str, ...] = setting(
        (), "OpenMetrics exporters to read, for example http://localhost:9400/metrics"
    )
    scrape_interval_seconds: float = setting(15.0, "interval of reading exporters", minimum=1.0)
    scrape_timeout_seconds: float = setting(5.0, "time one exporter may take", minimum=0.1)
    stuck_after_seconds: float = setting(10.0, "a call that takes longer is reported as stuck", minimum=1.0)
    stop_timeout_seconds: float = setting(10.0, "longest wait for sending what is left at the end", minimum=0.0)
    control_keys: tuple[str, ...] = setting(
        (), "public keys (hexadecimal) of control servers whose commands are done; empty: no command is read"
    )
    open_files: int = setting(4096, "most descriptors kept open for re-reading", minimum=0)
    keep_recorded_open: bool = setting(False, "keep descriptors open over a recorded tree too (measurements)")
