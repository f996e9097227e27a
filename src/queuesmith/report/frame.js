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

  // {"column": 3} stands for the figure's column 3, which several traces share.
  const resolve = (value, columns) => {
    if (Array.isArray(value) || value === null || typeof value !== "object") return value;
    if ("column" in value) return columns[value.column];
    return Object.fromEntries(
      Object.entries(value).map(([key, inner]) => [key, resolve(inner, columns)]));
  };

  // What a panel shows depends on what was chosen; its title's second line, context, says what was.
  // Paper has its own width, which the page learns too late; the sizes on it fit the print style.
  const draw = (panel, traces, layout, context, sizeOnPaper) => Plotly.react(panel, traces, {
    ...structuredClone(layout),
    ...(printing ? sizeOnPaper : { autosize: true }),
    title: { ...layout.title, subtitle: { text: escapeLabel(context) } },
    margin: { l: 50, r: 12, t: context ? 58 : 42, b: 44 },
    template: { layout: theme() },
  }, {
    responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
    // Without a pointer that hovers, the buttons would lie on the title for good.
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  });

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
