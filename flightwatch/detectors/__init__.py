"""Detectors: pure functions from frames of rows to findings. One file a detector."""
