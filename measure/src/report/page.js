// SPDX-License-Identifier: Apache-2.0
// In: the figures in the page's JSON elements. Out: drawn plots. It fetches nothing.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const figures = new Map();

  // The figure of a place for a payload; parsed once.
  const figureOf = (place, payload) => {
    const scripts = [...place.querySelectorAll('script[type="application/json"]')];
    const script = scripts.find((s) => !("payload" in s.dataset) || s.dataset.payload === payload);
    if (!script) return null;
    if (!figures.has(script)) figures.set(script, JSON.parse(script.textContent));
    return figures.get(script);
  };

  const themed = (layout) => {
    // A logarithmic axis names 1, 2 and 5 of each factor of ten in full.
    const steps = (old) => old.type === "log" ? { dtick: "D2", tickformat: "~g" } : {};
    const axis = (old) => ({ ...old, ...steps(old), gridcolor: colour("--grid"), linecolor: colour("--line"), tickcolor: colour("--line") });
    return {
      ...layout,
      // Points that stand for boxes stand side by side, as boxes do.
      ...(layout.boxmode === "group" ? { scattermode: "group" } : {}),
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
    };
  };

  const draw = (place) => {
    const group = place.closest(".plots");
    const chosen = group.querySelector('input[type="radio"]:checked');
    const figure = figureOf(place, chosen ? chosen.value : "");
    const plot = place.querySelector(".plot");
    if (!figure) { Plotly.purge(plot); plot.textContent = "Not measured with this payload, or without raw records."; return null; }
    if (!plot.classList.contains("js-plotly-plot")) plot.textContent = "";
    return Plotly.react(plot, figure.data, themed(figure.layout), figure.config);
  };

  const drawAll = () => {
    delete root.dataset.drawn;
    return Promise.all([...document.querySelectorAll("figure")].map(draw)).then(() => { root.dataset.drawn = "yes"; });
  };

  const button = document.getElementById("theme");
  const named = () => { button.textContent = dark() ? "Light" : "Dark"; };
  const keep = (theme) => { try { localStorage.setItem("ktsn-theme", theme); } catch { /* not kept then */ } };
  try { const kept = localStorage.getItem("ktsn-theme"); if (kept) root.dataset.theme = kept; } catch { /* none kept */ }
  button.hidden = false;
  named();
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    keep(root.dataset.theme);
    named();
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { named(); drawAll(); });
  for (const radio of document.querySelectorAll('.payload input')) radio.addEventListener("change", drawAll);
  drawAll();
})();
