"""The page: one file, harmless whatever the names are, and used in a browser as a reader would."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from dagnn import Dag, DagNN

WIDTHS = (390, 768, 1280)
HOSTILE = '</script><b id="bad">x</b><script>window.bad = 1</script>'


class Elements(HTMLParser):
    """Counts elements, and collects what they would load."""

    def __init__(self, text):
        super().__init__()
        self.found, self.loaded = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href", "action")]


def written(path, dag, **options):
    dag.write_page(path, **options)
    return path.read_text(encoding="utf-8")


def data_in(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def layers(*sizes):
    """A graph with so many nodes a level, two edges out of every node."""
    random = np.random.default_rng(0)
    edges = {
        (f"node {level}.{node}", f"node {level + 1}.{random.integers(sizes[level + 1])}")
        for level in range(len(sizes) - 1)
        for node in range(sizes[level])
        for _ in range(2)
    }
    return Dag(sorted(edges))


def test_the_page_holds_the_graph_and_its_numbers(tmp_path):
    dag = Dag([("a", "c"), ("b", "c")])
    text = written(
        tmp_path / "net.html", dag, nodes={"a": 1.5, "b": float("nan"), "c": float("-inf")}, edges=[0.25, -2]
    )

    data = data_in(text)
    assert data["title"] == "net" and data["names"] == ["a", "c", "b"] and data["levels"] == [0, 1, 0]
    assert list(zip(data["source"], data["target"], strict=True)) == [(0, 1), (2, 1)]
    assert data["nodes"] == {"nodes": [1.5, "-inf", None]} and data["edges"] == {"edges": [0.25, -2.0]}
    assert data["inputs"] == [0, 2] and data["outputs"] == [1]


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    text = written(tmp_path / "net.html", layers(3, 2, 1))

    assert Elements(text).loaded == ["data:,"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}


def test_names_cannot_leave_their_place(tmp_path):
    names = [HOSTILE, "<!--<script>", "/*SCRIPT*/ /*DATA*/", "\u2028", "\ud800", "naïve 木"]
    plain = Elements(written(tmp_path / "plain.html", Dag([(f"n{i}", "end") for i in range(len(names))])))
    text = written(tmp_path / "net.html", Dag([(name, "end") for name in names]), title=HOSTILE)

    assert Elements(text).found == plain.found
    assert set(names) <= set(data_in(text)["names"]) and data_in(text)["title"] == HOSTILE


def test_the_same_graph_gives_the_same_page(tmp_path):
    dag = layers(5, 3, 1)

    assert written(tmp_path / "a.html", dag, title="t") == written(tmp_path / "b.html", dag, title="t")


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Dag([("a", "b")]).write_page(tmp_path / "none" / "net.html")


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    from pathlib import Path

    if not Path("/usr/bin/chromium").exists():
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as player:
        opened = player.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens the page of a graph or network; afterwards: no error and no request came from it."""
    pages, problems = [], []

    def visited(graph, *, width=1280, scheme="light", **options):
        graph.write_page(tmp_path / "net.html", **options)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.extend([request.url] * request.url.startswith("http")))
        page.goto((tmp_path / "net.html").as_uri())
        pages.append(page)
        return page

    yield visited
    for page in pages:
        page.close()
    assert problems == []


def heading(page):
    return page.locator("#panel h2").inner_text()


def test_a_click_shows_the_edges_of_a_node(visit):
    net = DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d")]))
    net.set_weights({("a", "c"): 0.5, ("b", "c"): -2.0})
    page = visit(net, importance={"a": 0.25, "b": 0.5, "c": 0.75, "d": 1.0})

    assert heading(page) == "Most important nodes" and page.locator("#panel td button").first.inner_text() == "d"
    page.locator(".node", has_text="c").click()
    assert heading(page) == "c"
    rows = [row.split("\t") for row in page.locator("#panel table").first.locator("tbody tr").all_inner_texts()]
    assert rows == [["b", "-2"], ["a", "0.5"]]
    facts = page.locator("#panel dl").inner_text().split("\n")
    assert {"importance", "0.75", "activation", "tanh", "inner node"} <= set(facts)
    page.locator("#panel button", has_text="b").click()
    assert heading(page) == "b" and page.locator(".node.chosen").text_content().startswith("b")


