"""Suites that measure compiled programs beside the same programs written by hand.

    python -m benchmarks NAME --json [--quick] [--only PARTS]

Answers are compared before any time is taken; times are taken in turns.
"""
