"""The live page in a real browser: signing in, living, acting, and being usable by everybody."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from browser.chromium import chromium, resize, theme, until
from browser.prefixed import below
from promises.federation import SECRET, Process, answer
from report.test_following import run_folder

from artesian.core import Upload
from artesian.report.following import followed
from artesian.report.live_page import RunsPage
from artesian.server.messages import decode_task
from artesian.storage.codec import decode, encode

pytestmark = pytest.mark.heavy

HOSTILE = "<img src=x onerror=document.title='hacked'><b>bold"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Process(tmp_path_factory.mktemp("served"))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _as_new(driver, server):
    driver.get(url(server, "/healthz"))
    driver.execute_script("localStorage.clear()")
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    resize(driver, 1280, 900)
    theme(driver, "light")


def url(server: Process, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


def sign_in(driver, server: Process, token: str | None = None) -> None:
    driver.get(url(server))
    until(driver, "document.activeElement.id === 'token'")
    driver.switch_to.active_element.send_keys(server.token("admin") if token is None else token, "\n")


def enter(driver, server: Process) -> None:
    """Sign in, and wait for the first facts."""
    sign_in(driver, server)
    until(driver, "document.body.dataset.mark && !document.getElementById('page').hidden")


def join(server: Process, client: str) -> bytes:
    body = json.dumps({"samples": 5, "secret": SECRET}).encode()
    status, task = server.request("PUT", f"/v1/clients/{quote(client, safe='')}", server.token("enrol"), body)
    assert status == 200, task
    return task


def upload(server: Process, client: str, **metrics: float) -> None:
    """One upload; a name that is none of the toy world's sends what c0 would."""
    task = join(server, client)
    number, body = decode_task(task).number, answer("c0", task)
    if client != "c0" or metrics:
        body = encode("upload", replace(decode("upload", body, Upload), client=client, metrics=metrics))
    status, told = server.request("PUT", f"/v1/clients/{quote(client, safe='')}/uploads/{number}", SECRET, body)
    assert status == 200, told


def row(client: str) -> str:
    """An expression for the button of a client in the table."""
    return f"[...document.querySelectorAll('#members button.name')].find((b) => b.textContent === {json.dumps(client)})"


def standing(server: Process, client: str) -> str:
    status, told = server.request("GET", f"/v1/members/{client}", server.token("admin"))
    assert status == 200
    return json.loads(told)["standing"]


def test_a_wrong_token_is_told_and_a_right_one_opens_the_page(driver, server) -> None:
    sign_in(driver, server, "artesian_admin_wrong")
    told = until(driver, "document.getElementById('login-error').textContent")
    assert told.startswith("This is not a valid admin token. Check it, or make another")
    assert driver.execute_script("return document.getElementById('page').hidden")
    enter(driver, server)
    assert driver.execute_script("return document.getElementById('title').textContent") == "toy"
    assert driver.execute_script("return document.cookie") == ""  # scripts cannot read it


def test_an_upload_is_on_the_page_a_moment_later(driver, server) -> None:
    upload(server, "c0")
    enter(driver, server)
    uploads = lambda: driver.execute_script(f"return {row('c0')}?.closest('tr').children[2].textContent")  # noqa: E731
    until(driver, row("c0"))
    before = int(uploads())
    upload(server, "c0")
    until(driver, f"{row('c0')}.closest('tr').children[2].textContent === '{before + 1}'")
    assert driver.execute_script("return document.querySelectorAll('#map circle.dot').length") >= 1
    until(driver, "document.querySelectorAll('#loss path.line, #loss circle.dot').length >= 2")


def test_scores_that_no_axis_can_hold_do_not_stop_the_page(driver, server) -> None:
    for odd in (1e16, 1e16 + 2, -1e308):
        upload(server, "far", score_before=-odd, score_after=odd)
    upload(server, "near", score_before=1e16, score_after=1e16)
    upload(server, "near", score_before=1e16 + 2, score_after=1e16 + 2)  # a step between them is lost in them
    enter(driver, server)
    for client in ("far", "near"):
        until(driver, row(client))
        driver.execute_script(f"{row(client)}.click()")
        until(driver, f"document.getElementById('client-title')?.textContent === '{client}'")
        charts = "[...document.querySelectorAll('#client .chart')]"
        until(driver, f"{charts}.length === 2 && {charts}.every((one) => one.querySelector('svg'))")
        driver.execute_script("document.getElementById('client').close()")
    mark = driver.execute_script("return Number(document.body.dataset.mark)")
    upload(server, "c0")
    until(driver, f"Number(document.body.dataset.mark) > {mark}")


