"""Benchmarks, runs, scores, statistics and reports. Generating, scoring and reporting meet through files alone.

Modules named in the environment variable ENTROPYCACHE_PLUGINS, with commas between, are imported with this package:
what they register (a benchmark, a scorer, a model family) is known to every command and to the processes it starts.
"""

import importlib
import os

for _name in filter(None, os.environ.get("ENTROPYCACHE_PLUGINS", "").split(",")):
    try:
        importlib.import_module(_name)
    except ModuleNotFoundError as _error:
        raise RuntimeError(f"ENTROPYCACHE_PLUGINS={_name}: {_error}; PYTHONPATH must lead to it") from _error
