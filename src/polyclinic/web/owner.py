"""The owner's page: what is asked of a hospital, its studies, ledger and health. On this machine only, with a log-in.

The page has no script. A decision is a form with a token of its session, and it names the text that was shown.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from polyclinic.errors import PolyclinicError
from polyclinic.node.admission.membership import pending, show, studies
from polyclinic.node.dossier.audit_trail import said
from polyclinic.node.dossier.review import study_text, take_decision
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.node.monitor.snapshot import site_snapshot
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.safe_text import one_line
from polyclinic.web.accounts import ROLES, Accounts, PageAccount, accounts_of
from polyclinic.web.server import POLICY, STATIC, STYLE, protect

IDLE, LONGEST = 900.0, 28_800.0  # seconds of a session: without a request, and in all
TRIES, PAUSE = 5, 60.0  # wrong passwords within so many seconds; then nobody can log in for as long
SESSIONS: Final = 64
FORM: Final = 8192  # bytes
LINES: Final = 100  # of the ledger, the newest
COOKIE: Final = "polyclinic-owner"


@dataclass
class OwnerSession:
    """Somebody who has logged in."""

    user: str
    account: PageAccount
    begun: float
    last: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))


class Desk:
    """Sessions of one page.

    Parameters
    ----------
    accounts
        Who may log in.
    clock
        Seconds; tests give their own.
    """

    def __init__(self, accounts: Accounts, clock: Callable[[], float]) -> None:
        self.accounts, self.clock = accounts, clock
        self._sessions: dict[str, OwnerSession] = {}
        self._wrong: deque[float] = deque(maxlen=TRIES)
        self._lock = threading.Lock()  # one password at a time: each takes 32 MB

    def login(self, user: str, password: str) -> str:
        """Return the secret of a new session, or refuse."""
        with self._lock:
            now = self.clock()
            if len(self._wrong) == TRIES and now - self._wrong[0] < PAUSE:
                raise HTTPException(429, f"{TRIES} wrong passwords: wait {PAUSE:.0f} seconds")
            account = self.accounts.check(user, password)
            if account is None:
                self._wrong.append(now)
                raise HTTPException(403, "wrong name or password")
            self._sessions = {k: s for k, s in self._sessions.items() if self._valid(s)}
            if len(self._sessions) >= SESSIONS:
                raise HTTPException(429, "too many sessions: log out elsewhere")
            key = secrets.token_urlsafe(32)
            self._sessions[key] = OwnerSession(user, account, now, now)
            return key

    def _valid(self, s: OwnerSession) -> bool:
        now = self.clock()
        return (
            now - s.last <= IDLE and now - s.begun <= LONGEST and self.accounts.all().get(s.user) == s.account
        )  # a new password, another role: log in again

    def session(self, request: Request) -> OwnerSession | None:
        """Return the session of a request."""
        found = self._sessions.get(request.cookies.get(COOKIE, ""))
        if found is None or not self._valid(found):
            self.logout(request)
            return None
        found.last = self.clock()
        return found

    def logout(self, request: Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form that this page itself sent."""
    if request.headers.get("origin", "") != f"{request.url.scheme}://{request.headers.get('host', '')}":
        raise HTTPException(403, "a form of another page")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM:
            raise HTTPException(413, "the form is too long")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise HTTPException(400, "not a form of this page") from None
    return {k: v[0] for k, v in fields.items()}


