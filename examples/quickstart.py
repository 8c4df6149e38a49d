"""Two methods on the same drifting clients, side by side."""

import artesian

if __name__ == "__main__":
    for algorithm in (artesian.Confluence(), artesian.FedBuff(buffer_size=10)):
        run = artesian.simulate("digits-2", algorithm=algorithm, uploads=400, seed=0)
        print(f"{run.summary['algorithm']:10} drawn back: {run.summary['client_after']:.3f} accurate")
        for client, (true, found) in list(run.mixtures.items())[:3]:
            print(f"  {client} true {true} found {found}")
    print(run.metrics["after"][-5:], sorted(run.models["k0"]))
