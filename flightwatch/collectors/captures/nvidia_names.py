"""Names of `nvidia-smi -q` fields across drivers 418 to 610, as data: where each column may stand."""

from __future__ import annotations

from flightwatch.collectors.captures.device_rows import CONFIG_COLUMNS, EVENT_COLUMNS, IDENTITY, INVENTORY_COLUMNS
from flightwatch.core.throttle import ThrottleReason

QUERY_COLUMNS = (
    *IDENTITY, "temp_c", "mem_temp_c", "temp_headroom_c", "power_w", "power_instant_w", "power_limit_w", "voltage_mv",
    "sm_clock_mhz", "mem_clock_mhz", "util_pct", "mem_util_pct", "mem_used_bytes", "mem_total_bytes", "fan_pct",
    "ecc_mode", "ecc_corrected_total", "ecc_uncorrected_total", "ecc_corrected_lifetime_total",
    "ecc_uncorrected_lifetime_total", "retired_pages_total", "remapped_rows_total", "remap_pending", "remap_failure",
    "throttle_reasons", "throttle_thermal_us_total", "throttle_power_us_total", "pcie_replay_total", "pcie_gen",
    "pcie_width", "quality", "extra", "extra_counters",
)  # fmt: skip
QUERY_CARRIES = {
    "device_samples": QUERY_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "events": EVENT_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
}
QUERY_NULL_NOTES = {
    "mem_temp_c": "GDDR boards have no memory temperature sensor",
    "temp_headroom_c": "T.Limit is printed from Ada/Hopper and driver 535 on",
    "power_instant_w": "drivers before 530 print one power figure only",
    "voltage_mv": "printed by drivers 470 to 535 on some boards, removed later",
    "ecc_mode": "N/A where the board has no ECC; Unknown Error is also an event",
    "remapped_rows_total": "row remapping exists from Ampere on",
    "retired_pages_total": "page retirement exists up to Turing",
    "throttle_thermal_us_total": "counters are printed from driver 545 on",
    "fan_pct": "passively cooled boards have no fan",
}

