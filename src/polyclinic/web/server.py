"""The live page's server: one static page, JSON, server-sent events. On this machine only, guarded by a token."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterable, Awaitable, Callable
from pathlib import Path
from typing import Final

from anyio import BrokenResourceError, ClosedResourceError
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from polyclinic import __version__
from polyclinic.errors import PolyclinicError
from polyclinic.studies.run_folder import RunFolder
from polyclinic.web.watch import PageWatch, find_runs

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
