import itertools
import random

import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import EditCosts, GedLoss, GraphTargets, expected_edit_cost
from dagnn.ged.loss import joint_edge_logits
from dagnn.graph import Dag, DagBatch

LABELS = 3


def random_targets(seed, batch, size, *, edge_labels=0, smallest=0):
    rng = random.Random(seed)
    exists = torch.zeros(batch, size, dtype=torch.bool)
    adjacency = torch.zeros(batch, size, size, dtype=torch.bool)
    for b in range(batch):
        nodes = rng.randint(smallest, size)
        exists[b, :nodes] = True
        for i, j in itertools.combinations(range(nodes), 2):
            adjacency[b, i, j] = rng.random() < 0.5
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(LABELS, (batch, size), generator=generator) * exists
    edge = None
    if edge_labels:
        edge = torch.randint(edge_labels, (batch, size, size), generator=generator) * adjacency
    return GraphTargets(exists, adjacency, labels, edge)


def random_logits(seed, batch, size, *, edge_labels=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, size), (batch, size, LABELS), (batch, size, size)]
    if edge_labels:
        shapes.append((batch, size, size, edge_labels))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def one_hot_logits(targets, size=50.0):
    """Logits that predict the targets with certainty, position i for target node i."""

    def sign(mask):
        return torch.where(mask, size, -size).double()

    logits = [sign(targets.exists), size * torch.nn.functional.one_hot(targets.labels, LABELS).double()]
    return [*logits, sign(targets.adjacency)]


def permute_slots(logits, order):
    existence, labels, edges, *rest = logits
    return [
        existence[:, order],
        labels[:, order],
        edges[:, order][:, :, order],
        *(x[:, order][:, :, order] for x in rest),
    ]


FORMS = [
    {},
    {"joint": True},
    {"gamma": 0.7},
    {"gamma": 0.7, "clique_size": 4, "joint": True},
    {"normalize": False},
    {"alignment": "order"},
    {
        "costs": EditCosts(
            node_insertion=2, node_deletion=0.5, node_substitution=3, edge_insertion=4, edge_deletion=0.25
        )
    },
]


@pytest.mark.parametrize("options", FORMS)
def test_gradient_is_right_in_float64_on_asymmetric_adjacency(options):
    targets = random_targets(5, batch=2, size=4, edge_labels=2, smallest=3)
    logits = [x.requires_grad_() for x in random_logits(6, batch=2, size=4, edge_labels=2)]

    def loss(existence, labels, edges, edge_labels):
        return GedLoss(**options, reduction="none")(existence, labels, edges, targets, edge_labels=edge_labels)

    # Entry by entry for the plain form and for all terms together; along a random direction for the others.
    assert torch.autograd.gradcheck(loss, logits, fast_mode=options != {} and "clique_size" not in options)


@pytest.mark.parametrize("options", FORMS)
def test_certain_prediction_of_the_target_costs_nothing(options):
    targets = random_targets(1, batch=8, size=6)
    loss = GedLoss(**options, reduction="none")(*one_hot_logits(targets), targets)
    assert (loss >= 0).all()
    torch.testing.assert_close(loss, torch.zeros_like(loss), atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [{}, {"joint": True}, {"gamma": 0.5}])
def test_shuffled_certain_prediction_is_aligned_and_costs_nothing(options):
    targets = random_targets(3, batch=12, size=7, smallest=3)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    loss = GedLoss(**options, reduction="none")(*permute_slots(one_hot_logits(targets), order), targets)
    torch.testing.assert_close(loss, torch.zeros_like(loss), atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [{}, {"joint": True}, {"gamma": 0.5}])
def test_permuting_slots_changes_neither_loss_nor_gradient_norms(options):
    targets = random_targets(8, batch=6, size=6, edge_labels=2)
    logits = random_logits(9, batch=6, size=6, edge_labels=2)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    results = []
    for given in (logits, permute_slots(logits, order)):
        leaves = [x.clone().requires_grad_() for x in given]
        loss = GedLoss(**options)(*leaves[:3], targets, edge_labels=leaves[3])
        loss.backward()
        results.append(torch.stack([loss.detach(), *(x.grad.norm() for x in leaves)]))
    torch.testing.assert_close(results[0], results[1])


def test_joint_form_is_at_least_the_expected_edit_cost_for_every_alignment():
    loss = GedLoss(1, 1, joint=True, normalize=False, alignment="order", reduction="none")
    for seed in range(20):
        targets = random_targets(seed, batch=50, size=5, edge_labels=2)
        logits = [3 * x for x in random_logits(seed, batch=50, size=5, edge_labels=2)]
        identity = torch.arange(5).expand(50, 5)
        expected = expected_edit_cost(*logits[:3], targets, identity, edge_labels=logits[3])
        assert (loss(*logits[:3], targets, edge_labels=logits[3]) >= expected - 1e-9).all()


