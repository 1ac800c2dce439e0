"""GraphRewriter: what it encodes, its gradients, and that it learns a rewriting system from windows alone."""

import random

import pytest
import torch
from decimal_addition import SIGNATURE, replacement_of, sum_tokens, value_of
from torch.autograd import gradcheck

from dagnn.graph.rewriting.machine import RewritingMachine, RuleRewriter
from dagnn.graph.rewriting.signature import Label, Signature
from dagnn.graph.rewriting.window import LEAVE
from dagnn.nn.rewriter import GraphRewriter
from dagnn.nn.rewriter_alignment import target_orders
from dagnn.nn.rewriter_features import WindowFeatures
from dagnn.nn.rewriter_loss import edit_cost, parent_slots


def windows_of_sums(seed: int, count: int) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    machine = RewritingMachine(SIGNATURE, RuleRewriter(replacement_of), eager=True)
    machine.run([sum_tokens([draw.randrange(10**4), draw.randrange(10**4)]) for _ in range(count)])
    return [machine.window(w) for w in range(machine.num_windows)]


class Costs(torch.nn.Module):
    """The loss as a module's output, which `functional_call` needs."""

    def __init__(self, net: GraphRewriter) -> None:
        super().__init__()
        self.net = net

    def forward(self, rows, targets):
        return self.net.loss(rows, targets, alpha=0.7, beta=0.4, gamma=0.3)


def arities(signature: Signature) -> torch.Tensor:
    return torch.tensor([label.arity for label in signature.labels])


def test_targets_decode_to_the_replacements_they_encode():
    windows = windows_of_sums(0, 100)
    features = WindowFeatures.from_windows(SIGNATURE, windows)
    replacements = [replacement_of(window) for window in windows]
    targets = features.encode_targets(windows, replacements, num_slots=8)
    padded = targets.clamp(min=0).tolist()
    assert [features.decode(window, row) for window, row in zip(windows, padded, strict=True)] == replacements


def test_different_windows_have_different_features():
    windows = windows_of_sums(0, 300)
    rows = WindowFeatures.from_windows(SIGNATURE, windows).encode(windows)
    assert len({tuple(sorted(row)) for row in rows.tolist()}) == len(windows)


def test_a_feature_never_seen_is_dropped():
    windows = windows_of_sums(0, 300)
    few = WindowFeatures.from_windows(SIGNATURE, windows[:1])
    assert few.encode(windows).max() < few.num_rows


@pytest.mark.parametrize(
    "classes", [[], [1 + 14], [1 + 11, 1 + 11], [1 + len(SIGNATURE.labels) + 50], [1 + 11, 0]], ids=str
)
def test_classes_that_spell_no_replacement_leave_the_window(classes):
    window = windows_of_sums(0, 1)[0]
    assert WindowFeatures.from_windows(SIGNATURE, [window]).decode(window, classes) == LEAVE


def test_gradients_are_right_in_float64():
    windows = windows_of_sums(1, 20)[:6]
    torch.manual_seed(0)
    net = GraphRewriter.from_windows(SIGNATURE, windows, width=6, blocks=1).double()
    rows = net.features.encode(windows)
    targets = net.features.encode_targets(windows, [replacement_of(w) for w in windows], num_slots=4)
    names, values = zip(*[(n, p) for n, p in net.named_parameters() if not n.startswith("slots")], strict=True)

    def loss(*parameters):
        given = {f"net.{name}": parameter for name, parameter in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Costs(net), given, (rows, targets))

    padding = [n == "embedding.weight" for n in names]
    inputs = [p.detach().clone().requires_grad_(not pad) for p, pad in zip(values, padding, strict=True)]
    assert gradcheck(loss, inputs, fast_mode=True)


def test_the_first_slots_do_not_depend_on_how_many_are_asked_for():
    windows = windows_of_sums(1, 20)
    net = GraphRewriter.from_windows(SIGNATURE, windows, width=16)
    rows = net.features.encode(windows)
    torch.testing.assert_close(net(rows)[:, :3], net(rows, 3))


def test_parents_of_slots_follow_the_arities():
    arity = torch.tensor([0, 1, 2])
    targets = torch.tensor([[3, 2, 1, 4, -1], [0, -1, -1, -1, -1], [3, 1, 2, 5, -1]])
    assert parent_slots(targets, arity).tolist() == [[-1, 0, 1, 0, -1], [-1, -1, -1, -1, -1], [-1, 0, 0, 2, -1]]


def test_the_loss_is_the_edit_cost_of_the_logits():
    windows = windows_of_sums(1, 200)
    net = GraphRewriter.from_windows(SIGNATURE, windows, width=16).double()
    rows = net.features.encode(windows)
    targets = net.features.encode_targets(windows, [replacement_of(w) for w in windows], num_slots=8)
    logits = net(rows, 8)
    cost = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    want = edit_cost(cost.view(targets.shape), targets, arities(SIGNATURE), alpha=0.3, beta=2.0, gamma=0.7)
    torch.testing.assert_close(net.loss(rows, targets, alpha=0.3, beta=2.0, gamma=0.7), want)


