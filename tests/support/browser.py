"""A headless Chromium, driven with Selenium: the packages `chromium` and `chromium-driver` of Debian."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

DESKTOP, PHONE = (1360, 900), (390, 844)
PATIENCE_S = 30.0
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb",
)  # fmt: skip


class Browser:
    """One window. `errors` are the lines of the console that tell of errors, since the last call."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def resize(self, size: tuple[int, int], dark: bool = False) -> None:
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(url)

    def text(self, selector: str = "body") -> str:
        return " ".join(str(self.driver.find_element(By.CSS_SELECTOR, selector).text).split())

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def click(self, selector: str, text: str = "") -> None:
        """Clicks the first element of this kind with this text, once there is one that can be clicked."""

        def click() -> bool:
            for element in self.all(selector):
                if text in element.text and element.is_displayed() and element.is_enabled():
                    element.click()
                    return True
            return False

        self.wait(click, f"{selector} with '{text}'")

    def fill(self, selector: str, text: str) -> None:
        self.wait(lambda: bool(self.all(selector)), selector)
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        element.clear()
        element.send_keys(text)

    def wait(self, holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
        """Waits until something holds; elements that vanish meanwhile are looked up again."""
        waiting = WebDriverWait(self.driver, seconds, 0.1, ignored_exceptions=[WebDriverException])
        return waiting.until(lambda _: holds(), what)

    def wait_for_text(self, text: str, selector: str = "body", seconds: float = PATIENCE_S) -> None:
        try:
            self.wait(lambda: text in self.text(selector), f"the text '{text}'", seconds)
        except Exception as error:
            raise AssertionError(f"'{text}' does not appear in: {self.text()[:3000]}") from error

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        return [
            line["message"]
            for line in self.driver.get_log("browser")
            if line["level"] in ("SEVERE", "WARNING")
        ]

    def save(self, path: Path, whole: bool = False) -> None:
        """Writes a screenshot; with `whole`, of the whole page."""
        size = self.run(
            "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}} if whole else {}
        options = {"format": "png", "captureBeyondViewport": whole, **clip}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver: make tools-browser")
    options: Any = webdriver.ChromeOptions()
    options.binary_location = program
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running: Any = webdriver.Chrome(options=options, service=Service(driver))
    try:
        running.set_page_load_timeout(120)
        yield Browser(running)
    finally:
        running.quit()
