"""P10: a bad credential gets 401 and nothing else, on every route but the probes and the files of the live page."""

import pytest
from promises.federation import SECRET

from artesian.dashboard.assets import assets
from artesian.server.hashing import fingerprint
from artesian.server.page_routes import COOKIE, CSRF

BAD = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {SECRET}"},
    {"authorization": SECRET},
    {"authorization": f"Bearer {SECRET} more"},
    {"authorization": f"Bearer {SECRET[:-1]}"},
    {"authorization": f"Bearer {fingerprint(SECRET)}"},
    {"authorization": "Bearer artesian_enrol_"},
    {"authorization": "Bearer null"},
    {"authorization": "Bearer ' OR 1=1 --"},
    {"authorization": "Bearer geheimnis mit ümlaut".encode()},
    {"cookie": f"{COOKIE}=", "sec-fetch-site": "same-origin", CSRF: ""},
    {"cookie": f"{COOKIE}={SECRET}", "sec-fetch-site": "same-origin", CSRF: SECRET},
]
OPEN = {"/healthz", "/readyz", *(f"/{path}" for path in assets())}


@pytest.mark.parametrize("headers", BAD, ids=str)
def test_every_route_but_probes_and_files_answers_401_to_a_bad_credential(server, promise, headers) -> None:
    assert promise("credentials") == len(BAD)
    check_routes(server, headers)


def check_routes(server, headers) -> None:
    """Walk the routes as they are."""
    server.join()
    before = server.service.coordinator.digest()
    walked = 0
    for route in server.app.routes:
        path = route.path.replace("{client}", "c0").replace("{number}", "1")
        for method in route.methods:
            status = server.ask(method, path, headers=headers, content=b"{}").status_code
            assert status == (200 if route.path in OPEN else 401), (method, path)
            walked += 1
    assert walked >= 8
    assert server.service.coordinator.digest() == before
