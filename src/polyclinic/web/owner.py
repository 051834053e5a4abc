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
from polyclinic.web.accounts import ROLES, Account, Accounts, accounts_of
from polyclinic.web.server import POLICY, STATIC, STYLE, protect

IDLE, LONGEST = 900.0, 28_800.0  # seconds of a session: without a request, and in all
TRIES, PAUSE = 5, 60.0  # wrong passwords within so many seconds; then nobody can log in for as long
SESSIONS: Final = 64
FORM: Final = 8192  # bytes
LINES: Final = 100  # of the ledger, the newest
COOKIE: Final = "polyclinic-owner"


@dataclass
class Session:
    """Somebody who has logged in."""

    user: str
    account: Account
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
        self._sessions: dict[str, Session] = {}
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
            self._sessions[key] = Session(user, account, now, now)
            return key

    def _valid(self, s: Session) -> bool:
        now = self.clock()
        return (
            now - s.last <= IDLE and now - s.begun <= LONGEST and self.accounts.all().get(s.user) == s.account
        )  # a new password, another role: log in again

    def session(self, request: Request) -> Session | None:
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


def create_owner_app(node: Path, *, secret: str, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """The application of one site.

    Parameters
    ----------
    node
        The node file. It is read again for every request.
    secret
        First part of every path. A cookie of this machine goes to all its ports: this one goes to this path only.
    clock
        Seconds, for the end of sessions.
    """
    app = FastAPI(title="Polyclinic", docs_url=None, redoc_url=None, openapi_url=None)
    home = f"/{secret}/"
    desk = Desk(Accounts(accounts_of(node)), clock)
    protect(app, lambda request: None, POLICY.replace("form-action 'none'", "form-action 'self'"))
    pages = Environment(
        loader=FileSystemLoader(STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda v: one_line(v) if type(v) is str else v,
    )

    def page(name: str, code: int = 200, **values: Any) -> Response:
        return HTMLResponse(pages.get_template(name).render(home=home, **values), code)

    def back(key: str | None = None) -> Response:
        answer = RedirectResponse(home, 303)
        if key is not None:
            answer.set_cookie(COOKIE, key, path=home, httponly=True, samesite="strict", max_age=int(LONGEST))
        return answer

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return page("refused.html", error.status_code, what=str(error.detail), faults=())

    @app.exception_handler(PolyclinicError)
    async def fault(request: Request, error: PolyclinicError) -> Response:
        return page("refused.html", 409, what=error.what, faults=[*error.faults, error.hint])

    def asked_by(role: str) -> Callable[..., tuple[Session, Mapping[str, str]]]:
        """Return a check of a form: a session, its token, and a role that may send it."""

        def check(request: Request, form: Mapping[str, str] = Depends(_form)) -> tuple[Session, Mapping[str, str]]:
            session = desk.session(request)
            if session is None:
                raise HTTPException(401, "log in first")
            if not secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
                raise HTTPException(403, "the form is not of this session")
            if not session.account.may(role):
                raise HTTPException(403, f"this needs the role {role}")
            return session, form

        return check

    @app.get(home)
    def look(request: Request) -> Response:
        session = desk.session(request)
        if session is None:
            return page("login.html")
        folder = SiteFolder.of(node)
        people = desk.accounts.all() if session.account.may("admin") else {}
        return page("owner.html", s=session, people=people, roles=ROLES, **contents(folder))

    @app.get(home + "style.css")
    def style() -> Response:
        return PlainTextResponse(STYLE.read_text("utf-8") + (STATIC / "page.css").read_text("utf-8"), media_type="text/css")

    @app.post(home + "login")
    def login(request: Request, form: Mapping[str, str] = Depends(_form)) -> Response:
        key = desk.login(form.get("user", ""), form.get("password", ""))
        desk.logout(request)  # the session before, if there was one
        return back(key)

    @app.post(home + "logout")
    def logout(request: Request, asked: Any = Depends(asked_by("viewer"))) -> Response:  # noqa: B008
        desk.logout(request)
        return back()

    @app.post(home + "decide")
    def decide(asked: Any = Depends(asked_by("officer"))) -> Response:  # noqa: B008
        session, form = asked
        folder, name, accept = SiteFolder.of(node), form.get("name", ""), form.get("verb") == "accept"
        if form.get("verb") not in ("accept", "refuse"):
            raise HTTPException(400, "neither accepted nor refused")
        shown = {s["order"]: s["shown"] for s in studies(folder) if "shown" in s}
        known = name in shown or name in [p.id for _, p in pending(folder)]
        if not known or (accept and shown.get(name, "") != form.get("shown", "")):
            raise HTTPException(409, "what is asked has changed: read it again")
        take_decision(folder, name, accept=accept, by=f"{session.user} (site web)")
        return back()

    @app.post(home + "people")
    def people(asked: Any = Depends(asked_by("admin"))) -> Response:  # noqa: B008
        _, form = asked
        if form.get("verb") == "remove":
            desk.accounts.remove(form.get("user", ""))
        else:
            desk.accounts.put(form.get("user", ""), form.get("role", ""), form.get("password", ""))
        return back()

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
