"""Tests of recurra.llm."""
