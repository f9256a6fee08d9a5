"""Runs a notebook's cells here; `python -m tests.notebook docs/notebook.ipynb` puts their outputs into it."""

import base64
import contextlib
import io
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def figures():
    """The open figures as PNG outputs, which closes them."""
    for number in plt.get_fignums():
        data = io.BytesIO()
        plt.figure(number).savefig(data, format="png", dpi=80, metadata={"Software": None})
        image = {"image/png": base64.b64encode(data.getvalue()).decode(), "text/plain": ["<Figure>"]}
        yield {"output_type": "display_data", "data": image, "metadata": {}}
    plt.close("all")


def execute(notebook):
    """Run every code cell in order; returns the notebook with the outputs, and the names that the cells left."""
    namespace, count = {}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count, printed = count + 1, io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"cell {count}", "exec"), namespace)
        stream = {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        cell["execution_count"], cell["outputs"] = count, [*([stream] if stream["text"] else []), *figures()]
    return notebook, namespace


if __name__ == "__main__":
    path = Path(sys.argv[1])
    done, _ = execute(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
