"""Developers' tools: test-case reducer, stepper, calibration."""
