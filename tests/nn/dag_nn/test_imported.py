"""Networks of other libraries: the same function as there, and what is refused."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from precision import assert_rounded
from torch import nn

from dagnn.errors import ConfigError, CycleError, GraphError
from dagnn.kernels import AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.nn import DagNN, from_sequential

NAMES = sorted(name.removeprefix("neat.") for name in NEAT_ACTIVATIONS)


def gene(**values):
    return SimpleNamespace(**{"bias": 0.5, "response": 2.0, "activation": "identity", "aggregation": "sum", **values})


def genome(nodes, connections):
    """Connections as {(u, v): weight}; None for a disabled one."""
    links = {
        key: SimpleNamespace(key=key, weight=weight or 1.0, enabled=weight is not None)
        for key, weight in connections.items()
    }
    return SimpleNamespace(nodes=nodes, connections=links)


def config(inputs=(-1, -2), outputs=(0,), **definitions):
    settings = SimpleNamespace(input_keys=list(inputs), output_keys=list(outputs), **definitions)
    return SimpleNamespace(genome_config=settings)


def random_genome(draw: random.Random):
    """Any kinds of nodes, disabled connections, nodes that no output needs, and outputs without connections."""
    inputs, outputs = [-1, -2, -3][: draw.randint(1, 3)], list(range(draw.randint(1, 3)))
    hidden = draw.sample(range(10, 99), draw.randint(0, 8))
    order = [*hidden, *outputs]
    draw.shuffle(order)
    nodes = {
        key: gene(
            bias=draw.gauss(0, 1),
            response=draw.choice([1.0, draw.gauss(0, 1)]),
            activation=draw.choice(NAMES),
            aggregation=draw.choice(sorted(AGGREGATIONS)),
        )
        for key in order
    }
    pairs = [(u, v) for place, v in enumerate(order) for u in [*inputs, *order[:place]]]
    chosen = draw.sample(pairs, draw.randint(0, min(len(pairs), 25)))
    connections = {pair: draw.gauss(0, 1) if draw.random() < 0.85 else None for pair in chosen}
    return genome(nodes, connections), inputs, outputs


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", range(3))
def test_300_random_genomes_compute_what_neat_python_computes(part):
    neat = pytest.importorskip("neat")
    from neat.activations import ActivationFunctionSet
    from neat.aggregations import AggregationFunctionSet

    draw, compared = random.Random(part), 0
    while compared < 100:
        evolved, inputs, outputs = random_genome(draw)
        settings = config(
            inputs,
            outputs,
            activation_defs=ActivationFunctionSet(),
            aggregation_function_defs=AggregationFunctionSet(),
        )
        theirs = neat.nn.FeedForwardNetwork.create(evolved, settings)
        net = DagNN.from_neat(evolved, settings)
        x = torch.tensor([[draw.gauss(0, 1) for _ in inputs] for _ in range(4)], dtype=torch.float64)
        try:
            y = torch.tensor([theirs.activate(row) for row in x.tolist()], dtype=torch.float64)
        except OverflowError:  # Python's powers raise where ours are infinite
            continue
        if y.abs().max() > 1e6:  # where cubes and exponentials have blown up what rounding left
            continue
        compared += 1
        torch.testing.assert_close(net(x), y, rtol=1e-12, atol=1e-12)
        assert net.input_names == tuple(inputs) and net.output_names == tuple(outputs)


def test_a_configuration_file_and_a_population_of_neat_pythons_own(tmp_path):
    neat = pytest.importorskip("neat")
    path = tmp_path / "config"
    path.write_text(CONFIG)
    settings = neat.Config(
        neat.DefaultGenome, neat.DefaultReproduction, neat.DefaultSpeciesSet, neat.DefaultStagnation, str(path)
    )
    random.seed(0)
    population = neat.Population(settings)

    def score(genomes, config):
        for key, evolved in genomes:
            evolved.fitness = float(key % 7)

    population.run(score, 4)
    for evolved in population.population.values():
        x = torch.randn(3, 2, dtype=torch.float64)
        theirs = neat.nn.FeedForwardNetwork.create(evolved, settings)
        y = torch.tensor([theirs.activate(row) for row in x.tolist()], dtype=torch.float64)
        torch.testing.assert_close(DagNN.from_neat(evolved, settings)(x), y, rtol=1e-12, atol=1e-12)


def test_a_genome_by_hand_without_neat_python():
    nodes = {
        0: gene(aggregation="product"),
        5: gene(activation="square", response=1.0),
        6: gene(),  # disconnected from the output
        7: gene(),
    }
    links = {(-1, 5): 3.0, (5, 0): 1.0, (-2, 0): 4.0, (-1, 0): None, (-1, 6): 1.0, (6, 7): 1.0}
    net = DagNN.from_neat(genome(nodes, links), config())
    assert net.dag.names == (-1, -2, 0, 5)
    assert net.weight_of(-1, 5) == 3 and net.biases() == {0: 0.5, 5: 0.5}
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    assert net(x).item() == 0.5 + 2 * (3.5**2 * 8)
    net(x).sum().backward()
    assert net.grad_of(-2, 0) == 2 * 3.5**2 * 2
    assert net.bias_nodes is True


def test_an_output_without_connections_is_its_constant():
    evolved = genome({0: gene(), 1: gene(aggregation="product")}, {})
    net = DagNN.from_neat(evolved, config(outputs=(0, 1)))
    assert net(torch.zeros(2, 2, dtype=torch.float64)).tolist() == [[0.5, 2.5]] * 2


def test_a_recurrent_genome_names_its_cycle():
    nodes = {key: gene() for key in (0, 3, 4, 8, 9)}
    loop = {(3, 4): 1.0, (4, 3): 1.0, (4, 0): 1.0}
    with pytest.raises(CycleError, match="the genome is recurrent: the edges form a cycle: 3 -> 4 -> 3"):
        DagNN.from_neat(genome(nodes, loop), config())
    with pytest.raises(CycleError, match="the genome is recurrent: the edges form a cycle: 0 -> 0"):
        DagNN.from_neat(genome(nodes, {(0, 0): 1.0}), config())
    # One that no output needs, or that a disabled connection closes, does no harm.
    fine = {(-1, 0): 1.0, (8, 9): 1.0, (9, 8): 1.0, (3, 4): 1.0, (4, 3): None, (4, 0): 1.0}
    assert DagNN.from_neat(genome(nodes, fine), config()).dag.num_edges == 3


def test_functions_of_the_users_own():
    nodes = {0: gene(activation="swish", response=1.0, bias=0.0)}
    evolved, links = genome(nodes, {(-1, 0): 1.0}), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ConfigError, match="node 0 has the activation 'swish', but neat-python has no function of that"):
        DagNN.from_neat(evolved, config())
    net = DagNN.from_neat(evolved, config(), activations={"swish": lambda z: z * torch.sigmoid(z)})
    assert net(links).item() == pytest.approx(2 / (1 + 2.718281828459045**-2))

    def sigmoid(z):  # of the config's own: never taken for neat-python's
        return z + 1 if z > 0 else z

    nodes[0].activation = "sigmoid"
    own = config(activation_defs=SimpleNamespace(functions={"sigmoid": sigmoid}))
    with pytest.raises(ConfigError, match=r"it is a function of the config's own .*`return z \+ 1 if z > 0 else z`"):
        DagNN.from_neat(evolved, own)
    own.genome_config.activation_defs.functions["sigmoid"] = lambda z: 2 * z
    assert DagNN.from_neat(evolved, own)(links).item() == 4


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: (None, config()), ConfigError, "from_neat takes a genome .* got a NoneType"),
        (lambda: (genome({0: gene()}, {}), 3), ConfigError, "got a SimpleNamespace and a int"),
        (lambda: (genome({}, {}), config()), GraphError, "the genome has no node 0"),
        (lambda: (genome({0: gene()}, {(5, 0): 1.0}), config()), GraphError, "the genome has no node 5"),
        (
            lambda: (genome({0: gene(aggregation="mode")}, {}), config()),
            ConfigError,
            "has the aggregation 'mode'",
        ),
        (lambda: (genome({0: SimpleNamespace(bias=1)}, {}), config()), ConfigError, "of node 0 has no response"),
        (lambda: (genome({0: gene(response=float("nan"))}, {}), config()), ConfigError, "must be a finite number"),
    ],
)
def test_what_is_no_genome_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        DagNN.from_neat(*make())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 40])
def test_the_same_function_and_gradient(dtype, batch):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(70, 60), nn.GELU(), nn.Linear(60, 50, bias=False), nn.Linear(50, 3), nn.Softplus()
    ).to(dtype)
    net = from_sequential(model)
    assert net.num_parameters() == sum(p.numel() for p in model.parameters())
    x = torch.randn(batch, 70, dtype=dtype)

    def of_layers(model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        y = model(x)
        y.sum().backward()
        layers = [module for module in model if isinstance(module, nn.Linear)]
        weight = torch.cat([layer.weight.grad.flatten() for layer in layers])
        return [y, weight, torch.cat([layer.bias.grad for layer in layers if layer.bias is not None])]

    y = net(x)
    y.sum().backward()
    found = [y, net.edge_weight.grad, net.bias.grad]
    if dtype == torch.float32:
        exact = copy.deepcopy(model).double()
        assert_rounded(found, lambda: of_layers(exact, x.double()))
    else:
        torch.testing.assert_close(found, of_layers(model, x), rtol=1e-12, atol=1e-12)


def test_every_activation_with_its_default_settings():
    modules = [nn.Identity(), nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU()]
    model = nn.Sequential(*(part for module in modules for part in (nn.Linear(3, 3), module))).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(from_sequential(model)(x), model(x), rtol=1e-12, atol=1e-12)


def test_the_mode_is_kept_and_the_model_is_not_shared():
    model = nn.Sequential(nn.Linear(2, 2)).eval()
    net = from_sequential(model)
    assert not net.is_training()
    with torch.no_grad():
        net.edge_weight.zero_()
    assert model[0].weight.any()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout()), r"module 1 of the Sequential is Dropout\(p=0.5"),
        (nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.2)), "module 1 of the Sequential is LeakyReLU"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "module 0 of the Sequential is ReLU"),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh()), "module 2 of the Sequential is Tanh"),
        (nn.Sequential(), "has no Linear module"),
    ],
)
def test_what_is_no_mlp_is_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        from_sequential(model)


CONFIG = """
[NEAT]
fitness_criterion     = max
fitness_threshold     = 1000
no_fitness_termination = False
pop_size              = 20
reset_on_extinction   = False

