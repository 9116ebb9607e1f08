"""Benchmarks, as commands. Times are for reading side by side in one run; counts are held by tests."""