#: Column to the paths that may hold it, the preferred one first.
CELLS: dict[str, tuple[str, ...]] = {
    "temp_c": ("temperature/gpu_current_temp", "temperature/gpu_temp", "temperature/gpu"),
    "mem_temp_c": ("temperature/memory_current_temp", "temperature/memory_temp"),
    "temp_headroom_c": (
        "temperature/gpu_t_limit_temp", "temperature/gpu_current_t_limit_temp", "temperature/gpu_temp_tlimit",
        "temperature/gpu_current_temp_tlimit",
    ),
    "power_w": (
        "gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw", "power_readings/average_power_draw",
        "power_readings/power_draw",
        # Where the driver offers no average its own `power.draw` is the instant figure.
        "gpu_power_readings/instantaneous_power_draw", "gpu_power_readings/instant_power_draw",
    ),
    "power_instant_w": (
        "gpu_power_readings/instantaneous_power_draw", "gpu_power_readings/instant_power_draw",
        "power_readings/instantaneous_power_draw", "power_readings/instant_power_draw",
    ),
    "power_limit_w": (
        "gpu_power_readings/enforced_power_limit", "gpu_power_readings/current_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/current_ceiling_power_limit", "gpu_power_readings/power_limit",
        "power_readings/enforced_power_limit", "power_readings/current_power_limit",
        "power_readings/power_limit",
    ),
    "voltage_mv": ("voltage/graphics", "voltage/graphics_volt"),
    "sm_clock_mhz": ("clocks/sm", "clocks/sm_clock"),
    "mem_clock_mhz": ("clocks/memory", "clocks/mem_clock"),
    "util_pct": ("utilization/gpu", "utilization/gpu_util"),
    "mem_util_pct": ("utilization/memory", "utilization/memory_util"),
    "mem_used_bytes": ("fb_memory_usage/used", "shared_fb_memory_usage/used", "memory_usage/used"),
    "mem_total_bytes": ("fb_memory_usage/total", "shared_fb_memory_usage/total", "memory_usage/total"),
    "fan_pct": ("fan_speed",),
    "pcie_replay_total": ("pci/replays_since_reset", "pci/replay_counter"),
    "pcie_gen": ("pci/gpu_link_info/pcie_generation/current", "pci/pci_gpu_link_info/pcie_gen/current_link_gen"),
    "pcie_width": ("pci/gpu_link_info/link_width/current", "pci/pci_gpu_link_info/link_widths/current_link_width"),
    "model": ("product_name",),
    "uuid": ("gpu_uuid", "uuid"),
    "serial": ("serial_number", "serial"),
}  # fmt: skip
REMAP = {
    "remap_pending": ("remapped_rows/pending", "remapped_rows/remapped_row_pending"),
    "remap_failure": ("remapped_rows/remapping_failure_occurred", "remapped_rows/remapped_row_failure"),
}
#: Column to the parts whose sum it is; each part lists alternative paths.
SUMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "retired_pages_total": (
        ("retired_pages/single_bit_ecc", "retired_pages/multiple_single_bit_retirement/retired_count"),
        ("retired_pages/double_bit_ecc", "retired_pages/double_bit_retirement/retired_count"),
    ),
    "remapped_rows_total": (
        ("remapped_rows/correctable_error", "remapped_rows/remapped_row_corr"),
        ("remapped_rows/uncorrectable_error", "remapped_rows/remapped_row_unc"),
    ),
    "throttle_power_us_total": (
        ("reason_counters/sw_power_capping", "reason_counters/sw_power_cap"),
        ("reason_counters/hw_power_braking", "reason_counters/hw_power_brake"),
    ),
    "throttle_thermal_us_total": (
        ("reason_counters/sw_thermal_slowdown", "reason_counters/sw_therm_slowdown"),
        ("reason_counters/hw_thermal_slowdown", "reason_counters/hw_therm_slowdown"),
    ),
}
_CORRECTED = (("sram_correctable",), ("dram_correctable",))
_UNCORRECTED = (
    ("sram_uncorrectable",),
    ("sram_uncorrectable_parity",),
    ("sram_uncorrectable_sec_ded", "sram_uncorrectable_secded"),
    ("dram_uncorrectable",),
)
ECC = {
    "ecc_corrected_total": ("volatile", "single_bit", _CORRECTED),
    "ecc_uncorrected_total": ("volatile", "double_bit", _UNCORRECTED),
    "ecc_corrected_lifetime_total": ("aggregate", "single_bit", _CORRECTED),
    "ecc_uncorrected_lifetime_total": ("aggregate", "double_bit", _UNCORRECTED),
}
REASONS = {
    "idle": ThrottleReason.IDLE,
    "gpu_idle": ThrottleReason.IDLE,
    "applications_clocks_setting": ThrottleReason.APPLICATION_CLOCKS,
    "sw_power_cap": ThrottleReason.SW_POWER_CAP,
    "hw_slowdown": ThrottleReason.HW_SLOWDOWN,
    "hw_thermal_slowdown": ThrottleReason.HW_THERMAL,
    "hw_power_brake_slowdown": ThrottleReason.HW_POWER_BRAKE,
    "sync_boost": ThrottleReason.SYNC_BOOST,
    "sw_thermal_slowdown": ThrottleReason.SW_THERMAL,
    "display_clock_setting": ThrottleReason.DISPLAY_CLOCKS,
    "display_clocks_setting": ThrottleReason.DISPLAY_CLOCKS,
}
#: Further readings: path, unit, name in `extra`.
EXTRAS: tuple[tuple[str, str, str], ...] = (
    ("gpu_memory_power_readings/average_power_draw", "W", "nvidia_smi.memory_power_w"),
    ("module_power_readings/average_power_draw", "W", "nvidia_smi.module_power_w"),
    ("module_power_readings/power_draw", "W", "nvidia_smi.module_power_w"),
    ("module_power_readings/instant_power_draw", "W", "nvidia_smi.module_power_instant_w"),
    ("module_power_readings/instantaneous_power_draw", "W", "nvidia_smi.module_power_instant_w"),
    ("temperature/gpu_slowdown_temp", "C", "nvidia_smi.slowdown_temp_c"),
    ("temperature/gpu_temp_slow_threshold", "C", "nvidia_smi.slowdown_temp_c"),
    ("temperature/gpu_shutdown_temp", "C", "nvidia_smi.shutdown_temp_c"),
    ("temperature/gpu_temp_max_threshold", "C", "nvidia_smi.shutdown_temp_c"),
    ("fb_memory_usage/reserved", "bytes", "nvidia_smi.memory_reserved_bytes"),
    ("utilization/encoder", "%", "nvidia_smi.encoder_util_pct"),
    ("utilization/encoder_util", "%", "nvidia_smi.encoder_util_pct"),
    ("utilization/decoder", "%", "nvidia_smi.decoder_util_pct"),
    ("utilization/decoder_util", "%", "nvidia_smi.decoder_util_pct"),
    ("clocks/video", "MHz", "nvidia_smi.video_clock_mhz"),
    ("clocks/video_clock", "MHz", "nvidia_smi.video_clock_mhz"),
    ("clocks/graphics", "MHz", "nvidia_smi.graphics_clock_mhz"),
    ("clocks/graphics_clock", "MHz", "nvidia_smi.graphics_clock_mhz"),
    ("max_clocks/sm", "MHz", "nvidia_smi.sm_clock_max_mhz"),
    ("max_clocks/sm_clock", "MHz", "nvidia_smi.sm_clock_max_mhz"),
    ("remapped_rows/correctable_error", "count", "nvidia_smi.remapped_correctable_rows"),
    ("remapped_rows/remapped_row_corr", "count", "nvidia_smi.remapped_correctable_rows"),
    ("remapped_rows/uncorrectable_error", "count", "nvidia_smi.remapped_uncorrectable_rows"),
    ("remapped_rows/remapped_row_unc", "count", "nvidia_smi.remapped_uncorrectable_rows"),
    *(
        (f"remapped_rows/bank_remap_availability_histogram/{level}", "count", f"nvidia_smi.remap_banks_{level}")
        for level in ("max", "high", "partial", "low", "none")
    ),
    *(
        (
            f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{level}",
            "count",
            f"nvidia_smi.remap_banks_{level}",
        )
        for level in ("max", "high", "partial", "low", "none")
    ),
    ("pci/replay_number_rollovers", "count", "nvidia_smi.pcie_replay_rollovers"),
    ("pci/replay_rollover_counter", "count", "nvidia_smi.pcie_replay_rollovers"),
)
#: Flags that ask for action: path endings, event code, severity, what it means.
ALARMS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("ecc_errors/channel_repair_pending",), "repair:channel_pending", "error",
     "a memory channel repair waits for a reset"),
    (("ecc_errors/tpc_repair_pending",), "repair:tpc_pending", "error", "a TPC repair waits for a reset"),
    (("ecc_errors/unrepairable_memory",), "memory:unrepairable", "critical", "the memory can no longer be repaired"),
    (("ecc_errors/aggregate/sram_threshold_exceeded",), "sram:threshold_exceeded", "critical",
     "too many uncorrectable SRAM errors over the device's life"),
    (("retired_pages/pending_page_blacklist", "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
     "retire:pending", "error", "page retirement waits for a reset"),
    (("gpu_reset_status/reset_required",), "reset:required", "error", "the device asks for a reset"),
)  # fmt: skip
