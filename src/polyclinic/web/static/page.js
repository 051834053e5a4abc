"use strict";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const root = document.documentElement;

/* ---- small makers: text is only ever set as text */
const make = (tag, attributes = {}, ...children) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
  e.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return e;
};
const draw = (tag, attributes, text) => {
  const e = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
};
const number = (v) => {
  if (v === null || v === undefined) return "–";
  if (typeof v !== "number") return String(v);
  if (Number.isInteger(v)) return v.toLocaleString("en");
  return Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(Number(v.toPrecision(4)));
};
const size = (v) => {
  if (v === null || v === undefined) return "–";
  for (const [u, n] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (v >= u) return Number((v / u).toPrecision(3)) + " " + n;
  return v + " bytes";
};
const clock = (s) => (s ? new Date(s * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "–");
const table = (into, head, rows, empty) => {
  into.replaceChildren();
  if (!rows.length) { into.append(make("tbody", {}, make("tr", {}, make("td", { class: "soft" }, empty)))); return; }
  const numeric = (v) => typeof v === "number";
  const cell = (v) => make("td", { class: numeric(v) ? "num" : undefined }, v instanceof Node ? v : number(v));
  into.append(
    make("thead", {}, make("tr", {}, ...head.map((h, k) => make("th", { scope: "col", class: numeric(rows[0][k]) ? "num" : undefined }, h)))),
    make("tbody", {}, ...rows.map((r) => make("tr", {}, ...r.map(cell)))),
  );
};

/* ---- theme and tabs */
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
const paint = () => { root.dataset.theme = chosen || (dark.matches ? "dark" : "light"); };
paint();
dark.addEventListener("change", paint);
document.querySelector(".theme").addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; paint(); });

const tabs = [...document.querySelectorAll("[role=tab]")];
const show = (n, focus) => {
  tabs.forEach((t, k) => {
    t.setAttribute("aria-selected", String(k === n));
    t.tabIndex = k === n ? 0 : -1;
    $(t.getAttribute("aria-controls")).hidden = k !== n;
  });
  if (focus) tabs[n].focus({ preventScroll: true });
  const of = tabs[n].getAttribute("aria-controls");
  if (of === "runs") listRuns();
};
tabs.forEach((t, n) => {
  t.addEventListener("click", () => show(n));
  t.addEventListener("keydown", (e) => {
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    show((to + tabs.length) % tabs.length, true);
  });
});

tabs.forEach((t, n) => { t.tabIndex = n ? -1 : 0; });

/* ---- charts */
const ticks = (low, high, n) => {
  const raw = (high - low) / n, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * unit).find((s) => s >= raw);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
};
const short = (v) => {
  const a = Math.abs(v);
  if (a >= 1e6) return Number((v / 1e6).toPrecision(3)) + "M";
  if (a >= 1e4) return Number((v / 1e3).toPrecision(3)) + "k";
  return a && a < 1e-3 ? v.toExponential(0) : String(Number(v.toPrecision(4)));
};
const lines = (title, series, y) => {
  const drawn = series.map((s) => ({ ...s, points: s.points.filter((p) => Number.isFinite(p[1])) })).filter((s) => s.points.length);
  if (!drawn.length) return null;
  const W = 440, H = 240, L = 58, R = 14, T = 12, B = 40;
  const xs = drawn.flatMap((s) => s.points.map((p) => p[0])), ys = drawn.flatMap((s) => s.points.map((p) => p[1]));
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1);
  let y0 = Math.min(...ys), y1 = Math.max(...ys);
  const room = 0.06 * (y1 - y0) || 0.05 * Math.abs(y1) || 1;
  y0 -= room; y1 += room;
  const X = (v) => L + ((v - x0) / (x1 - x0)) * (W - L - R), Y = (v) => H - B - ((v - y0) / (y1 - y0)) * (H - T - B);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  for (const v of ticks(y0, y1, 5)) {
    svg.append(draw("line", { class: "rule", x1: L, x2: W - R, y1: Y(v).toFixed(1), y2: Y(v).toFixed(1) }), draw("text", { class: "tick", x: L - 7, y: (Y(v) + 4).toFixed(1), "text-anchor": "end" }, short(v)));
  }
  for (const v of ticks(x0, x1, 5)) if (Number.isInteger(v)) svg.append(draw("text", { class: "tick", x: X(v).toFixed(1), y: H - B + 17, "text-anchor": "middle" }, short(v)));
  svg.append(draw("text", { class: "axis", x: L + (W - L - R) / 2, y: H - 5, "text-anchor": "middle" }, "round"), draw("text", { class: "axis", x: 13, y: (H - B) / 2, "text-anchor": "middle", transform: `rotate(-90 13 ${(H - B) / 2})` }, y));
  drawn.forEach((s, n) => {
    svg.append(draw("path", { class: "line s" + n, d: "M" + s.points.map((p) => X(p[0]).toFixed(1) + " " + Y(p[1]).toFixed(1)).join("L") }));
    const last = s.points[s.points.length - 1];
    svg.append(draw("circle", { class: "dot s" + n, cx: X(last[0]).toFixed(1), cy: Y(last[1]).toFixed(1), r: 3.5 }));
  });
  const legend = drawn.length > 1 ? make("ul", { class: "legend" }, ...drawn.map((s, n) => make("li", { class: "s" + n }, s.name))) : null;
  return make("figure", {}, make("b", {}, title), legend, svg);
};

