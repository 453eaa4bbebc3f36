"""Tools for developers, on top of everything: calibration, shrinking a failing graph, stepping."""
