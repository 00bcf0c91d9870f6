"""Flightwatch: observability and anomaly detection for large AI-training clusters.

Importing this package imports nothing else: it is loaded inside other people's training
processes. `flightwatch.attach` and `flightwatch.step` resolve on first use.
"""

__version__ = "0.1.0"
