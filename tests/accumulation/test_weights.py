"""Ready-made weights against the losses whose denominators they count."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dagnn
from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError

VOCABULARY = 7


@dataclass
class Output:
    input_ids: torch.Tensor
    labels: torch.Tensor


def causal_loss(model, batch):
    """As Hugging Face's causal models: logits and labels shifted against each other."""
    logits = model(batch["input_ids"])
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


@pytest.mark.fault("accumulation", 15)
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=4),
    k=st.integers(1, 3),
)
def test_causal_windows_have_the_gradient_of_the_mean_over_all_predicted_tokens(lengths, k):
    torch.manual_seed(0)
    model = nn.Embedding(VOCABULARY, VOCABULARY).double()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def batch(counts):
        ids = torch.randint(VOCABULARY, (len(counts), 6))
        behind = torch.arange(6) >= torch.tensor(counts)[:, None]
        return {"input_ids": ids, "labels": ids.masked_fill(behind, -100)}

    loader = [batch(counts) for counts in lengths]
    for index, window in enumerate(accumulator.windows(loader, micro_batches=k, weight=dagnn.weights.causal_tokens)):
        for micro in window:
            window.backward(causal_loss(model, micro))
        own = loader[index * k : (index + 1) * k]
        joined = {key: torch.cat([b[key] for b in own]) for key in ("input_ids", "labels")}
        predicted = sum(max(count - 1, 0) for counts in lengths[index * k : (index + 1) * k] for count in counts)
        gradient = None if model.weight.grad is None else model.weight.grad.clone()
        update = window.step()
        assert update.weight == predicted
        if predicted:
            model.load_state_dict({"weight": model.weight.detach() + 0.1 * gradient})
            (right,) = torch.autograd.grad(causal_loss(model, joined), model.weight)
            assert torch.allclose(gradient, right, rtol=1e-12, atol=1e-14)
        else:
            assert update.skipped == "empty"


@pytest.mark.fault("accumulation", 15)
def test_every_shape_of_a_batch():
    labels = torch.tensor([[-100, 2, 3, 0], [4, 5, -100, -100]])
    ids = torch.zeros_like(labels)
    for batch in ({"labels": labels, "input_ids": ids}, (ids, labels), [ids, labels], labels, Output(ids, labels)):
        assert dagnn.weights.causal_tokens(batch) == 4
        assert dagnn.weights.tokens(-100)(batch) == 5
        assert dagnn.weights.tokens()(batch) == 5
        assert dagnn.weights.tokens(ignore_index=0)(batch) == 7
        assert dagnn.weights.items(batch) == 2
    assert dagnn.weights.causal_tokens(labels, ignore_index=0) == 5
    nested = torch.nested.nested_tensor([labels[0, :3], labels[1, :2]], layout=torch.jagged)
    assert (dagnn.weights.causal_tokens(nested), dagnn.weights.tokens()(nested)) == (3, 4)
    assert dagnn.weights.tokens()((torch.zeros(3, 4), torch.tensor([1, -100, 2]))) == 2


@pytest.mark.fault("accumulation", 15)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dagnn.weights.causal_tokens({"ids": torch.zeros(2, 3)}), "looks for 'labels' in a mapping"),
        (lambda: dagnn.weights.causal_tokens((torch.zeros(2),) * 3), "got 3 parts"),
        (lambda: dagnn.weights.causal_tokens("text"), "got str"),
        (lambda: dagnn.weights.causal_tokens({"labels": [[1, 2], [3]]}), "labels of type list"),
        (lambda: dagnn.weights.causal_tokens(torch.tensor(3)), "got a single number"),
        (lambda: dagnn.weights.tokens()((torch.zeros(2), torch.zeros(2, 3))), "whole numbers"),
        (lambda: dagnn.weights.tokens({"labels": torch.zeros(2).long()}), r"use weight=dagnn.weights.tokens\(-100\)"),
    ],
)
def test_what_holds_no_labels_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.fault("accumulation", 7)
def test_lists_of_a_data_loader_hold_parts():
    """``default_collate`` makes a list of what a dataset gives as a tuple."""
    torch.manual_seed(0)
    x, y = torch.randn(10, 4), torch.randn(10, 3)
    model = nn.Linear(4, 3)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    (weight,) = [
        [window.backward((model(a) - b).square().mean()) for a, b in window] and window.step().weight
        for window in accumulator.windows(loader, micro_batches=3)
    ]
    assert weight == 10
    sizes = []
    for window in accumulator.windows(loader, micro_batch_size=3):
        for micro in window:
            assert type(micro) is list
            sizes.append(len(micro[0]))
            window.backward((model(micro[0]) - micro[1]).square().mean())
        window.step()
    assert sizes == [3, 1, 3, 1, 2]


def test_terms_of_what_is_no_tensor():
    with pytest.raises(AccumulationError, match="must be a tensor to read what it divides by, got float"):
        dagnn.weights.terms(loss=3.0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int64])
def test_a_label_that_the_dtype_cannot_hold_ignores_nothing(dtype):
    """-100 is 156 in uint8, as torch compares them; ``cross_entropy`` counts that class."""
    labels = torch.tensor([156, 1, 2], dtype=dtype)
    if dtype is torch.uint8:
        logits = torch.eye(200)[:3]
        assert cross_entropy(logits, labels) == cross_entropy(logits, labels.long())
    assert dagnn.weights.tokens(-100)((None, labels)) == 3
    assert dagnn.weights.tokens(10**30)((None, labels)) == 3
    assert dagnn.weights.tokens(1)((None, labels)) == 2
    assert dagnn.weights.causal_tokens(labels[None].roll(1)) == 2


def test_an_ignored_label_is_a_whole_number_of_any_kind():
    labels = torch.tensor([[5, 1, 2]])
    assert dagnn.weights.causal_tokens(labels, ignore_index=np.int64(1)) == 1
    assert dagnn.weights.tokens(np.int64(1))(labels) == 2
    for wrong in (None, "x", float("nan"), True):
        with pytest.raises(ConfigError, match=f"the label that is ignored, a whole number, got {type(wrong).__name__}"):
            dagnn.weights.causal_tokens(labels, ignore_index=wrong)
        with pytest.raises(ConfigError, match="the label that is ignored, a whole number"):
            dagnn.weights.tokens(wrong)
    with pytest.raises(ConfigError, match="dense labels, got the layout torch"):
        dagnn.weights.causal_tokens(labels.to_sparse())
