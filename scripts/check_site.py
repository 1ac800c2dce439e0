"""Looks at the built site in a headless Chromium: widths, console, links, search, contrast.

    pip install playwright && make docs
    python scripts/check_site.py [site] [--chromium PATH] [--pictures FOLDER]

For every page: nothing is wider than the window or its own box at 390, 768 and 1,280 px, nothing is written to the
console as an error, nothing is fetched from elsewhere, every link inside the site answers and its anchor exists, and
every text has the contrast that WCAG 2.1 AA wants, light and dark. The search finds the pages of ``SEARCHES`` first.
Prints a line for each kind of check and for each fault; exits with 1 when there is any. ``--pictures`` keeps a
screenshot of every page.
"""

import argparse
import functools
import http.server
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WIDTHS = (390, 768, 1280)
THEMES = ("light", "dark")
# What is typed -> the page, or the entry of it, that must come first.
SEARCHES = {
    "Trainer": "reference/training.html#dagnn.training.trainer.Trainer",
    "DagNN": "reference/nn.html#dagnn.nn.DagNN",
    "Dag": "reference/graph.html#dagnn.graph.Dag",
    "DagBatch": "reference/graph.html#dagnn.graph.DagBatch",
    "WideDagNN": "reference/nn.html#dagnn.nn.WideDagNN",
    "GradientAccumulator": "reference/accumulation.html#dagnn.accumulation.GradientAccumulator",
    "check_loop": "reference/accumulation.html#dagnn.accumulation.check_loop",
    "graph_edit_distance": "reference/ged.html#dagnn.ged.graph_edit_distance",
    "GedLoss": "reference/ged.html#dagnn.ged.GedLoss",
    "TreeLSTMCell": "reference/nn.html#dagnn.nn.TreeLSTMCell",
    "RewritingTask": "reference/rewriting.html#dagnn.rewriting.RewritingTask",
    "ExactTrainer": "reference/integrations.html#dagnn.integrations.transformers.ExactTrainer",
}
# Nothing slides while it is looked at.
STILL = """addEventListener("DOMContentLoaded", () => {
  const still = document.createElement("style");
  still.textContent = "*, *::before, *::after { transition: none !important; animation: none !important }";
  document.head.append(still);
})"""
# Boxes that are wider than they show. A code block may scroll by itself; a table, a formula or a picture may not.
WIDE = """() => {
  const found = [], page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) found.push(`page ${page.scrollWidth} > ${page.clientWidth}`);
  for (const box of document.querySelectorAll(
      ".md-typeset table, .md-typeset img, .md-typeset svg, .md-typeset math, .md-typeset__scrollwrap")) {
    const room = box.parentElement.closest("div, article, p, li").getBoundingClientRect();
    const own = box.getBoundingClientRect();
    const end = box.className === "md-typeset__scrollwrap" ? Infinity : Math.min(room.right, page.clientWidth);
    if (own.width && own.right > end + 1)
      found.push(`${box.tagName.toLowerCase()} ${Math.round(own.right - room.right)} px too wide: ` +
        `${(box.getAttribute("alt") || box.textContent).trim().replace(/\\s+/g, " ").slice(0, 50)}`);
    else if (box.scrollWidth > box.clientWidth + 1 && box.classList.contains("md-typeset__scrollwrap"))
      found.push(`table scrolls, ${box.scrollWidth} > ${box.clientWidth}: ` +
        `${box.textContent.trim().replace(/\\s+/g, " ").slice(0, 50)}`);
  }
  return found;
}"""
# The ratio of luminances of every piece of text and what lies behind it.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const known = new Map();
  const rgba = text => {
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) => {
    const v = c[i] / 255; return sum + share * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3]) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const found = new Map(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0, least = 99;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    if (!walker.currentNode.textContent.trim() || element.closest("svg, script, style, noscript")) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || style.visibility === "hidden" || !element.checkVisibility({opacityProperty: true}))
      continue;
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) opacity *= parseFloat(getComputedStyle(e).opacity);
    const ground = behind(element), ink = rgba(style.color).slice();
    ink[3] *= opacity;
    const [light, dark] = [luminance(over(ink, ground)), luminance(ground)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    texts += 1; least = Math.min(least, large ? ratio * 1.5 : ratio);
    const key = `${element.tagName.toLowerCase()}.${element.className}`;
    if (ratio < (large ? 3 : 4.5) && !found.has(key))
      found.set(key, `${ratio.toFixed(2)} ${key}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return {texts, least, found: [...found.values()]};
}"""


class Links(HTMLParser):
    """What a page links to, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the folder without a line for every request."""

    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, nargs="?", default=Path("site"), help="what `make docs` built")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep a screenshot of every page here")
    parser.add_argument("--only", default="", help="pages with this text in their path")
    given = parser.parse_args()
    pages = sorted(path.relative_to(given.site).as_posix() for path in given.site.rglob("*.html"))
    pages = [page for page in pages if page != "404.html" and given.only in page]
    if not pages:
        parser.error(f"{given.site} holds no pages: run `make docs` first")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=given.site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    faults = [*_links(given.site)]
    print(f"links: {len(faults)} of the site's own do not answer")

    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--disable-gpu"])
        faults += _looked_at(browser, address, pages, given.pictures)
        if not given.only:
            faults += _searched(browser, address)
        browser.close()
    server.shutdown()
    for fault in faults:
        print("fault:", fault)
    print(f"{len(pages)} pages, {len(faults)} faults")
    return 1 if faults else 0


def _links(site: Path) -> Iterator[str]:
    """The links inside the site whose file or anchor is missing."""
    pages = {path.resolve(): Links(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if path.name == "404.html" and parts.path.startswith("/"):
                file = (site / unquote(parts.path).lstrip("/")).resolve()
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(parts.fragment)
            if not file.is_file():
                yield f"{path.relative_to(site.resolve())}: nothing at {target}"
            elif anchor and not anchor.startswith("__") and file in pages and anchor not in pages[file].anchors:
                yield f"{path.relative_to(site.resolve())}: no anchor {target}"


def _looked_at(browser: Any, address: str, pages: list[str], pictures: Path | None) -> list[str]:
    """Every page at every width and in both themes: what is wide, what the console says, what is hard to read."""
    wide: list[str] = []
    said: list[str] = []
    faint: list[str] = []
    texts, least = 0, 99.0
    for theme in THEMES:
        context = browser.new_context(color_scheme=theme)
        tab = context.new_page()
        here = _heard(tab, address)
        tab.add_init_script(STILL)
        for page in pages:
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 900})
                if width == WIDTHS[0]:
                    tab.goto(address + page, wait_until="load")
                wide += [f"{page} at {width} px: {what}" for what in tab.evaluate(WIDE) if theme == THEMES[0]]
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    name = f"{re.sub('[^a-z_]+', '-', page.removesuffix('.html'))}-{width}-{theme}.png"
                    tab.screenshot(path=pictures / name)
            result = tab.evaluate(CONTRAST)
            texts, least = texts + result["texts"], min(least, result["least"])
            faint += [f"{page}, {theme}: contrast {what}" for what in result["found"]]
            said += [f"{page}, {theme}: {what}" for what in here]
            here.clear()
        context.close()
    print(f"widths: {len(wide)} boxes of {len(pages)} pages are too wide at {', '.join(map(str, WIDTHS))} px")
    print(f"console: {len(said)} errors, warnings and requests to elsewhere")
    print(f"contrast: {len(faint)} kinds of text are faint, of {texts} texts; the least ratio is {least:.2f} (4.5)")
    return wide + said + faint


def _heard(tab: Any, address: str) -> list[str]:
    """A list that grows by what the tab says and what it fetches from elsewhere."""
    heard: list[str] = []
    tab.on("console", lambda said: heard.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: heard.append(str(error)))
    tab.on("requestfailed", lambda request: heard.append(f"failed: {request.url}"))
    own = (address, "data:", "blob:")
    tab.on("request", lambda request: None if request.url.startswith(own) else heard.append(request.url))
    return heard


def _searched(browser: Any, address: str) -> list[str]:
    """The names whose page does not come first."""
    tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    wrong = []
    for name, expected in SEARCHES.items():
        tab.goto(f"{address}index.html?q={name}", wait_until="load")
        first = tab.locator(".md-search-result__item a").first
        first.wait_for(state="attached", timeout=20000)
        found = urlsplit(first.get_attribute("href") or "")
        shown = found.path.lstrip("/") + (f"#{found.fragment}" if found.fragment else "")
        shown = shown.removeprefix(address)
        if not expected.startswith(shown.split("?")[0]):
            wrong.append(f"search for {name}: {shown} comes first, not {expected}")
    print(f"search: {len(SEARCHES) - len(wrong)} of {len(SEARCHES)} names find their page first")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
