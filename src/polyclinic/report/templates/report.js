(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paint = () => { root.dataset.theme = chosen || (dark.matches ? "dark" : "light"); };
  paint();
  dark.addEventListener("change", paint);

  document.addEventListener("DOMContentLoaded", () => {
    const theme = document.querySelector(".theme");
    theme.hidden = false;
    theme.addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; paint(); });

    const tabs = [...document.querySelectorAll("[role=tab]")];
    const panels = tabs.map((t) => document.getElementById(t.getAttribute("aria-controls")));
    const show = (n, focus) => {
      tabs.forEach((t, k) => {
        t.setAttribute("aria-selected", String(k === n));
        t.tabIndex = k === n ? 0 : -1;
        panels[k].hidden = k !== n;
      });
      if (focus) tabs[n].focus({ preventScroll: true });
      const bar = tabs[n].parentElement;
      if (focus !== undefined || location.hash) history.replaceState(null, "", "#" + panels[n].id.slice(6));
      bar.scrollLeft = tabs[n].offsetLeft - bar.offsetLeft - (bar.clientWidth - tabs[n].offsetWidth) / 2;
    };
    const top = () => document.querySelector("header.top").offsetHeight;
    tabs.forEach((t, n) => {
      t.addEventListener("click", () => { show(n, false); window.scrollTo(0, Math.min(window.scrollY, top())); });
      t.addEventListener("keydown", (e) => {
        const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[e.key];
        if (to === undefined) return;
        e.preventDefault();
        show((to + tabs.length) % tabs.length, true);
      });
    });
    const at = panels.findIndex((p) => "#" + p.id.slice(6) === location.hash);
    document.querySelector("nav.tabs").hidden = false;
    show(Math.max(at, 0));
    document.querySelectorAll("[data-go]").forEach((b) => b.addEventListener("click", (e) => {
      e.preventDefault();
      show(panels.findIndex((p) => p.id === "panel-" + b.dataset.go), true);
      window.scrollTo(0, top());
    }));

    const cards = [...document.querySelectorAll(".card[data-text]")];
    if (!cards.length) return;
    const find = document.getElementById("find"), which = document.getElementById("which"), by = document.getElementById("by");
    const told = document.getElementById("told");
    const filter = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      let n = 0;
      for (const c of cards) {
        const fits = words.every((w) => c.dataset.text.includes(w)) && (which.value === "all" || c.dataset.is.split(" ").includes(which.value));
        c.hidden = !fits;
        n += fits ? 1 : 0;
      }
      told.textContent = n + " of " + cards.length + " shown";
    };
    const sort = () => {
      const key = by.value;
      [...cards].sort((a, b) => Number(b.dataset[key]) - Number(a.dataset[key])).forEach((c) => c.parentElement.append(c));
    };
    find.addEventListener("input", filter);
    which.addEventListener("change", filter);
    by.addEventListener("change", sort);
    filter();
  });
})();
