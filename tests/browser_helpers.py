"""A real browser without a screen: Debian's Chromium through its driver."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions --mute-audio"
)
DESKTOP, PHONE = (1280, 860), (390, 844)
SHOTS = os.environ.get("SIDESTEP_SHOTS")  # a folder for screenshots of the main states

needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium or chromium-driver is not installed (apt-get install chromium-driver)"
)


@contextmanager
def chromium(size=DESKTOP, dark=False, touch=False):
    """A fresh browser with its own profile; everything of it is gone afterwards."""
    # Imported here, since the tests are collected where selenium is not installed.
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    profile = tempfile.mkdtemp(prefix="sidestep-chromium-")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(flag)
    if touch:
        options.add_experimental_option(
            "mobileEmulation",
            {"deviceMetrics": {"width": size[0], "height": size[1], "pixelRatio": 2.0, "touch": True}},
        )
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        if dark:
            media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def shot(driver, name):
    """A screenshot, if a folder was named for them."""
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(Path(SHOTS) / f"{name}.png"))
