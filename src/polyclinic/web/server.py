"""The live page's server: one static page, JSON, server-sent events. On this machine only, guarded by a token.

``PageWatch`` sees of a run only names, rounds, figures, bytes and budgets. Never a patient's row.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from anyio import BrokenResourceError, ClosedResourceError
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from polyclinic import __version__
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.studies.run_folder import RunFolder

QUIET: Final = 120.0  # seconds without news after which an unfinished run counts as stopped
DEPTH: Final = 4
MESSAGES: Final = 50
HIDDEN: Final = ("simulation_only",)


def find_runs(root: Path) -> dict[str, Path]:
    """Run folders under a folder by a short name, newest first; the folder itself if it is one.

    The names are the only way to a run: a request can ask for one of these and nothing else.
    """
    found = [p for p in _folders(root, DEPTH) if (p / "study.json").is_file() or (p / "progress.jsonl").is_file()]
    runs = [p for p in found if not any(q != p and q in p.parents for q in found)]
    runs.sort(key=lambda p: -_changed(p))
    return {str(p.relative_to(root)) if p != root else root.resolve().name: p for p in runs}


def _folders(root: Path, depth: int) -> list[Path]:
    if not root.is_dir():
        return []
    out = [root]
    if depth:
        with os.scandir(root) as entries:
            inside = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
        for name in inside:
            out += _folders(root / name, depth - 1)
    return out


@dataclass(frozen=True)
class PageWatch:
    """One run folder, read again at every question."""

    path: Path

    def rounds(self, start: int = 0) -> list[dict[str, Any]]:
        """Progress events from line ``start`` on, figures beside the rest, whichever engine wrote them."""
        out = []
        for line in _lines(self.path / "progress.jsonl")[start:]:
            value = _json(line)
            figures = value.pop("figures", {}) if isinstance(value.get("figures"), dict) else {}
            out.append({**value, **{k: v for k, v in figures.items() if v is None or isinstance(v, int | float | str)}})
        return out

    def brief(self) -> dict[str, object]:
        """One line of a list of runs."""
        study, outcome = _file(self.path / "study.json"), _file(self.path / "outcome.json")
        finished = (self.path / "metrics.json").is_file()
        refusal = self.refusal()
        return {
            "name": ((study.get("study") or {}).get("study") or {}).get("name") or self.path.name,
            "method": ((study.get("study") or {}).get("method") or {}).get("name"),
            "state": "stopped" if refusal else self._state(finished),
            "changed": _changed(self.path),
            "guarantee": (outcome.get("privacy") or {}).get("guarantee"),
            "headline": refusal or (outcome.get("privacy") or {}).get("headline"),
            "has_report": finished and bool(outcome) and not refusal,
        }

    def refusal(self) -> str:
        """Return why this version does not read the folder. Empty if it does."""
        try:
            RunFolder(self.path).check_format()
        except ConfigError as e:
            return e.what
        except ValueError:  # not JSON: shown as far as it can be read
            pass
        return ""

    def snapshot(self) -> dict[str, object]:
        """Everything the page shows of a run but its rounds."""
        study, metrics = _file(self.path / "study.json"), _file(self.path / "metrics.json")
        outcome = _file(self.path / "outcome.json")
        asked = (study.get("study") or {}).get("privacy")
        return {
            **self.brief(),
            "asked": asked,
            "metrics": {k: v for k, v in metrics.items() if k not in HIDDEN},
            "sites": self._sites(study.get("sites") or []),
            "messages": self._messages(),
            "history": [
                {"round": h.get("round"), "bytes_up": h.get("bytes_up"), "bytes_down": h.get("bytes_down")}
                for h in outcome.get("history") or []
            ],
        }

    def _state(self, finished: bool) -> str:
        if finished:
            return "finished"
        said = _file(self.path / "status.json").get("state")  # of a study between hosts
        if said in ("stopped", "failed", "finished", "cancelled"):
            return "stopped" if said == "failed" else str(said)
        if said == "submitted":
            return "waiting for the sites"
        return "running" if time.time() - _changed(self.path) < QUIET else "stopped"

    def _sites(self, names: Sequence[str]) -> list[dict[str, object]]:
        states: dict[str, str] = {}
        for e in map(_json, _lines(self.path / "events.jsonl")):
            if e.get("site") and e.get("event"):
                states[str(e["site"])] = str(e["event"])
        return [{"name": name, "state": states.get(name, "no news")} for name in sorted({*names, *states})]

    def _messages(self) -> list[dict[str, object]]:
        """News for the owner: states of sites, refusals, aborted sums; newest last."""
        out = []
        for e in map(_json, _lines(self.path / "events.jsonl")):
            reasons = e.get("reasons") or []
            text = str(e.get("event", "")) + (f": {'; '.join(map(str, reasons))}" if reasons else "")
            out.append({"time": e.get("time", ""), "site": e.get("site", ""), "text": text[:500]})
        return out[-MESSAGES:]


def _lines(path: Path) -> list[str]:
    """Complete lines of a file that may be growing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return text.split("\n")[:-1]


