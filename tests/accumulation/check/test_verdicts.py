"""What once got a false verdict, or a false reason, in its smallest form."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from torch.utils.checkpoint import checkpoint

from dagnn.accumulation import GradientAccumulator
from dagnn.accumulation.check import check_equivalence, check_loop
from dagnn.commands.check import run_check
from dagnn.errors import ConfigError

K = 4


def network(*, dtype=torch.float32):
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def classes(items=24):
    return torch.randn(items, 5), torch.randint(0, 2, (items,))


def loss_fn(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def kinds(report):
    assert report.equal == (not report.causes), str(report)
    return [str(cause.kind) for cause in report.causes]


def loop(share=lambda sizes, n: n / sum(sizes), last=lambda i, total: (i + 1) % K == 0 or i + 1 == total, loss=loss_fn):
    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            window = micro_batches[i - i % K : i - i % K + K]
            (loss(model, batch) * share([len(b[0]) for b in window], len(batch[0]))).backward()
            if last(i, len(micro_batches)):
                optimizer.step()
                optimizer.zero_grad()

    return train_step


def padded(items=24):
    x, y = classes(items)
    y[torch.randperm(items)[: items // 3]] = -100
    return x, y


@pytest.mark.fault("checker", 1)
@pytest.mark.parametrize("cast", [lambda t: t.float(), lambda t: t.to(torch.float32), lambda t: t.half().float()])
def test_a_cast_inside_the_loss_hides_nothing(cast):
    def casting(model, batch):
        return cross_entropy(cast(model(batch[0])), batch[1])

    assert kinds(check_equivalence(network(), casting, classes())) == []
    assert kinds(check_equivalence(network(), casting, padded())) == ["wrong denominator"]
    assert kinds(check_equivalence(network(), casting, padded(), weight=lambda b: (b[1] >= 0).sum())) == []
    assert kinds(check_loop(loop(loss=casting), network(), classes(), loss_fn=loss_fn)) in ([], ["low precision"])


@pytest.mark.parametrize("ignored", [range(2), range(4), [0, 1, 10, 11], range(20, 24), range(22, 24)])
def test_a_micro_batch_of_ignored_targets_is_not_missed(ignored):
    x, y = classes()
    y[list(ignored)] = -100
    counted = loop(share=lambda sizes, n: 1.0)

    def right(model, optimizer, micro_batches):
        for start in range(0, len(micro_batches), K):
            window = micro_batches[start : start + K]
            tokens = sum(int((targets >= 0).sum()) for _, targets in window)
            for inputs, targets in window:
                (cross_entropy(model(inputs), targets, reduction="sum") / max(tokens, 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert kinds(check_loop(right, network(dtype=torch.float64), (x, y), loss_fn=loss_fn)) == []
    found = kinds(check_loop(counted, network(dtype=torch.float64), (x, y), loss_fn=loss_fn))
    assert "missing backward" not in found and "lost remainder" not in found, found
    assert found


@pytest.mark.fault("checker", 1)
def test_tensors_of_float32_in_the_loop():
    def train_step(model, optimizer, micro_batches):
        for start in range(0, len(micro_batches), K):
            window = micro_batches[start : start + K]
            items = torch.tensor([len(x) for x, _ in window]).sum()
            for batch in window:
                cross_entropy(model(batch[0]), batch[1], reduction="sum").float().backward()
            for p in model.parameters():
                p.grad *= 1 / items.to(torch.float32)
            optimizer.step()
            optimizer.zero_grad()

    assert kinds(check_loop(train_step, network(), classes(), loss_fn=loss_fn)) == []


@pytest.mark.fault("checker", 1)
def test_a_small_mistake_shows_behind_a_cast():
    def nearly(sizes, n):
        return n / sum(sizes) * (1 + 1e-5)

    def casting(model, batch):
        return cross_entropy(model(batch[0]).bfloat16().float(), batch[1])

    report = check_loop(loop(nearly, loss=casting), network(), classes(), loss_fn=casting)
    assert kinds(report) == ["wrong scale"]


@pytest.mark.fault("checker", 2)
def test_parameters_may_move_and_come_back():
    def train_step(model, optimizer, micro_batches):
        for group in optimizer.param_groups:
            group["lr"] = 10.0
        loop()(model, optimizer, micro_batches)

    model = network()
    before = copy.deepcopy(model.state_dict())
    assert kinds(check_loop(train_step, model, classes(), loss_fn=loss_fn)) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.fault("checker", 2)
def test_an_optimizer_of_another_model_is_refused_before_it_steps():
    model = network()
    outside = torch.optim.SGD(model.parameters(), lr=1.0)
    before = copy.deepcopy(model.state_dict())

    def train_step(copied, optimizer, micro_batches):
        for batch in micro_batches:
            loss_fn(model, batch).backward()
        outside.step()

    with pytest.raises(ConfigError, match="whose parameters are not those of the model that it gets"):
        check_loop(train_step, model, classes(), loss_fn=loss_fn)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.fault("checker", 2)
def test_parameters_moved_without_an_optimizer_are_refused():
    def train_step(model, optimizer, micro_batches):
        for batch in micro_batches:
            loss_fn(model, batch).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    with pytest.raises(ConfigError, match="changes parameters by other means"):
        check_loop(train_step, network(), classes(), loss_fn=loss_fn)


@pytest.mark.fault("checker", 3)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_length_of_a_tail_is_tried(length):
    def divided_wrongly(sizes, n):
        return n / sum(sizes) * (len(sizes) / K if len(sizes) == length else 1.0)

    report = check_loop(loop(divided_wrongly), network(), classes(), loss_fn=loss_fn)
    assert kinds(report) == ["short last window scaled by K"]
    assert f"Tails of {length} are wrong." in report.causes[0].explanation

    def lost(i, total):
        return (i + 1) % K == 0 or (i + 1 == total and total % K != length)

    assert kinds(check_loop(loop(last=lost), network(), classes(), loss_fn=loss_fn)) == ["lost remainder"]


@pytest.mark.fault("checker", 3)
def test_complex_means_are_right_in_both_checks():
    model = nn.Linear(4, 3, dtype=torch.complex64)
    data = torch.randn(24, 4, dtype=torch.complex64), torch.randn(24, 3, dtype=torch.complex64)

    def distance(model, batch):
        return (model(batch[0]) - batch[1]).abs().square().mean()

    assert kinds(check_equivalence(model, distance, data)) == []
    assert kinds(check_loop(loop(loss=distance), model, data, loss_fn=distance)) == []


@pytest.mark.fault("checker", 4)
def test_a_choice_of_items_is_no_denominator():
    def best(model, batch):
        return model(batch[0])[:, 0].topk(1).values.mean()

    for splits in (None, [[12, 12]], [[20, 4]]):
        assert kinds(check_equivalence(network(), best, classes(), splits=splits)) == ["batch-coupled loss"]


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5, sparse=sparse), nn.Linear(5, 2)

    def forward(self, ids):
        return self.head(self.words(ids).mean(dim=1))


@pytest.mark.fault("checker", 5)
def test_sparse_gradients_are_compared_as_dense_ones():
    data = torch.randint(0, 9, (24, 3)), torch.randint(0, 2, (24,))
    assert kinds(check_equivalence(Words(sparse=True), loss_fn, data)) == []
    assert kinds(check_loop(loop(), Words(sparse=True), data, loss_fn=loss_fn)) == []
    assert kinds(check_loop(loop(lambda sizes, n: 1), Words(sparse=True), data, loss_fn=loss_fn)) == ["not scaled"]


@pytest.mark.fault("checker", 5)
def test_the_command_prints_one_short_line_for_a_long_error(tmp_path, capsys):
    file = tmp_path / "loops.py"
    file.write_text("def broken():\n    raise RuntimeError('first\\n' + 'x' * 20000)\n")
    assert run_check(f"{file}:broken") == 2
    err = capsys.readouterr().err
    assert "RuntimeError: first" in err and len(err) < 600 and err.count("\n") == 1


@pytest.mark.fault("checker", 6)
def test_what_float64_cannot_see_of_a_bfloat16_model_is_said():
    k = 64
    data = torch.randn(256, 5, dtype=torch.bfloat16), torch.randint(0, 2, (256,))

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            items = sum(len(b[0]) for b in micro_batches[i - i % k : i - i % k + k])
            (loss_fn(model, batch) * len(batch[0]) / items).backward()
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()

    model = network(dtype=torch.bfloat16)
    report = check_loop(train_step, model, data, loss_fn=loss_fn, micro_batches=k, tail=False)
    assert report.equal
    (note,) = [note for note in report.advice if "bfloat16 itself" in note]
    assert "sum gradients in float32" in note
    assert "in bfloat16 itself the full batch's gradient is off by" in str(check_equivalence(model, loss_fn, data))


class Recomputing(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.first, self.second, self.keep = nn.Linear(5, 8), nn.Linear(8, 2), keep

    def forward(self, x):
        def part(h):
            return dropout(h.tanh(), 0.5, self.training)

        return self.second(checkpoint(part, self.first(x), use_reentrant=False, preserve_rng_state=self.keep))


@pytest.mark.fault("checker", 7)
def test_recomputation_with_other_masks_is_no_dropout():
    assert kinds(check_equivalence(Recomputing(keep=True), loss_fn, classes())) == ["dropout"]
    assert kinds(check_equivalence(Recomputing(keep=False), loss_fn, classes())) == [
        "recomputed with other random numbers"
    ]
    assert kinds(check_equivalence(Recomputing(keep=False).eval(), loss_fn, classes())) == []


@pytest.mark.fault("checker", 7)
def test_a_gradient_that_is_stopped_on_purpose_is_a_note():
    def stopped(model, batch):
        output = model(batch[0])
        return mse_loss(output, output.detach().flip(-1) + 1)

    report = check_equivalence(network(), stopped, classes())
    assert report.equal and "the gradient is not the slope of the loss" in str(report)
    assert "slope" not in str(check_equivalence(network(), loss_fn, classes()))


@pytest.mark.fault("checker", 8)
def test_a_loop_without_accumulation():
    def plain(factor, zero=True):
        def train_step(model, optimizer, micro_batches):
            for batch in micro_batches:
                (loss_fn(model, batch) * factor(len(batch[0]))).backward()
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

        return train_step

    def check(*arguments, **options):
        return kinds(check_loop(plain(*arguments, **options), network(), classes(4), loss_fn=loss_fn, micro_batches=1))

    assert check(lambda n: 1.0) == []
    assert check(lambda n: n) == ["sum loss"]
    assert check(lambda n: 0.5) == ["wrong scale"]
    assert check(lambda n: 1.0, zero=False) == ["not zeroed"]


@pytest.mark.fault("checker", 8)
def test_normalising_each_micro_batch_is_batch_coupled():
    def gains(batch):
        return (batch[1] - batch[1].mean()) / batch[1].std()

    def policy(model, batch):
        return -(model(batch[0]).log_softmax(-1)[:, 0] * gains(batch)).mean()

    data = torch.randn(24, 5), torch.randn(24)
    assert kinds(check_loop(loop(loss=policy), network(), data, loss_fn=policy)) == ["batch-coupled loss"]


class KeyBias(nn.Module):
    """Attention, whose scores do not depend on the bias of the keys."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return (scores.softmax(-1) @ self.value(x)).mean(dim=1)


