"""Measurements: load, speed, goodput. Figures come from here, never from the test suite."""