def test_masked_form_is_no_bound_when_a_node_with_many_edges_may_be_missing():
    # One -log(0.9) for the centre, where its absence costs 1 + 5 edits: 0.105 against 0.6.
    star = Dag([(0, i) for i in range(1, 6)])
    targets = GraphTargets.from_dags([star], 6)
    existence = torch.full((1, 6), 40.0)
    existence[0, 0] = torch.logit(torch.tensor(0.9))
    edges = torch.where(targets.adjacency, 40.0, -40.0)
    options = {"normalize": False, "alignment": "order", "reduction": "none"}
    expected = expected_edit_cost(existence, None, edges, targets, torch.arange(6)[None])
    assert expected.item() == pytest.approx(0.6)
    assert GedLoss(1, 1, **options)(existence, None, edges, targets).item() == pytest.approx(0.1054, abs=1e-4)
    assert GedLoss(1, 1, joint=True, **options)(existence, None, edges, targets).item() >= 0.6


@pytest.mark.parametrize("seed", range(12))
def test_certain_expected_cost_minimised_over_alignments_is_the_edit_distance(oracle, seed):
    size = 4
    both = random_targets(seed, batch=2, size=size)
    predicted = GraphTargets(both.exists[:1], both.adjacency[:1], both.labels[:1])
    target = GraphTargets(both.exists[1:], both.adjacency[1:], both.labels[1:])
    logits = [x.double() for x in one_hot_logits(predicted)]
    least = min(
        expected_edit_cost(*logits, target, torch.tensor([order])).item()
        for order in itertools.permutations(range(size))
    )

    def plain(b):
        nodes = int(both.num_nodes[b])
        edges = [(i, j, None) for i, j in both.adjacency[b].nonzero().tolist()]
        return oracle.Graph(both.labels[b, :nodes].tolist(), edges)

    assert least == pytest.approx(oracle.brute_force(plain(0), plain(1), oracle.Costs()), abs=1e-6)


def test_insertion_and_deletion_are_both_charged():
    target = [Dag([(0, 1)])]
    sure, no = 40.0, torch.full((1, 3, 3), -40.0)
    spare_node = torch.tensor([[sure, sure, sure]])
    missing_node = torch.tensor([[sure, -sure, -sure]])
    right = no.clone()
    right[0, 0, 1] = sure
    spare_edge = right.clone()
    spare_edge[0, 1, 0] = sure
    exact = torch.tensor([[sure, sure, -sure]])
    loss = GedLoss(1, 1, normalize=False, alignment="order")
    assert loss(exact, None, right, target).item() == pytest.approx(0, abs=1e-6)
    for existence, edges in ((spare_node, right), (missing_node, right), (exact, no), (exact, spare_edge)):
        assert loss(existence, None, edges, target).item() == pytest.approx(sure)


def test_terms_add_up_and_divide_by_the_target_size():
    targets = random_targets(11, batch=4, size=5, smallest=2)
    logits = random_logits(12, batch=4, size=5)
    terms = GedLoss(0.7, 0.3, 0.2, alignment="order").terms(*logits, targets)
    torch.testing.assert_close(terms.loss, 0.7 * terms.node + 0.3 * terms.edge + 0.2 * terms.clique)
    whole = GedLoss(0.7, 0.3, 0.2, alignment="order", normalize=False).terms(*logits, targets)
    torch.testing.assert_close(terms.node, whole.node / targets.num_nodes)
    torch.testing.assert_close(terms.edge, whole.edge / targets.num_edges.clamp(min=1))


def test_reductions_agree():
    targets = random_targets(2, batch=5, size=4)
    logits = random_logits(3, batch=5, size=4)
    each = GedLoss(reduction="none")(*logits, targets)
    assert each.shape == (5,)
    torch.testing.assert_close(GedLoss()(*logits, targets), each.mean())
    torch.testing.assert_close(GedLoss(reduction="sum")(*logits, targets), each.sum())


def test_graphs_of_a_batch_do_not_influence_each_other():
    targets = random_targets(2, batch=5, size=4)
    logits = random_logits(3, batch=5, size=4)
    together = GedLoss(reduction="none")(*logits, targets)
    for b in range(5):
        one = GraphTargets(targets.exists[b : b + 1], targets.adjacency[b : b + 1], targets.labels[b : b + 1])
        torch.testing.assert_close(GedLoss()(*(x[b : b + 1] for x in logits), one), together[b])


def test_dags_and_batches_and_padded_targets_give_the_same_loss():

    dags = [
        Dag([(0, 1), (0, 2)], node_attributes={"label": ("a", "b", "a")}),
        Dag([], 0, node_attributes={"label": ()}),
    ]
    loss = GedLoss(node_vocabulary=["a", "b", "c"])
    logits = random_logits(4, batch=2, size=4)
    padded = GraphTargets.from_dags(dags, 4, node_vocabulary=["a", "b", "c"])
    torch.testing.assert_close(loss(*logits, dags), loss(*logits, padded))
    torch.testing.assert_close(loss(*logits, DagBatch.from_dags(dags)), loss(*logits, padded))


