"""NVFlare adapter: a policy in, a controller of FedAvg with selected clients out."""

from ..extras import require

require("nvflare", "2.5", "nvflare")  # the first version with ModelController and BaseFedAvg

from ...selectors.guards import Guards
from ..options import Reports, Tracking, Waiting
from .controller import SelectingController
from .tasks import Workflow

__all__ = ["Guards", "Reports", "SelectingController", "Tracking", "Waiting", "Workflow"]

# A saved job names its classes by module: this one is permanent, the files below it are not.
SelectingController.__module__ = Workflow.__module__ = __name__
