"""`flightwatch detect`: run the detectors over the live store, and change them while they run."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings, local_path
from flightwatch.cli.detection_parts import configured_detectors, detection_loop
from flightwatch.cli.sections import load_settings
from flightwatch.cli.stopping import when_asked_to_stop
from flightwatch.core.clock import SystemClock, iso_utc
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.logs import configure
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.tuning import parse_override, thresholds_of, tuned
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.detection import DetectorSettings
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.roster import mode_of
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Membership, all_shards
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.settings import StoreSettings

HELP = "Run the detectors over the live store, several processes sharing the jobs; list and change them at run time."
EPILOG = """examples:
  flightwatch detect --config /etc/flightwatch/flightwatch.toml
  flightwatch detect list
  flightwatch detect shadow anomaly          (runs, findings are only logged)
  flightwatch detect disable storage
  flightwatch detect set fail_slow.shift=0.05 ports.errors_per_minute=20
  flightwatch detect reset fail_slow         (as the configuration file and the defaults say)
  flightwatch detect train --out model.npz --table device_samples=healthy.parquet

Changes are kept in the control database and hold from the next cycle on, in `flightwatch up` too. The version of a
retuned detector has a suffix, which stands in its findings. `flightwatch backtest --set` tries a threshold first.
`train` learns the autoencoder from rows of a healthy time, from files or the store that the settings name (no running
instance may hold it), in a Python with torch: this one, or the one that FLIGHTWATCH_TEST_TORCH_PYTHON names. It runs
once `[detect] autoencoder` names the file."""
VERBS = ("run", "list", "enable", "disable", "shadow", "set", "reset", "train")
_MODES = {"enable": "on", "disable": "off", "shadow": "shadow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("verb", nargs="?", choices=VERBS, default="run", help="default: run")
    parser.add_argument("names", nargs="*", metavar="NAME", help="detectors; for set: DETECTOR.THRESHOLD=NUMBER")
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--out", metavar="FILE", help="of train: the model file to write")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=FILE", help="of train: device_samples")
    parser.add_argument(
        "--from", dest="since", metavar="TIME", help="of train: begin in the store (default: a day ago)"
    )
    parser.add_argument("--to", dest="until", metavar="TIME", help="of train: end in the store (default: now)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of list; default: text")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    settings = load_settings(arguments.config)
    if bool(arguments.names) == (arguments.verb in ("run", "list", "train")):
        raise ConfigError(f"detect {arguments.verb} takes {'no' if arguments.names else 'the'} names")
    if arguments.verb == "run":
        return _run(settings)
    if arguments.verb == "train":
        from flightwatch.cli.detect_train import train

        return train(settings, arguments)
    control = _existing_control(settings)
    try:
        if arguments.verb != "list":
            _change(DetectorSettings(control), settings.section(DetectSettings), arguments.verb, arguments.names)
        return _list(DetectorSettings(control), settings.section(DetectSettings), arguments)
    finally:
        control.close()


def _run(settings: Loaded) -> int:
    """Run until SIGTERM or SIGINT."""
    common, section = settings.section(CommonSettings), settings.section(DetectSettings)
    configure(common.log_level, common.log_format)
    stop, clock = threading.Event(), SystemClock()
    with ExitStack() as stack:
        bus = open_bus(common.bus_url, settings.section(BusSettings), clock)
        stack.callback(bus.close)
        control = open_control(common.control_url, settings.section(ControlSettings))
        stack.callback(control.close)
        store = open_store(common.store_url, settings.section(StoreSettings))
        stack.callback(store.close)
        holder = f"{common.node_name}:{os.getpid()}"
        membership = Membership(control.leases, holder, section.lease_seconds, all_shards(section.job_shards))
        probe = StatusProbe(
            bus, store, clock, cluster=common.cluster, folder=None, components=dict,
            bus_settings=settings.section(BusSettings),
        )  # fmt: skip
        key = server_key(Path(common.data_dir))
        loop = detection_loop(
            settings, common, bus, store, control, key, clock, lambda: probe()["lag_seconds"], membership
        )

        def end() -> None:
            stop.set()
            loop.wake.set()

        when_asked_to_stop(end)
        loop.run(stop)
    return ExitCode.DONE


def _existing_control(settings: Loaded) -> Control:
    url = settings.section(CommonSettings).control_url
    if url.startswith("sqlite:") and not local_path(url).exists():
        raise Refused(f"there is no control database at {local_path(url)}; `flightwatch up` makes it")
    return open_control(url, settings.section(ControlSettings))


def _change(changes: DetectorSettings, section: DetectSettings, verb: str, names: list[str]) -> None:
    """Check everything before anything is changed. Raises ConfigError."""
    known = {one.name: one for one in configured_detectors(section)}
    actor = getpass.getuser()
    if verb == "set":
        wanted = [parse_override(text) for text in names]
        for detector, threshold, value in wanted:
            tuned(_known(known, detector), {threshold: value})
        for detector, threshold, value in wanted:
            changes.set_threshold(detector, threshold, value, actor)
        return
    for name in names:
        _known(known, name)
    for name in names:
        if verb == "reset":
            changes.reset(name)
        else:
            changes.set_mode(name, _MODES[verb], actor)


def _known(known: dict[str, Detector], name: str) -> Detector:
    if name not in known:
        raise ConfigError(f"there is no detector {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def _list(changes: DetectorSettings, section: DetectSettings, arguments: argparse.Namespace) -> int:
    changed = changes.all()
    for detector in configured_detectors(section):
        name = detector.name
        if arguments.names and all(name != word.partition(".")[0] for word in arguments.names):
            continue
        one = changed.get(name)
        overrides = dict(one.thresholds) if one is not None else {}
        document = {
            "detector": name,
            "version": tuned(detector, overrides).version,
            "mode": mode_of(name, section, changed),
            "thresholds": thresholds_of(tuned(detector, overrides)),
            "changed": overrides,
            "changed_at": iso_utc(one.changed_at_ms) if one is not None else None,
            "changed_by": one.changed_by if one is not None else None,
        }
        if arguments.format == "json":
            print(json.dumps(document, ensure_ascii=False))
        else:
            told = ", ".join(f"{key}={value:g}" for key, value in overrides.items())
            by = f"  ({told or 'mode'} by {one.changed_by}, {document['changed_at']})" if one is not None else ""
            print(f"{name:16} {document['mode']:7} version {document['version']}{by}")
    return ExitCode.DONE
