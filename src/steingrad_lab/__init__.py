"""The laboratory: data, models, training, sweeps, the paper's experiments, reports, command line.

Importing this package imports nothing else, so that the command can react to Ctrl-C before JAX is
loaded. Import its subpackages: `steingrad_lab.training`, `steingrad_lab.report`, ...
"""