def test_empty_graphs_cost_what_the_prediction_has_too_much():
    existence, edges = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 3, 3, dtype=torch.float64)
    loss = GedLoss(gamma=1)(existence, None, edges, [Dag([], 0)])
    expected_triangles = (1 - (1 - 0.125) ** 2) ** 3
    assert loss.item() == pytest.approx(3 * 0.6931472 + expected_triangles)
    assert GedLoss(reduction="sum")(existence[:0], None, edges[:0], []).item() == 0
    assert GedLoss(gamma=1)(existence[:, :0], None, edges[:, :0, :0], [Dag([], 0)]).item() == 0


def test_joint_edge_logit_is_the_logit_of_the_product_and_stable():
    existence, _, edges = random_logits(5, batch=2, size=4)
    product = existence.sigmoid()[:, :, None] * existence.sigmoid()[:, None, :] * edges.sigmoid()
    torch.testing.assert_close(joint_edge_logits(existence, edges).sigmoid(), product)
    huge = joint_edge_logits(torch.full((1, 2), 500.0), torch.full((1, 2, 2), 500.0))
    assert huge.isfinite().all()
    assert (huge > 490).all()


def test_start_and_hysteresis_hold_the_alignment():
    targets = random_targets(21, batch=6, size=6, smallest=4)
    logits = random_logits(22, batch=6, size=6)
    free = GedLoss().terms(*logits, targets)
    again = GedLoss().terms(*logits, targets, start=free.alignment)
    assert (again.loss <= free.loss + 1e-9).all()
    backwards = torch.arange(5, -1, -1).expand(6, 6)
    held = GedLoss(hysteresis=1e6).terms(*logits, targets, start=backwards)
    assert (held.alignment == backwards).all()
    released = GedLoss(hysteresis=0).terms(*logits, targets, start=backwards)
    assert (released.loss <= held.loss).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", range(4))
def test_logits_that_are_not_finite_fail_loudly(which, value):
    targets = random_targets(1, batch=2, size=3, edge_labels=2)
    logits = random_logits(2, batch=2, size=3, edge_labels=2)
    logits[which][1] = value
    name = ("existence", "labels", "edges", "edge_labels")[which]
    with pytest.raises(GraphError, match=rf"{name}\[1, 0.*logits must be finite"):
        GedLoss()(*logits[:3], targets, edge_labels=logits[3])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"gamma": float("inf")}, "gamma is inf"),
        ({"alignment": "best"}, "'searched' or 'order'"),
        ({"reduction": "max"}, "'mean', 'sum' or 'none'"),
        ({"clique_size": 5}, "3 or 4"),
        ({"steps": 0}, "at least 1"),
        ({"costs": EditCosts(node_substitution=lambda a, b: 1.0)}, "depends on the label"),
    ],
)
def test_bad_settings_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        GedLoss(**options)


def test_bad_arguments_say_what_was_expected():
    targets = random_targets(1, batch=2, size=3, edge_labels=2)
    existence, labels, edges, edge_labels = random_logits(2, batch=2, size=3, edge_labels=2)
    plain = GraphTargets(targets.exists, targets.adjacency)
    with pytest.raises(GraphError, match=r"edges must have the shape \[2, 3, 3\].*got \[2, 3\]"):
        GedLoss()(existence, labels, existence, targets)
    with pytest.raises(GraphError, match=r"labels must have the shape \[2, 3, L\]"):
        GedLoss()(existence, labels[:, :2], edges, targets)
    with pytest.raises(GraphError, match="existence must have the shape"):
        GedLoss()(existence[:1], labels[:1], edges[:1], targets)
    with pytest.raises(DtypeError, match="floating-point"):
        GedLoss()(existence.long(), labels, edges, targets)
    with pytest.raises(GraphError, match="targets have none: give node_vocabulary"):
        GedLoss()(existence, labels, edges, plain)
    with pytest.raises(GraphError, match="targets have none: give edge_vocabulary"):
        GedLoss()(existence, None, edges, plain, edge_labels=edge_labels)
    with pytest.raises(GraphError, match=r"the label 7, but the logits are over 0 .. 2"):
        wrong = GraphTargets(torch.ones_like(targets.exists), targets.adjacency, torch.full((2, 3), 7))
        GedLoss()(existence, labels, edges, wrong)
    with pytest.raises(GraphError, match="permutation in every row"):
        GedLoss()(existence, labels, edges, targets, start=torch.zeros(2, 3, dtype=torch.int64))


def test_low_precision_logits_give_a_loss_of_their_dtype():
    targets = random_targets(1, batch=2, size=3)
    logits = random_logits(2, batch=2, size=3, dtype=torch.bfloat16)
    loss = GedLoss(joint=True, gamma=0.5)(*logits, targets)
    assert loss.dtype == torch.bfloat16
    assert loss.isfinite()
