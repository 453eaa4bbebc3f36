"""Tests of `recurra.mapping`."""