def test_a_name_that_is_markup_stays_a_name(driver, server) -> None:
    upload(server, HOSTILE)
    enter(driver, server)
    until(driver, row(HOSTILE))
    driver.execute_script(f"{row(HOSTILE)}.click()")
    until(driver, "document.getElementById('client').open")
    assert driver.execute_script("return document.getElementById('client-title').textContent") == HOSTILE
    assert driver.execute_script("return document.querySelectorAll('main img, dialog img, main b b').length") == 0
    assert "hacked" not in driver.title


def test_nothing_is_refused_by_the_pages_own_rules(driver, server) -> None:
    driver.get_log("browser")
    enter(driver, server)
    driver.execute_script(f"{row('c0')}?.click()")
    complaints = [told["message"] for told in driver.get_log("browser") if told["level"] == "SEVERE"]
    assert complaints == []


def test_a_script_that_is_not_the_pages_own_does_not_run(driver, server) -> None:
    driver.get(url(server))
    code = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
    driver.execute_script(code)
    assert driver.execute_script("return window.ran") is None


def test_a_member_is_put_in_quarantine_with_the_keyboard_alone(driver, server) -> None:
    from selenium.webdriver.common.keys import Keys

    upload(server, "c1")
    enter(driver, server)
    until(driver, row("c1"))
    driver.execute_script(f"{row('c1')}.focus()")
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(driver, "document.getElementById('client').open")
    for _ in range(10):  # to the button, by tabs
        if driver.switch_to.active_element.text == "Quarantine":
            break
        driver.switch_to.active_element.send_keys(Keys.TAB)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    until(driver, "document.activeElement.id === 'why'")
    driver.switch_to.active_element.send_keys("odd losses", Keys.ENTER)
    until(driver, "document.querySelector('dialog [role=status]')?.textContent === 'Done: quarantine.'")
    assert standing(server, "c1") == "quarantined"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    until(driver, "!document.getElementById('client').open")
    until(driver, f"{row('c1')}.closest('tr').children[1].textContent === 'quarantined'")
    until(driver, "document.getElementById('notices').textContent.includes('odd losses')")


FORGED = """
const [csrf, done] = arguments;
fetch('page/members/c0/revoke', {method: 'POST', headers: csrf ? {'artesian-csrf': csrf} : {}, body: '{}'})
  .then((reply) => done(reply.status));
"""


def test_an_act_without_the_sessions_token_is_refused(driver, server) -> None:
    upload(server, "c0")
    enter(driver, server)
    driver.set_script_timeout(20)
    assert driver.execute_async_script(FORGED, None) == 401
    assert driver.execute_async_script(FORGED, "guessed") == 401
    assert standing(server, "c0") == "member"


def test_signing_out_closes_the_page_and_the_session(driver, server) -> None:
    enter(driver, server)
    driver.find_element("id", "logout").click()
    until(driver, "!document.getElementById('login').hidden && document.getElementById('page').hidden")
    driver.refresh()
    until(driver, "!document.getElementById('login').hidden")
    session = "fetch('page/session').then((reply) => arguments[0](reply.status))"
    assert driver.execute_async_script(session) == 401


def test_a_session_survives_a_reload(driver, server) -> None:
    enter(driver, server)
    driver.refresh()
    until(driver, "document.body.dataset.mark && document.getElementById('login').hidden")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_never_scrolls_sideways(driver, server, width) -> None:
    upload(server, "c0")
    resize(driver, width, 800)
    enter(driver, server)
    until(driver, row("c0"))
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    driver.execute_script(f"{row('c0')}.click()")
    until(driver, "document.getElementById('client').open")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


CONTRAST = """
const shine = (colour) => {
  const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!colour.startsWith('rgba(') || !/, 0\\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
};
const found = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.getClientRects().length || element.closest('.unseen, .skip, option')) continue;
  const style = getComputedStyle(element), ink = element.ownerSVGElement ? style.fill : style.color;
  const [one, two] = [shine(ink), shine(behind(element))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (two + 0.05);
  if (ratio < 4.5) found.push(`${element.outerHTML.slice(0, 60)} ${ratio.toFixed(2)}`);
}
return found;
"""


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_can_be_read_in_both_themes(driver, server, name) -> None:
    upload(server, "c0")
    theme(driver, name)
    driver.get(url(server))
    assert driver.execute_script(CONTRAST) == []
    enter(driver, server)
    until(driver, row("c0"))
    assert driver.execute_script(CONTRAST) == []
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(245, 247, 248)", "dark": "rgb(15, 23, 28)"}[name]


