"""The tests, and the run-time type checker that pytest puts on the engine and the methods (pyproject.toml names it)."""

from beartype import BeartypeConf, beartype

# An int is a float here, as type checkers have it (PEP 484): tau=-1 is a legal float.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
