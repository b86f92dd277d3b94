"""NVFlare's controller without messages: a table of answers in its place; not a test."""

from types import SimpleNamespace

import numpy as np
import pytest
from nvflare.app_common.abstract.fl_model import FLModel

from cvrcore.integrations.nvflare import SelectingController

NAMES = [f"site-{k}" for k in range(1, 8)]


def trained(name, params, round):
    """What a client makes of a model: nothing but its name and the round decide."""
    rng = np.random.default_rng([NAMES.index(name), round])
    return {key: array + rng.normal(size=array.shape) for key, array in params.items()}


class Shareable:
    def __init__(self, code="OK"):
        self._code = code

    def get_return_code(self):
        return self._code

    def get_header(self, key, default=None):
        return default


class Controller(SelectingController):
    """Sends nothing: `answer(name, task, data)` says what each client does."""

    def __init__(self, *args, answer=None, present=None, tmp_path=None, **kwargs):
        kwargs.setdefault("record", None)
        super().__init__(*args, **{"task_check_period": 0.01, **kwargs})
        self.answer, self.present, self.sent = answer, present or (lambda t: NAMES), []
        self.folder, self.abort_signal = tmp_path, SimpleNamespace(triggered=False)
        self.current_round = 0
        clients = lambda: [SimpleNamespace(name=n) for n in self.present(self.current_round)]  # noqa: E731
        self.engine = SimpleNamespace(get_clients=clients)
        self.start = FLModel(params={"weight": np.zeros((3, 4)), "bias": np.zeros(3)})
        self.merged, self.logged = [], []
        self.fl_ctx = None

    def load_model(self):
        return self.start

    def broadcast_model(self, data, *, task_name, targets, **patience):
        self.sent.append({"task": task_name, "targets": targets, "meta": data.meta, **patience})
        results = []
        for name in targets:
            for result in self.answer(name, task_name, data):
                code = result if isinstance(result, str) else "OK"
                self._accept_train_result(name, Shareable(code), self.fl_ctx)
                if not isinstance(result, str):
                    result.meta["client_name"] = name
                    results.append(result)
        return results[::-1]  # in any order but that of the targets

    def update_model(self, model, merged):
        self.merged.append(merged)
        model.params = merged.params
        return model

    def event(self, kind):
        pass

    def fire_event_with_data(self, *args):
        pass

    def get_run_dir(self):
        return str(self.folder)

    def info(self, text):
        pass

    debug = info

    def warning(self, text):
        self.logged.append(text)


@pytest.fixture(autouse=True)
def quiet_context(monkeypatch):
    """`_accept_train_result` of NVFlare notes the result in its context; there is none here."""
    from nvflare.app_common.workflows.base_model_controller import BaseModelController

    monkeypatch.setattr(
        BaseModelController,
        "_accept_train_result",
        lambda self, client_name, result, fl_ctx, **more: result.get_return_code() == "OK",
    )


def honest(name, task, data):
    if task == "validate":
        counts = [1 + NAMES.index(name), 5]
        yield FLModel(
            metrics={"loss": 1.0 + NAMES.index(name)},
            meta={"n_samples": sum(counts), "label_counts": counts},
        )
    else:
        loss = 1.0 + NAMES.index(name)
        params = trained(name, data.params, data.current_round)
        yield FLModel(params=params, metrics={"train_loss": loss}, meta={"selection_loss": loss})
