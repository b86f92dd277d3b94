"""The server: FedAvg, with the clients of each round selected by cvrcore."""

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import cvrcore
from cvrcore.integrations.flower import SelectingStrategy, Waiting

from . import task

app = ServerApp()


@app.main()
def main(grid, context):
    """Run the federation; its settings are in pyproject.toml, and in ``--run-config``."""
    config = context.run_config
    model = task.make_model()
    method = {"selector": config["policy"]}
    if config["policy"] == "recommended":
        size = sum(array.size for array in model.values())
        advice = cvrcore.recommend(config["clients"], config["select"], config["rounds"], size)
        print(advice)
        method = advice.arguments()
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),  # any strategy of Flower
        **method,
        n_select=config["select"],
        n_clients=config["clients"],
        seed=config["seed"],
        waiting=Waiting(connect=config["wait"]),
        checkpoint=config["state"] or None,
    )
    first = ArrayRecord({name: Array(array) for name, array in model.items()})
    result = strategy.start(
        grid,
        first,
        num_rounds=config["rounds"],
        timeout=600,
        train_config=ConfigRecord({"local-steps": config["local-steps"]}),
    )
    for number, one in enumerate(strategy.rounds, start=1):
        lost = f", failed {one.failed}" if one.failed else ""
        print(f"round {number:2d}: clients {one.selected}{lost}")
    model = {name: array.numpy() for name, array in (result.arrays or first).items()}
    print(f"test accuracy {task.accuracy(model, *task.load_test_data()):.3f}")
