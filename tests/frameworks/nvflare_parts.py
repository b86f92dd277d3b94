"""An executor for NVFlare's simulator whose clients misbehave, each in its own way."""

import time

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils


class Moody(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        name = fl_ctx.get_identity_name()
        model = FLModelUtils.from_shareable(shareable)
        params = {key: np.asarray(array) + 1.0 for key, array in model.params.items()}
        if name == "site-1":
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        if name == "site-2":
            params = {key: array * np.nan for key, array in params.items()}
        if name == "site-3":
            params = {key: array[:2] for key, array in params.items()}
        if name == "site-4":
            time.sleep(30)  # longer than anybody waits
        return FLModelUtils.to_shareable(FLModel(params=params))
