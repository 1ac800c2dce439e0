"""The page of a report: one file that loads nothing, errors with their steps, and a picture that hides nothing."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from dagnn.curriculum import report_page as module
from dagnn.curriculum.evaluation_file import Evaluation, Example, LevelResult
from dagnn.curriculum.report_page import Curves, draw_curves, errors_with_steps, page

STEPS = [{"step": step, "loss": 3.0 / step, "lr": 1e-3} for step in range(1, 121)]
ACCURACY = {level: [(60, 1.0), (120, 1.0)] for level in range(1, 8)}
WRONG = Example("(derive (^ x 2) x)", "<b>x</b>", "(* 2 x)", False, "other value")


def curves(errors=None):
    return Curves("<run> $x$", STEPS, ACCURACY, errors)


def evaluation(*examples):
    return Evaluation({5: LevelResult.of(examples, samples_seen=0, seconds=1)}, None, None, None, step=120)


class Seen(HTMLParser):
    """The tags of a page, and the addresses that it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loaded = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loaded += [
            value for name, value in attrs if name in ("src", "href", "xlink:href") and not value.startswith("#")
        ]


@pytest.fixture
def axes(monkeypatch):
    """The four plots, kept while they are drawn."""
    kept = []
    drawn = Figure.savefig

    def keep(figure, *arguments, **options):
        kept.extend(figure.axes)
        return drawn(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept


@pytest.mark.fault("docs_and_packaging", 19)
def test_levels_that_are_all_right_do_not_hide_each_other(axes):
    draw_curves(curves(), "png")

    accuracy = axes[1]
    highest = [
        max(line.get_ydata()) for line in accuracy.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"
    ]
    assert len(highest) == 7 and min(abs(a - b) for a in highest for b in highest if a != b) > 0.5
    assert [label.get_text() for label in accuracy.get_yticklabels()][-1] == "level 1: 100.0 %"
    assert accuracy.get_legend() is None


@pytest.mark.fault("docs_and_packaging", 19)
def test_no_legend_lies_on_its_plot_and_an_empty_panel_has_no_axis(axes):
    draw_curves(curves({"derive ^": {"other value": 1}}), "png")

    for each in axes:
        if each.get_legend() is not None:
            box, inside = each.get_legend().get_window_extent(), each.get_window_extent()
            assert box.y0 >= inside.y1 - 1 or box.y1 <= inside.y0 + 1
    axes.clear()
    draw_curves(curves({}), "png")
    assert not axes[3].axison


@pytest.mark.fault("docs_and_packaging", 19)
def test_the_mean_of_fifty_is_drawn_in_the_middle_of_its_steps(axes):
    draw_curves(curves(), "png")

    (mean,) = [line for line in axes[0].lines if line.get_label() == "mean of 50"]
    assert list(mean.get_xdata()) == [25.5, 75.5, 110.5]


def test_page_is_one_file_that_loads_nothing_and_escapes_what_it_is_given():
    found = module.Explained(5, WRONG, ("1  0.9  a -> <i>b</i>",))
    text = page(
        curves({"derive ^": {"other value": 1}}), ["level"], ["derive"], evaluation(WRONG), [found], "a = 1"
    ).decode()

    seen = Seen(text)
    assert seen.loaded == [] and "script" not in seen.tags and "url(http" not in text
    assert {"svg", "table", "details"} <= set(seen.tags)
    assert not {"b", "i", "run"} & set(seen.tags)
    assert "&lt;b&gt;x&lt;/b&gt;, not (* 2 x) (other value)" in text and "a -&gt; &lt;i&gt;b&lt;/i&gt;" in text
    assert {"Python", "torch"} <= set(re.findall(r"<td>(\w+)</td>", text))


def test_wrong_answers_are_worked_out_again_the_first_ten(monkeypatch):
    asked = []

    def solve(model, expression, *, trained, budget, seconds, trace):
        asked.append((model, expression, trained, trace))
        return SimpleNamespace(lines=[f"{number}  1.0  a -> b" for number in range(300)])

    monkeypatch.setattr("dagnn.curriculum.solving.network_of", lambda run: (f"network of {run}", {1}))
    monkeypatch.setattr("dagnn.curriculum.solving.solve_with", solve)
    levels = {
        level: LevelResult(0.0, 5, examples=(Example(f"(+ {level} 1)", "9", "2", False),) * 5) for level in (1, 2, 3)
    }
    evaluation = Evaluation(levels, None, None, None, step=1)
    found = errors_with_steps("run", evaluation)

    assert len(found) == 15 and len(asked) == 10 and asked[9] == ("network of run", ("+", 2, 1), {1}, True)
    assert [each.level for each in found] == [1] * 5 + [2] * 5 + [3] * 5 and found[10].lines == ()
    assert len(found[0].lines) == 201 and "... 100 more ..." in found[0].lines and found[0].lines[-1][:3] == "299"
    monkeypatch.setattr(module, "_SECONDS", 0.0)
    assert all(each.lines == () for each in errors_with_steps("run", evaluation)) and len(asked) == 10


def test_run_without_a_checkpoint_says_why_there_are_no_steps(tmp_path):
    (found,) = errors_with_steps(tmp_path, evaluation(WRONG))

    assert found.lines[0].startswith("not worked out: ") and "holds no run" in found.lines[0]
