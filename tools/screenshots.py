"""Pictures of the live page for the documentation: a real federation, served to real clients, in a real browser.

    python tools/screenshots.py

writes docs/images/page-*.png. It needs Chromium, chromedriver, and the extras sim, client, server, images and dev.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import artesian
from artesian.core import generator
from artesian.simulator.experiment import Experiment

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SIZES = {"light": (1280, 1560, "light"), "dark": (1280, 1560, "dark"), "phone": (390, 844, "light")}
CLIENTS, SECONDS = 40, 75.0
TOKEN = re.compile(r"artesian_(?:enrol|admin)_\S+")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (url, enrol, admin):
        stop = threading.Event()
        experiment = artesian.load("digits-4", [f"world.clients={CLIENTS}"])
        names = list(experiment.world.names)
        work = [(experiment, url, enrol, Path(folder), name, stop) for name in names]
        threads = [threading.Thread(target=live, args=words) for words in work]
        for thread in threads:
            thread.start()
        try:
            IMAGES.mkdir(exist_ok=True)
            with browser(Path(folder) / "profile") as driver:
                sign_in(driver, url, admin)
                time.sleep(SECONDS)
                for name, size in SIZES.items():
                    picture(driver, name, *size)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def live(experiment: Experiment, url: str, token: str, folder: Path, name: str, stop: threading.Event) -> None:
    """One client, whose data stay as they are for a few refreshes."""
    rng = generator(0, "pause", name)
    with artesian.connect(url, token=token, home=folder / "homes" / name, client=name, trust_env=False) as session:
        turn = 0
        while not stop.wait(float(rng.exponential(5.0))):
            visit = experiment.world.visit(0, name, turn // 5)
            learner = experiment.model.learner(visit.train.x, visit.train.y)
            session.refresh(learner, report=True, changed=turn > 0 and turn % 5 == 0)
            turn += 1


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, str]]:
    """`artesian serve digits-4`: its address and its two tokens."""
    log = folder / "log"
    words = ["serve", "digits-4", "--store", str(folder / "store"), "--port", "0", "--show-token", "--set", "log=off"]
    with log.open("w") as said:
        command = [sys.executable, "-m", "artesian.cli", *words, "--set", "uploads_per_minute=0"]
        server = subprocess.Popen(command, stderr=said, stdout=said)
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            if server.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        enrol, admin = TOKEN.findall(log.read_text())
        yield address[0], enrol, admin
    finally:
        server.terminate()
        server.wait(timeout=30)


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def sign_in(driver: Any, url: str, token: str) -> None:
    driver.get(url)
    driver.find_element("id", "token").send_keys(token)
    driver.find_element("css selector", "#login-form button").click()


def picture(driver: Any, name: str, width: int, height: int, theme: str) -> None:
    """One picture of the page as it is now."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_script("scrollTo(0, 0)")
    time.sleep(2.5)  # a message comes every second
    path = IMAGES / f"page-{name}.png"
    driver.save_screenshot(str(path))
    _shrink(path)
    print(f"{path}: {path.stat().st_size // 1024} KB")


def _shrink(path: Path) -> None:
    """As many colours as the page has, and no more: half the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(160, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
