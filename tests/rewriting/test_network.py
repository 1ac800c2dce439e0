"""GraphRewriter: what it encodes, its gradients, and that it learns a rewriting system from neighbourhoods alone."""

import random

import pytest
import torch
from decimal_addition import SIGNATURE, replacement_of, sum_tokens, value_of
from torch.autograd import gradcheck

from dagnn.errors import ConfigError
from dagnn.rewriting.features import NeighbourhoodFeatures, parent_slots, target_orders
from dagnn.rewriting.machine import RewritingMachine, RuleRewriter
from dagnn.rewriting.network import GraphRewriter, edit_cost
from dagnn.rewriting.system import LEAVE, Label, Signature


def neighbourhoods_of_sums(seed: int, count: int) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    machine = RewritingMachine(SIGNATURE, RuleRewriter(replacement_of), eager=True)
    machine.run([sum_tokens([draw.randrange(10**4), draw.randrange(10**4)]) for _ in range(count)])
    return [machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)]


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
    neighbourhoods = neighbourhoods_of_sums(0, 100)
    features = NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, neighbourhoods)
    replacements = [replacement_of(neighbourhood) for neighbourhood in neighbourhoods]
    targets = features.encode_targets(neighbourhoods, replacements, num_slots=8)
    padded = targets.clamp(min=0).tolist()
    assert [
        features.decode(neighbourhood, row) for neighbourhood, row in zip(neighbourhoods, padded, strict=True)
    ] == replacements


def test_different_neighbourhoods_have_different_features():
    neighbourhoods = neighbourhoods_of_sums(0, 300)
    rows = NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, neighbourhoods).encode(neighbourhoods)
    assert len({tuple(sorted(row)) for row in rows.tolist()}) == len(neighbourhoods)


def test_a_feature_never_seen_is_dropped():
    neighbourhoods = neighbourhoods_of_sums(0, 300)
    few = NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, neighbourhoods[:1])
    assert few.encode(neighbourhoods).max() < few.num_rows


@pytest.mark.parametrize(
    "classes", [[], [1 + 14], [1 + 11, 1 + 11], [1 + len(SIGNATURE.labels) + 50], [1 + 11, 0]], ids=str
)
def test_classes_that_spell_no_replacement_leave_the_neighbourhood(classes):
    neighbourhood = neighbourhoods_of_sums(0, 1)[0]
    assert NeighbourhoodFeatures.from_neighbourhoods(SIGNATURE, [neighbourhood]).decode(neighbourhood, classes) == LEAVE


def test_gradients_are_right_in_float64():
    neighbourhoods = neighbourhoods_of_sums(1, 20)[:6]
    torch.manual_seed(0)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=6, blocks=1).double()
    rows = net.features.encode(neighbourhoods)
    targets = net.features.encode_targets(neighbourhoods, [replacement_of(w) for w in neighbourhoods], num_slots=4)
    names, values = zip(*[(n, p) for n, p in net.named_parameters() if not n.startswith("slots")], strict=True)

    def loss(*parameters):
        given = {f"net.{name}": parameter for name, parameter in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Costs(net), given, (rows, targets))

    padding = [n == "embedding.weight" for n in names]
    inputs = [p.detach().clone().requires_grad_(not pad) for p, pad in zip(values, padding, strict=True)]
    assert gradcheck(loss, inputs, fast_mode=True)


def test_the_first_slots_do_not_depend_on_how_many_are_asked_for():
    neighbourhoods = neighbourhoods_of_sums(1, 20)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16).double()
    rows = net.features.encode(neighbourhoods)
    torch.testing.assert_close(net(rows)[:, :3], net(rows, 3))


def test_parents_of_slots_follow_the_arities():
    arity = torch.tensor([0, 1, 2])
    targets = torch.tensor([[3, 2, 1, 4, -1], [0, -1, -1, -1, -1], [3, 1, 2, 5, -1]])
    assert parent_slots(targets, arity).tolist() == [[-1, 0, 1, 0, -1], [-1, -1, -1, -1, -1], [-1, 0, 0, 2, -1]]


def test_the_loss_is_the_edit_cost_of_the_logits():
    neighbourhoods = neighbourhoods_of_sums(1, 200)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16).double()
    rows = net.features.encode(neighbourhoods)
    targets = net.features.encode_targets(neighbourhoods, [replacement_of(w) for w in neighbourhoods], num_slots=8)
    logits = net(rows, 8)
    cost = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    want = edit_cost(cost.view(targets.shape), targets, arities(SIGNATURE), alpha=0.3, beta=2.0, gamma=0.7)
    torch.testing.assert_close(net.loss(rows, targets, alpha=0.3, beta=2.0, gamma=0.7), want)