[DefaultGenome]
activation_default      = random
activation_mutate_rate  = 0.3
activation_options      = sigmoid sin gauss abs hat
aggregation_default     = random
aggregation_mutate_rate = 0.3
aggregation_options     = sum product max median maxabs
bias_init_mean          = 0.0
bias_init_stdev         = 1.0
bias_init_type          = gaussian
bias_max_value          = 3.0
bias_min_value          = -3.0
bias_mutate_power       = 0.5
bias_mutate_rate        = 0.7
bias_replace_rate       = 0.1
compatibility_disjoint_coefficient = 1.0
compatibility_weight_coefficient   = 0.5
conn_add_prob           = 0.7
conn_delete_prob        = 0.2
enabled_default         = True
enabled_mutate_rate     = 0.1
feed_forward            = True
initial_connection      = full_direct
node_add_prob           = 0.6
node_delete_prob        = 0.1
num_hidden              = 2
num_inputs              = 2
num_outputs             = 2
response_init_mean      = 1.0
response_init_stdev     = 0.5
response_init_type      = gaussian
response_max_value      = 3.0
response_min_value      = -3.0
response_mutate_power   = 0.3
response_mutate_rate    = 0.5
response_replace_rate   = 0.1
single_structural_mutation = False
structural_mutation_surer  = default
weight_init_mean        = 0.0
weight_init_stdev       = 1.0
weight_init_type        = gaussian
weight_max_value        = 3
weight_min_value        = -3
weight_mutate_power     = 0.5
weight_mutate_rate      = 0.8
weight_replace_rate     = 0.1
enabled_rate_to_true_add  = 0.0
enabled_rate_to_false_add = 0.0
time_constant_init_mean    = 1.0
time_constant_init_stdev   = 0.0
time_constant_replace_rate = 0.0
time_constant_mutate_rate  = 0.0
time_constant_mutate_power = 0.0
time_constant_max_value    = 10.0
time_constant_min_value    = 0.01

[DefaultSpeciesSet]
compatibility_threshold = 30.0

[DefaultStagnation]
species_fitness_func = max
max_stagnation       = 20
species_elitism      = 2

[DefaultReproduction]
elitism            = 1
survival_threshold = 0.5
min_species_size   = 1
"""
