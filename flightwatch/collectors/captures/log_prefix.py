"""What stands before a log line's message: time, host, level, rank.

Collectors of logs wrap lines in layers (container runtime, syslog, kernel, launcher, rank tags), in any
order that people pipe them. `split` peels the layers off one by one. A time without a zone is read as
UTC; a time without a year is only used when the time of the capture is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_ENGLISH = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_ENGLISH, 1)}
# syslog and journalctl write months in the system's language.
_MONTHS |= {"Mär": 3, "Mrz": 3, "Mai": 5, "Okt": 10, "Dez": 12}
_MONTH = "|".join(_MONTHS)
_WORD = r"[A-Za-z0-9_.\-]{1,255}"
_ZONE = r"Z|[+-]\d{2}:?\d{2}"
_ISO = rf"(?P<iso>\d{{4}}-\d{{2}}-\d{{2}}[T ]\d{{2}}:\d{{2}}:\d{{2}}(?:[.,]\d{{1,9}})?)\s?(?P<zone>{_ZONE}|UTC)?"
_LEVELS = "emerg|alert|crit|err|error|warn|warning|notice|info|debug"

_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_CTIME = (  # "[Sun Feb 23 16:24:18 2025]"
    rf"\[{_DAY} (?P<t_month>{_MONTH}) {{1,2}}(?P<t_day>\d{{1,2}})"
    r" (?P<t_time>\d{2}:\d{2}:\d{2})(?P<t_fraction>\.\d{1,9})? (?P<t_year>\d{4})\]:?\s?"
)
_FABRIC = (  # "[Feb 25 2025 13:59:45] [INFO] [tid 1803] "
    rf"\[(?P<f_month>{_MONTH}) {{1,2}}(?P<f_day>\d{{1,2}}) (?P<f_year>\d{{4}}) "
    r"(?P<f_time>\d{2}:\d{2}:\d{2})\]\s?(?:\[(?P<f_level>[A-Z]{3,8})\]\s?)?(?:\[tid \d{1,10}\]\s?)?"
)
_SYSLOG = (  # "Sep 19 16:18:02 node-01 "
    rf"(?P<s_month>{_MONTH}) {{1,2}}(?P<s_day>\d{{1,2}}) (?:(?P<s_year>\d{{4}}) )?"
    rf"(?P<s_time>\d{{2}}:\d{{2}}:\d{{2}})(?P<s_fraction>\.\d{{1,6}})? (?P<s_host>{_WORD}) (?=\S)"
)
_PDSH = (  # "node-14: ": only before something that a tool prints first on its line
    rf"(?P<pdsh>(?=[A-Za-z0-9_.\-]{{0,254}}[\d\-.])[A-Za-z0-9]{_WORD}): "
    r"(?=[\s\[{]|NVRM: |kernel: |nvidia-|amdgpu |time \(ms\)|[A-Za-z0-9_.\-]{1,100}:\d{1,9}:\d{1,9} \[)"
)
_LAYERS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(text, re.ASCII)
    for text in (
        # dmesg -x: "kern  :warn  : "; Talos: "10.0.0.1: kern: warning: "
        rf"(?:(?P<host>{_WORD}): )?(?P<facility>kern|user|daemon|syslog|auth)\s*:\s*(?P<level>{_LEVELS})\s*: ",
        # syslog priority, RFC 5424 version
        r"<(?P<priority>\d{1,3})>(?:1 (?=\d{4}-))?",
        # kernel ring buffer record
        r"(?P<kmsg_priority>\d{1,5}),(?P<kmsg_seq>\d{1,20}),(?P<uptime_us>\d{1,18}),[^;\n]{0,64};",
        # seconds since boot, perhaps with the caller
        r"\[\s{0,8}(?P<uptime>\d{1,10}\.\d{1,9})\](?:\[\s{0,6}[TC]\d{1,7}\])?:?\s?",
        _CTIME,
        _FABRIC,
        # "Tue 2024-11-05 10:00:00 UTC host kernel: "
        rf"(?:{_DAY} )?\[?{_ISO}\]?:?(?:\s+|$)",
        # journalctl -o short-unix
        r"(?P<epoch>1\d{9}\.\d{3,9}) (?=\S)",
        # container runtime after its time: "stderr F "
        r"(?:stdout|stderr) [FP] ",
        _SYSLOG,
        # time of day alone
        r"(?P<clock>\d{2}:\d{2}:\d{2})(?:\.\d{1,9})? (?=\S)",
        # host after a time: "node-a kernel: ", "node-a [12345] "
        rf"(?P<host2>{_WORD}) (?=kernel: |kernel\[|kernel - |\[\d{{1,9}}\] |nvidia-)",
        r"kernel(?:\[\d{1,9}\])?: ",
        r"kernel - - (?:- |\[[^\]\n]{0,400}\] )",
        r"\[\d{1,9}\] (?=NVRM|\S{1,40}:)",
        # launchers: "[default7]:", "[rank13]:", "12: "
        r"\[default(?P<local_rank>\d{1,6})\]:\s?",
        r"\[rank(?P<rank>\d{1,7})\]:\s?(?!\[rank)",
        r"\[?(?:rank|Rank)[ :=](?P<rank2>\d{1,7})\]?:\s(?=\S)",
        r"(?P<task>\d{1,6}): (?=\S)",
        _PDSH,
    )
)
_NOT_HOSTS = re.compile(r"(?i)E[A-Z]\d{4}|pcieport|nvme\d*|mlx5_core|sd[a-z]|ata\d+.*|eth\d+|cpu\d*|usb\d*|gpu\d*|xid|"
                        r"iteration|(?:nvidia|amdgpu|nvswitch|mce|edac|hub|raid6|bpf)\S*|loss.*|step.*|epoch.*|\d+\.\d+|"
                        r"[a-z_\-]*(?:loss|norm|rate|time)")  # fmt: skip
#: Syslog severity number to name.
_SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_FIELD_OF = {"t": "t_time", "f": "f_time", "s": "s_time"}


@dataclass(slots=True)
class Prefix:
    """What was peeled off a line.

    Attributes
    ----------
    message: the rest of the line.
    ts_ms: time, milliseconds since the epoch, UTC; None when the line has none that can be placed.
    zone_known: False when `ts_ms` was read from a time without zone.
    uptime_s: seconds since boot.
    clock: time of day ("16:32:32"), or month, day and time, that could not be placed on a date.
    host: host name as printed.
    level: severity word of the transport, lower case.
    rank, local_rank: launcher's tags.
    layers: how many layers were peeled.
    is_kernel: a layer said that the kernel speaks.
    """

    message: str
    ts_ms: int | None = None
    zone_known: bool = True
    uptime_s: float | None = None
    clock: str | None = None
    host: str | None = None
    level: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    layers: int = 0
    is_kernel: bool = False

    @property
    def order(self) -> tuple[int, float] | None:
        """Sort key of the line's time within one boot, None when it has no time at all."""
        if self.ts_ms is not None:
            return 0, float(self.ts_ms)
        if self.uptime_s is not None:
            return 1, self.uptime_s
        return None


