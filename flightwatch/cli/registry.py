"""All commands: name, module, one line of help. A new command is one file here and one line below."""

from __future__ import annotations

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("action", "flightwatch.cli.action", "drains and other actions: approve, reject, ask, stop them all"),
    ("agent", "flightwatch.cli.agent", "collect on this node and send; enroll: make its key"),
    ("alerts", "flightwatch.cli.alerts", "channels to people: list, test, what was sent, a receiver to try"),
    ("backtest", "flightwatch.cli.backtest", "run the detectors over recorded tables"),
    ("bus", "flightwatch.cli.bus", "create the topics of the bus"),
    ("config", "flightwatch.cli.config", "check the configuration, or write a commented file"),
    ("console", "flightwatch.cli.console", "serve the console alone"),
    ("dead", "flightwatch.cli.dead", "what could not be stored, and another try for it"),
    ("detect", "flightwatch.cli.detect", "run the detectors over the live store"),
    ("doctor", "flightwatch.cli.doctor", "is this node ready for probes, profiles and hang evidence"),
    ("engine", "flightwatch.cli.engine", "incidents from findings and grave events, and what follows them"),
    ("drill", "flightwatch.cli.drill", "inject faults, grade what was found, remove every trace"),
    ("hang", "flightwatch.cli.hang", "who stopped a hung job, from dumps and logs"),
    ("incident", "flightwatch.cli.incident", "list, acknowledge, resolve, note and silence incidents"),
    ("inspect", "flightwatch.cli.inspect", "rows, events and a summary of recorded output"),
    ("inventory", "flightwatch.cli.inventory", "racks, slots, zones, switches and rails, with history"),
    ("pipeline", "flightwatch.cli.pipeline", "store what is on the bus; several share the work"),
    ("simulate", "flightwatch.cli.simulate", "a simulated cluster, live, through this installation"),
    ("size", "flightwatch.cli.size", "rows, traffic, cores and disk of a cluster"),
    ("profile", "flightwatch.cli.profile", "record a few steps of a running job, without a change of its code"),
    ("run", "flightwatch.cli.run", "start a training command with the probe in it"),
    ("sql", "flightwatch.cli.sql", "one guarded SELECT over the tables"),
    ("status", "flightwatch.cli.status", "what the running instance does"),
    ("store", "flightwatch.cli.store", "migrate, back up, restore, check and measure the store"),
    ("token", "flightwatch.cli.token", "API tokens: create, list, revoke"),
    ("trace", "flightwatch.cli.trace", "op times, flame graph, difference and timeline of profiler traces"),
    ("up", "flightwatch.cli.up", "everything on this machine"),
    ("user", "flightwatch.cli.user", "people: roles, chat accounts, who is kept out"),
)
