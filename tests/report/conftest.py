"""A small comparison that was really run, and a browser that looks at pages."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape

import pytest
from compared import LOADS, POLICIES, make_trace, renamed

from queuesmith.comparison.compare import compare
from queuesmith.config import EngineConfig


@pytest.fixture(scope="session")
def comparison():
    """Order matters at knee and heavy; sjf_aging is the answer and the others break guards."""
    made = compare(
        make_trace(),
        POLICIES,
        LOADS,
        config=EngineConfig(max_num_seqs=64, max_num_batched_tokens=2048),
        num_windows=8,
        window_len=200,
        num_workers=2,
        notes=("the step times were not measured: `calibrate` measures them",),
    )
    made.config["command"] = "queuesmith compare AzureLLMInferenceTrace_conv.csv --windows 8"
    return made


@pytest.fixture(scope="session")
def large_comparison(comparison):
    """As large as the report is made for: 25 policies at 6 loads, by naming some again."""
    parts = []
    for load_turn in range(2):
        loads = {name: name + "+" * load_turn for name in LOADS}
        for turn in range(4):
            names = {name: name + "x" * turn for name in comparison.config["policies"]}
            parts.append(renamed(comparison, names | {"fcfs": "fcfs"}, loads))
    first = parts[0]
    board = {row.policy: row for part in parts[:4] for row in part.leaderboard}
    rows = {(row.load, row.policy): row for part in parts for row in part.loads}
    return replace(
        first,
        leaderboard=tuple(sorted(board.values(), key=lambda row: not row.eligible)),
        loads=tuple(row for _, row in sorted(rows.items(), key=lambda item: item[0][0])),
        config=first.config | {"policies": list(board)},
        samples={key: sample for part in parts for key, sample in part.samples.items()},
    )


@pytest.fixture(scope="session")
def open_in_browser(tmp_path_factory):
    """Return a function that opens a page and comes back with its elements."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium or chrome on the path")

    def open_page(text, dark=False):
        folder = tmp_path_factory.mktemp("browser")
        page = folder / "page.html"
        page.write_text(text, encoding="utf-8")
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=10000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--dump-dom",
        ]
        if os.name == "posix" and os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to run as root with it
        done = subprocess.run(
            [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    return open_page


#: What a reader would complain of, found in a frame that holds a page.
AUDIT = """
const parts = (text) => text.match(/-?[0-9.]+(e-?[0-9]+)?/g).map(Number);
const color = (text) => {
  const [r, g, b, a = 1] = parts(text.replace("srgb", ""));
  return text.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
};
const over = (top, below) => top.slice(0, 3).map((x, k) => x * top[3] + below[k] * (1 - top[3]));
const light = (rgb) => {
  const [r, g, b] = rgb.map((x) => x / 255).map((x) =>
    x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const audit = (page, view) => {
  const found = { errors: page.documentElement.dataset.errors || "", contrast: [], axes: [],
    hidden: [], backticks: [], dark: view.matchMedia("(prefers-color-scheme: dark)").matches };
  const root = page.documentElement;
  found.wide = root.scrollWidth > root.clientWidth ? root.scrollWidth : 0;
  for (const one of page.querySelectorAll(".scroll")) {
    if (one.offsetParent && one.scrollWidth > one.clientWidth + 1) {
      found.hidden.push(`${one.firstElementChild.id || one.innerText.slice(0, 40)}: ` +
        `${one.scrollWidth} in ${one.clientWidth}`);
    }
  }
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(color(view.getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const check = (element, ink, text) => {
    const opacity = (each) => each ? opacity(each.parentElement) *
      view.getComputedStyle(each).opacity : 1;
    const below = ground(element.closest("svg") ? element.closest("svg").parentElement : element);
    const seen = over([...color(ink).slice(0, 3), color(ink)[3] * opacity(element)], below);
    const [a, b] = [light(seen), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.contrast.push(`${ratio.toFixed(2)}: ${text.trim().slice(0, 40)}`);
  };
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    if (node.data.includes("`") && !element.closest("pre")) found.backticks.push(node.data);
    if (element.closest("svg")) continue;
    check(element, view.getComputedStyle(element).color, node.data);
  }
  for (const panel of page.querySelectorAll(".panel")) {
    if (!panel.getClientRects().length) continue;
    const place = `${panel.dataset.figure} ${panel.dataset.panel}`;
    const texts = panel.querySelectorAll(".xtick text, .ytick text, .gtitle, .xtitle, .ytitle");
    for (const text of texts) {
      check(text, view.getComputedStyle(text).fill, text.textContent);
      const [box, room] = [text.getBoundingClientRect(), panel.getBoundingClientRect()];
      if (box.left < room.left - 2 || box.right > room.right + 2) {
        found.axes.push(`${place}: "${text.textContent}" is cut`);
      }
    }
    for (const axis of ["x", "y"]) {
      const labels = [...panel.querySelectorAll(`.${axis}tick text`)];
      if (labels.length === 1) found.axes.push(`${place}: one label on ${axis}`);
      const boxes = labels.filter((text) => !/rotate\\((?!0,)/.test(text.getAttribute("transform")))
        .map((text) => text.getBoundingClientRect())
        .sort((a, b) => axis === "x" ? a.left - b.left : a.top - b.top);
      boxes.slice(1).forEach((box, k) => {
        const before = boxes[k];
        const gap = axis === "x" ? box.left - before.right : box.top - before.bottom;
        if (gap < -2) found.axes.push(`${place}: labels on ${axis} overlap by ${-gap}`);
      });
    }
  }
  return found;
};
const frame = document.querySelector("iframe");
setInterval(() => {
  const page = frame.contentDocument;
  if (!page || !page.documentElement.dataset.drawn) return;
  document.documentElement.dataset.audit = JSON.stringify(audit(page, frame.contentWindow));
}, 300);
"""


@pytest.fixture(scope="session")
def complaints(open_in_browser):
    """Return a function that opens a page at a width and says what is wrong with its looks."""

    def look(html, width=1280, dark=False):
        frame = f'<iframe width="{width}" height="9000" srcdoc="{escape(html)}"></iframe>'
        dom = open_in_browser(f"<!DOCTYPE html><body>{frame}<script>{AUDIT}</script>", dark)
        found = re.search(r'data-audit="([^"]*)"', dom)
        assert found, "the page was not drawn"
        told = json.loads(unescape(found[1]))
        assert told.pop("dark") == dark
        return {kind: what for kind, what in told.items() if what}

    return look
