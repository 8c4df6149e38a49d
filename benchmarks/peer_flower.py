"""W1 in Flower, run by `peers.py` in an environment of its own: FedAvg in rounds, each client on one core."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from w1_work import CLIENTS, SAMPLES, images, network, train

STYLE = "W1_STYLE"  # in the environment, because clients are processes of Ray's


def train_client(message: Message, context: Context) -> Message:
    """One client update: load what was sent, train, send it back."""
    style: Any = os.environ[STYLE]
    module = network(style)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(module, *images().client(int(context.node_config["partition-id"])), style)
    told = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(told), reply_to=message)


def main(style: Any, rounds: int, cohort: int, workers: int) -> None:
    os.environ[STYLE] = style
    server, client = ServerApp(), ClientApp()
    client.train()(train_client)

    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=CLIENTS,
        )
        result = strategy.start(grid, ArrayRecord(network(style).state_dict()), num_rounds=rounds)
        done = len(result.train_metrics_clientapp)
        if done != rounds:
            raise RuntimeError(f"{done} of {rounds} rounds brought anything")

    server.main()(serve)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}}
    run_simulation(server, client, CLIENTS, backend_config=resources)
    print(json.dumps({"updates": rounds * cohort}))


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:5]))
