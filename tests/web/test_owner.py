"""The owner's page as an attacker meets it: no log-in, wrong role, forged forms, old sessions, hostile names."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("nvflare")

from fastapi.testclient import TestClient
from tests.node.test_flare_halves import TRIP, World

from polyclinic.cli import main
from polyclinic.errors import ConfigError
from polyclinic.node.admission.admission import consent
from polyclinic.node.enrolment.folders import append_event, private, write_json
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.web.accounts import Accounts, accounts_of
from polyclinic.web.owner import IDLE, LONGEST, PAUSE, TRIES, create_owner_app

BASE, SECRET = "http://127.0.0.1:8766", "s3cret-path"
HOME = f"/{SECRET}/"
PASSWORDS = {"vera": "viewer has a password", "otto": "officer has a password", "ada": "the admin has a password"}
ROLES = {"vera": "viewer", "otto": "officer", "ada": "admin"}


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Page:
    """A site whose owner is asked about one study, and its page."""

    def __init__(self, world: Any, name: str) -> None:
        self.site = world.sites["south"]
        self.order = world.order(world.study(name, TRIP.format(3, "plain")))
        write_json(private(self.site.study(self.order.digest)) / "order.json", {"order": self.order.encode()})
        append_event(self.site.events, event="waiting", study=self.order.id, reasons=["the owner has not accepted"])
        self.accounts = Accounts(accounts_of(self.site.node_path))
        write_json(self.accounts.path, world.accounts)
        self.clock = Clock()
        self.app = create_owner_app(self.site.node_path, secret=SECRET, clock=self.clock)

    def browser(self, user: str = "") -> TestClient:
        made = TestClient(self.app, base_url=BASE, follow_redirects=False)
        if user:
            assert self.log_in(made, user, PASSWORDS[user]).status_code == 303
        return made

    def log_in(self, client: TestClient, user: str, password: str) -> Any:
        return client.post(HOME + "login", data={"user": user, "password": password}, headers={"Origin": BASE})

    def fields(self, client: TestClient) -> dict[str, str]:
        """What the form for accepting the study holds."""
        text = client.get(HOME).text
        found = re.search(r'name="csrf" value="([^"]+)"', text)
        shown = re.search(r'name="shown" value="([0-9a-f]+)"', text)
        return {
            "csrf": found[1] if found else "",
            "verb": "accept",
            "name": self.order.digest,
            "shown": shown[1] if shown else "",
        }

    def decide(self, client: TestClient, origin: str | None = BASE, **changed: str) -> int:
        headers = {} if origin is None else {"Origin": origin}
        answer = client.post(HOME + "decide", data={**self.fields(client), **changed}, headers=headers)
        return int(answer.status_code)

    @property
    def consent(self) -> bool | None:
        return consent(self.order, self.site)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made: Any = World(tmp_path_factory.mktemp("owner"))
    accounts = Accounts(accounts_of(made.sites["south"].node_path))
    for user, role in ROLES.items():
        accounts.put(user, role, PASSWORDS[user])
    made.accounts = json.loads(accounts.path.read_text())  # hashed once: it takes a while
    return cast(World, made)


@pytest.fixture
def page(world: World, request: pytest.FixtureRequest) -> Page:
    return Page(world, re.sub("[^a-z]", "-", request.node.name)[:40])


def test_an_officer_reads_the_review_and_accepts_under_the_own_name(page: Page) -> None:
    client = page.browser("otto")
    text = client.get(HOME).text
    assert f"Study {page.order.id}" in text
    assert "Signed order" in text
    assert "Sites and their keys" in text
    assert page.consent is None
    assert page.decide(client) == 303
    assert page.consent is True
    line = [e.body for e in ledger_of(page.site.node).entries if e.kind == "accept"][-1]
    assert (line.by, line.order) == ("otto (site web)", page.order.digest)
    assert "otto (site web) accepted order" in client.get(HOME).text


def test_an_officer_refuses(page: Page) -> None:
    client = page.browser("otto")
    assert page.decide(client, verb="refuse") == 303
    assert page.consent is False


@pytest.mark.parametrize("verb", ["accept", "refuse"])
def test_a_viewer_decides_nothing(page: Page, verb: str) -> None:
    client = page.browser("vera")
    text = client.get(HOME).text
    assert 'name="verb" value="accept"' not in text
    assert page.decide(client, verb=verb, shown="") == 403
    assert page.consent is None


def test_without_a_log_in_nothing_is_shown_or_done(page: Page) -> None:
    client = page.browser()
    text = client.get(HOME).text
    assert "Log in" in text
    assert page.order.id not in text
    assert page.order.digest not in text
    for path in ("decide", "logout", "people"):
        data = {"csrf": "", "verb": "accept", "name": page.order.digest}
        assert client.post(HOME + path, data=data, headers={"Origin": BASE}).status_code == 401
    assert page.consent is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/login",
        "/decide",
        "/other/",
        f"/{SECRET[:-1]}/",
        "/static/owner.html",
        "/api/runs",
        "/docs",
        "/openapi.json",
    ],
)
def test_who_does_not_know_the_address_meets_nothing(page: Page, path: str) -> None:
    client = page.browser()
    assert client.get(path).status_code == 404
    assert client.post(path, headers={"Origin": BASE}).status_code in (404, 405)


@pytest.mark.parametrize(
    ("user", "password"),
    [("otto", "wrong password here"), ("otto", ""), ("nobody", PASSWORDS["otto"]), ("", ""), ("otto\0", "x" * 4000)],
)
def test_a_wrong_password_or_name_is_one_sentence(page: Page, user: str, password: str) -> None:
    client = page.browser()
    answer = page.log_in(client, user, password)
    assert answer.status_code == 403
    assert "wrong name or password" in answer.text
    assert "set-cookie" not in answer.headers


def test_guessing_is_slowed_down_and_ends(page: Page) -> None:
    client = page.browser()
    for _ in range(TRIES):
        assert page.log_in(client, "otto", "guessed wrongly").status_code == 403
    assert page.log_in(client, "otto", PASSWORDS["otto"]).status_code == 429, "the right one tells nothing now"
    assert page.log_in(client, "vera", PASSWORDS["vera"]).status_code == 429
    page.clock.now += PAUSE + 1
    assert page.log_in(client, "otto", PASSWORDS["otto"]).status_code == 303


@pytest.mark.parametrize("csrf", ["", "x", "another's"])
def test_a_form_without_the_sessions_token_does_nothing(page: Page, csrf: str) -> None:
    client = page.browser("otto")
    other = page.fields(page.browser("ada"))["csrf"]
    assert page.decide(client, csrf=other if csrf == "another's" else csrf) == 403
    assert page.consent is None


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:8766"]
)
def test_a_form_of_another_page_does_nothing(page: Page, origin: str | None) -> None:
    client = page.browser("otto")
    assert page.decide(client, origin=origin) == 403
    assert page.consent is None
    headers = {} if origin is None else {"Origin": origin}
    data = {"user": "otto", "password": PASSWORDS["otto"]}
    fresh = page.browser()
    assert fresh.post(HOME + "login", data=data, headers=headers).status_code == 403, "nobody is logged in by others"


def test_another_name_that_leads_here_is_refused(page: Page) -> None:
    client = page.browser("otto")
    rebound = {"Host": "rebound.example", "Origin": "http://rebound.example"}
    assert client.get(HOME, headers=rebound).status_code == 403
    assert client.post(HOME + "decide", data=page.fields(client), headers=rebound).status_code == 403
    assert page.consent is None


def test_the_cookie_is_closed_to_scripts_other_sites_and_other_paths(page: Page) -> None:
    answer = page.log_in(page.browser(), "otto", PASSWORDS["otto"])
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", f"path={HOME}", "max-age="))
    assert PASSWORDS["otto"] not in str(answer.headers)


def test_a_session_ends_when_it_is_idle(page: Page) -> None:
    client = page.browser("otto")
    fields = page.fields(client)
    page.clock.now += IDLE - 1
    assert page.order.id in client.get(HOME).text, "a look keeps it"
    page.clock.now += IDLE + 1
    assert client.post(HOME + "decide", data=fields, headers={"Origin": BASE}).status_code == 401
    assert "Log in" in client.get(HOME).text
    assert page.consent is None


def test_a_session_ends_after_its_longest_time(page: Page) -> None:
    client = page.browser("otto")
    for _ in range(int(LONGEST // (IDLE - 1)) + 1):
        page.clock.now += IDLE - 1
        text = client.get(HOME).text
    assert "Log in" in text


def test_logging_out_ends_the_session_also_for_a_copied_cookie(page: Page) -> None:
    client = page.browser("otto")
    copied = page.browser()
    copied.cookies.update(client.cookies)
    assert page.order.id in copied.get(HOME).text
    assert client.post(HOME + "logout", data=page.fields(client), headers={"Origin": BASE}).status_code == 303
    assert "Log in" in copied.get(HOME).text


def test_a_session_before_the_log_in_is_not_taken_over(page: Page) -> None:
    client = page.browser()
    client.cookies.set("polyclinic-owner", "chosen-by-an-attacker", path=HOME)
    page.log_in(client, "otto", PASSWORDS["otto"])
    thief = page.browser()
    thief.cookies.set("polyclinic-owner", "chosen-by-an-attacker", path=HOME)
    assert "Log in" in thief.get(HOME).text


@pytest.mark.parametrize("change", ["removed", "demoted", "another password"])
def test_a_changed_account_is_out_at_once(page: Page, change: str) -> None:
    client = page.browser("otto")
    fields = page.fields(client)
    if change == "removed":
        page.accounts.remove("otto")
    else:
        page.accounts.put("otto", "viewer" if change == "demoted" else "officer", "a new long password")
    assert client.post(HOME + "decide", data=fields, headers={"Origin": BASE}).status_code == 401
    assert page.consent is None


def test_consent_is_bound_to_what_was_shown(page: Page) -> None:
    client = page.browser("otto")
    assert page.decide(client, shown="0" * 64) == 409
    assert page.decide(client, name="f" * 64) == 409
    assert page.decide(client, name=page.order.id) == 409, "a name is no order"
    assert page.decide(client, name="../../etc/passwd") == 409
    assert page.decide(client, verb="destroy") == 400
    assert page.consent is None


def test_only_an_admin_manages_accounts(page: Page) -> None:
    put = {"verb": "put", "user": "mallory", "role": "admin", "password": "mallory's password"}
    for user in ("vera", "otto"):
        client = page.browser(user)
        assert "Accounts</h2>" not in client.get(HOME).text
        data = {**put, "csrf": page.fields(client)["csrf"]}
        assert client.post(HOME + "people", data=data, headers={"Origin": BASE}).status_code == 403
    assert set(page.accounts.all()) == set(ROLES)
    admin = page.browser("ada")
    data = {**put, "csrf": page.fields(admin)["csrf"]}
    assert admin.post(HOME + "people", data=data, headers={"Origin": BASE}).status_code == 303
    assert page.accounts.all()["mallory"].role == "admin"
    gone = {"verb": "remove", "user": "mallory", "csrf": page.fields(admin)["csrf"]}
    assert admin.post(HOME + "people", data=gone, headers={"Origin": BASE}).status_code == 303
    assert set(page.accounts.all()) == set(ROLES)


def test_names_of_others_are_text(page: Page) -> None:
    append_event(page.site.events, event="refused", study="<script>alert(1)</script>", what="x", reasons=["<b>y</b>"])
    append_event(page.site.events, event="waiting", study="turn\u202eed", reasons=[])
    text = page.browser("otto").get(HOME).text
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\u202e" not in text


def test_policy_is_strict_and_nothing_is_stored(page: Page) -> None:
    client = page.browser("otto")
    for path in (HOME, HOME + "style.css", "/nowhere"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin", "the address is a secret"
    text = client.get(HOME).text
    assert "onclick" not in text and "style=" not in text and "<script" not in text


def test_a_long_form_is_refused_before_it_is_read(page: Page) -> None:
    client = page.browser("otto")
    data = {**page.fields(client), "name": "x" * 100_000}
    assert client.post(HOME + "decide", data=data, headers={"Origin": BASE}).status_code == 413


@pytest.mark.parametrize("body", [b"\xff\xfe", b"csrf=" + b"&a=1" * 1000, b"{}", b"csrf"])
def test_a_form_that_is_none_changes_nothing(page: Page, body: bytes) -> None:
    client = TestClient(page.app, base_url=BASE, follow_redirects=False, raise_server_exceptions=False)
    page.log_in(client, "otto", PASSWORDS["otto"])
    answer = client.post(HOME + "decide", content=body, headers={"Origin": BASE})
    assert 400 <= answer.status_code < 500
    assert page.consent is None


# ---- the file of accounts


def test_accounts_are_hashed_salted_and_their_owners_alone(page: Page) -> None:
    path, value = page.accounts.path, json.loads(page.accounts.path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert not [p for p in PASSWORDS.values() if p in path.read_text()]
    page.accounts.put("twin", "viewer", PASSWORDS["otto"])
    assert page.accounts.all()["twin"].key != value["otto"]["key"]
    salt = bytes.fromhex(value["otto"]["salt"])
    made = hashlib.scrypt(PASSWORDS["otto"].encode(), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    assert made.hex() == value["otto"]["key"]
    page.accounts.remove("twin")


def test_a_file_that_others_may_read_lets_nobody_in(page: Page) -> None:
    client = page.browser("otto")
    page.accounts.path.chmod(0o644)
    try:
        assert page.decide(client) in (401, 409)
        assert page.log_in(client, "otto", PASSWORDS["otto"]).status_code == 409
    finally:
        page.accounts.path.chmod(0o600)
    assert page.consent is None


@pytest.mark.parametrize(
    ("name", "role", "password", "said"),
    [
        ("a b", "viewer", "long enough password", "letters, digits"),
        ("<b>", "viewer", "long enough password", "letters, digits"),
        ("eve", "owner", "long enough password", "one of viewer, officer, admin"),
        ("eve", "viewer", "short", "at least 12"),
    ],
)
def test_a_bad_account_is_refused_with_the_reason(
    tmp_path: Path, name: str, role: str, password: str, said: str
) -> None:
    accounts = Accounts(tmp_path / "accounts.json")
    with pytest.raises(ConfigError, match=said):
        accounts.put(name, role, password)
    assert not accounts.path.exists()


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": {"role": "king", "salt": "00", "key": "00"}}', '{"a": {}}'])
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    accounts = Accounts(tmp_path / "accounts.json")
    accounts.path.write_text(text)
    accounts.path.chmod(0o600)
    with pytest.raises(ConfigError):
        accounts.check("a", "whatever it is")


def test_the_command_adds_and_removes_accounts(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    node = world.sites["east"].node_path
    with pytest.raises(SystemExit, match="2"):
        main(["site", "web", "--node", str(node)])
    assert "site user" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("a long password here\n"))
    with pytest.raises(SystemExit, match="0"):
        main(["site", "user", "erin", "--role", "officer", "--node", str(node), "--json"])
    assert json.loads(capsys.readouterr().out) == {"accounts": {"erin": "officer"}}
    assert Accounts(accounts_of(node)).check("erin", "a long password here")
    with pytest.raises(SystemExit, match="0"):
        main(["site", "user", "erin", "--remove", "--node", str(node)])
    assert Accounts(accounts_of(node)).all() == {}
