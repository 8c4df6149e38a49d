"""P11: nobody reads or acts as another, in whatever order joins, uploads, departures and revocations come."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from promises.federation import Server, answer
from promises.table import FULL

from artesian.server.messages import decode_task, encode_task

NAMES = ("c0", "c1", "c2")
SECRETS = {name: f"the secret of {name} alone" for name in NAMES}


class Strangers(RuleBasedStateMachine):
    """Clients, tokens and strangers; beside them, what each may do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.server = Server(Path(self.folder.name) / "store")
        self.tokens = {"first": self.server.enrol}  # the enrolment tokens by name, as they are now
        self.dead = ["nonsense", "", "artesian_enrol_x"]
        self.owner: dict[str, str] = {}  # whose secret each id was first joined with

    def teardown(self) -> None:
        self.server.close()
        self.folder.cleanup()

    def credentials(self) -> list[str]:
        return [*SECRETS.values(), *self.tokens.values(), *self.dead, self.server.admin]

    credential = st.runner().flatmap(lambda machine: st.sampled_from(machine.credentials()))
    client = st.sampled_from(NAMES)

    def refused(self, act, wanted: int = 401) -> None:
        before = self.server.digest()
        reply = act()
        assert reply.status_code == wanted, (reply.status_code, reply.text)
        assert self.server.digest() == before

    @rule(client=client, whose=client, credential=credential)
    def join(self, client: str, whose: str, credential: str) -> None:
        body = {"samples": 5, "secret": SECRETS[whose]}
        act = lambda: self.server.ask("PUT", f"/v1/clients/{client}", credential, json=body)  # noqa: E731
        if credential in self.tokens.values() and self.owner.get(client, whose) == whose:
            reply = act()
            assert reply.status_code == 200, reply.text
            self.owner[client] = whose
            self.check_task(client, reply.content)
        else:
            self.refused(act)

    def may(self, client: str, credential: str) -> bool:
        return client in self.owner and credential == SECRETS[self.owner[client]]

    def check_task(self, client: str, data: bytes) -> None:
        """The answer is this client's own open task."""
        (reply,) = self.server.service.coordinator.recorded(client)
        assert data == encode_task(reply.task)

    @rule(client=client, credential=credential)
    def task(self, client: str, credential: str) -> None:
        act = lambda: self.server.ask("GET", f"/v1/clients/{client}/task", credential)  # noqa: E731
        if not self.may(client, credential):
            return self.refused(act)
        reply = act()
        assert reply.status_code in (200, 204)
        if reply.status_code == 200:
            self.check_task(client, reply.content)
        return None

    @rule(client=client, credential=credential)
    def upload(self, client: str, credential: str) -> None:
        given = self.server.service.coordinator.recorded(client) if client in self.owner else []
        data = encode_task(given[0].task) if given else None
        number = decode_task(data).number if data else 1
        body = answer(client, data) if data else b"nothing to answer"
        act = lambda: self.server.ask("PUT", f"/v1/clients/{client}/uploads/{number}", credential, content=body)  # noqa: E731
        if not self.may(client, credential):
            self.refused(act)
        elif data:
            reply = act()
            assert reply.status_code == 200, reply.text
            self.check_task(client, reply.content)

    @rule(client=client, credential=credential)
    def ask_how_much_is_here(self, client: str, credential: str) -> None:
        reply = self.server.ask("HEAD", f"/v1/clients/{client}/uploads/1", credential)
        assert reply.status_code == (200 if self.may(client, credential) else 401)

    @rule(client=client, credential=credential)
    def leave(self, client: str, credential: str) -> None:
        act = lambda: self.server.ask("DELETE", f"/v1/clients/{client}", credential)  # noqa: E731
        if self.may(client, credential):
            assert act().status_code == 204
        else:
            self.refused(act)

    @rule(credential=credential)
    def look_at_the_operators_pages(self, credential: str) -> None:
        allowed = {self.server.admin}
        assert self.server.ask("GET", "/metrics", credential).status_code == (200 if credential in allowed else 401)
        allowed |= set(self.tokens.values())
        assert self.server.ask("GET", "/v1/federation", credential).status_code == (
            200 if credential in allowed else 401
        )

    @rule()
    def rotate(self) -> None:
        (name,) = [token.name for token in self.server.tokens.all() if token.scope == "enrol"][:1]
        self.dead.append(self.tokens.pop("first", ""))
        self.tokens["first"] = self.server.tokens.rotate(name)

    @rule()
    def revoke(self) -> None:
        (name,) = [token.name for token in self.server.tokens.all() if token.scope == "enrol"][:1]
        self.dead.append(self.tokens.pop("first", ""))
        self.server.tokens.revoke(name)

    @invariant()
    def only_owners_are_members(self) -> None:
        assert set(self.server.service.coordinator.state.members) == set(self.owner)


@pytest.mark.heavy
def test_no_sequence_lets_anybody_act_as_another(promise) -> None:
    run_state_machine_as_test(
        Strangers,
        settings=settings(
            max_examples=promise("sequences"),
            stateful_step_count=50 if FULL else 20,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
