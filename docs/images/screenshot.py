"""A picture of a report for the README: ``python screenshot.py REPORT.html OUT.png`` (needs chromium and chromedriver)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)


def screenshot(report: Path, out: Path, *, width: int = 1280, height: int = 1180, tab: str = "model") -> None:
    """Draw one tab of a report as PNG."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get(f"{report.resolve().as_uri()}#{tab}")
            out.parent.mkdir(parents=True, exist_ok=True)
            browser.save_screenshot(str(out))
        finally:
            browser.quit()


if __name__ == "__main__":
    screenshot(Path(sys.argv[1]), Path(sys.argv[2]))
