// Draws the figures of an atlas and keeps figures and tables in step with what the reader chooses. A
// trace or an element carries the conditions that it shows (meta, or data-when); it is there when
// each of them is what the reader chose.
(() => {
  const { element, resolve } = frame;

  addEventListener("DOMContentLoaded", () => {
    const drawing = JSON.parse(document.getElementById("queuesmith-drawing").textContent);
    const figures = new Map(drawing.figures.map((figure) => [figure.name, figure]));
    const choices = new Map(drawing.choices.map((choice) => [choice.name, choice]));
    const chosen = Object.fromEntries(drawing.choices.map((choice) => [choice.name, choice.first]));

    const holds = (conditions) =>
      Object.entries(conditions).every(([name, value]) => chosen[name] === value);

    const labelOf = (name) => {
      const option = choices.get(name).options.find((one) => one.name === chosen[name]);
      return option ? option.label : "";
    };

    const draw = (panel) => {
      const figure = figures.get(panel.dataset.figure);
      const { data, layout, follows, styles } = figure.panels[panel.dataset.panel];
      const traces = data.filter((trace) => holds(trace.meta || {}))
        // Traces share the style that each names by its number.
        .map(({ style, ...own }) => resolve({ ...styles[style], ...own }, figure.columns));
      const missing = traces.length ? [] : [{
        text: "nothing to show here: no such runs, or all is tied", showarrow: false,
        xref: "paper", yref: "paper", x: 0.5, y: 0.5,
      }];
      const annotations = [...(layout.annotations || []), ...missing];
      return frame.draw(panel, traces, { ...layout, annotations },
        follows.map(labelOf).join(", "), { width: 330, height: 300 });
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

    frame.start(panels, refresh, drawAll);
  });
})();
