"""The owner's page in a real Chromium: log in, read, decide, wrong password, wrong role, a form of another page, an old session."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from tests.e2e.test_browser import browser as browser
from tests.node.test_flare_halves import World
from tests.waiting import wait_until
from tests.web.test_owner import HOME, PASSWORDS, Page
from tests.web.test_owner import world as world

from polyclinic.web.owner import IDLE

pytestmark = pytest.mark.e2e


class Seen:
    """A page of the owner in a browser."""

    def __init__(self, page: Page, browser: Any, address: str) -> None:
        self.page, self.browser, self.address = page, browser, address

    def open(self) -> None:
        self.browser.get(self.address + HOME)

    @property
    def text(self) -> str:
        return str(self.browser.find_element("css selector", "body").text)

    def log_in(self, user: str, password: str) -> None:
        self.open()
        self.browser.find_element("name", "user").send_keys(user)
        self.browser.find_element("name", "password").send_keys(password)
        self.press("Log in")

    def press(self, label: str) -> None:
        before = self.browser.find_element("css selector", "html")
        self.browser.find_element("xpath", f"//button[.='{label}']").click()
        assert wait_until(lambda: self.browser.find_element("css selector", "html") != before)


@pytest.fixture
def seen(world: World, browser: Any, request: pytest.FixtureRequest) -> Iterator[Seen]:
    page = Page(world, "browser-" + str(abs(hash(request.node.name)))[:12])
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(page.app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    browser.delete_all_cookies()
    yield Seen(page, browser, f"http://127.0.0.1:{listening.getsockname()[1]}")
    browser.get("about:blank")
    server.should_exit = True
    thread.join(10)
    listening.close()


def test_an_officer_logs_in_reads_accepts_and_logs_out(seen: Seen) -> None:
    seen.log_in("otto", PASSWORDS["otto"])
    assert f"Study {seen.page.order.id}" in seen.text
    assert "Logged in as otto (officer)" in seen.text
    assert "patient-level epsilon spent" in seen.text
    seen.press("Accept")
    assert seen.page.consent is True
    assert "otto (site web) accepted order" in seen.text
    seen.press("Log out")
    assert "Log in" in seen.text
    seen.browser.back()
    assert seen.page.order.id not in seen.text, "nothing is stored in the browser"


def test_a_wrong_password_lets_nobody_in(seen: Seen) -> None:
    seen.log_in("otto", "wrong password here")
    assert "wrong name or password" in seen.text
    seen.open()
    assert "Log in" in seen.text
    assert seen.page.order.id not in seen.text


def test_a_viewer_has_no_button_and_a_made_up_form_is_refused(seen: Seen) -> None:
    seen.log_in("vera", PASSWORDS["vera"])
    assert "An officer decides." in seen.text
    assert not seen.browser.find_elements("xpath", "//button[.='Accept']")
    made_up = """
        const form = document.querySelector("form");
        form.action = form.action.replace("logout", "decide");
        for (const [k, v] of Object.entries(arguments[0])) {
            const field = form.elements[k] || form.appendChild(document.createElement("input"));
            field.name = k; field.value = v;
        }
        form.querySelector("button").click();
    """
    before = seen.browser.find_element("css selector", "html")
    fields = {"verb": "refuse", "name": seen.page.order.digest}  # with the viewer's own token
    seen.browser.execute_script(made_up, fields)
    assert wait_until(lambda: seen.browser.find_element("css selector", "html") != before)
    assert "this needs the role officer" in seen.text
    assert seen.page.consent is None


def test_a_page_of_another_program_on_this_machine_cannot_decide(seen: Seen) -> None:
    """The other page even knows the address, the order and the token: the origin and the cookie's path stop it."""
    seen.log_in("otto", PASSWORDS["otto"])
    token = seen.browser.find_element("name", "csrf").get_attribute("value")
    fields = {"csrf": token, "verb": "refuse", "name": seen.page.order.digest}
    inputs = "".join(f'<input name="{k}" value="{v}">' for k, v in fields.items())
    attack = f'<form method="post" action="{seen.address}{HOME}decide">{inputs}<button>Win</button></form>'.encode()
    cookies: list[str] = []

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(attack)

        def log_message(self, format: str, *args: object) -> None:
            pass

    evil = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=evil.serve_forever, daemon=True).start()
    try:
        seen.browser.get(f"http://127.0.0.1:{evil.server_port}/")
        seen.press("Win")
        assert "requests from other sites are refused" in seen.text
        assert seen.page.consent is None
        seen.open()
        assert "Logged in as otto" in seen.text, "the session was there"
        assert not any("polyclinic-owner" in c for c in cookies), "another port of this machine never gets the cookie"
    finally:
        evil.shutdown()
        evil.server_close()


def test_a_session_that_is_idle_ends_before_a_decision(seen: Seen) -> None:
    seen.log_in("otto", PASSWORDS["otto"])
    seen.page.clock.now += IDLE + 1
    seen.press("Accept")
    assert "log in first" in seen.text
    assert seen.page.consent is None
    seen.open()
    assert "Logged in" not in seen.text


def test_an_admin_adds_an_account_that_can_log_in(seen: Seen) -> None:
    seen.log_in("ada", PASSWORDS["ada"])
    form = seen.browser.find_element("xpath", "//form[.//button[.='Save']]")
    form.find_element("name", "user").send_keys("nina")
    form.find_element("name", "password").send_keys("nina's long password")
    seen.press("Save")
    assert "nina (viewer)" in seen.text
    seen.press("Log out")
    seen.log_in("nina", "nina's long password")
    assert "Logged in as nina (viewer)" in seen.text


def test_the_page_is_whole_on_a_telephone_and_silent_in_the_console(seen: Seen) -> None:
    seen.browser.get_log("browser")
    seen.log_in("ada", PASSWORDS["ada"])
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    seen.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        seen.open()
        wide = seen.browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 360
    finally:
        seen.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [e for e in seen.browser.get_log("browser") if e["level"] == "SEVERE"] == []


def test_the_command_serves_the_page_on_this_machine_only(world: World, browser: Any) -> None:
    node = world.sites["south"].node_path
    Page(world, "browser-command")
    command = [sys.executable, "-m", "polyclinic.cli", "site", "web", "--node", str(node), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith("http://127.0.0.1:")
        assert len(address.split("/")[3]) >= 20, "the path is a secret"

        def there() -> bool:
            from selenium.common.exceptions import WebDriverException

            try:
                browser.get(address)
            except WebDriverException:
                return False
            return "Log in" in browser.page_source

        assert wait_until(there, every=0.5)
    finally:
        process.terminate()
        process.communicate(timeout=15)