@pytest.mark.fault("checker", 9)
def test_a_gradient_that_is_zero_has_no_error_of_its_own():
    data = torch.randn(24, 3, 4), torch.randint(0, 4, (24,))
    for report in (
        check_equivalence(KeyBias(), loss_fn, data),
        check_loop(loop(), KeyBias(), data, loss_fn=loss_fn),
    ):
        assert report.equal
        assert report.error < 1e-12 and max(row.error for row in report.table) < 1e-12
        assert next(row for row in report.table if row.parameter == "key.bias").ratio == 1.0


@pytest.mark.fault("checker", 9)
def test_the_line_is_that_of_the_optimizer():
    class Profiler:
        def step(self):
            pass

    def train_step(model, optimizer, micro_batches):
        profiler = Profiler()
        for batch in micro_batches:
            profiler.step()
            loss_fn(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    report = check_loop(train_step, network(), classes(), loss_fn=loss_fn)
    assert kinds(report) == ["early or extra step"]
    assert report.causes[0].line.endswith("optimizer.step()")


@pytest.mark.fault("checker", 9)
@pytest.mark.parametrize("reached", [0, K - 1])
def test_backward_on_one_micro_batch_only_is_not_zeroing(reached):
    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            loss = loss_fn(model, batch) / K
            if i % K == reached:
                loss.backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()

    report = check_loop(train_step, network(), classes(), loss_fn=loss_fn, tail=False)
    assert kinds(report) == ["missing backward"]


@pytest.mark.fault("checker", 3)
def test_a_constant_that_fits_windows_of_the_usual_size_is_no_denominator():
    def constant(model, batch):
        return cross_entropy(model(batch[0]), batch[1], reduction="sum")

    report = check_loop(
        loop(lambda sizes, n: 1 / (3 * len(sizes)), loss=constant), network(), classes(), loss_fn=loss_fn
    )
    assert kinds(report) == ["wrong denominator"]


@pytest.mark.fault("checker", 3)
def test_a_short_last_window_must_be_clipped_too():
    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            items = sum(len(b[0]) for b in micro_batches[i - i % K : i - i % K + K])
            (loss_fn(model, batch) * len(batch[0]) / items).backward()
            if (i + 1) % K == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if (i + 1) % K == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(check_loop(train_step, network(), classes(), loss_fn=loss_fn)) == ["short last window not clipped"]


@pytest.mark.fault("checker", 2)
def test_gradients_that_are_not_in_grad_cannot_be_judged():
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        accumulator = GradientAccumulator(model, optimizer, eager="momentum", on_nonfinite="raise")
        for window in accumulator.windows(micro_batches, micro_batches=K):
            for batch in window:
                window.backward(loss_fn(model, batch))
            window.step()

    with pytest.raises(ConfigError, match="eager='momentum'"):
        check_loop(train_step, network(), classes(), loss_fn=loss_fn)
