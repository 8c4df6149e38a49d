"""W1 in pfl-research, run by `peers.py` in an environment of its own: FedAvg in rounds, sharded over processes.

Called without a rank, it starts as many processes of itself as there are workers, as its guide tells to.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def work(style: Any, rounds: int, cohort: int) -> None:
    """One of the processes: it trains its share of every cohort."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch import nn
    from torch.nn import functional
    from w1_work import BATCH, CLIENTS, RATE, adam, images, network

    class Learning(nn.Module):
        """The user's network with the two functions pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network(style)

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.train()
            if style == "tuned":
                x = x.contiguous(memory_format=torch.channels_last)
            return functional.cross_entropy(self.network(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            """Nothing that costs a forward pass: the first round cannot go without evaluating."""
            return {"samples": Weighted(len(y), 1)}

    def data_of(client: str) -> Any:
        x, y = images().client(int(client))
        order = torch.randperm(len(x))
        return Dataset(raw_data=[x[order], y[order]])

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = Learning()
    model = PyTorchModel(module, adam(style), torch.optim.SGD(module.parameters(), lr=1.0))
    clients = FederatedDataset(data_of, get_user_sampler("minimize_reuse", [str(i) for i in range(CLIENTS)]))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=cohort, val_cohort_size=None
        ),
        model_train_params=NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[],
    )


def spread_out(arguments: list[str], workers: int) -> None:
    """So many processes that find each other over loopback."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in _ports(workers))
    env = {**os.environ, ADDRESSES: addresses}
    ranks = [subprocess.Popen([sys.executable, *arguments], env={**env, RANK: str(i)}) for i in range(workers)]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(1)  # they have said why


def _ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    rounds, cohort, workers = (int(argument) for argument in sys.argv[2:5])
    if RANK in os.environ:
        work(sys.argv[1], rounds, cohort)
    else:
        spread_out(sys.argv, workers)
        print(json.dumps({"updates": rounds * cohort}))
