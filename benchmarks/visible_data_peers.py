"""binn and kpnn2 as estimators, for benchmarks/visible_data.py: their networks on our graphs, trained as ours are.

Each network is made by the calls that the package documents; the loop around it is that of our estimators: features
standardized, AdamW, as many epochs, batches of as many samples. binn builds its own layers: from the Dag it takes which
genes are in which sets and which sets are in which.
"""

import contextlib
import io
from collections.abc import Callable, Hashable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dagnn.graph import Dag
from dagnn.visible import cox_loss
from dagnn.visible.survival import read_survival

EPOCHS, BATCH = 200, 256

# (columns of x, number of outputs) -> the columns that the network takes, and the network.
Maker = Callable[[list[Hashable], int], tuple[list[int], nn.Module]]


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """A network of a package: ``make`` builds it, for the columns of a data frame or numbered ones."""

    def __init__(self, make: Maker, random_state: int = 0, learning_rate: float = 0.01, weight_decay: float = 0.1):
        self.make, self.random_state = make, random_state
        self.learning_rate, self.weight_decay = learning_rate, weight_decay

    def _train(self, x: Any, target: Tensor, outputs: int, loss: Callable[[Tensor, Tensor], Tensor], size: int) -> None:
        values = np.asarray(x, np.float32)
        self._mean, spread = values.mean(0), values.std(0)
        self._scale = np.where(spread > 0, spread, 1)
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):  # binn prints its device
            torch.manual_seed(self.random_state)
            self._columns, self._net = self.make(_names(x), outputs)
            rows = self._rows(x)
            settings = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
            optimizer = torch.optim.AdamW(self._net.parameters(), **settings)
            self._net.train()
            for _ in range(EPOCHS):
                for part in torch.randperm(len(rows)).tensor_split(max(1, round(len(rows) / size))):
                    optimizer.zero_grad()
                    loss(self._net(rows[part]), target[part]).backward()
                    optimizer.step()
        self._net.eval()

    def _rows(self, x: Any) -> Tensor:
        values = (np.asarray(x, np.float32) - self._mean) / self._scale
        return torch.from_numpy(values[:, self._columns])

    def _output(self, x: Any) -> Tensor:
        with torch.no_grad():
            output: Tensor = self._net(self._rows(x))
        return output


class PeerClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classes, by cross-entropy."""

    def fit(self, x: Any, y: NDArray[Any]) -> Self:
        """Train on ``x [n, features]`` and the classes ``y [n]``."""
        self.classes_, target = np.unique(y, return_inverse=True)
        self._train(x, torch.from_numpy(target), len(self.classes_), cross_entropy, BATCH)
        return self

    def predict(self, x: Any) -> NDArray[Any]:
        """The most likely class ``[n]``."""
        chosen: NDArray[Any] = self.classes_[self._output(x).argmax(1).numpy()]
        return chosen


class PeerSurvival(_Estimator):
    """Log hazard ratios, by the partial likelihood of all samples at once."""

    def fit(self, x: Any, y: Any) -> Self:
        """Train on ``x [n, features]`` and the events and times of y."""
        event, time = read_survival(y)
        self._train(x, torch.from_numpy(np.stack([event, time], 1)), 1, _cox, len(event))
        return self

    def predict(self, x: Any) -> NDArray[Any]:
        """The log hazard ratio ``[n]``."""
        return self._output(x)[:, 0].numpy()

    def score(self, x: Any, y: Any) -> float:
        """The concordance index."""
        from dagnn.visible import concordance_index

        return concordance_index(self.predict(x), *read_survival(y))


def _cox(output: Tensor, target: Tensor) -> Tensor:
    return cox_loss(output[:, 0], target[:, 0] > 0, target[:, 1])


def _names(x: Any) -> list[Hashable]:
    return list(x.columns) if hasattr(x, "columns") else list(range(x.shape[1]))


class Kpnn2:
    """kpnn2 on a Dag: a `PackedLinear` for each hop with tanh between, skip edges gathered, linear heads behind."""

    def __init__(self, dag: Dag | Callable[[list[Hashable]], Dag]) -> None:
        self._dag = dag

    def __call__(self, names: list[Hashable], outputs: int) -> tuple[list[int], nn.Module]:
        """The columns of its inputs, and the network."""
        import kpnn2
        import pandas

        dag = self._dag if isinstance(self._dag, Dag) else self._dag(names)
        node = {k: str(dag.name_of(k)) for k in range(dag.num_nodes)}
        pairs = [(node[u], node[v]) for u, v in dag.edges.tolist()]
        pairs += [(node[u], f"head {k:03d}") for u in dag.outputs.tolist() for k in range(outputs)]
        spec = kpnn2.parse_layered(pandas.DataFrame(pairs, columns=["source", "target"]))
        assert list(spec.layer_nodes[-1]) == [f"head {k:03d}" for k in range(outputs)]
        columns = kpnn2.align_inputs(pandas.Index(list(map(str, names))), spec)
        return [int(column) for column in columns], _Hops(spec)


class _Hops(nn.Module):
    def __init__(self, spec: Any) -> None:
        super().__init__()
        import kpnn2

        self.hops, self.gather = spec.hops, kpnn2.gather_hop_inputs
        self.layers = nn.ModuleList(kpnn2.PackedLinear.from_hop(hop) for hop in spec.hops)

    def forward(self, x: Tensor) -> Tensor:
        """The heads ``[B, outputs]``."""
        saved = {0: x}
        for depth, (hop, layer) in enumerate(zip(self.hops, self.layers, strict=True), start=1):
            sums = layer(self.gather(saved, hop))
            saved[depth] = sums if depth == len(self.hops) else torch.tanh(sums)
        return saved[len(self.hops)]


class Binn:
    """binn on the sets of a Dag, with its defaults: four layers, tanh, batch norm."""

    def __init__(self, dag: Dag) -> None:
        self._dag = dag

    def __call__(self, names: list[Hashable], outputs: int) -> tuple[list[int], nn.Module]:
        """The columns of its inputs, and the network."""
        import binn
        import pandas

        dag = self._dag
        genes = {str(dag.name_of(k)) for k in dag.inputs.tolist()}
        pairs = [(str(dag.name_of(u)), str(dag.name_of(v))) for u, v in dag.edges.tolist()]
        pathways = [pair for pair in pairs if pair[0] not in genes]
        # It knows a set by its edges only: one that is in no other gets a node above it, as its copies of nodes are.
        pathways += [(top, f"{top} (top)") for top in {set_ for _, set_ in pairs} - {u for u, _ in pathways}]
        net = binn.BINN(
            data_matrix=pandas.DataFrame({"Protein": list(map(str, names))}),
            mapping=pandas.DataFrame([p for p in pairs if p[0] in genes], columns=["input", "translation"]),
            pathways=pandas.DataFrame(pathways, columns=["source", "target"]),
            n_outputs=outputs,
        )
        place = {str(name): k for k, name in enumerate(names)}
        return [place[name] for name in net.inputs], net
