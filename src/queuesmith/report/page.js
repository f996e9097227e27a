// Draws the figures of a report and keeps them in step with what the reader chooses.
(() => {
  const { element, resolve } = frame;

  addEventListener("DOMContentLoaded", () => {
    const drawing = JSON.parse(document.getElementById("queuesmith-drawing").textContent);
    const figures = new Map(drawing.figures.map((figure) => [figure.name, figure]));
    const others = drawing.policies.filter((policy) => policy.name !== drawing.reference);
    const preferred = others.find((policy) => policy.name === drawing.answer)
      || others.find((policy) => policy.shown) || others[0];
    const chosen = {
      load: drawing.load,
      metrics: drawing.metrics,
      policy: preferred ? preferred.name : null,
      shown: new Set(drawing.policies.filter((policy) => policy.shown).map((policy) => policy.name)),
    };

    const isDrawn = (trace, controls) => {
      const { load, policy } = trace.meta || {};
      if (load !== undefined && load !== chosen.load) return false;
      if (policy === undefined) return true;
      if (controls.includes("policy")) return policy === chosen.policy;
      return !controls.includes("legend") || chosen.shown.has(policy);
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
      const sizeOnPaper = figure.panels.length > 1
        ? { width: 340, height: 290 } : { width: 560, height: 440 };
      if (panel.style.height) sizeOnPaper.height = parseFloat(panel.style.height);
      return frame.draw(panel, traces, layout, context.join(", "), sizeOnPaper);
    };

    const labelOf = (items, name) => (items.find((item) => item.name === name) || { label: "" }).label;
    const panels = [...document.querySelectorAll(".panel")];
    const drawAll = () => Promise.all(panels.map(draw));

    const refresh = () => {
      for (const key of ["load", "metrics"]) {
        for (const input of document.querySelectorAll(`input[data-${key}]`)) {
          input.checked = input.dataset[key] === chosen[key];
        }
      }
      for (const body of document.querySelectorAll("tbody[data-load]")) {
        body.classList.toggle("other", body.dataset.load !== chosen.load);
      }
      for (const part of document.querySelectorAll("div[data-metrics]")) {
        part.classList.toggle("other", part.dataset.metrics !== chosen.metrics);
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

    let groups = 0;
    const segments = (place, key, items) => {
      groups += 1;
      place.setAttribute("role", "radiogroup");
      place.setAttribute("aria-label", key);
      for (const item of items) {
        const input = element("input", { type: "radio", name: `${key}-${groups}` });
        input.dataset[key] = item.name;
        input.addEventListener("change", () => { chosen[key] = item.name; refresh(); });
        place.append(element("label", { className: "segment" }, input,
          element("span", {}, item.label)));
      }
    };
    const build = {
      load: (place) => segments(place, "load", drawing.loads),
      metrics: (place) => segments(place, "metrics",
        [...document.querySelectorAll("div[data-metrics]")].map((part) =>
          ({ name: part.dataset.metrics, label: part.dataset.metrics }))),
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

    frame.start(panels, refresh, drawAll, (printing) => {
      for (const details of document.querySelectorAll("#leaderboard details")) {
        details.open = printing;
      }
    });
  });
})();
