"""The report and the live page in a real headless Chromium: drawn, usable by keyboard, nothing cut, nothing loaded from elsewhere."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import wait_until

import polyclinic as pc
from polyclinic.config import Study
from polyclinic.report.html import write_report
from polyclinic.studies.publish import publish
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import Run, RunFolder
from polyclinic.studies.simulate import run_study

pytestmark = pytest.mark.e2e

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --allow-file-access-from-files"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests; it logs its console and every request."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed: `make browser` installs them on Debian")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        made = webdriver.Chrome(options=options, service=Service(driver))
        made.get("about:blank")
        yield made
        made.quit()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 50 phenotypes at six sites, with the hostile code names of another test."""
    sites = pc.align(pc.datasets.icu_network(patients=400, seed=0))
    study = Study.parse(
        {
            "study": {"name": "fifty phenotypes", "replicate": 0, "description": "How does a large report open?"},
            "data": {"dataset": "icu_network"},
            "method": {"name": "localtf", "rank": 50, "aggregation": "plain"},
        }
    )
    model = pc.LocalTF(rank=50, rounds=2, seed=0).fit(sites)
    folder = RunFolder.create(tmp_path_factory.mktemp("large") / "run")
    folder.write_json(folder.study, {"study": study.to_json(), "sites": [s.name for s in sites], "versions": {}})
    Run.write(folder, model, sites)
    publish(folder, model, folder.read_json(folder.study), local=sites)
    folder.write_json(folder.metrics, {"fit": model.quality(sites)["fit"], "rounds": 2, "bytes_up": 1, "bytes_down": 1})
    value = json.loads((folder.path / "outcome.json").read_text())
    value["axes"][0]["names"][:3] = [
        "<script>window.broken=1</script>",
        "\"><img src=x onerror='window.broken=2'>",
        "שלום",
    ]
    (folder.path / "outcome.json").write_text(json.dumps(value))
    return write_report(folder)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with patient-level privacy."""
    study = Study.parse(
        {
            "study": {"name": "private phenotypes"},
            "data": {"dataset": "icu_network", "patients": 1200},
            "method": {"name": "dpem", "rank": 8, "rounds": 4, "aggregation": "masked"},
            "privacy": {"epsilon": 8.0},
        }
    )
    folder = RunFolder.create(tmp_path_factory.mktemp("private") / "run")
    run_study(study, make(study), folder)
    return write_report(folder)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run with every section: age, sex, an outcome and time to event."""
    study = Study.parse(
        {
            "study": {"name": "six units", "description": "Which phenotypes do six intensive care units share?"},
            "data": {"dataset": "icu_network", "patients": 1500, "people": True},
            "method": {"name": "sumals", "rank": 12, "rounds": 12, "aggregation": "masked"},
            "people": {"age": [0, 1, 50, 70, 120], "sex": True, "survival": {"time": "days", "event": "died"}},
            "evaluate": {},
        }
    )
    folder = RunFolder.create(tmp_path_factory.mktemp("findings") / "run")
    run_study(study, make(study), folder)
    return write_report(folder)


def _matrix_run(place: Path, method: str, **parameters: Any) -> Path:
    """The report of a run on two made-up hospitals' feature matrices."""
    from polyclinic.studies.registry import federated

    rng = np.random.default_rng(0)
    columns = ["age at the first admission", "creatinine (mg/dl)", "lactate", "urine output over 24 hours"]
    sites = []
    for name in ("north", "south"):
        y = rng.integers(0, 2, 90)
        sites.append(pc.Site(name, features=rng.normal(size=(90, 4)) + y[:, None] * [2, 1, 0, 0], labels=y))
    study = Study.parse(
        {
            "study": {"name": method},
            "features": {"columns": columns},
            "method": {"name": method, "aggregation": "plain", **parameters},
        }
    )
    folder = RunFolder.create(place / "run")
    run_study(study, federated(study), folder, sites=sites)
    return write_report(folder)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a mixture."""
    return _matrix_run(tmp_path_factory.mktemp("groups"), "gaussianmixture", n_components=2)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a similarity."""
    return _matrix_run(tmp_path_factory.mktemp("alike"), "unpsl", rounds=6)


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """A live server over an empty folder, and the browser that will look at it."""
    import socket

    import uvicorn

    from polyclinic.web.server import create_app

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(tmp_path, token="t" * 24), log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    browser.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    browser.get(f"{browser.address}?token={'t' * 24}")  # the cookie that every later request shows
    yield browser, tmp_path
    browser.get("about:blank")
    server.should_exit = True
    thread.join(10)
    listening.close()


