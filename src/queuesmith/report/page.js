// Draws the figures of a report and keeps them in step with what the reader chooses. Anything that
// goes wrong is written to <html data-errors>, where a test, or a curious reader, can see it.
"use strict";
(() => {
  const root = document.documentElement;
  const complain = (what) => { root.dataset.errors = `${root.dataset.errors || ""}${what}\n`; };
  addEventListener("error", (event) => complain(event.message || "a resource failed to load"));
  addEventListener("unhandledrejection", (event) => complain(event.reason));
  document.addEventListener("securitypolicyviolation", (event) =>
    complain(`${event.violatedDirective}: ${event.blockedURI}`));

  addEventListener("DOMContentLoaded", () => {
    const drawing = JSON.parse(document.getElementById("queuesmith-drawing").textContent);
    const figures = new Map(drawing.figures.map((figure) => [figure.name, figure]));
    const others = drawing.policies.filter((policy) => policy.name !== drawing.reference);
    const preferred = others.find((policy) => policy.name === drawing.answer)
      || others.find((policy) => policy.shown) || others[0];
    const chosen = {
      load: drawing.load,
      policy: preferred ? preferred.name : null,
      shown: new Set(drawing.policies.filter((policy) => policy.shown).map((policy) => policy.name)),
    };
    const darkness = matchMedia("(prefers-color-scheme: dark)");
    let printing = false;

    // {"column": 3} stands for the figure's column 3, which several traces share.
    const resolve = (value, columns) => {
      if (Array.isArray(value) || value === null || typeof value !== "object") return value;
      if ("column" in value) return columns[value.column];
      return Object.fromEntries(
        Object.entries(value).map(([key, inner]) => [key, resolve(inner, columns)]));
    };

    const isDrawn = (trace, controls) => {
      const { load, policy } = trace.meta || {};
      if (load !== undefined && load !== chosen.load) return false;
      if (policy === undefined) return true;
      return controls.includes("policy") ? policy === chosen.policy : chosen.shown.has(policy);
    };

    const theme = () => {
      const dark = darkness.matches && !printing;
      const [ink, soft, grid] = dark
        ? ["#d7dbe0", "#98a2ad", "#343a42"] : ["#2b3036", "#77818c", "#e4e7eb"];
      const axis = {
        gridcolor: grid, linecolor: grid, zerolinecolor: grid, tickcolor: grid, automargin: true,
        ticks: "outside", title: { standoff: 10, font: { size: 13 } },
      };
      return {
        font: { family: "system-ui, sans-serif", size: 12, color: ink },
        title: { x: 0, xref: "paper", font: { size: 14 }, subtitle: { font: { size: 12, color: soft } } },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        xaxis: axis, yaxis: axis, hovermode: "closest", showlegend: false,
        modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
        hoverlabel: { bgcolor: dark ? "#22272e" : "#ffffff", font: { color: ink } },
      };
    };

    const draw = (panel) => {
      const figure = figures.get(panel.dataset.figure);
      const { data, layout } = figure.panels[panel.dataset.panel];
      const card = panel.closest("figure");
      const controls = [...card.querySelectorAll(".control")].map((item) => item.dataset.control);
      const traces = data.filter((trace) => isDrawn(trace, controls))
        .map((trace) => ({ ...resolve(trace, figure.columns), visible: true }));
      const context = [];
      if (controls.includes("load")) context.push(labelOf(drawing.loads, chosen.load));
      if (controls.includes("policy")) context.push(labelOf(drawing.policies, chosen.policy));
      // Paper has its own width, which the page learns too late; these fit the print style.
      const size = !printing ? { autosize: true }
        : figure.panels.length > 1 ? { width: 340, height: 290 } : { width: 560, height: 440 };
      return Plotly.react(panel, traces, {
        ...structuredClone(layout), ...size,
        title: { ...layout.title, subtitle: { text: escapeLabel(context.join(", ")) } },
        margin: { l: 50, r: 12, t: context.length ? 58 : 42, b: 44 },
        template: { layout: theme() },
      }, {
        responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
        // Without a pointer that hovers, the buttons would lie on the title for good.
        displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
      });
    };

    // Plotly reads some HTML in its labels.
    const escapeLabel = (text) =>
      text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    const labelOf = (items, name) => (items.find((item) => item.name === name) || { label: "" }).label;
    const panels = [...document.querySelectorAll(".panel")];
    const drawAll = () => Promise.all(panels.map(draw));

    const refresh = () => {
      for (const input of document.querySelectorAll("input[data-load]")) {
        input.checked = input.dataset.load === chosen.load;
      }
      for (const body of document.querySelectorAll("#loads tbody")) {
        body.classList.toggle("other", body.dataset.load !== chosen.load);
      }
      for (const chip of document.querySelectorAll("button.chip")) {
        const shown = chosen.shown.has(chip.dataset.policy);
        chip.setAttribute("aria-pressed", String(shown));
      }
      for (const select of document.querySelectorAll("select[data-policies]")) {
        select.value = chosen.policy;
      }
      return drawAll();
    };

    const element = (tag, properties, ...children) => {
      const made = Object.assign(document.createElement(tag), properties);
      made.append(...children);
      return made;
    };

    let groups = 0;
    const build = {
      load: (place) => {
        groups += 1;
        place.setAttribute("role", "radiogroup");
        place.setAttribute("aria-label", "load");
        for (const load of drawing.loads) {
          const input = element("input", { type: "radio", name: `load-${groups}` });
          input.dataset.load = load.name;
          input.addEventListener("change", () => { chosen.load = load.name; refresh(); });
          place.append(element("label", { className: "segment" }, input,
            element("span", {}, load.label)));
        }
      },
      policy: (place) => {
        const select = element("select", {});
        select.dataset.policies = "";
        for (const policy of others) {
          select.append(element("option", { value: policy.name }, policy.label));
        }
        select.addEventListener("change", () => { chosen.policy = select.value; refresh(); });
        place.append(element("label", {}, "policy ", select));
      },
      legend: (place) => {
        for (const policy of drawing.policies) {
          const line = element("i", { className: `line ${policy.dash}` });
          line.style.borderTopColor = policy.color;
          const chip = element("button", { type: "button", className: "chip" }, line, policy.label);
          chip.dataset.policy = policy.name;
          chip.addEventListener("click", () => {
            if (!chosen.shown.delete(policy.name)) chosen.shown.add(policy.name);
            refresh();
          });
          place.append(chip);
        }
      },
    };
    for (const place of document.querySelectorAll(".control")) build[place.dataset.control](place);

    const download = document.getElementById("download");
    download.addEventListener("click", () => {
      const text = document.getElementById("queuesmith-data").textContent;
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      element("a", { href: address, download: download.dataset.file || "comparison.json" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
    download.hidden = false;

    darkness.addEventListener("change", drawAll);
    const print = (now) => {
      printing = now;
      for (const details of document.querySelectorAll("#leaderboard details")) details.open = now;
      drawAll();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    root.classList.add("scripted");
    refresh().then(() => { root.dataset.drawn = String(panels.length); });
  });
})();