/* ---- one run, live */
let current = null, source = null, run = null, rounds = [];
const CURVES = [["objective", "Objective"], ["rmse_full", "Error over all cells"], ["rmse_observed", "Error over recorded cells"], ["log_likelihood", "Log-likelihood"], ["lower_bound", "Log-likelihood (bound)"], ["fit", "Fit"], ["primal", "Disagreement between sites"], ["noise_sd", "Noise (sd)"]];

const badge = (kind, text) => make("span", { class: "badge " + kind }, text);
const guarantee = () => {
  if (run.headline) return [run.guarantee, run.headline];
  if (run.asked) return ["information-theoretic", `asked for: ${run.asked.level || "patient"}-level epsilon ${run.asked.epsilon} at delta ${run.asked.delta ?? 1e-6}; certified when the run ends`];
  return ["none", "no privacy noise was asked for: no bound on what the released values reveal"];
};
const render = () => {
  if (!run) return;
  document.title = run.name + " – Polyclinic";
  $("name").textContent = run.name;
  $("state").textContent = run.state;
  $("state").className = "state " + run.state.split(" ")[0];
  const done = rounds.filter((r) => r.kind === "round");
  const last = done[done.length - 1] || {};
  const total = Math.max(...rounds.map((r) => r.rounds || 0), 0);
  const sent = done.filter((r) => Number.isFinite(r.bytes_up));
  const bytes = run.metrics.bytes_up ?? (sent.length ? sent.reduce((n, r) => n + r.bytes_up, 0) : null);
  const merit = CURVES.find(([k]) => k !== "noise_sd" && Number.isFinite(last[k]));
  const [kind, words] = guarantee();
  const tile = (value, what, withBadge) => make("div", { class: "tile" }, make("span", { class: "v" }, value), make("span", { class: "k" }, what), withBadge ? badge(kind, kind === "none" ? "no privacy bound" : words) : null);
  $("tiles").replaceChildren(
    tile(number(last.round ?? 0) + (total ? " / " + number(total) : ""), "rounds"),
    tile(number(run.sites.length), "sites"),
    ...(bytes === null ? [] : [tile(size(bytes), "sent by all sites")]),
    ...(merit ? [tile(number(last[merit[0]]), merit[1].toLowerCase(), true)] : []),
    ...(Number.isFinite(run.metrics.auc) ? [tile(number(run.metrics.auc), "outcome AUC, held-out patients", true)] : []),
  );
  $("privacy").replaceChildren(make("div", { class: "banner " + kind, role: "note" }, make("p", {}, make("strong", {}, "Privacy. "), words)));
  $("bar").max = total || 1;
  $("bar").value = run.state === "finished" ? total || 1 : last.round || 0;
  const seconds = eta(done, total);
  $("progress-text").textContent = run.state === "running" && seconds !== null ? `about ${seconds < 90 ? Math.round(seconds) + " s" : Math.round(seconds / 60) + " min"} left` : "";
  const figures = CURVES.map(([k, title]) => lines(title, [{ name: title, points: done.filter((r) => r[k] !== null && r[k] !== undefined).map((r) => [r.round, r[k]]) }], title.toLowerCase()));
  const moved = run.history.length ? run.history : sent;
  const traffic = moved.length ? lines("Bytes per round", [{ name: "from sites", points: moved.map((h) => [h.round, h.bytes_up]) }, { name: "to sites", points: moved.map((h) => [h.round, h.bytes_down]) }], "bytes") : null;
  $("charts").replaceChildren(...[...figures, traffic].filter(Boolean));
  table($("sites"), ["site", "state"], run.sites.map((s) => [s.name, s.state]), "No site has been heard of yet.");
  table($("messages"), ["time", "site", "message"], [...run.messages].reverse().map((m) => [m.time, m.site, m.text]), "No messages.");
  const keys = CURVES.map(([k]) => k).filter((k) => done.some((r) => Number.isFinite(r[k])));
  table($("rounds"), ["round", ...keys], done.map((r) => [r.round, ...keys.map((k) => r[k])]), "No round is done.");
};
const arrived = new Map();
const eta = (done, total) => {
  const last = done[done.length - 1];
  if (!last || !total || arrived.size < 3) return null;
  const [first] = arrived.entries();
  const per = (Date.now() - first[1]) / 1000 / Math.max(1, last.round - first[0]);
  return per * (total - last.round);
};
const follow = async (id) => {
  if (source) source.close();
  current = id;
  arrived.clear();
  const answer = await fetch("/api/run?id=" + encodeURIComponent(id));
  if (!answer.ok) { $("name").textContent = "This run cannot be read"; return; }
  const all = await answer.json();
  rounds = all.rounds;
  run = all;
  render();
  source = new EventSource(`/api/events?id=${encodeURIComponent(id)}&after=${rounds.length}`);
  source.addEventListener("round", (e) => { const r = JSON.parse(e.data); rounds.push(r); arrived.set(r.round, Date.now()); schedule(); });
  source.addEventListener("state", (e) => { run = JSON.parse(e.data); schedule(); });
};
let waitingFrame = false;
const schedule = () => {
  if (waitingFrame) return;
  waitingFrame = true;
  setTimeout(() => { waitingFrame = false; render(); }, 60);
};

