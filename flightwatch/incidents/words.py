"""Numbers, durations, times and kinds as words, in English and Simplified Chinese."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from flightwatch.incidents.chinese import in_chinese

_UNITS = {
    "en": (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)),
    "zh": (("天", 86_400), ("小时", 3_600), ("分", 60), ("秒", 1)),
}
_KINDS: dict[str, dict[str, str]] = {
    "en": {
        "fail_slow": "steps became longer", "job_slow": "all ranks slow", "job_regression": "slower than its best run",
        "device_error": "device error", "nonfinite": "non-finite values", "numerics": "numbers out of range",
        "loss_spike": "loss spike", "grad_norm": "gradient norm off",
        "sdc_precursor": "signs of silent data corruption", "replica_digest": "replicas differ",
        "overheat": "too hot", "cooling": "cooling fails", "ecc": "memory errors",
        "rdma": "network errors", "link_flap": "link flaps", "throttle": "clocks held down", "power": "power trouble",
        "storage": "storage", "sensor": "sensor fails", "dead_node": "gone silent", "hang": "hang", "crash": "crash",
        "config_drift": "configured differently", "clock_skew": "wrong clock", "imbalance": "uneven work",
        "drain": "drain", "return": "return to work", "drop_replica": "drop the replica on",
        "replace_rank": "replace the rank on",
    },
    "zh": {
        "slow": "变慢", "fail_slow": "步时变长", "imbalance": "负载不均", "job_slow": "全部 rank 变慢",
        "job_regression": "慢于历史最佳", "hang": "挂起", "crash": "崩溃", "device_error": "设备故障",
        "nonfinite": "出现 NaN/Inf", "numerics": "数值超范围", "loss_spike": "loss 突增", "grad_norm": "梯度范数异常",
        "sdc_precursor": "静默数据错误征兆", "replica_digest": "副本不一致", "overheat": "过热", "cooling": "冷却故障",
        "ecc": "显存错误", "rdma": "网络错误", "link_flap": "链路抖动", "throttle": "降频", "power": "供电异常",
        "storage": "存储变慢", "sensor": "传感器故障", "dead_node": "节点失联", "config_drift": "配置不一致",
        "clock_skew": "时钟偏差", "anomaly": "行为异常", "coverage": "观测不全", "blind": "Flightwatch 失明",
        "compute": "计算", "link": "链路", "host": "主机", "rack": "机柜", "stage": "流水级", "data": "数据",
        "expert": "专家", "cooling_zone": "冷却区", "power_zone": "供电区", "leaf_switch": "叶交换机",
        "scale_up_domain": "高速互联域", "drain": "隔离", "return": "放回", "drop_replica": "移除副本于",
        "replace_rank": "替换 rank 于",
    },
}  # fmt: skip


def number(value: float) -> str:
    """Return a figure with the digits that matter: 1,024 · 12.5 · 0.04."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def percent(value: float) -> str:
    """Return a ratio as percent."""
    return f"{value * 100:.0f} %" if value >= 0.01 or value == 0 else f"{value * 100:.1f} %"


def duration(ms: float, language: str = "en") -> str:
    """Return a length of time in its two largest units."""
    left = max(0, round(ms / 1000))
    parts: list[str] = []
    for unit, seconds in _UNITS[language]:
        count, rest = divmod(left, seconds)
        if count or (unit == _UNITS[language][-1][0] and not parts):
            parts.append(f"{count} {unit}")
            left = rest
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts)


def clock(at_ms: int, zone: ZoneInfo) -> str:
    """Return a moment in local time and in UTC."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    utc = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    local = moment.astimezone(zone)
    if local.utcoffset() == moment.utcoffset():
        return utc
    day = "" if local.date() == moment.date() else f"{local:%Y-%m-%d} "
    name = local.tzname() or ""
    # Zones without a short name of their own are called by their offset: +08.
    return f"{day}{local:%H:%M:%S} {name if name[:1].isalpha() else 'UTC' + name} ({utc})"


def names(values: Sequence[Any], language: str = "en") -> str:
    """Return a list of names, the middle of a long one left out."""
    texts = [str(value) for value in values]
    join = "、" if language == "zh" else ", "
    if len(texts) <= 4:
        return join.join(texts)
    return f"{join.join(texts[:2])} … {texts[-1]}"


def sentence(text: str) -> str:
    """Return a text with an end."""
    stripped = text.strip()
    return stripped if stripped.endswith((".", "!", "?", "。", "…")) or not stripped else stripped + "."


def filters(language: str) -> dict[str, Callable[..., Any]]:
    """Return the filters of templates."""
    kinds = _KINDS[language]
    return {
        "number": number,
        "percent": percent,
        "duration": lambda ms: duration(ms, language),
        "clock": clock,
        "names": lambda values: names(values, language),
        "sentence": sentence,
        "chinese": in_chinese,
        "words": lambda kind: kinds.get(str(kind), str(kind).replace("_", " ")),
    }