def split(line: str, at_ms: int | None = None) -> Prefix:
    """Peel the prefixes off one line.

    Parameters
    ----------
    line: without line end.
    at_ms: time of the capture, which gives a year to times that have none.
    """
    found = Prefix(line.lstrip(" \t\ufeff"))
    for _ in range(10):
        for pattern in _LAYERS:
            match = pattern.match(found.message)
            if match and _take(found, match, at_ms):
                found.message = found.message[match.end() :]
                found.layers += 1
                break
        else:
            break
    return found


def _take(found: Prefix, match: re.Match[str], at_ms: int | None) -> bool:
    """Store what a layer says; False when it is not a layer after all."""
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    pdsh = groups.get("pdsh")
    if pdsh is not None:
        if found.host is not None or _NOT_HOSTS.fullmatch(pdsh):
            return False
        found.host = pdsh
    if not _take_time(found, groups, at_ms):
        return False
    host = groups.get("host") or groups.get("host2") or groups.get("s_host")
    if host is not None:
        found.host = host
    if "level" in groups or "f_level" in groups:
        found.level = (groups.get("level") or groups.get("f_level") or "").lower()
    priority = groups.get("priority") or groups.get("kmsg_priority")
    if priority is not None:
        found.level = _SEVERITIES[int(priority) & 7]
    if "rank" in groups or "rank2" in groups:
        found.rank = int(groups.get("rank") or groups["rank2"])
    if "local_rank" in groups:
        found.local_rank = int(groups["local_rank"])
    if "facility" in groups or "kmsg_priority" in groups or match[0].startswith("kernel") or "uptime" in groups:
        found.is_kernel = True
    return True


