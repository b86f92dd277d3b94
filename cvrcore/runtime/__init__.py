"""What every part of the core runs on: threads, memory, sizes, the plan of a selector."""

from . import forks as forks  # registers what happens at a fork
