"""Sweeps: which runs, where they are carried out, how long they take."""