UNNAMED = """
const told = (id) => document.getElementById(id)?.textContent || '';
const name = (e) => e.getAttribute('aria-label') || e.textContent.trim()
  || [...(e.labels || [])].map((label) => label.textContent).join('')
  || (e.getAttribute('aria-labelledby') || '').split(' ').map(told).join('');
const wanted = 'button, input, select, a[href], [role=img], [role=region], section, dialog[open], summary';
const seen = [...document.querySelectorAll(wanted)].filter((e) => e.getClientRects().length);
return seen.filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 80));
"""


def test_everything_that_can_be_used_has_a_name_and_the_page_has_landmarks(driver, server) -> None:
    upload(server, "c0")
    enter(driver, server)
    until(driver, row("c0"))
    assert driver.execute_script(UNNAMED) == []
    count = lambda what: driver.execute_script(f"return document.querySelectorAll('{what}').length")  # noqa: E731
    assert [count(what) for what in ("header", "main", "footer", "h1", "html[lang]", "main [aria-live=polite]")] == [
        1
    ] * 6
    assert count("table caption") == count("table")
    assert count("table th:not([scope])") == 0
    assert driver.execute_script(
        "const ids = [...document.querySelectorAll('[id]')].map((e) => e.id); return ids.length === new Set(ids).size"
    )


def test_a_chart_can_be_had_as_a_table(driver, server) -> None:
    upload(server, "c0")
    enter(driver, server)
    until(driver, "document.querySelector('#staleness summary')")
    driver.execute_script("document.querySelector('#staleness summary').click()")
    until(driver, "document.querySelector('#staleness table tbody tr td')")
    upload(server, "c0")  # it stays open while the page is drawn again
    mark = driver.execute_script("return Number(document.body.dataset.mark)")
    until(driver, f"Number(document.body.dataset.mark) > {mark} + 1")
    assert driver.execute_script("return document.querySelector('#staleness details').open")


def test_the_focus_can_be_seen_and_the_content_reached_at_once(driver, server) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.get(url(server))
    until(driver, "document.activeElement.id === 'token'")
    driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    assert driver.switch_to.active_element.text == "Skip to the content"
    outline = driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_the_page_works_below_the_prefix_of_a_proxy(driver, server) -> None:
    upload(server, "c2")
    with below("/federations/toy/", server.port) as address:
        driver.get(address)
        until(driver, "document.activeElement.id === 'token'")
        driver.switch_to.active_element.send_keys(server.token("admin"), "\n")
        until(driver, row("c2"))
        (held,) = driver.execute_cdp_cmd("Network.getAllCookies", {})["cookies"]
        assert (held["path"], held["httpOnly"], held["sameSite"]) == ("/federations/toy/page", True, "Strict")
        driver.execute_script(f"{row('c2')}.click()")
        until(driver, "document.querySelector('dialog .acts button')")
        driver.execute_script("document.querySelector('dialog .acts button').click()")
        until(driver, "document.activeElement.id === 'why'")
        driver.switch_to.active_element.send_keys("below a prefix\n")
        until(driver, "document.querySelector('dialog [role=status]')?.textContent === 'Done: quarantine.'")
        driver.get("about:blank")
    assert standing(server, "c2") == "quarantined"


def test_the_same_page_shows_runs_without_a_login(driver, tmp_path: Path) -> None:
    run_folder(tmp_path / "a")
    run_folder(tmp_path / "b", seed=1)
    page = RunsPage(followed([tmp_path]))
    thread = threading.Thread(target=page.serve)
    thread.start()
    try:
        driver.get(page.url)
        until(driver, "document.body.dataset.mark")
        until(driver, "document.getElementById('title').textContent === '2 runs'")
        assert driver.execute_script("return document.getElementById('login').hidden")
        assert driver.execute_script("return document.querySelectorAll('#focus option').length") == 2
        until(driver, row("c0"))
        with open(tmp_path / "a" / "metrics.csv", "a", newline="") as file:
            file.write("3,4.0,c0,1,3,0,0.75,0.8,,,\r\n")
        until(driver, f"{row('c0')}.closest('tr').children[2].textContent === '2'")
        driver.execute_script(f"{row('c0')}.click()")
        until(driver, "document.getElementById('client').open")
        assert driver.execute_script("return document.querySelectorAll('dialog .acts').length") == 0
    finally:
        driver.get("about:blank")
        page.close()
        thread.join()