def test_search_by_name_and_the_keyboard_alone(visit):
    page = visit(layers(8, 4, 2, 1))

    page.keyboard.press("/")
    page.keyboard.type("NODE 1.")
    assert page.locator("#matches li").count() == 4
    page.keyboard.press("ArrowDown")
    chosen = page.locator('#matches li[aria-selected="true"]').inner_text()
    page.keyboard.press("Enter")
    assert heading(page) == chosen and page.locator("#matches").is_hidden()
    page.keyboard.press("ArrowRight")
    assert heading(page).startswith("node 2.")
    page.keyboard.press("ArrowLeft")
    assert heading(page).startswith("node 1.")
    before = page.evaluate("state.view.k")
    page.keyboard.press("+")
    assert page.evaluate("state.view.k") == pytest.approx(1.25 * before)
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    assert heading(page) == "Most important nodes"


def test_wheel_zooms_at_the_pointer_and_dragging_moves(visit):
    page = visit(layers(8, 4, 1))
    before = page.evaluate("({...state.view})")

    page.mouse.move(300, 300)
    page.mouse.wheel(0, -400)
    page.wait_for_function("k => state.view.k > k", arg=before["k"])
    zoomed = page.evaluate("({...state.view})")
    page.mouse.down()
    page.mouse.move(360, 340, steps=4)
    page.mouse.up()
    moved = page.evaluate("({...state.view})")
    assert (moved["x"] - zoomed["x"], moved["y"] - zoomed["y"]) == (60, 40)
    assert heading(page) == "Most important nodes"  # a drag chooses nothing


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("sizes", [(5, 3, 1), (180, 90, 29, 1)])
def test_nodes_do_not_overlap_and_the_page_fits(visit, width, sizes):
    page = visit(layers(*sizes), width=width)

    boxes = page.evaluate("[...state.place.values()].map(p => [p.x, p.y - BOX / 2, p.x + p.width, p.y + BOX / 2])")
    x0, y0, x1, y1 = np.array(boxes).T
    overlap = (np.minimum.outer(x1, x1) > np.maximum.outer(x0, x0)) & (
        np.minimum.outer(y1, y1) > np.maximum.outer(y0, y0)
    )
    assert int(overlap.sum()) == len(boxes) == page.evaluate("count")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    width_of = "box => box.getBBox().width"
    texts = page.evaluate(
        f"[...svg.querySelectorAll('.node')].map(n => [...n.querySelectorAll('text, rect')].map({width_of}))"
    )
    assert all(text <= box for box, text in texts)


def test_a_large_graph_is_shown_by_neighbourhoods(visit):
    page = visit(layers(11_000, 2_800, 1_000, 150, 49, 1))

    assert page.locator(".node").count() == 60
    assert re.fullmatch(r"60 nodes near “node .*”; 1\d,\d{3} of 1\d,\d{3} are not shown\.", page.inner_text("#status"))
    page.keyboard.press("/")
    page.keyboard.type("node 0.77")
    page.keyboard.press("Enter")
    assert heading(page) == "node 0.77" and page.locator(".node.chosen").count() == 1
    page.select_option("#reach", "150")
    assert page.locator(".node").count() == 150


def test_hostile_names_are_text(visit):
    page = visit(Dag([(HOSTILE, "<img src=x onerror='window.bad = 1'>")]), title=HOSTILE)

    page.locator(".node").first.click()
    assert heading(page) == HOSTILE and page.title() == page.inner_text("h1") == HOSTILE
    assert page.evaluate("window.bad") is None and page.locator("#bad, img").count() == 0


def test_light_and_dark_follow_the_reader_and_can_be_switched(visit):
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(layers(2, 1)), visit(layers(2, 1), scheme="dark")

    assert light.evaluate(paper) == "rgb(251, 251, 250)" and dark.evaluate(paper) == "rgb(18, 23, 29)"
    for page in (light, dark):
        page.click("#theme")
    assert light.evaluate(paper) == "rgb(18, 23, 29)" and dark.evaluate(paper) == "rgb(251, 251, 250)"


@pytest.mark.parametrize("dag", [Dag([]), Dag([], 2)])
def test_the_smallest_graphs_have_a_page(visit, dag):
    page = visit(dag)

    assert page.locator(".node").count() == dag.num_nodes
    assert heading(page) == ("Most important nodes" if dag.num_nodes else "The graph has no nodes")


def test_labels_are_shown_and_names_found(visit):
    page = visit(Dag([("R-1", "R-2")]), labels={"R-1": "cell cycle"})

    assert page.locator(".node text").all_text_contents() == ["cell cycle", "R-2"]
    for word in ("r-1", "CYCLE"):
        page.fill("#search", word)
        page.keyboard.press("Enter")
        assert heading(page) == "cell cycle" and "R-1" in page.locator("#panel dl").inner_text()
