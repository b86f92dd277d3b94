"""``python -m cvrcore compile`` compiles every kernel; ``python -m cvrcore`` shows what serves."""

import sys

from . import compile, show_config


def main(arguments: list[str]) -> int:
    """Run one command and return its exit status."""
    if arguments == ["compile"]:
        print(f"kernels are ready after {compile():.1f} s")
        return 0
    print(show_config())
    if arguments:
        print("usage: python -m cvrcore [compile]", file=sys.stderr)
    return 2 if arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
