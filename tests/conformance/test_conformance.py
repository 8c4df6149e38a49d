"""Every algorithm passes the one suite that users' own algorithms pass too."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from tiers import some_heavy, some_thorough

from artesian.algorithms import (
    ALGORITHMS,
    CASA,
    CDFL,
    CFL,
    ICFL,
    IFCA,
    SCAFFOLD,
    CASAPlus,
    CFLAsync,
    Confluence,
    Ditto,
    FedAsync,
    FedAvg,
    FedBuff,
    FedEM,
    FedGroup,
    FedMerge,
    FedMergeAsync,
    FedRep,
    FedSoft,
    FeSEM,
    FlexCFL,
    ICFLAsync,
    IFCAAsync,
)
from artesian.core import Task
from artesian.errors import SettingError
from artesian.testing import CHECKS, ToyFederation, check_algorithm

DEFAULTS = [kind() for kind in ALGORITHMS.values()]
OTHERS = [
    CASA(similarity="delta", gamma=5.0, min_cluster_size=1),
    CASA(buffer_budget=3, budget_unit="entries", staleness_unit="global", buffers="server"),
    CASA(split=False, decay=False),
    CASAPlus(s0=1.0, total_rounds=20, similarity="delta"),
    CDFL(staleness_ref="cluster", reply_clusters="above_bar", buffers="server"),
    CDFL(adjust_start_epoch=3, adjust_records=2, adjust_window=4, amplifier=(3, 3), l_bar=1.0),
    CDFL(tau0=1, loss_scale="mean"),
    CDFL(estimator="calibrated", first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2),
    CDFL(estimator="calibrated", adjust_start_epoch=3, adjust_records=2, reply_clusters="above_bar", first_pretend=2),
    CDFL(estimator="client", buffers="server"),
    CFL(eps1=9, eps2=0.01, clients_per_round=3, weighting="uniform", buffers="server"),
    CFL(eps1=9, eps2=0.01, min_size=2, gamma_max=0.1),
    CFLAsync(eps1=9, eps2=0.01, min_size=2, alpha=0.5, max_staleness=3),
    CFLAsync(eps1=9, eps2=0.01, staleness="hinge", gamma_max=0.2, weighting="uniform"),
    Confluence(
        estimator="calibrated", first_pretend=2, pretend=1, pretend_window=3, calibrate_every=3, calibrate_lag=2
    ),
    Confluence(estimator="paper", reach=0.5, sharing=0.0, rho=0.1, buffers="server"),
    Confluence(estimator="client", catch_up=0.0),
    Confluence(estimator="gate", reach=1.0),
    Confluence(clusters="found", fewest=3, clear=1.0),
    FedAsync(staleness="polynomial", max_staleness=2),
    FedAvg(clients_per_round=3, buffers="server"),
    FedBuff(buffer_size=3, momentum=0.5),
    FedBuff(buffer_size=4, aggregate="trimmed"),
    FedBuff(buffer_size=4, aggregate="krum", momentum=0.5),
    FedAvg(clients_per_round=4, aggregate="median"),
    FedAvg(clients_per_round=4, aggregate="bounded", buffers="server"),
    FedEM(clients_per_round=4, aggregate="krum"),
    IFCA(clients_per_round=4, aggregate="trimmed"),
    FeSEM(centres="random", migrate=True, clients_per_round=3),
    FeSEM(clusters=3, buffers="server"),
    ICFL(horizon=3, alpha_start=0.99, clients_per_round=3),
    ICFL(similarity="delta", alpha_start=0.5, buffers="server"),
    ICFLAsync(horizon=20, alpha_start=0.9, max_staleness=3),
    ICFLAsync(similarity="delta", alpha_start=0.0, staleness="hinge", alpha=1.0),
    FedEM(predict="largest", local_epochs=2, clients_per_round=3, buffers="server"),
    FedMerge(inner="all", scaled=True, eta_w=0.5, clients_per_round=3, buffers="server"),
    FedMerge(clusters=3, initial="random", rho=0.1),
    FedMergeAsync(staleness="hinge", max_staleness=2, clusters=3, initial="random", eta_w=5.0),
    Ditto(personal_pull=0.0, clients_per_round=3, buffers="server"),
    FedRep(together=True, head=("weight",), clients_per_round=3),
    SCAFFOLD(server_lr=0.5, clients_per_round=3, buffers="server"),
    FedSoft(selection_size=1, estimation_interval=3),
    FedSoft(do_selection=False, sigma=0.0, estimation_interval=1),
    IFCA(averaging="gradient", clients_per_round=3),
    IFCA(clusters=3, initial="random", migrate=True, buffers="server"),
    IFCAAsync(staleness="hinge", max_staleness=1, clusters=3, initial="random"),
    FedGroup(pretrain_scale=1, clients_per_round=3, group_start="w0", client_pretrain=2),
    FedGroup(random_assign=True, pretrain_scale=1, clients_per_round=3, inter_group_lr=0.1),
    FlexCFL(proximity="MADC", clients_per_round=3, buffers="server", selection="random", group_pretrain=1),
    FlexCFL(random_centers=True, clients_per_round=3, shift_distance="sorted_w1", shift_fraction=0.5),
    FlexCFL(pretrain_scale=1, clients_per_round=2, inter_group_lr=0.1, inter_group_normalise=False),
]


SERVED = "agrees_over_http"
KINDS = ("casa", "cdfl", "confluence", "fedavg", "fedbuff", "fedem", "flexcfl", "scaffold")  # one of each kind
BY_TIER = [one if one.name in KINDS else pytest.param(one, marks=pytest.mark.heavy) for one in DEFAULTS]


@pytest.mark.parametrize("check", [check for check in CHECKS if check != SERVED])
@pytest.mark.parametrize("algorithm", BY_TIER, ids=lambda algorithm: algorithm.name)
def test_the_algorithm_conforms(algorithm, check) -> None:
    assert check_algorithm(algorithm, only=check) == [check]


@pytest.mark.parametrize("name", some_heavy(sorted(ALGORITHMS), "casa", "cdfl", "confluence", "fedavg", "flexcfl"))
def test_the_algorithm_conforms_over_http(name) -> None:
    assert check_algorithm(ALGORITHMS[name](), only=SERVED) == [SERVED]


@pytest.mark.heavy  # all together they are
@pytest.mark.parametrize(
    "algorithm",
    some_thorough(OTHERS, *OTHERS[::6]),
    ids=lambda algorithm: f"{algorithm.name}-{OTHERS.index(algorithm)}",
)
def test_the_algorithm_conforms_with_other_settings(algorithm) -> None:
    assert check_algorithm(algorithm) == list(CHECKS)


class Impure(FedAsync):
    """Counts its folds in a global: the same events give other bits."""

    folds = 0

    def fold(self, state, measured):
        Impure.folds += 1
        step = super().fold(state, measured)
        return type(step)(step.clusters, memory={"folds": Impure.folds})


class Forgetful(FedAsync):
    """Keeps something outside its state: a restart loses it."""

    def task(self, state, client):
        late = getattr(self, "_seen", 0)
        object.__setattr__(self, "_seen", late + 1)
        return Task({"k0": state.clusters["k0"].params}, settings={"seen": late})


class Scribbler(FedAvg):
    """Writes NaN into what it returns."""

    def fold(self, state, measured):
        step = super().fold(state, measured)
        return type(step)({k: params * float("nan") for k, params in step.clusters.items()})


class Unlisted(FedAsync):
    """Its tasks name a recipe that it does not list."""

    recipes: ClassVar[tuple[str, ...]] = ("pick",)


class Counting(FedAsync):
    """Remembers how often it was drawn from, and shows it in its tasks."""

    draws: ClassVar[list[int]] = []

    def fresh(self, state, client):
        Counting.draws.append(1)
        return super().fresh(state, client)

    def task(self, state, client):
        return replace(super().task(state, client), settings={"draws": len(Counting.draws)})


class Noticing(FedAsync):
    """Its tasks are others once anybody has drawn."""

    drawn: ClassVar[list[bool]] = []

    def fresh(self, state, client):
        Noticing.drawn.append(True)
        return super().fresh(state, client)

    def task(self, state, client):
        return replace(super().task(state, client), settings={"drawn": bool(Noticing.drawn)})


class Tight(FedAsync):
    """Brings no model when it is drawn from, and does not say why."""

    def fresh(self, state, client):
        return Task({})


class Drifting(FedAsync):
    """Measures something that is different every time."""

    calls: ClassVar[list[int]] = []

    def measure(self, upload, given):
        Drifting.calls.append(1)
        return {"calls": len(Drifting.calls)}


@dataclass(frozen=True)
class Odd(FedAsync):
    """Answers one question with nothing."""

    called: str = ""

    def init(self, *arguments):
        return None if self.called == "init" else super().init(*arguments)

    def task(self, *arguments):
        return None if self.called == "task" else super().task(*arguments)

    def fold(self, *arguments):
        return None if self.called == "fold" else super().fold(*arguments)

    def measure(self, *arguments):
        return None if self.called == "measure" else super().measure(*arguments)

    def pace(self):
        return None if self.called == "pace" else super().pace()


@pytest.mark.parametrize(
    ("broken", "rule", "words"),
    [
        (Impure(), "is_pure", "the same events, other bits"),
        (Forgetful(), "is_pure", "the same events, other bits"),
        (Scribbler(), "answers_in_kind", "NotFinite: The model holds nan"),
        (Unlisted(), "names_its_recipes", "a task names the recipe 'train', which is not among its recipes"),
        (Counting(), "draws_without_a_trace", "twice, and not the same"),
        (Noticing(), "draws_without_a_trace", "draws changed what came after them"),
        (Tight(), "draws_without_a_trace", "NothingToDraw: fedasync has no model for client c0 now"),
        (Drifting(), "is_pure", "measure looked at its own state"),
        (Odd(called="task"), "answers_in_kind", "task gave a NoneType, not a Task"),
        (Odd(called="fold"), "answers_in_kind", "fold gave a NoneType, not a Step"),
        (Odd(called="init"), "answers_in_kind", "init gave a NoneType, not a State"),
        (Odd(called="measure"), "answers_in_kind", "measure gave a NoneType, not a Mapping"),
        (Odd(called="pace"), "answers_in_kind", "pace gave a NoneType"),
    ],
    ids=lambda value: value.called if isinstance(value, Odd) else type(value).__name__,
)
def test_the_suite_names_the_rule_that_an_algorithm_breaks(broken, rule, words) -> None:
    with pytest.raises(AssertionError) as caught:
        check_algorithm(broken)
    assert str(caught.value).startswith(f"{broken.name} breaks the rule {rule}: {words}")
    assert str(caught.value).endswith(f"The rule: {CHECKS[rule].__doc__}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"algorithm": FedAvg}, r"FedAvg is a class, not an algorithm. Pass FedAvg(...)"),
        ({"algorithm": "fedavg"}, "str is not an algorithm. Pass a value whose class inherits artesian.Algorithm."),
        ({"algorithm": FedAvg(), "model": 3}, "int is not a model. Pass a value whose class inherits artesian.Model."),
        ({"algorithm": FedAvg(), "only": "is_prefect"}, "No check is called 'is_prefect'"),
    ],
)
def test_the_suite_refuses_what_it_cannot_check(arguments, words) -> None:
    with pytest.raises(SettingError) as caught:
        check_algorithm(**arguments)
    assert str(caught.value).startswith(words)


def test_the_toy_carries_a_counter_that_float32_cannot_hold() -> None:
    federation = ToyFederation(FedAsync(), clients=1)
    federation.join_all()
    federation.step()
    arrays = federation.model.layout.unpack(federation.coordinator.state.clusters["k0"].params)
    assert arrays["steps"] == 2**53 + 2  # the newest contributor's, exactly