class OwnerPage:
    """The answers of the page of one site.

    Parameters
    ----------
    node
        The node file. It is read again for every request.
    home
        First part of every path.
    clock
        Seconds, for the end of sessions.
    """

    def __init__(self, node: Path, home: str, clock: Callable[[], float]) -> None:
        self.node, self.home = node, home
        self.desk = Desk(Accounts(accounts_of(node)), clock)
        self._pages = Environment(
            loader=FileSystemLoader(STATIC),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=lambda v: one_line(v) if type(v) is str else v,
        )

    def page(self, name: str, code: int = 200, **values: Any) -> Response:
        """Return a page. Texts of others are escaped, and no character of theirs is left unprinted."""
        return HTMLResponse(self._pages.get_template(name).render(home=self.home, **values), code)

    def back(self, key: str | None = None) -> Response:
        """Go back to the first page, with the cookie of a new session."""
        answer = RedirectResponse(self.home, 303)
        if key is not None:
            path, age = self.home, int(LONGEST)
            answer.set_cookie(COOKIE, key, path=path, httponly=True, samesite="strict", max_age=age)
        return answer

    def asked_by(self, role: str, request: Request, form: Mapping[str, str]) -> OwnerSession:
        """Return the session of a form, if it has the session's token and a role that may send it."""
        session = self.desk.session(request)
        if session is None:
            raise HTTPException(401, "log in first")
        if not secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            raise HTTPException(403, "the form is not of this session")
        if not session.account.may(role):
            raise HTTPException(403, f"this needs the role {role}")
        return session

    def look(self, request: Request) -> Response:
        """Show everything, or the log-in."""
        session = self.desk.session(request)
        if session is None:
            return self.page("login.html")
        people = self.desk.accounts.all() if session.account.may("admin") else {}
        return self.page("owner.html", s=session, people=people, roles=ROLES, **contents(SiteFolder.of(self.node)))

    def style(self) -> Response:
        """Return the report's style and the pages' own."""
        text = STYLE.read_text("utf-8") + (STATIC / "page.css").read_text("utf-8")
        return PlainTextResponse(text, media_type="text/css")

    def login(self, request: Request, form: Mapping[str, str] = Depends(_form)) -> Response:
        """Begin a session."""
        key = self.desk.login(form.get("user", ""), form.get("password", ""))
        self.desk.logout(request)  # the session before, if there was one
        return self.back(key)

    def logout(self, request: Request, form: Mapping[str, str] = Depends(_form)) -> Response:
        """End a session."""
        self.asked_by("viewer", request, form)
        self.desk.logout(request)
        return self.back()

    def decide(self, request: Request, form: Mapping[str, str] = Depends(_form)) -> Response:
        """Accept or refuse a study or a release, under the name of the session."""
        session, name, verb = self.asked_by("officer", request, form), form.get("name", ""), form.get("verb", "")
        if verb not in ("accept", "refuse"):
            raise HTTPException(400, "neither accepted nor refused")
        folder = SiteFolder.of(self.node)
        shown = {s["order"]: s["shown"] for s in studies(folder) if "shown" in s}
        known = name in shown or name in [p.id for _, p in pending(folder)]
        if not known or (verb == "accept" and shown.get(name, "") != form.get("shown", "")):
            raise HTTPException(409, "what is asked has changed: read it again")
        take_decision(folder, name, accept=verb == "accept", by=f"{session.user} (site web)")
        return self.back()

    def people(self, request: Request, form: Mapping[str, str] = Depends(_form)) -> Response:
        """Add, change or remove an account."""
        self.asked_by("admin", request, form)
        user = form.get("user", "")
        if form.get("verb") == "remove":
            self.desk.accounts.remove(user)
        else:
            self.desk.accounts.put(user, form.get("role", ""), form.get("password", ""))
        return self.back()

    async def refused(self, request: Request, error: Exception) -> Response:
        """Say why something was not done."""
        if isinstance(error, HTTPException):
            return self.page("refused.html", error.status_code, what=str(error.detail), faults=())
        assert isinstance(error, PolyclinicError)
        return self.page("refused.html", 409, what=error.what, faults=[*error.faults, error.hint])


def create_owner_app(node: Path, *, secret: str, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """The application of one site.

    Parameters
    ----------
    node
        The node file.
    secret
        First part of every path. A cookie of this machine goes to all its ports: this one goes to this path only.
    clock
        Seconds, for the end of sessions.
    """
    app, home = FastAPI(title="Polyclinic", docs_url=None, redoc_url=None, openapi_url=None), f"/{secret}/"
    protect(app, lambda request: None, POLICY.replace("form-action 'none'", "form-action 'self'"))
    owner = OwnerPage(node, home, clock)
    app.get(home)(owner.look)
    app.get(home + "style.css")(owner.style)
    for form in (owner.login, owner.logout, owner.decide, owner.people):
        app.post(home + form.__name__)(form)
    app.add_exception_handler(HTTPException, owner.refused)
    app.add_exception_handler(PolyclinicError, owner.refused)
    return app


def contents(folder: SiteFolder) -> dict[str, Any]:
    """Return what the page shows: what waits, studies, budget and ledger, health."""
    found, book = studies(folder), ledger_of(folder.node)
    show(folder, found)
    asked = [s for s in found if s["state"] == "waiting" and "shown" in s]
    return {
        "asked": [(s, study_text(folder, s)) for s in asked],
        "releases": [p for _, p in pending(folder)],
        "going": {s["study"]: s["order"] for s in found if s["state"] in ("ready", "accepted", "aligned", "restored")},
        "health": site_snapshot(folder),
        "lines": [(e.number, e.time, said(e)) for e in book.entries[-LINES:]][::-1],
    }
