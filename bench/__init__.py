"""Timings as ratios: everything is compared with a reference in the same run, on the same machine."""
