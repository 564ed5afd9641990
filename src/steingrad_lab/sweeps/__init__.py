"""Sweeps: select runs of the paper's grid, estimate their time, and train them in parallel."""
