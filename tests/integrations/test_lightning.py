"""Lightning and Accelerate: exact windows in both, and what the check says of theirs; skipped where not installed."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import dagnn
from dagnn.accumulation.check.arithmetic import relative_error
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
pytestmark += [pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CLASSES = 5


def batches():
    """Ragged micro-batches whose labels count unequally often; the last window of two is short."""
    torch.manual_seed(1)
    found = []
    for i, n in enumerate((4, 3, 2, 4, 2)):
        labels = torch.randint(0, CLASSES, (n,))
        labels[1 : 1 + i % 3] = -100
        found.append((torch.randn(n, 3).double(), labels, torch.randn(n, CLASSES).double()))
    return found


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Dropout(dropout), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def tokens(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def two_terms(model, batch):
    return tokens(model, batch) + 0.5 * mse_loss(model(batch[0]), batch[2])


def contrastive(model, batch):
    z = model(batch[0])
    return cross_entropy(z @ z.T, torch.arange(len(z)))


def full_gradients(loss_fn, k=2):
    found, data = [], batches()
    for start in range(0, len(data), k):
        model = network()
        whole = tuple(torch.cat(parts) for parts in zip(*data[start : start + k], strict=True))
        loss_fn(model, whole).backward()
        found.append([p.grad for p in model.parameters()])
    return found


@pytest.fixture
def fit():
    lightning = pytest.importorskip("lightning", reason="needs pip install dagnn[lightning]")

    class Module(lightning.LightningModule):
        def __init__(self, loss_fn, dropout=0.0):
            super().__init__()
            self.net, self.loss_fn, self.gradients, self.losses = network(dropout), loss_fn, [], []

        def training_step(self, batch, index):
            loss = self.loss_fn(self.net, batch)
            self.log("loss", loss)
            return loss

        def on_before_optimizer_step(self, optimizer):
            self.gradients.append([p.grad.clone() for p in self.parameters()])

        def on_train_batch_end(self, outputs, batch, index):
            self.losses.append(float(self.trainer.callback_metrics.get("loss", 0.0)))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def run(loss_fn, *callbacks, dropout=0.0, **options):
        module = Module(loss_fn, dropout)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        settings = {"max_epochs": 1, "accumulate_grad_batches": 2, "enable_model_summary": False} | quiet | options
        trainer = lightning.Trainer(callbacks=list(callbacks), **settings)
        torch.manual_seed(7)
        trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))
        return module

    return run


@pytest.mark.parametrize("loss_fn", [tokens, two_terms])
def test_lightning_s_windows_are_exact(fit, loss_fn):
    from dagnn.integrations.lightning import ExactAccumulation

    found = fit(loss_fn, ExactAccumulation())

    for gradient, expected in zip(found.gradients, full_gradients(loss_fn), strict=True):
        assert relative_error(gradient, expected) < 1e-6
    assert found.losses == fit(loss_fn).losses  # what training_step logs is its own
    assert "backward" not in vars(found)


def test_lightning_s_own_division_is_judged(fit):
    from dagnn.integrations.lightning import ExactAccumulation, GradientCheck

    with pytest.warns(AccumulationWarning, match="mean of means: all micro-batches have the same weight"):
        fit(tokens, check := GradientCheck())
    assert not check.report.equal and "ExactAccumulation" in check.report.causes[0].change

    fit(tokens, ExactAccumulation(), check := GradientCheck(on_unequal="raise"), dropout=0.5)
    assert check.report.equal

    with pytest.raises(AccumulationError, match="NOT EQUAL to the full batch: mean of means"):
        fit(tokens, GradientCheck(on_unequal="raise"))


def test_the_check_changes_no_bit(fit):
    from dagnn.integrations.lightning import GradientCheck

    with pytest.warns(AccumulationWarning):
        checked = fit(tokens, GradientCheck(), dropout=0.5)

    for a, b in zip(checked.gradients, fit(tokens, dropout=0.5).gradients, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_lightning_clips_the_exact_gradient(fit):
    from dagnn.integrations.lightning import ExactAccumulation

    class Norm(pytest.importorskip("lightning").Callback):
        norms: list = []  # noqa: RUF012 - of this test only

        def on_before_zero_grad(self, trainer, module, optimizer):
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            if gradients:
                self.norms.append(sum(float(g.square().sum()) for g in gradients) ** 0.5)

    fit(tokens, ExactAccumulation(), Norm(), gradient_clip_val=0.05)

    assert Norm.norms and all(norm == pytest.approx(0.05, rel=1e-4) for norm in Norm.norms)


def test_coupled_items_are_refused_in_lightning(fit):
    from dagnn.integrations.lightning import ExactAccumulation

    with pytest.raises(AccumulationError, match=r"depends on the other items.* give coupled=True"):
        fit(contrastive, ExactAccumulation())
    with pytest.raises(ConfigError, match=r"weight=... and coupled=True"):
        ExactAccumulation(weight=len, coupled=True)


def test_coupled_windows_are_one_batch_in_lightning(fit):
    from dagnn.integrations.lightning import ExactAccumulation

    found = fit(contrastive, ExactAccumulation(coupled=True))

    assert len(found.gradients) == 3
    for gradient, expected in zip(found.gradients, full_gradients(contrastive), strict=True):
        assert relative_error(gradient, expected) < 1e-9
    assert len(set(found.losses)) == 4  # none before the first window is complete
    assert not {"backward", "training_step"} & set(vars(found))


def test_coupled_windows_are_judged_in_lightning(fit):
    from dagnn.integrations.lightning import ExactAccumulation, GradientCheck

    fit(contrastive, ExactAccumulation(coupled=True), check := GradientCheck(on_unequal="raise"))
    assert check.report.equal

    with pytest.warns(AccumulationWarning, match="batch-coupled loss: no weights of the 2 micro-batches make"):
        fit(contrastive, check := GradientCheck(coupled=True))
    assert "ExactAccumulation(coupled=True)" in check.report.causes[0].change


def test_what_lightning_cannot_do_exactly_is_refused(fit):
    from dagnn.integrations.lightning import ExactAccumulation, GradientCheck

    class Manual(ExactAccumulation):
        def on_train_start(self, trainer, pl_module):
            pl_module.automatic_optimization = False
            super().on_train_start(trainer, pl_module)

    with pytest.raises(ConfigError, match="the module optimises by hand"):
        fit(tokens, Manual())
    with pytest.raises(ConfigError, match="on_unequal must be"):
        GradientCheck(on_unequal="stop")


def test_prepared_models_of_accelerate_are_exact():
    accelerate = pytest.importorskip("accelerate", reason="needs pip install accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    accumulator = dagnn.GradientAccumulator(prepared, optimizer)

    found = []
    for window in accumulator.windows(batches(), micro_batches=2, weight=lambda b: int((b[1] >= 0).sum())):
        for batch in window:
            window.backward(tokens(prepared, batch))
        found.append([p.grad.clone() for p in model.parameters()])
        window.step()

    for gradient, expected in zip(found, full_gradients(tokens), strict=True):
        assert relative_error(gradient, expected) < 1e-6


def test_accelerator_accumulate_is_judged():
    accelerate = pytest.importorskip("accelerate", reason="needs pip install accelerate")

    def train_step(model, optimizer, micro_batches):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        prepared, stepping, loader = accelerator.prepare(
            model, optimizer, torch.utils.data.DataLoader(micro_batches, batch_size=None)
        )
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(mse_loss(prepared(x), y))
                stepping.step()
                stepping.zero_grad()

    torch.manual_seed(0)
    batch = (torch.randn(32, 40), torch.randn(32, 2))
    report = dagnn.check_loop(
        train_step, nn.Linear(40, 2), batch, loss_fn=lambda model, b: mse_loss(model(b[0]), b[1]), micro_batches=4
    )

    assert not report.equal
    assert {"mean of means", "short last window scaled by K"} & {str(cause.kind) for cause in report.causes}