def test_the_loss_weighs_labels_copies_and_pairs():
    # One window, replacement (f copy), each of its two nodes with probability 1/3.
    arity = torch.tensor([1])
    log3 = torch.log(torch.tensor(3.0, dtype=torch.float64))
    cost, targets = torch.full((1, 2), log3.item(), dtype=torch.float64), torch.tensor([[1, 2]])
    for alpha, beta, gamma in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 2.0, 3.0)):
        want = alpha * log3 + beta * log3 + gamma * (1 - 1 / 3)
        torch.testing.assert_close(edit_cost(cost, targets, arity, alpha=alpha, beta=beta, gamma=gamma), want)


def test_a_certain_right_answer_costs_nothing_and_an_empty_batch_is_zero():
    arity, targets = torch.tensor([1]), torch.tensor([[1, 2]])
    assert edit_cost(torch.zeros(1, 2), targets, arity, gamma=1.0) == 0
    assert edit_cost(torch.zeros(0, 2), targets[:0], arity, gamma=1.0) == 0


def test_exchanged_operands_are_other_orders_of_one_graph():
    # Labels a, f(1), +(2): the graph (+ (f a) copy), with + unordered.
    arity = torch.tensor([0, 1, 2])
    targets = torch.tensor([[3, 2, 1, 5, -1], [2, 1, -1, -1, -1], [0, -1, -1, -1, -1]])
    orders = target_orders(targets, arity, unordered=[2])
    assert orders.tolist() == [
        [[3, 2, 1, 5, -1], [3, 5, 2, 1, -1]],
        [[2, 1, -1, -1, -1]] * 2,
        [[0, -1, -1, -1, -1]] * 2,
    ]
    assert target_orders(targets, arity, unordered=[])[:, 0].tolist() == targets.tolist()


def test_nested_exchanges_give_every_order_once():
    arity = torch.tensor([0, 0, 2])
    targets = torch.tensor([[3, 3, 1, 2, 1]])
    orders = target_orders(targets, arity, unordered=[2])[0].tolist()
    assert sorted(orders) == [[3, 1, 3, 1, 2], [3, 1, 3, 2, 1], [3, 3, 1, 2, 1], [3, 3, 2, 1, 1]]
    assert orders[0] == targets[0].tolist()


def test_a_searched_alignment_costs_the_cheapest_order():
    windows = windows_of_sums(1, 200)
    net = GraphRewriter.from_windows(SIGNATURE, windows, width=16).double()
    rows = net.features.encode(windows)
    targets = net.features.encode_targets(windows, [replacement_of(w) for w in windows], num_slots=8)
    orders = target_orders(targets, net.arity, [SIGNATURE.id_of["add"], SIGNATURE.id_of["carry"]])
    assert orders.shape[1] == 2
    cheapest = [
        min(net.loss(row[None], order[None], beta=0.5).item() for order in given)
        for row, given in zip(rows[:50], orders[:50], strict=True)
    ]
    searched = net.loss(rows[:50], orders[:50], beta=0.5)
    torch.testing.assert_close(searched, torch.tensor(cheapest, dtype=torch.float64).mean(), check_dtype=False)
    assert searched < net.loss(rows[:50], targets[:50], beta=0.5)
    searched.backward()
    assert net.has_gradients()


def trained(signature: Signature, windows, replacements, steps: int) -> GraphRewriter:
    torch.manual_seed(0)
    net = GraphRewriter.from_windows(signature, windows, width=64, blocks=1)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    rows = net.features.encode(windows)
    targets = net.features.encode_targets(windows, replacements, num_slots=4)
    for _ in range(steps):
        optimizer.zero_grad()
        net.loss(rows, targets).backward()
        optimizer.step()
    return net


def test_it_learns_to_add_numbers_longer_than_trained():
    windows = windows_of_sums(2, 4_000)
    net = trained(SIGNATURE, windows, [replacement_of(w) for w in windows], steps=250)
    pairs = [(10**17 + 12345678987654321 * i, 98765432123456789 * i + 5) for i in range(20)]
    results = net.solve([sum_tokens(pair) for pair in pairs])
    assert [value_of(result.tokens) for result in results] == [a + b for a, b in pairs]


def test_names_of_labels_carry_nothing():
    renamed = {label.name: f"n{(7 * i) % 17}" for i, label in enumerate(SIGNATURE.labels)}
    other = Signature(
        tuple(Label(renamed[label.name], label.arity, label.window_depth) for label in SIGNATURE.labels),
        opaque=frozenset(renamed[name] for name in SIGNATURE.opaque),
        tags={(renamed[name], tag): new for (name, tag), new in SIGNATURE.tags.items()},
        tagged=frozenset(renamed[name] for name in SIGNATURE.tagged),
    )
    windows = windows_of_sums(2, 200)
    # The same ids mean the same labels under other names, but tagged names are sorted anew.
    names = [shown.name for shown in other.shown]
    to_other = {
        i: names.index(":".join([renamed[shown.kind], *shown.name.split(":")[1:]]))
        for i, shown in enumerate(SIGNATURE.shown[:-1])
    }
    translated = [tuple(to_other.get(token, token) for token in window) for window in windows]
    rows = WindowFeatures.from_windows(SIGNATURE, windows).encode(windows)
    other_rows = WindowFeatures.from_windows(other, translated).encode(translated)
    assert [len(set(row)) for row in rows.tolist()] == [len(set(row)) for row in other_rows.tolist()]
