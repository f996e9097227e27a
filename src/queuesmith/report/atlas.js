// Draws the figures of an atlas and keeps figures and tables in step with what the reader chooses.
// Anything that goes wrong is written to <html data-errors>, where a test, or a curious reader, can
// see it. A trace or an element carries the conditions that it shows (meta, or data-when); it is
// there when each of them is what the reader chose.
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
    const choices = new Map(drawing.choices.map((choice) => [choice.name, choice]));
    const chosen = Object.fromEntries(drawing.choices.map((choice) => [choice.name, choice.first]));
    const darkness = matchMedia("(prefers-color-scheme: dark)");
    let printing = false;

    const holds = (conditions) =>
      Object.entries(conditions).every(([name, value]) => chosen[name] === value);

    // {"column": 3} stands for the figure's column 3, which several traces share, as they share
    // the style that each names by its number.
    const resolve = (value, columns) => {
      if (Array.isArray(value) || value === null || typeof value !== "object") return value;
      if ("column" in value) return columns[value.column];
      return Object.fromEntries(
        Object.entries(value).map(([key, inner]) => [key, resolve(inner, columns)]));
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

    // Plotly reads some HTML in its labels.
    const escapeLabel = (text) =>
      text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    const labelOf = (name) => {
      const option = choices.get(name).options.find((one) => one.name === chosen[name]);
      return option ? option.label : "";
    };

    const draw = (panel) => {
      const figure = figures.get(panel.dataset.figure);
      const { data, layout, follows, styles } = figure.panels[panel.dataset.panel];
      const traces = data.filter((trace) => holds(trace.meta || {}))
        .map(({ style, ...own }) => resolve({ ...styles[style], ...own }, figure.columns));
      const context = escapeLabel(follows.map(labelOf).join(", "));
      const missing = traces.length ? [] : [{
        text: "nothing to show here: no such runs, or all is tied", showarrow: false,
        xref: "paper", yref: "paper", x: 0.5, y: 0.5,
      }];
      const annotations = [...(layout.annotations || []), ...missing];
      return Plotly.react(panel, traces, {
        ...structuredClone(layout), annotations,
        ...(printing ? { width: 330, height: 300 } : { autosize: true }),
        title: { ...layout.title, subtitle: { text: context } },
        margin: { l: 50, r: 12, t: context ? 58 : 42, b: 44 },
        template: { layout: theme() },
      }, {
        responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
        // Without a pointer that hovers, the buttons would lie on the title for good.
        displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
      });
    };

    const panels = [...document.querySelectorAll(".panel")];
    const drawAll = () => Promise.all(panels.map(draw));
    const refresh = (changed) => {
      for (const select of document.querySelectorAll("select[data-choice]")) {
        select.value = chosen[select.dataset.choice];
      }
      for (const element of document.querySelectorAll("[data-when]")) {
        element.classList.toggle("other", !holds(JSON.parse(element.dataset.when)));
      }
      const follows = (panel) =>
        figures.get(panel.dataset.figure).panels[panel.dataset.panel].follows.includes(changed);
      return Promise.all(panels.filter((panel) => !changed || follows(panel)).map(draw));
    };

    const element = (tag, properties, ...children) => {
      const made = Object.assign(document.createElement(tag), properties);
      made.append(...children);
      return made;
    };
    for (const place of document.querySelectorAll(".control")) {
      const choice = choices.get(place.dataset.control);
      const select = element("select", {});
      select.dataset.choice = choice.name;
      for (const option of choice.options) {
        select.append(element("option", { value: option.name }, option.label));
      }
      select.addEventListener("change", () => {
        chosen[choice.name] = select.value;
        refresh(choice.name);
      });
      place.append(element("label", {}, `${choice.label} `, select));
    }

    const download = document.getElementById("download");
    download.addEventListener("click", () => {
      const text = document.getElementById("queuesmith-data").textContent;
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      element("a", { href: address, download: download.dataset.file }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
    download.hidden = false;

    darkness.addEventListener("change", drawAll);
    const print = (now) => { printing = now; drawAll(); };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    root.classList.add("scripted");
    refresh().then(() => { root.dataset.drawn = String(panels.length); });
  });
})();