def _until(what: Callable[[], Any]) -> Any:
    value = wait_until(what)
    assert value, "did not happen"
    return value


def _width(browser: Any, width: int, height: int = 900) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def _open(browser: Any, address: str) -> None:
    """Open a page; what was logged before it is forgotten."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(address)
    # on a busy machine the driver may come back while the page is still being read
    _until(
        lambda: browser.execute_script("return location.href !== 'about:blank' && document.readyState") == "complete"
    )


def _quiet(browser: Any, allowed: tuple[str, ...] = ("file:", "data:", "about:", "http://127.0.0.1")) -> None:
    """No console error, and no request beyond this machine."""
    assert [m for m in browser.get_log("browser") if m["level"] in ("SEVERE", "WARNING")] == []
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert asked and [u for u in asked if not u.startswith(allowed)] == []


LAYOUT = """
const cut = [], beyond = [], over = [];
const seen = (e) => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && e.checkVisibility(); };
const rolled = (e) => e.closest(".scroll, nav.tabs, pre, .skip");
for (const e of document.querySelectorAll("h1,h2,h3,h4,p,.v,.k,.badge,.codes .t,dd,dt,.place,button,figcaption,label,summary,.strip div,li")) {
  if (!seen(e) || rolled(e)) continue;
  if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline") cut.push(e.className + ":" + e.textContent.slice(0, 50));
  const r = e.getBoundingClientRect();
  if (r.right > innerWidth + 1 || r.left < -1) beyond.push(e.className + ":" + e.textContent.slice(0, 50));
}
const apart = (selector) => {
  const all = [...document.querySelectorAll(selector)].filter(seen).map((e) => [e, e.getBoundingClientRect()]);
  for (let i = 0; i < all.length; i++) for (let j = i + 1; j < Math.min(all.length, i + 12); j++) {
    const [a, p] = all[i], [b, q] = all[j];
    if (a.contains(b) || b.contains(a)) continue;
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1) over.push(selector + ": " + a.textContent.slice(0, 30) + " | " + b.textContent.slice(0, 30));
  }
};
[".tile", ".card", "figure", ".panel:not([hidden]) > *", ".codes li", "[role=tab]", "svg.chart text:not([transform])", ".controls > *"].forEach(apart);
for (const svg of document.querySelectorAll("svg.chart")) {
  if (!seen(svg)) continue;
  const s = svg.getBoundingClientRect();
  for (const t of svg.querySelectorAll("text")) {
    const r = t.getBoundingClientRect();
    if (r.left < s.left - 2 || r.right > s.right + 2 || r.top < s.top - 2 || r.bottom > s.bottom + 2) cut.push("chart:" + t.textContent.slice(0, 50));
  }
}
return { wide: document.documentElement.scrollWidth - innerWidth, cut, beyond, over };
"""


def _sound(browser: Any) -> None:
    found = browser.execute_script(LAYOUT)
    assert found["wide"] <= 0 and not found["cut"] and not found["beyond"] and not found["over"], found


def test_large_report_is_small_and_interactive(browser: Any, large: Path) -> None:
    assert large.stat().st_size < 5e6
    _width(browser, 1280)
    _open(browser, large.as_uri())
    _until(lambda: browser.execute_script("return document.querySelector('[role=tab][tabindex=\"0\"]') !== null"))
    assert browser.execute_script("return window.broken === undefined")
    _quiet(browser)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("which", ["large", "findings", "private", "groups", "alike"])
def test_no_tab_of_the_report_has_overlap_or_cut_text(
    browser: Any, request: pytest.FixtureRequest, which: str, width: int, tmp_path: Path
) -> None:
    path: Path = request.getfixturevalue(which)
    _width(browser, width)
    _open(browser, path.as_uri())
    for tab in browser.execute_script("return [...document.querySelectorAll('[role=tab]')].map((t) => t.id)"):
        browser.execute_script("document.getElementById(arguments[0]).click()", tab)
        _sound(browser)
        assert browser.save_screenshot(str(tmp_path / f"{tab}.png"))
    _quiet(browser)


def test_title_answer_and_forest_plot_are_on_the_first_screen(browser: Any, findings: Path) -> None:
    _width(browser, 1280, 800)
    _open(browser, findings.as_uri())
    ends = browser.execute_script(
        "return ['h1', '.answer', '.keys .badge', '.panel figure svg'].map((s) => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert ends == sorted(ends) and ends[0] > 0 and ends[-1] <= 800, ends
    text = browser.execute_script("return document.querySelector('.answer').textContent")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#finding-outcome ~ .sheet')].find((s) => s.textContent.includes('strongest codes')).querySelectorAll('tbody tr').values().map((r) => [r.cells[0].textContent, r.cells[1].textContent]).toArray()"
    )
    best = max(rows[1:], key=lambda r: float(r[1]))
    assert f"{best[0]} ({float(best[1]):.2f})" in text, "the comparison with the largest AUC is named"
    assert browser.execute_script("return document.querySelectorAll('[style]').length") == 0


def test_no_section_of_a_report_with_age_sex_and_time_is_empty(browser: Any, findings: Path) -> None:
    _open(browser, findings.as_uri())
    assert "Not part of this study" not in browser.execute_script("return document.body.textContent")


def test_charts_have_marks(browser: Any, large: Path, findings: Path, private: Path) -> None:
    _width(browser, 1280)
    for path, charts in ((large, 5), (findings, 12), (private, 3)):
        _open(browser, path.as_uri())
        marks = browser.execute_script(
            "return [...document.querySelectorAll('svg.chart')].map((s) => s.querySelectorAll('path.line, path[class^=h], .dot, .bar, .box').length)"
        )
        assert len(marks) >= charts and min(marks) > 0


def test_tabs_and_filters_work_by_keyboard(browser: Any, large: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    _width(browser, 1280)
    _open(browser, large.as_uri())

    def shown() -> list[str]:
        return browser.execute_script(  # type: ignore[no-any-return]
            "return [...document.querySelectorAll('.panel')].filter((p) => !p.hidden).map((p) => p.id)"
        )

    browser.execute_script("document.querySelector('[role=tab]').focus()")
    assert shown() == ["panel-summary"]
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    _until(lambda: shown() == ["panel-model"])  # a key takes a moment to arrive
    assert shown() == ["panel-model"]
    browser.switch_to.active_element.send_keys(Keys.END)
    assert shown() == ["panel-method"]
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert shown() == ["panel-summary"]
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    browser.execute_script("document.getElementById('find').focus()")
    browser.switch_to.active_element.send_keys("hemodialysis")
    left = browser.execute_script(
        "return [...document.querySelectorAll('.card')].filter((c) => !c.hidden).map((c) => c.dataset.text)"
    )
    assert 0 < len(left) < 50 and all("hemodialysis" in t for t in left)
    assert browser.execute_script("return document.getElementById('told').textContent") == f"{len(left)} of 50 shown"


def test_text_has_enough_contrast_in_dark_and_light(browser: Any, large: Path) -> None:
    _open(browser, large.as_uri())
    contrast = """
    const lum = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => { x = x / 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
    const ground = (e) => { while (e) { const b = getComputedStyle(e).backgroundColor; if (!/rgba\\(.*, 0\\)|transparent/.test(b)) return b; e = e.parentElement; } return "rgb(255,255,255)"; };
    const low = [];
    for (const e of document.querySelectorAll("h1,h2,h3,p,.v,.k,.badge,td,th,.t,.p,.c,summary,[role=tab],.note,.place,.n")) {
      const a = lum(getComputedStyle(e).color), b = lum(ground(e));
      const r = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      if (r < 4.5) low.push([e.className, e.textContent.slice(0, 30), r]);
    }
    return low.slice(0, 5);
    """
    for theme in ("light", "dark"):
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        assert browser.execute_script(contrast) == [], theme


def test_report_prints_in_a_sane_number_of_pages(browser: Any, private: Path) -> None:
    import base64

    _open(browser, private.as_uri())
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert 2 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 14


def test_a_round_is_on_the_page_without_reloading(page: tuple[Any, Path]) -> None:
    browser, root = page
    _width(browser, 1280)
    study = Study.parse({"study": {"name": "live"}, "method": {"name": "trip", "aggregation": "masked"}})
    folder = RunFolder.create(root / "run")
    folder.write_json(folder.study, {"study": study.to_json(), "sites": ["a", "b", "c"], "versions": {}})
    folder.append_progress({"kind": "round", "round": 1, "rounds": 9, "rmse_full": 0.5})
    _open(browser, browser.address)
    _until(lambda: browser.execute_script("return document.getElementById('tiles').textContent.includes('1 / 9')"))
    for n in (2, 3):
        folder.append_progress({"kind": "round", "round": n, "rounds": 9, "rmse_full": 0.5 / n})
        _until(
            lambda n=n: browser.execute_script(  # type: ignore[misc]
                f"return document.getElementById('tiles').textContent.includes('{n} / 9')"
            )
        )
    assert browser.execute_script("return document.querySelectorAll('#charts path.line').length") == 1
    assert "no privacy" in browser.execute_script("return document.getElementById('privacy').textContent")
    for width in (1280, 390):
        _width(browser, width)
        _sound(browser)
    _quiet(browser)


def test_a_real_run_is_followed_to_its_report(page: tuple[Any, Path]) -> None:
    browser, root = page
    _width(browser, 1280)
    _open(browser, browser.address)
    _until(lambda: browser.execute_script("return document.getElementById('name').textContent") == "No run yet")
    study = Study.parse(
        {
            "study": {"name": "followed", "replicate": 0},
            "data": {"dataset": "icu_network", "patients": 300},
            "method": {"name": "localtf", "rank": 4, "rounds": 6, "aggregation": "plain"},
        }
    )
    run_study(study, make(study), RunFolder.create(root / "a" / "run"))
    _until(lambda: browser.execute_script("return document.getElementById('state').textContent") == "finished")
    assert browser.execute_script("return document.getElementById('tiles').textContent").startswith("6 / 6")
    assert browser.execute_script("return document.querySelectorAll('#sites tbody tr').length") == 6
    browser.execute_script("document.getElementById('tab-runs').click()")
    link = _until(lambda: browser.execute_script("const a = document.querySelector('#all a'); return a && a.href"))
    _quiet(browser)
    _open(browser, link)
    browser.execute_script("document.getElementById('tab-privacy').click()")
    assert browser.execute_script("return document.getElementById('panel-privacy').hidden") is False
    _quiet(browser)


def test_axe_finds_no_violation(browser: Any, large: Path, findings: Path, private: Path) -> None:
    """All tabs, wide and narrow, light and dark. Axe is not part of the project: AXE names its file (axe.min.js).

    ``npm install axe-core`` in any folder outside the project, then ``AXE=FOLDER/node_modules/axe-core/axe.min.js``.
    """
    script = os.environ.get("AXE")
    if not script:
        pytest.skip("AXE names no file: install axe-core outside the project and set AXE to its axe.min.js")
    found = []
    browser.set_script_timeout(300)
    for page, width, theme in itertools.product((large, findings, private), (1280, 390), ("light", "dark")):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(page.as_uri())
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        browser.execute_cdp_cmd("Runtime.evaluate", {"expression": Path(script).read_text(encoding="utf-8")})
        for tab in browser.execute_script("return [...document.querySelectorAll('[role=tab]')].map(t => t.id)"):
            browser.execute_script("document.getElementById(arguments[0]).click()", tab)
            ids = browser.execute_async_script(
                "const done = arguments[0]; axe.run(document).then(r => done(r.violations.map(v => v.id)))"
            )
            found += [(page.parent.parent.name, width, theme, tab, i) for i in ids]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert found == []
