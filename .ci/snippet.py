"""Run the first start of README.md on an installed cvrcore: `snippet.py README.md BACKEND`.

BACKEND is cython or numba: which kernels must serve. With cython, Numba must not be imported.
"""

import pathlib
import re
import sys

sys.path.pop(0)  # this folder: nothing of a checkout may be imported
import cvrcore


def main(readme, backend):
    """Fail unless the snippet runs with these kernels."""
    text = cvrcore.show_config()
    assert f"backend {backend}" in text, text
    snippet = re.search(r"```python\n(.*?)```", pathlib.Path(readme).read_text(), re.DOTALL)[1]
    names = {}
    exec(compile(snippet, readme, "exec"), names)
    assert names["selector"].round == 60, names["selector"].round
    picked = cvrcore.select([[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1]], n_select=2, seed=0)
    assert picked.coalitions.tolist() == [0, 0, 1, 1], picked
    assert (backend == "numba") == ("numba" in sys.modules)
    print(f"{cvrcore.__file__}: the start of {readme} runs, backend {backend}")


if __name__ == "__main__":
    main(*sys.argv[1:])
