"""`NodeDecoder`: its masks, teacher forcing against step by step, and learning to transform graphs."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import expression_dags

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import EditScripts, GraphTransformNet, NodeDecoder

DIM, VOCABULARY = 8, ["+", "-", "*", "f"]
LOWEST = torch.finfo(torch.float64).min
LABEL, COPY, OPERAND = 1, 2, 3


def decoder_of(max_nodes: int = 6, max_operands: int = 4, seed: int = 0) -> NodeDecoder:
    torch.manual_seed(seed)
    decoder = NodeDecoder(DIM, len(VOCABULARY), max_nodes, max_operands=max_operands, heads=2).double()
    with torch.no_grad():  # untrained, but of strong opinions
        for weight in (decoder.stop_or_label.weight, decoder.point.weight):
            weight.mul_(8)
        decoder.stop_or_label.bias[0] = -3
    return decoder


def features_of(graph: Dag | DagBatch) -> torch.Tensor:
    return torch.randn(graph.num_nodes, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@settings(max_examples=40)
@given(st.lists(expression_dags(), max_size=5), st.integers(0, 5), st.integers(1, 4), st.integers(1, 3))
def test_whatever_it_writes_is_a_dag_within_the_budget(graphs, seed, max_nodes, max_operands):
    decoder, batch = decoder_of(max_nodes, max_operands, seed), DagBatch.from_dags(graphs)
    scripts = decoder.generate(features_of(batch), batch)
    assert len(scripts) == len(graphs)
    for dag, graph in zip(scripts.to_dags(batch, VOCABULARY), graphs, strict=True):
        assert dag.num_nodes <= max_nodes + graph.num_nodes
    writes = (scripts.kind == LABEL) | (scripts.kind == COPY)
    assert (writes.sum(1) <= max_nodes).all()
    for kinds, values, length in zip(scripts.kind.tolist(), scripts.value.tolist(), scripts.length, strict=True):
        assert kinds.index(0) == length - 1
        written, operands, is_open = 0, 0, False
        for kind, value in zip(kinds, values, strict=True):
            if kind == OPERAND:
                operands += 1
                assert is_open and value < written - 1 and operands <= max_operands
            elif kind:
                written, operands, is_open = written + 1, 0, kind == LABEL


@settings(max_examples=20)
@given(st.lists(st.tuples(expression_dags(), expression_dags()), min_size=1, max_size=4), st.integers(0, 3))
def test_step_by_step_finds_what_teacher_forcing_scores_best(pairs, seed):
    """Fed with its own script, every action of it is the likeliest: the cached steps are the same function."""
    decoder = decoder_of(seed=seed)
    batch = DagBatch.from_dags([graph for graph, _ in pairs])
    x = features_of(batch)
    scripts = decoder.generate(x, batch)
    logits = decoder(x, batch, scripts)
    widths = torch.tensor([0, *(part.shape[2] for part in logits)]).cumsum(0)
    column = widths[scripts.kind] + scripts.value
    chosen = torch.cat(logits, dim=2).gather(2, column.unsqueeze(2)).squeeze(2)
    within = torch.arange(chosen.shape[1]) < scripts.length.unsqueeze(1)
    best = torch.cat(logits, dim=2).amax(2)
    torch.testing.assert_close(chosen[within], best[within], rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(st.lists(st.tuples(expression_dags(6), expression_dags(6)), min_size=1, max_size=4))
def test_a_graph_alone_equals_itself_inside_a_batch(pairs):
    graphs, targets = map(list, zip(*pairs, strict=True))
    vocabulary = sorted({label for target in targets for label in target.node_attributes["label"]})
    torch.manual_seed(0)
    decoder = NodeDecoder(DIM, max(1, len(vocabulary)), 40, max_operands=4, heads=2).double()
    batch = DagBatch.from_dags(graphs)
    x = features_of(batch)
    together = decoder(x, batch, EditScripts.from_dags(batch, targets, vocabulary))
    for i, (graph, target) in enumerate(pairs):
        alone = EditScripts.from_dags(graph, [target], vocabulary)
        own = x[batch.node_offsets[i] : batch.node_offsets[i + 1]]
        for inside, expected in zip(together, decoder(own, graph, alone), strict=True):
            steps, width = expected.shape[1:]
            torch.testing.assert_close(inside[i : i + 1, :steps, :width], expected, rtol=1e-9, atol=1e-9)


def test_masks_by_hand():
    graph = Dag.from_polish("(f x)")
    scripts = EditScripts.from_dags(graph, [Dag.from_polish("(+ (f x) x)")], VOCABULARY)
    # COPY 1, COPY 0, LABEL +, OPERAND 0, OPERAND 1, STOP
    logits = decoder_of(max_nodes=3, max_operands=2)(features_of(graph), graph, scripts)
    operands = (logits.operand[0] > LOWEST).tolist()
    assert operands == [[False] * 3] * 3 + [[True, True, False]] * 2 + [[False] * 3]
    may_write = [True, True, True, False, False, False]
    assert (logits.label[0] > LOWEST).all(1).tolist() == (logits.copy[0] > LOWEST).all(1).tolist() == may_write
    assert (logits.label[0] > LOWEST).any(1).tolist() == may_write
    assert logits.stop.isfinite().all() and (logits.stop > LOWEST).all()


def test_a_shorter_budget_can_be_asked_for():
    graph = Dag.from_polish("(f x)")
    scripts = decoder_of(max_nodes=6).generate(features_of(graph), graph, max_nodes=2)
    assert ((scripts.kind == LABEL) | (scripts.kind == COPY)).sum() == 2


def test_cross_entropy_by_hand():
    graph = Dag.from_polish("(+ (f x) (f x))")
    scripts = EditScripts.from_dags(graph, [Dag.from_polish("(f x)")], VOCABULARY)
    logits = decoder_of()(features_of(graph), graph, scripts)
    probability = torch.cat(logits, dim=2)[0].softmax(1)
    copy_of_f = probability[0, 5 + 1] + probability[0, 5 + 3]  # after stop and four labels: nodes 1 and 3 are alike
    expected = -(copy_of_f.log() + probability[1, 0].log()) / 2
    torch.testing.assert_close(logits.cross_entropy(scripts, graph), expected)


def test_padding_changes_no_loss():
    graphs = [Dag.from_polish(text) for text in ("(f x)", "(+ (* a b) (f (f c)))")]
    batch, targets = DagBatch.from_dags(graphs), [graphs[0], Dag.from_polish("(* (f (f c)) (+ b a))")]
    decoder, x = decoder_of(), features_of(DagBatch.from_dags(graphs))
    scripts = EditScripts.from_dags(batch, targets, VOCABULARY)
    together = decoder(x, batch, scripts).cross_entropy(scripts, batch)
    total = torch.zeros((), dtype=torch.float64)
    for own, graph, target in zip(x.split([2, 7]), graphs, targets, strict=True):
        alone = EditScripts.from_dags(graph, [target], VOCABULARY)
        total += decoder(own, graph, alone).cross_entropy(alone, graph) * alone.length.sum()
    torch.testing.assert_close(together, total / scripts.length.sum())


def test_no_graphs_and_graphs_without_nodes():
    nothing = Dag([], node_attributes={"label": []})
    for batch in (DagBatch.from_dags([]), DagBatch.from_dags([nothing, nothing])):
        decoder = decoder_of()
        scripts = EditScripts.from_dags(batch, list(batch), VOCABULARY)
        loss = decoder(features_of(batch), batch, scripts).cross_entropy(scripts, batch)
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in decoder.parameters())
        assert len(decoder.generate(features_of(batch), batch)) == len(batch)


# ---- learning ----

LEAVES = ["a", "b", "c", "d", "0", "1"]
SYMBOLS = {label: i for i, label in enumerate([*LEAVES, "+", "-", "*"])}
WRITTEN = ["+", "-", "*"]


def expression(pick: random.Random, depth: int) -> tuple | str:
    if depth == 0 or pick.random() < 0.25:
        return pick.choice(LEAVES)
    return pick.choice("+-*"), expression(pick, depth - 1), expression(pick, depth - 1)


def text_of(expr: tuple | str) -> str:
    return expr if isinstance(expr, str) else f"({expr[0]} {text_of(expr[1])} {text_of(expr[2])})"


def reversed_operands(expr: tuple | str) -> tuple | str:
    return expr if isinstance(expr, str) else (expr[0], reversed_operands(expr[2]), reversed_operands(expr[1]))


def simplified(expr: tuple | str) -> tuple | str:
    if isinstance(expr, str):
        return expr
    operator, x, y = expr[0], simplified(expr[1]), simplified(expr[2])
    if operator == "*" and "0" in (x, y):
        return "0"
    neutral = "1" if operator == "*" else "0"
    if y == neutral:
        return x
    return y if x == neutral and operator != "-" else (operator, x, y)


def exact_match(transform, depth: int, *, train: int, test: int, steps: int, batch_size: int, dim: int) -> float:
    """Share of held-out expressions that the trained net transforms exactly."""
    pick = random.Random(0)
    drawn = dict[str, str]()
    while len(drawn) < train + test:
        expr = expression(pick, depth)
        if not isinstance(expr, str):
            drawn[text_of(expr)] = text_of(transform(expr))
    pairs = [(Dag.from_polish(before, share=True), Dag.from_polish(after)) for before, after in drawn.items()]
    held_out, pairs = pairs[:test], pairs[test:]

    torch.manual_seed(0)
    net = GraphTransformNet(
        len(SYMBOLS), len(WRITTEN), 16, dim, message_layers=1, cell="tree_lstm", edge_types=2, decoder="nodes",
        decoder_layers=2, decoder_heads=4, max_operands=2,
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, steps)
    for _ in range(steps):
        some = pick.sample(pairs, batch_size)
        graphs, symbols = batch_of(some)
        scripts = EditScripts.from_dags(graphs, [after for _, after in some], WRITTEN)
        optimizer.zero_grad()
        net(symbols, graphs, scripts).cross_entropy(scripts, graphs).backward()
        net.clip_gradients(1.0)
        optimizer.step()
        schedule.step()

    graphs, symbols = batch_of(held_out)
    predicted = net.generate(symbols, graphs).to_dags(graphs, WRITTEN)
    right = [
        len(dag.outputs) == 1 and dag.to_polish() == after.to_polish()
        for dag, (_, after) in zip(predicted, held_out, strict=True)
    ]
    return sum(right) / test


def batch_of(pairs: list[tuple[Dag, Dag]]) -> tuple[DagBatch, torch.Tensor]:
    graphs = DagBatch.from_dags([before for before, _ in pairs])
    return graphs, torch.tensor([SYMBOLS[label] for label in graphs.node_attributes["label"]])


def test_it_learns_to_reverse_operands_of_expressions_never_seen():
    assert exact_match(reversed_operands, 2, train=600, test=100, steps=150, batch_size=32, dim=32) >= 0.9


@pytest.mark.slow
def test_it_learns_to_simplify_expressions_never_seen():
    assert exact_match(simplified, 3, train=6_000, test=300, steps=1_200, batch_size=64, dim=48) >= 0.95


# ---- bad input ----


def script(*actions: tuple[int, int]) -> EditScripts:
    kind, value = torch.tensor([actions], dtype=torch.int64).unbind(2)
    return EditScripts(kind, value, torch.tensor([len(actions)]))


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        (script((1, 4)), "action 0 of script 0 is a label beyond num_labels=4: got 4."),
        (script((1, 0), (2, 2)), "action 1 of script 0 is a copy of a node that the input has not: got 2."),
        (script((1, 0), (2, 0), (2, 1)), "action 2 of script 0 is a node beyond max_nodes=2: got 1."),
        (script((2, 0), (1, 0), (3, 0), (3, 0)), "action 3 of script 0 is an operand beyond max_operands=1: got 0."),
        (
            script((1, 0), (3, 0)),
            "action 1 of script 0 is an operand that is no earlier node, or that goes to a copy: got 0.",
        ),
        (
            script((1, 0), (2, 0), (3, 0)),
            "action 2 of script 0 is an operand that is no earlier node, or that goes to a copy: got 0.",
        ),
        (script((1, -1)), "action 0 of script 0 is a negative value: got -1."),
    ],
)
def test_scripts_that_do_not_fit_are_refused(scripts, message):
    graph = Dag.from_polish("(f x)")
    with pytest.raises(GraphError) as error:
        decoder_of(max_nodes=2, max_operands=1)(features_of(graph), graph, scripts)
    assert str(error.value) == message


def test_bad_arguments_and_calls():
    with pytest.raises(ConfigError, match="max_operands must be a whole number of at least 1, got 0"):
        NodeDecoder(8, 3, 4, max_operands=0)
    with pytest.raises(ConfigError, match="decoder must be one of slots, nodes, got 'edges'"):
        GraphTransformNet(3, 2, 4, 8, decoder="edges")
    graph, symbols = Dag.from_polish("(f x)"), torch.tensor([0, 1])
    scripts = EditScripts.from_dags(graph, [graph], [])
    slots, nodes = (GraphTransformNet(3, 2, 4, 8, decoder=name) for name in ("slots", "nodes"))
    with pytest.raises(ConfigError, match="decoder='slots' takes no scripts"):
        slots(symbols, graph, scripts)
    with pytest.raises(ConfigError, match="decoder='nodes' needs the scripts of the targets: give them, or call gene"):
        nodes(symbols, graph)
    with pytest.raises(ConfigError, match="generate needs decoder='nodes'"):
        slots.generate(symbols, graph)
    with pytest.raises(GraphError, match="there are 1 scripts, but 2 graphs"):
        decoder_of()(torch.zeros(4, DIM).double(), DagBatch.from_dags([graph, graph]), scripts)
    with pytest.raises(ConfigError, match="max_nodes must be a whole number of at least 1, got 0"):
        nodes.generate(symbols, graph, max_nodes=0)


def test_refusals_of_scripts_that_are_none():
    graph = Dag.from_polish("(+ x y)")
    decoder, x = decoder_of(), features_of(graph)
    scripts = EditScripts.from_dags(graph, [graph], VOCABULARY)
    for kind, length, alike, text in (
        (scripts.kind - 1, scripts.length, None, r"is of the kind -1, but kinds are 0 .. 3"),
        (scripts.kind, scripts.length + 9, None, r"length must be in 0 .. 2"),
        (scripts.kind, scripts.length, torch.arange(9), r"one entry for each of the 3 nodes of the input, got \[9\]"),
    ):
        with pytest.raises(GraphError, match=text):
            decoder(x, graph, EditScripts(kind, scripts.value, length, alike))


def test_what_a_stop_holds_does_not_count():
    graph = Dag.from_polish("(+ x y)")
    decoder, x = decoder_of(), features_of(graph)
    scripts = EditScripts.from_dags(graph, [graph], VOCABULARY)
    value = torch.where(scripts.kind == 0, 100, scripts.value)
    other = EditScripts(scripts.kind, value, scripts.length, scripts.alike)
    expected = decoder(x, graph, scripts).cross_entropy(scripts, graph)
    assert decoder(x, graph, other).cross_entropy(other, graph) == expected


def test_autocast():
    graph = Dag.from_polish("(+ x y)")
    decoder, x = decoder_of().float(), features_of(graph).float()
    scripts = EditScripts.from_dags(graph, [graph], VOCABULARY)
    expected = decoder(x, graph, scripts).cross_entropy(scripts, graph)
    with torch.autocast("cpu", torch.bfloat16):
        found = decoder(x, graph, scripts).cross_entropy(scripts, graph)
        found.backward()
        assert len(decoder.generate(x, graph)) == 1
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


def test_a_decoder_that_never_wants_to_stop_keeps_its_budget():
    graph = Dag.from_polish("(+ x y)")
    decoder = decoder_of(max_nodes=2, max_operands=1)
    with torch.no_grad():
        decoder.stop_or_label.bias[0] = -float("inf")
    scripts = decoder.generate(features_of(graph), graph)
    assert ((scripts.kind == LABEL) | (scripts.kind == COPY)).sum() <= 2
    assert (scripts.kind == 0).any()