def _take_time(found: Prefix, groups: dict[str, str], at_ms: int | None) -> bool:
    if "uptime" in groups:
        found.uptime_s = float(groups["uptime"])
    elif "uptime_us" in groups:
        found.uptime_s = int(groups["uptime_us"]) / 1e6
    elif "iso" in groups:
        return _take_iso(found, groups["iso"], groups.get("zone"))
    elif "epoch" in groups:
        found.ts_ms = round(float(groups["epoch"]) * 1000)
    elif "clock" in groups:
        if found.clock is not None or found.ts_ms is not None:
            return False
        found.clock = groups["clock"]
    for letter, field in _FIELD_OF.items():
        if field in groups:
            return _take_parts(found, groups, letter, at_ms)
    return True


def _take_iso(found: Prefix, text: str, zone: str | None) -> bool:
    if found.ts_ms is not None and found.layers > 4:
        return False
    main, _, fraction = text.replace(",", ".").partition(".")
    micro = int((fraction + "000000")[:6]) if fraction else 0
    try:
        moment = datetime.fromisoformat(main.replace(" ", "T")).replace(microsecond=micro, tzinfo=UTC)
        if zone not in (None, "Z", "UTC"):
            assert zone is not None
            hours, minutes = int(zone[1:3]), int(zone[-2:])
            offset = timedelta(hours=hours, minutes=minutes)
            moment = moment - offset if zone[0] == "+" else moment + offset
    except (ValueError, OverflowError):
        return False
    if found.ts_ms is None or zone is not None:
        found.ts_ms = round(moment.timestamp() * 1000)
        found.zone_known = zone is not None
    return True


def _take_parts(found: Prefix, groups: dict[str, str], letter: str, at_ms: int | None) -> bool:
    month, day = _MONTHS[groups[f"{letter}_month"]], int(groups[f"{letter}_day"])
    time = groups[f"{letter}_time"]
    year = int(groups[f"{letter}_year"]) if f"{letter}_year" in groups else None
    if year is None and at_ms is not None:
        year = _year_before(at_ms, month, day)
    if year is None:
        found.clock = f"{groups[f'{letter}_month']} {day} {time}"
        return True
    try:
        hour, minute, second = (int(part) for part in time.split(":"))
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        return False
    fraction = groups.get(f"{letter}_fraction")
    found.ts_ms = round(moment.timestamp() * 1000) + (int(float(fraction) * 1000) if fraction else 0)
    found.zone_known = False
    return True


def _year_before(at_ms: int, month: int, day: int) -> int | None:
    """Year of the latest such date that is not more than a day after the capture."""
    at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    for year in (at.year + 1, at.year, at.year - 1):
        try:
            if datetime(year, month, day, tzinfo=UTC) <= at + timedelta(days=1):
                return year
        except ValueError:
            continue
    return None
