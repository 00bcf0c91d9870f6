"""Detectors at work: over recorded files (backtest) and over the live store (loop)."""
