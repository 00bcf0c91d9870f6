"""A sick cluster with known answers: training times, telemetry and faults, seeded."""