def test_the_loss_weighs_labels_copies_and_pairs():
    # One neighbourhood, replacement (f copy), each of its two nodes with probability 1/3.
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
    neighbourhoods = neighbourhoods_of_sums(1, 200)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16).double()
    rows = net.features.encode(neighbourhoods)
    targets = net.features.encode_targets(neighbourhoods, [replacement_of(w) for w in neighbourhoods], num_slots=8)
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


def trained(signature: Signature, neighbourhoods, replacements, steps: int) -> GraphRewriter:
    torch.manual_seed(0)
    net = GraphRewriter.from_neighbourhoods(signature, neighbourhoods, width=64, blocks=1)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    rows = net.features.encode(neighbourhoods)
    targets = net.features.encode_targets(neighbourhoods, replacements, num_slots=4)
    for _ in range(steps):
        optimizer.zero_grad()
        net.loss(rows, targets).backward()
        optimizer.step()
    return net


def test_it_learns_to_add_numbers_longer_than_trained():
    neighbourhoods = neighbourhoods_of_sums(2, 4_000)
    net = trained(SIGNATURE, neighbourhoods, [replacement_of(w) for w in neighbourhoods], steps=250)
    pairs = [(10**17 + 12345678987654321 * i, 98765432123456789 * i + 5) for i in range(20)]
    results = net.solve([sum_tokens(pair) for pair in pairs])
    assert [value_of(result.tokens) for result in results] == [a + b for a, b in pairs]


def disguised(seed: int, *, reordered: bool) -> Signature:
    """The same rewriting system with a random name for every label, and with other numbers for them too."""
    draw = random.Random(seed)
    renamed = {label.name: f"n{draw.getrandbits(60):x}" for label in SIGNATURE.labels}
    labels = [Label(renamed[label.name], label.arity, label.neighbourhood_depth) for label in SIGNATURE.labels]
    if reordered:
        draw.shuffle(labels)
    return Signature(
        tuple(labels),
        opaque=frozenset(renamed[name] for name in SIGNATURE.opaque),
        tags={(renamed[name], tag): new for (name, tag), new in SIGNATURE.tags.items()},
        tagged=frozenset(renamed[name] for name in SIGNATURE.tagged),
    )


def translation(seed: int, other: Signature) -> tuple[list[int], list[int]]:
    """(label id there, shown id there) of every label and of everything shown here."""
    draw = random.Random(seed)
    renamed = {label.name: f"n{draw.getrandbits(60):x}" for label in SIGNATURE.labels}
    names = [shown.name for shown in other.shown]
    return [other.id_of[renamed[label.name]] for label in SIGNATURE.labels], [
        names.index(":".join([renamed.get(shown.kind, "?"), *shown.name.split(":")[1:]])) for shown in SIGNATURE.shown
    ]


def test_names_of_labels_carry_nothing():
    """With a random name for every label training gives the same weights, bit for bit."""
    other = disguised(5, reordered=False)
    neighbourhoods = neighbourhoods_of_sums(2, 300)
    replacements = [replacement_of(neighbourhood) for neighbourhood in neighbourhoods]
    nets = [trained(signature, neighbourhoods, replacements, steps=20) for signature in (SIGNATURE, other)]
    for mine, theirs in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(mine, theirs)
    assert nets[0].rewrite(neighbourhoods) == nets[1].rewrite(neighbourhoods)


def test_numbers_of_labels_carry_nothing():
    """With other names and in another order, what is learned is as right: all of it."""
    other = disguised(6, reordered=True)
    label_of, shown_of = translation(6, other)
    assert label_of != sorted(label_of)
    own_neighbourhoods = neighbourhoods_of_sums(2, 4_000)
    neighbourhoods = [
        tuple(shown_of[t] if t < len(shown_of) else t for t in neighbourhood) for neighbourhood in own_neighbourhoods
    ]
    replacements = [
        tuple(label_of[t] if t < len(label_of) else t for t in replacement_of(neighbourhood))
        for neighbourhood in own_neighbourhoods
    ]
    net = trained(other, neighbourhoods, replacements, steps=250)
    pairs = [(10**17 + 12345678987654321 * i, 98765432123456789 * i + 5) for i in range(20)]
    results = net.solve([[label_of[t] for t in sum_tokens(pair)] for pair in pairs])
    own_label = {theirs: mine for mine, theirs in enumerate(label_of)}
    assert [value_of([own_label[t] for t in result.tokens]) for result in results] == [a + b for a, b in pairs]


