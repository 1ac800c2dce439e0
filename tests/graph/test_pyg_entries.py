"""Entries of PyG's graphs as they were before PyG joined them. With a stand-in: the real classes are in
`test_pyg_format`, whose tests run where PyTorch Geometric is installed."""

import pytest
import torch

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag, DagBatch


class Data:
    """What PyG's ``Data`` has."""

    def __init__(self, **entries):
        vars(self).update(entries)

    @property
    def num_nodes(self):
        return len(self.x)

    def to_dict(self):
        return {name: value for name, value in vars(self).items() if name not in ("_slice_dict", "_inc_dict")}

    def __cat_dim__(self, name, value):
        return -1 if "index" in name else 0


def joined(graphs):
    """A ``Batch``: lists of lists, tensors end to end, and what has "index" in its name shifted by the nodes before."""
    sizes = [graph.num_nodes for graph in graphs]
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    batch = Data(ptr=ptr, batch=torch.arange(len(graphs)).repeat_interleave(torch.tensor(sizes)))
    batch._slice_dict, batch._inc_dict = {}, {}
    for name in graphs[0].to_dict():
        values = [graph.to_dict()[name] for graph in graphs]
        if not isinstance(values[0], torch.Tensor):
            setattr(batch, name, values)
            continue
        dim = batch.__cat_dim__(name, values[0])
        shift = ptr[:-1] if "index" in name else torch.zeros_like(ptr[:-1])
        batch._inc_dict[name] = shift
        batch._slice_dict[name] = torch.tensor([0, *(value.shape[dim] for value in values)]).cumsum(0)
        setattr(batch, name, torch.cat([value + by for value, by in zip(values, shift, strict=True)], dim))
    return batch


def chain(nodes, **entries):
    ends = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    return Data(edge_index=ends, x=torch.rand(nodes, 2), **entries)


@pytest.mark.fault("graphs_and_networks", 10)
def test_what_pyg_shifts_in_a_batch_is_shifted_back():
    graphs = [
        chain(nodes, image_index=torch.arange(5, 5 + nodes), edge_word_index=torch.arange(nodes - 1))
        for nodes in (2, 2, 3)
    ]
    batch = DagBatch.from_pyg(joined(graphs))
    assert batch.node_attributes["image_index"].tolist() == [5, 6, 5, 6, 5, 6, 7]
    assert batch.edge_attributes["word_index"].tolist() == [0, 0, 0, 1]
    assert batch.to_dags() == [Dag.from_pyg(graph) for graph in graphs]


@pytest.mark.fault("graphs_and_networks", 19)
def test_y_of_a_graph_with_one_node_is_the_graphs():
    graphs = [chain(1, y=torch.ones(1)), chain(3, y=torch.ones(1)), chain(1, y=torch.ones(1))]
    dags = list(map(Dag.from_pyg, graphs))
    assert [sorted(dag.node_attributes) for dag in dags] == [["x"], ["x"], ["x"]]
    assert DagBatch.from_dags(dags).to_dags() == DagBatch.from_pyg(joined(graphs)).to_dags() == dags
    assert DagBatch.from_pyg(joined([graphs[0], graphs[2]])).to_dags() == [dags[0], dags[2]]
    asked = Dag.from_pyg(graphs[0], node_attributes=["x", "y"])
    assert asked.node_attributes["y"].tolist() == [1]
    assert Dag.from_pyg(chain(3, y=torch.ones(3))).node_attributes["y"].tolist() == [1, 1, 1]


@pytest.mark.fault("graphs_and_networks", 19)
def test_what_belongs_to_graphs_is_no_attribute_of_nodes_by_its_count():
    # Two nodes and four, and as many values in all: three of each graph, or one of a text that has letters.
    graphs = [chain(2, y=torch.ones(3), smiles="CC", note=[1, 2]), chain(4, y=torch.ones(3), smiles="CCCC", note=[3])]
    assert sorted(DagBatch.from_pyg(joined(graphs)).node_attributes) == ["x"]


def test_attributes_are_chosen():
    graph = chain(2, z=torch.ones(2), edge_attr=torch.ones(1), edge_label=torch.ones(5))
    with pytest.raises(GraphError, match=r"edge_label must have one entry .* list what does in edge_attributes"):
        Dag.from_pyg(graph)
    dag = Dag.from_pyg(graph, node_attributes=["z"], edge_attributes=["attr"])
    assert (*dag.node_attributes, *dag.edge_attributes) == ("z", "attr")
    with pytest.raises(GraphError, match="node_attributes: no node has 'q'; there are 'x', 'z'"):
        Dag.from_pyg(graph, node_attributes=["q"])


def test_names_of_a_batch_are_those_of_its_graphs():
    graphs = [chain(2, names=["a", 1.0]), chain(1, names=["a"])]
    batch = DagBatch.from_pyg(joined(graphs))
    assert batch.to_dags() == [Dag.from_pyg(graph) for graph in graphs]
    assert batch.names == ("a", 1, "a")
    with pytest.raises(GraphError, match="names holds 'a' twice"):
        DagBatch.from_pyg(joined([chain(2, names=["a", "a"]), chain(1, names=["a"])]))
    with pytest.raises(DtypeError, match="cannot name a node"):
        DagBatch.from_pyg(joined([chain(1, names=[object()])]))
    assert DagBatch.from_pyg(joined([chain(1, names="methane"), chain(2, names="ethane")])).names is None


@pytest.mark.fault("graphs_and_networks", 8)
def test_a_batch_is_not_one_graph():
    with pytest.raises(DtypeError, match=r"needs a single graph, got a Batch of 2: use DagBatch\.from_pyg"):
        Dag.from_pyg(joined([chain(2), chain(3)]))
    assert Dag.from_pyg(joined([chain(3)])).num_nodes == 3
