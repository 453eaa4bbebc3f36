"""Suites that measure compiled programs beside the same programs written by hand.

    python -m benchmarks launch --quick

Each program is a file that a new user could have written from its paper and our documents.
"""