def _json(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _file(path: Path) -> dict[str, Any]:
    try:
        stat = path.stat()
        return _read_file(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, UnicodeDecodeError):
        return {}


@lru_cache(maxsize=128)
def _read_file(path: Path, size: int, changed: int) -> dict[str, Any]:
    return _json(path.read_text(encoding="utf-8"))


def _changed(path: Path) -> float:
    files = [path / n for n in ("progress.jsonl", "events.jsonl", "metrics.json", "study.json")]
    return max((f.stat().st_mtime for f in files if f.is_file()), default=0.0)


STATIC: Final = Path(__file__).parent / "static"
STYLE: Final = Path(__file__).parent.parent / "report" / "templates" / "style.css"
FILES: Final = {"page.js": "text/javascript", "page.css": "text/css"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The report carries its own stricter policy in the file; here it is also cut off from this page's origin.
REPORT_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
LOCAL: Final = ("127.0.0.1", "localhost", "::1")  # a name of another web site that leads here is none of these
COOKIE: Final = "polyclinic"
EVERY: Final = 0.4  # seconds between looks at the folder


def create_app(root: Path, *, token: str) -> FastAPI:
    """The application that serves runs under ``root``.

    Parameters
    ----------
    root
        A run folder, or a folder of them.
    token
        Asked of every request: other accounts of this machine may not read a run.
    """
    app = FastAPI(title="Polyclinic", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    root = root.resolve()

    protect(app, lambda request: _token_missing(request, token), POLICY)

    @app.exception_handler(PolyclinicError)
    async def fault(request: Request, error: PolyclinicError) -> Response:
        text = {"error": error.code, "what": error.what, "faults": list(error.faults)}
        return JSONResponse(text, status_code=409)

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "page.html", media_type="text/html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name == "style.css":
            return FileResponse(STYLE, media_type="text/css")
        if name not in FILES:
            raise HTTPException(404)
        return FileResponse(STATIC / name, media_type=FILES[name])

    _reading(app, root)
    app.add_middleware(_Closed)
    return app


def protect(app: FastAPI, refuse: Callable[[Request], Response | None], policy: str) -> None:
    """Answer only requests of this machine's own pages that ``refuse`` has nothing against, under a strict policy."""

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _foreign(request) or refuse(request)
        response = refused if refused is not None else await go_on(request)
        response.headers.setdefault("Content-Security-Policy", policy)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"  # with none at all, a form would not say whose it is
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cache-Control"] = "no-store"
        return response


def _reading(app: FastAPI, root: Path) -> None:
    """What can be read of the runs: their list, one of them as it goes, the report."""

    @app.get("/api/runs")
    def runs() -> list[dict[str, object]]:
        return [{"id": k, **PageWatch(p).brief()} for k, p in find_runs(root).items()]

    @app.get("/api/run")
    def run(id: str) -> dict[str, object]:
        watch = _watch(root, id)
        return {**watch.snapshot(), "rounds": watch.rounds()}

    def named(id: str) -> PageWatch:  # before the stream begins: an unknown run is a 404, not a broken stream
        return _watch(root, id)

    @app.get("/api/events", response_class=EventSourceResponse)
    async def events(
        request: Request,
        watch: PageWatch = Depends(named),  # noqa: B008 - this is how the framework is told
    ) -> AsyncIterable[ServerSentEvent]:
        seen = int(request.headers.get("last-event-id") or request.query_params.get("after") or 0)
        before = ""
        while True:
            for value in await asyncio.to_thread(watch.rounds, seen):
                seen += 1
                yield ServerSentEvent(data=value, event="round", id=str(seen))
            snapshot = await asyncio.to_thread(watch.snapshot)
            text = json.dumps(snapshot, sort_keys=True, default=str)
            if text != before:
                before = text
                yield ServerSentEvent(data=snapshot, event="state")
            await asyncio.sleep(EVERY)

    @app.get("/report")
    def report(id: str) -> Response:
        path = _watch(root, id).path
        RunFolder(path).check_format()
        from polyclinic.report.contents import RunContents
        from polyclinic.report.html import render

        file = path / "report.html"
        fresh = file.is_file() and file.stat().st_mtime >= (path / "metrics.json").stat().st_mtime
        text = file.read_text(encoding="utf-8") if fresh else render(RunContents.read(path))
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


class _Closed:
    """A page that is closed while events flow to it is no error."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except* (BrokenResourceError, ClosedResourceError):
            pass


def _watch(root: Path, id: str) -> PageWatch:
    found = find_runs(root)
    if id not in found:
        raise HTTPException(404, "no such run")
    return PageWatch(found[id])


def _foreign(request: Request) -> Response | None:
    """Refuse a request that another web site sent, or that reached this machine under another name."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and origin.split("://", 1)[-1] != host:
        return PlainTextResponse("requests from other sites are refused\n", 403)
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.strip("[]") not in LOCAL:
        return PlainTextResponse("this page answers on this machine only\n", 403)
    return None


def _token_missing(request: Request, token: str) -> Response | None:
    """Refuse a request without the token. The address that the command printed sets it."""
    shown = request.query_params.get("token", "") if request.url.path == "/" else ""
    if shown and secrets.compare_digest(shown.encode(), token.encode()):
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    given = request.cookies.get(COOKIE, "") or bearer
    if not secrets.compare_digest(given.encode(), token.encode()):
        return PlainTextResponse("a token is needed: open the address that the command printed\n", 401)
    return None
