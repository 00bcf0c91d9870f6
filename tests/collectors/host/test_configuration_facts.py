from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.facts import FactsCollector, host_facts
from flightwatch.core.errors import NoData

FILES = {
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "proc/cmdline": "root=/dev/sda password=hunter2 intel_iommu=off quiet\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU 9000\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "powersave\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/class/net/lo/device/x": "",
    "sys/class/net/lo/mtu": "65536",
    "sys/class/net/eth2/mtu": "9000\n",
    "sys/class/net/eth2/speed": "-1\n",
    "sys/class/net/eth2/device/uevent": "DRIVER=mlx5_core\nPCI_ID=1\n",
    "sys/class/net/veth1/mtu": "1500\n",
    "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
    "sys/devices/system/edac/mc/mc0/csrow0/ch1_dimm_label": "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0\n",
    "sys/devices/system/edac/mc/mc0/dimm3/dimm_label": "DIMM_B2\n",
}


def test_what_the_files_say(tree_of: Callable[..., Any]) -> None:
    assert host_facts(tree_of(FILES)) == {
        (None, "kernel"): "6.1.0-18-amd64",
        (None, "governor"): "performance,powersave",
        (None, "transparent_hugepage"): "madvise",
        (None, "distribution"): "Debian GNU/Linux 12",
        (None, "cpu_model"): "Some CPU 9000",
        (None, "iommu"): "intel_iommu=off",
        (None, "net.eth2.mtu"): "9000",
        (None, "net.eth2.driver"): "mlx5_core",
        (None, "hca.mlx5_0.firmware"): "28.39.1002",
        (None, "edac.mc0.csrow0.ch1.slot"): "CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
        (None, "edac.mc0.dimm3.slot"): "DIMM_B2",
    }


def test_facts_are_sent_on_change_and_once_in_a_while(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    now_s = [0.0]
    environment = environment_of(tree_of({"proc/sys/kernel/osrelease": "6.1"}))
    environment.facts.offer("nvml", {(0, "vbios"): "A"})
    collector = FactsCollector(environment, lambda: now_s[0])

    def sent(now_ms: int) -> list[tuple[Any, Any, Any]]:
        return [
            (row.values["device"], row.values["name"], row.values["value"]) for row in collector.collect(now_ms)
        ]  # fmt: skip

    assert sent(1) == [(None, "kernel", "6.1"), (0, "vbios", "A")]
    now_s[0] = 60.0
    assert sent(2) == []
    environment.facts.offer("nvml", {(0, "vbios"): "B"})
    assert sent(3) == [(0, "vbios", "B")]
    now_s[0] = 3600.0
    assert len(sent(4)) == 2


def test_nothing_readable_is_no_data(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData):
        FactsCollector(environment_of(tree_of({"x": ""}))).collect(1)
