"""P9: the server keeps to its own description: no 500, and no answer that is not declared."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from promises.federation import SECRET, Process, answer
from promises.table import needs

from artesian.server.messages import decode_task
from artesian.server.openapi import MEDIA

pytestmark = pytest.mark.heavy

try:
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import load_all_checks, not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        status_code_conformance,
    )
except ModuleNotFoundError:
    schemathesis = None

SCOPES = {"/v1/federation": "enrol", "/v1/openapi.json": "enrol", "/metrics": "admin", "/v1/clients/{client}": "enrol"}

OPERATORS = ("/v1/members", "/v1/models", "/v1/rollback")


@pytest.fixture
def process(tmp_path) -> Iterator[Process]:
    made = Process(tmp_path, "--set", "longest_wait=0.05")
    yield made
    assert made.stop(signal.SIGTERM) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_server_keeps_to_its_description(process, promise, figure) -> None:
    needs(schemathesis, "schemathesis is not installed")
    examples, asked = promise("examples"), {}
    described = schemathesis.openapi.from_url(
        f"http://127.0.0.1:{process.port}/v1/openapi.json",
        headers={"authorization": f"Bearer {process.token('enrol')}"},
    )
    described.validate()
    task = process.join("c0")
    operations = [found.ok() for found in described.get_all_operations()]
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            task = examine(process, operation, mode, -(-examples // (2 * len(operations))), task, asked)
    figure(", ".join(f"{count} x {status}" for status, count in sorted(asked.items())))
    assert {f"{one.method} {one.path}".lower() for one in operations} == routes(described.raw_schema)


def routes(description: dict) -> set[str]:
    """Every route but the description's own, which schemathesis leaves out."""
    found = {f"{method} {path}".lower() for path, methods in description["paths"].items() for method in methods}
    return found - {"get /v1/openapi.json"}


def examine(process: Process, operation, mode, examples: int, task: bytes, asked: dict[int, int]) -> bytes:
    """Send what the description allows, or just not; every answer must be a declared one. The newest task of c0."""
    newest = [task]
    if mode is GenerationMode.NEGATIVE and not any(operation.iter_parameters()) and not operation.body:
        return task  # there is nothing to get wrong

    @given(
        case=operation.as_strategy(mode),
        known=st.sampled_from([True] * 4 + [False]),
        honest=st.booleans(),
        trusted=st.integers(0, 9),
    )
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case, known: bool, honest: bool, trusted: int) -> None:
        if known and "client" in (case.path_parameters or {}):
            case.path_parameters["client"] = "c0"
        if known and honest and "number" in (case.path_parameters or {}):
            case.path_parameters["number"] = decode_task(newest[0]).number
            if case.method == "PUT":
                case.body = answer("c0", newest[0])
        scope = SCOPES.get(operation.path) or ("admin" if operation.path.startswith(OPERATORS) else None)
        token = process.token(scope) if scope and case.method != "DELETE" else SECRET
        headers = {"authorization": f"Bearer {token}"} if trusted else {}
        response = case.call(base_url=f"http://127.0.0.1:{process.port}", headers=headers)
        asked[response.status_code] = asked.get(response.status_code, 0) + 1
        if response.status_code == 200 and case.method == "PUT" and known:
            newest[0] = response.content
        case.validate_response(response, checks=CHECKS)

    ask()
    return newest[0]


if schemathesis is not None:
    load_all_checks()
    schemathesis.openapi.media_type(MEDIA, st.binary(max_size=300))
    schemathesis.serializer.alias(MEDIA, "application/octet-stream")
    CHECKS = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        response_headers_conformance,
    ]
