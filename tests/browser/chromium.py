"""A real browser without a window, and what a person does in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promises.table import needs

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
SECONDS = 20  # for anything that must come


@contextmanager
def chromium(profile: Path) -> Iterator:
    """Debian's Chromium with a profile of its own; the test is skipped where there is none."""
    needs(shutil.which("chromium") and shutil.which("chromedriver"), "chromium and chromedriver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def until(driver, script: str, *arguments):
    """What a script returns once it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, SECONDS, 0.05).until(lambda d: d.execute_script(f"return {script}", *arguments))


def resize(driver, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def theme(driver, name: str, **features: str) -> None:
    wanted = {"prefers-color-scheme": name, **features}
    told = [{"name": feature, "value": value} for feature, value in wanted.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})