def test_a_proposal_is_as_sure_as_the_product_of_its_nodes():
    neighbourhoods = neighbourhoods_of_sums(2, 60)
    net = trained(SIGNATURE, neighbourhoods, [replacement_of(w) for w in neighbourhoods], steps=30)
    proposals = net.propose(neighbourhoods, batch_size=7)
    assert [each.replacement for each in proposals] == net.rewrite(neighbourhoods)
    assert any(each.replacement != LEAVE for each in proposals)
    probabilities = net(net.features.encode(neighbourhoods)).softmax(-1)
    for neighbourhood, proposal, rows in zip(neighbourhoods, proposals, probabilities, strict=True):
        target = net.features.encode_targets([neighbourhood], [proposal.replacement], net.num_slots)[0]
        product = 1.0
        for row, cls in zip(rows, target.tolist(), strict=True):
            product *= row[cls].item() if cls >= 0 else 1.0
        assert proposal.confidence == pytest.approx(product, rel=1e-4)


def test_leaving_a_neighbourhood_is_as_sure_as_its_one_class():
    neighbourhoods = neighbourhoods_of_sums(2, 60)
    net = trained(SIGNATURE, neighbourhoods, [LEAVE] * len(neighbourhoods), steps=5)
    for proposal, row in zip(
        net.propose(neighbourhoods), net(net.features.encode(neighbourhoods)).softmax(-1), strict=True
    ):
        if proposal.replacement == LEAVE:
            assert proposal.confidence == pytest.approx(row[0, 0].item(), rel=1e-5)


def test_a_warm_start_answers_as_the_network_it_came_from():
    few, many = neighbourhoods_of_sums(2, 12)[:4], neighbourhoods_of_sums(3, 500)
    known = trained(SIGNATURE, few, [replacement_of(w) for w in few], steps=40)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, many, width=64, blocks=1, num_slots=40)
    assert net.features.num_rows > known.features.num_rows
    taken = net.warm_start(known)
    assert 0 < taken < net.features.num_rows - 1
    net, known = net.double(), known.double()
    whole = [w for w in few if all(feature in net.features.known for feature in known.features._read(w)[0])]
    assert len(whole) == 4
    # Sums of the same rows, in the order of other numbers.
    torch.testing.assert_close(net(net.features.encode(whole), 32), known(known.features.encode(whole)))


def test_a_warm_start_refuses_another_size_and_other_labels():
    neighbourhoods = neighbourhoods_of_sums(2, 12)
    known = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=32)
    with pytest.raises(
        ConfigError, match=r"width, blocks and slot_width are \(16, 2, 64\) there and \(32, 2, 64\) here"
    ):
        net.warm_start(known)
    with pytest.raises(ConfigError, match="the same labels"):
        GraphRewriter.from_neighbourhoods(disguised(1, reordered=False), neighbourhoods, width=16).warm_start(known)


def test_leads_are_those_of_the_least_certain_node():
    neighbourhoods = neighbourhoods_of_sums(0, 30)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16, blocks=1, num_slots=8)
    given = net.rewrite(neighbourhoods)
    leads = net.leads(neighbourhoods, given, batch_size=7)
    others = [replacement_of(neighbourhood) for neighbourhood in neighbourhoods]
    targets = net.features.encode_targets(neighbourhoods, others, net.num_slots)
    logits = net(net.encode(neighbourhoods)).detach()
    for number, lead in enumerate(net.leads(neighbourhoods, others)):
        slots = [slot for slot in range(net.num_slots) if targets[number, slot] >= 0]
        rows = [(logits[number, slot], int(targets[number, slot])) for slot in slots]
        by_hand = min(float(row[i] - torch.cat([row[:i], row[i + 1 :]]).max()) for row, i in rows)
        assert lead == pytest.approx(by_hand, rel=1e-4, abs=1e-5)
        assert (lead > 0) <= (others[number] == given[number])
    assert all(lead > 0 for lead, replacement in zip(leads, given, strict=True) if replacement != LEAVE)


def test_a_network_of_nan_is_sure_of_nothing():
    neighbourhoods = neighbourhoods_of_sums(0, 5)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=6, blocks=1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(torch.nan)
    assert {proposal.confidence for proposal in net.propose(neighbourhoods)} == {0.0}
