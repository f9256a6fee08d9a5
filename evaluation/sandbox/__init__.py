"""The process in which a model's code runs, and the one beside it that judges. Imports the standard library alone.

    execution.py --job, secret--> judge --calls, plain data--> solution
                 <---verdict-----       <----plain data------

Whoever decides never runs the solution's code. The judge (`child.py`) forks the solution's process before it has read
anything, so the tests, the expected values and the secret are never in that process's memory. It runs the benchmark's
tests itself; a function of the solution is a stand-in there, whose call is sent over, and what comes back is rebuilt
as exact builtin types (`wire.py`). The secret is written after the last test returned, to a descriptor that the
solution's process does not have. Both are confined (`confinement.py`) before the first line of the solution runs.

What human-eval's one interpreter for both lets pass and this does not: values equal to everything, patched builtins,
reading or redefining the tests. What it costs: the tests cannot hand functions or objects of their own to the solution
(no benchmark here does), and an object of the solution's own is equal to itself alone. `docs/security.md` says what
each layer stops, and what nothing here stops.
"""
