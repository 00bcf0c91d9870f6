"""The circuit breaker: how many nodes may leave, whatever the findings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.contract import NodeView
from flightwatch.pipeline.control.action_model import Action


def objection(
    node: str,
    settings: ActionSettings,
    nodes: Mapping[str, NodeView] | None,
    drained_in_window: Sequence[Action],
    *,
    by_person: bool,
) -> str | None:
    """Return why a node must not be drained now, None when it may.

    Parameters
    ----------
    nodes: what the scheduler says; None when it says nothing: then nobody knows how many healthy nodes are left, and
        only a person's own approval goes on (a webhook never says).
    drained_in_window: drains applied in the window, undone ones too.
    by_person: a person approved this very action.
    """
    others = {one.node for one in drained_in_window} - {node}
    if len(others) >= settings.max_nodes_in_window:
        return (
            f"{len(others)} nodes were drained in the last {settings.window_minutes} min"
            f" (actions.max_nodes_in_window = {settings.max_nodes_in_window})"
        )
    if nodes is None:
        return None if by_person else "the scheduler does not say how many healthy nodes are left"
    if node not in nodes:
        return f"the scheduler knows no node {node}"
    # One node is always within the percentage: else a small cluster could never act.
    share = (len(others) + 1) / len(nodes) * 100
    if others and share > settings.max_percent_in_window:
        return (
            f"{share:.1f} % of the nodes would be drained within {settings.window_minutes} min"
            f" (actions.max_percent_in_window = {settings.max_percent_in_window:g})"
        )
    left = sum(view.usable for name, view in nodes.items() if name != node)
    if left < settings.min_healthy_nodes:
        return f"{left} usable nodes would be left (actions.min_healthy_nodes = {settings.min_healthy_nodes})"
    return None
