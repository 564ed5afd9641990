import importlib.util

if importlib.util.find_spec("numpyro") is None:
    collect_ignore = ["programs.py"]  # not a test, but searched for doctests
