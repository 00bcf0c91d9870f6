"""Flightwatch: observability and anomaly detection for large AI-training clusters.

Importing this package imports nothing else: it is loaded inside other people's training
processes. `flightwatch.attach` and `flightwatch.step` resolve on first use.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's constant, without importing typing
if TYPE_CHECKING:
    from flightwatch.collectors.training.attaching import attach, step

__all__ = ["__version__", "attach", "step"]


def __getattr__(name: str) -> object:
    """Resolve `attach` and `step`, the two functions a training script may call."""
    if name in ("attach", "step"):
        import importlib

        return getattr(importlib.import_module("flightwatch.collectors.training.attaching"), name)
    raise AttributeError("module 'flightwatch' has no attribute " + repr(name))
