// What the scripts of all pages share. Anything that goes wrong is written to <html data-errors>,
// where a test, or a curious reader, can see it.
"use strict";
const frame = (() => {
  const root = document.documentElement;
  const complain = (what) => { root.dataset.errors = `${root.dataset.errors || ""}${what}\n`; };
  addEventListener("error", (event) => complain(event.message || "a resource failed to load"));
  addEventListener("unhandledrejection", (event) => complain(event.reason));
  document.addEventListener("securitypolicyviolation", (event) =>
    complain(`${event.violatedDirective}: ${event.blockedURI}`));

  const darkness = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  const theme = () => {
    const dark = darkness.matches && !printing;
    const [ink, soft, grid] = dark
      ? ["#d7dbe0", "#98a2ad", "#343a42"] : ["#2b3036", "#59636e", "#e4e7eb"];
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

  // {"column": 3} stands for the figure's column 3, which several traces share.
  const resolve = (value, columns) => {
    if (Array.isArray(value) || value === null || typeof value !== "object") return value;
    if ("column" in value) return columns[value.column];
    return Object.fromEntries(
      Object.entries(value).map(([key, inner]) => [key, resolve(inner, columns)]));
  };

  // Few round numbers between two ends, at least three of them, for a logarithmic axis.
  const STEPS = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]];
  const logTicks = (low, high) => {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const every = Math.max(1, Math.ceil((last - first) / 7));
    const inside = (value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9);
    for (const steps of STEPS) {
      const found = [];
      for (let power = first; power <= last; power += steps.length > 1 ? 1 : every) {
        found.push(...steps.map((step) => Number(`${step}e${power}`)).filter(inside));
      }
      if (found.length >= 3) return found;
    }
    const power = 10 ** Math.floor(Math.log10(high - low));
    const steps = [5, 2, 1, 0.5, 0.2].map((each) => each * power);
    const linear = steps.map((step) => {
      const found = [];
      for (let number = Math.ceil(low / step); number * step <= high; number += 1) {
        found.push(Number((number * step).toPrecision(6)));
      }
      return found;
    });
    return linear.find((found) => found.length >= 3) || linear.at(-1);
  };

  // Where a logarithmic axis starts and ends: what is drawn on it, or what its layout says.
  const ends = (axis, key, traces) => {
    if (axis.range) return axis.range.map((end) => 10 ** end);
    const values = traces.flatMap((trace) => {
      const error = trace[`error_${key}`];
      return [...(trace[key] || [])].flatMap((value, place) => !error ? [value]
        : [value, value + (error.array || [])[place], value - (error.arrayminus || [])[place]]);
    }).filter((value) => Number.isFinite(value) && value > 0);
    if (!values.length) return null;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = Math.max((high / low) ** 0.06, 1.02);
    return [low / pad, high * pad];
  };

  const withTicks = (layout, traces, width) => {
    const ticked = structuredClone(layout);
    const narrow = width < 420;
    if (narrow) ticked.title = { ...ticked.title, xref: "container", x: 0.02, font: { size: 13 } };
    for (const key of ["x", "y"]) {
      if (narrow && ticked[`${key}axis`]?.title) {
        ticked[`${key}axis`].title.font = { size: 11 };
      }
      const axis = ticked[`${key}axis`];
      if (!axis || axis.type !== "log" || axis.tickvals) continue;
      const found = ends(axis, key, traces.filter((trace) => (trace[`${key}axis`] || key) === key));
      if (!found) continue;
      let ticks = logTicks(...found);
      const room = key === "x" ? Math.max(3, Math.floor(width / 75)) : 8;
      while (ticks.length > room) ticks = ticks.filter((_, place) => place % 2 === 0);
      axis.tickvals = ticks;
      if (key === "x") axis.tickangle = 0;
      if (!axis.range && !axis.scaleanchor) axis.range = found.map(Math.log10);
    }
    return ticked;
  };

  // What a panel shows depends on what was chosen; its title's second line, context, says what was.
  // Paper has its own width, which the page learns too late; the sizes on it fit the print style.
  const draw = (panel, traces, layout, context, sizeOnPaper) => {
    const ticked = withTicks(layout, traces, printing ? sizeOnPaper.width : panel.clientWidth);
    return Plotly.react(panel, traces, {
      ...ticked,
      ...(printing ? sizeOnPaper : { autosize: true }),
      title: { ...ticked.title, subtitle: { text: escapeLabel(context) } },
      margin: { l: 50, r: 22, t: context ? 58 : 42, b: 44 },
      template: { layout: theme() },
    }, {
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
      // Without a pointer that hovers, the buttons would lie on the title for good.
      displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    });
  };

  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  const offerDownload = () => {
    const download = document.getElementById("download");
    download.addEventListener("click", () => {
      const text = document.getElementById("queuesmith-data").textContent;
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      element("a", { href: address, download: download.dataset.file || "comparison.json" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 1000);
    });
    download.hidden = false;
  };

  // Draw all panels now, and again when the colours or the paper change.
  const start = (panels, refresh, drawAll, onPrint = () => {}) => {
    offerDownload();
    darkness.addEventListener("change", drawAll);
    const print = (now) => { printing = now; onPrint(now); drawAll(); };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    root.classList.add("scripted");
    refresh().then(() => { root.dataset.drawn = String(panels.length); });
  };

  return { draw, element, resolve, start };
})();