/* ---- all runs */
const listRuns = async () => {
  const all = await (await fetch("/api/runs")).json();
  const pick = $("pick");
  const same = [...pick.options].map((o) => o.value).join("\n") === all.map((r) => r.id).join("\n");
  if (!same) pick.replaceChildren(...all.map((r) => make("option", { value: r.id }, `${r.name} (${r.id})`)));
  if (current !== undefined && current !== null) pick.value = current;
  table($("all"), ["run", "method", "state", "last news", "privacy", ""], all.map((r) => {
    const open = make("button", { type: "button" }, "Follow");
    open.addEventListener("click", () => { $("pick").value = r.id; follow(r.id); show(0, true); });
    const links = make("span", {}, open, " ", r.has_report ? make("a", { href: "/report?id=" + encodeURIComponent(r.id), target: "_blank", rel: "noopener" }, "Report") : null);
    return [r.name, r.method || "–", r.state, clock(r.changed), r.headline || "–", links];
  }), "No run is in this folder.");
  return all;
};
$("pick").addEventListener("change", () => follow($("pick").value));

(async () => {
  const all = await listRuns();
  if (all.length) await follow(all[0].id);
  else { $("name").textContent = "No run yet"; $("state").textContent = "waiting"; }
  if (!all.length) { const wait = setInterval(async () => { const now = await listRuns(); if (now.length) { clearInterval(wait); follow(now[0].id); } }, 1000); }
})();
