"""Earlier import path of `cvrcore.integrations.nvflare.tasks`, with the name of that time."""

from .nvflare.tasks import TaskController as AskingController

__all__ = ["AskingController"]
