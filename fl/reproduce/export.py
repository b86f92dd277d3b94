"""``python -m fl.reproduce.export RUNS DOCS``: the former name of `fl.experiments.export`."""

from ..experiments.export import main

if __name__ == "__main__":
    main()
