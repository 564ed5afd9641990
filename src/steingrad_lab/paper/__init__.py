"""The paper's settings, its grid of experiments and its published numbers."""
