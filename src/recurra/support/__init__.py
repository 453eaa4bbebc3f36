"""Helpers that know nothing of programs: files, CPU, workers, C++."""
