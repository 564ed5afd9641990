"""The paper: its settings, its grid of experiments, its published numbers."""
