"""Failures that users reported against other libraries, with the right value, and the value that the bug gives.

The model is ``w * x`` with one weight unless said otherwise, so the gradient is a weighted mean of the inputs. Plain
SGD with learning rate 1 and no clipping: both Adam and clipping hide a constant factor. Reports about several processes
(DDP, FSDP2: unequal counts, no_sync, static_graph, unused parameters, number of collectives) are in test_ranks.py,
those about resuming inside a window in test_resume.py, about dropout masks in a second pass in test_coupled.py.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, logsigmoid

from dagnn.accumulation import AccumulationWarning, GradientAccumulator, accumulate
from dagnn.accumulation.check import check_loop
from dagnn.errors import ConfigError

NAN, INF = math.nan, math.inf


class Weight(nn.Module):
    def __init__(self, start=0.0, size=()):
        super().__init__()
        self.w = nn.Parameter(torch.full(size, start, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def sgd(model, lr=1.0):
    return torch.optim.SGD(model.parameters(), lr=lr)


def updates(loader, *, model=None, epochs=1, accumulator_options=None, **options):
    """What each update subtracts from the weight, with the loss mean(w * x)."""
    model = model or Weight()
    accumulator = GradientAccumulator(model, sgd(model), **(accumulator_options or {}))
    moved = []
    for _ in range(epochs):
        for window in accumulator.windows(loader, **options):
            for x in window:
                window.backward(model(x).mean())
            gradient = model.w.grad.clone() if model.w.grad is not None else None
            window.step()
            moved.append(0.0 if gradient is None else float(gradient))
    return moved


class TestNormalisation:
    def test_mean_of_means(self):
        """transformers#34191, #24725, #14638; torchtune#1875; nanochat#59: 6.0."""
        assert updates([column(*[1.0] * 9), column(11.0)], micro_batches=2) == [2.0]

    def test_mean_of_means_in_the_reported_loss(self):
        """torchtitan#4167: 6.0."""
        model = Weight(start=1.0)
        accumulator = GradientAccumulator(model, sgd(model))
        window = next(accumulator.windows([column(2.0), column(*[10.0] * 9)], micro_batches=2))
        for x in window:
            window.backward(model(x).mean())
        assert window.step().loss == pytest.approx(9.2, rel=1e-12)

    @pytest.mark.parametrize("size", [1, 2])
    def test_policy_loss_weighted_by_tokens(self, size):
        """modelscope/twinkle#292: loss 0 and gradient 0."""
        model = Weight()
        batch = [(1, 1.0), (3, -1.0)]  # (tokens, advantage)

        def loss_fn(model, micro):
            log_probability = logsigmoid(model.w)
            ratio = (log_probability - log_probability.detach()).exp()
            terms = torch.cat([(-advantage * ratio).expand(tokens) for tokens, advantage in micro])
            return terms.mean(), len(terms)

        accumulator = GradientAccumulator(model, sgd(model))
        for start in range(0, 2, size):
            loss, tokens = loss_fn(model, batch[start : start + size])
            accumulator.backward(loss, weight=tokens)
        update = accumulator.step()
        assert update.loss == pytest.approx(0.5, rel=1e-12)
        assert -float(model.w.detach()) == pytest.approx(0.25, rel=1e-12)

    @pytest.mark.parametrize("k", [1, 2, 4, 8])
    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    def test_never_k_times_too_large(self, k, reduction):
        """transformers#35204, #35207, #35438; LlamaFactory#7443: K times."""
        model = Weight()
        window = next(GradientAccumulator(model, sgd(model)).windows([column(*[3.0] * (8 // k))] * k, micro_batches=k))
        for x in window:
            window.backward(getattr(model(x), reduction)(), reduction=reduction)
        assert float(model.w.grad) == pytest.approx(3.0, rel=1e-12)

    def test_divided_twice_warns(self):
        """modelscope/ms-swift#10117; Megatron-DeepSpeed#42; unsloth-zoo#1023: g / 4."""
        assert updates([column(2.0)] * 4, micro_batches=4) == [2.0]
        model = Weight()
        window = next(GradientAccumulator(model, sgd(model)).windows([column(2.0)] * 4, micro_batches=4))
        with pytest.warns(AccumulationWarning, match="divided by 4"):
            for x in window:
                window.backward(model(x).mean() / 4)

    def test_chained_modules_are_scaled_once(self):
        """DeepSpeed#8152, #8154: the upstream module g / 8."""
        first, second = Weight(1.0), Weight(1.0)
        accumulator = GradientAccumulator([first, second], [sgd(first), sgd(second)])
        window = next(accumulator.windows([column(3.0)] * 8, micro_batches=8))
        for x in window:
            window.backward(second(first(x)).mean())
        assert (float(first.w.grad), float(second.w.grad)) == (3.0, 3.0)

    def test_label_smoothing_uses_the_count(self):
        """transformers#46731, #47261: gradient norm about 9 times."""
        torch.manual_seed(0)
        model = nn.Linear(4, 6).double()
        reference = copy.deepcopy(model)
        batches = []
        for n in (3, 1, 4, 2, 5, 1, 2, 6):
            targets = torch.randint(0, 6, (n,))
            targets[n // 2] = -100
            batches.append((torch.randn(n, 4).double(), targets))
        whole = [torch.cat(parts) for parts in zip(*batches, strict=True)]
        cross_entropy(reference(whole[0]), whole[1], label_smoothing=0.1).backward()
        accumulator = GradientAccumulator(model, sgd(model))
        window = next(accumulator.windows(batches, micro_batches=8, weight=lambda b: (b[1] >= 0).sum()))
        for x, y in window:
            window.backward(cross_entropy(model(x), y, label_smoothing=0.1))
        assert float(model.weight.grad.norm() / reference.weight.grad.norm()) == pytest.approx(1.0, rel=1e-12)

    def test_a_signature_is_no_promise(self):
        """transformers#47688, #47690: 65 heads K times too large, guessed from ``**kwargs`` in forward."""

        class Guessed(Weight):
            def forward(self, x, **kwargs):
                return self.w * x

        assert updates([column(2.0)] * 4, model=Guessed(), micro_batches=4) == [2.0]

    @pytest.mark.parametrize(("generated", "k"), [(4, 2), (8, 8), (8, 32), (2, 2)])
    def test_window_of_the_denominator_is_the_window_of_the_step(self, generated, k):
        """trl#6024: scale 0.5 and 4."""
        moved = updates([column(1.0)] * generated, micro_batches=k)
        assert moved == [1.0] * -(-generated // k)

    def test_auxiliary_loss_has_its_own_rule(self):
        """Megatron#4070, #5798, #2417; ms-swift#10116; transformers#48690: 0.4 or 0.1 / 4."""
        main, aux = Weight(), Weight()
        accumulator = GradientAccumulator([main, aux], [sgd(main), sgd(aux)])
        loader = [column(*[1.0] * n) for n in (1, 5, 2, 4)]
        window = next(accumulator.windows(loader, micro_batches=4, weight=lambda x: {"main": len(x), "aux": 1}))
        for x in window:
            window.backward({"main": main(x).mean(), "aux": 0.1 * aux(column(1.0)).mean()})
        assert float(main.w.grad) == pytest.approx(1.0, rel=1e-12)
        assert float(aux.w.grad) == pytest.approx(0.1, rel=1e-12)

    def test_zero_valid_targets(self):
        """nanochat#618, #623; Automodel#3796; OLMo-core#657; instructlab/training#547: nan."""
        loader = [column(2.0)] * 4 + [column()]
        assert updates(loader, micro_batches=5) == [2.0]
        model = Weight(start=0.5)
        accumulator = GradientAccumulator(model, sgd(model))
        for window in accumulator.windows([column(), column()], micro_batches=2):
            for x in window:
                window.backward(model(x).mean())
            assert window.step().skipped == "empty"
        assert float(model.w.detach()) == 0.5

    @pytest.mark.parametrize(("policy", "expected"), [("drop", 2.0), ("skip", 0.0)])
    def test_dropped_micro_batch_leaves_the_denominator(self, policy, expected):
        """prime-rl#1961; mflux#447; lunariscodex#71: 1.2."""
        model = Weight()
        accumulator = GradientAccumulator(model, sgd(model), on_nonfinite=policy)
        loader = [(4.0, 4), (NAN, 4), (8.0, 2)]
        for window in accumulator.windows(loader, micro_batches=3, weight=lambda m: m[1]):
            for total, _ in window:
                window.backward(model(column(total)).sum(), reduction="sum")
            window.step()
        assert -float(model.w.detach()) == pytest.approx(expected, rel=1e-12)


class TestWindows:
    def test_tail_is_divided_by_its_own_size(self):
        """Lightning#19987; minimind#749; Accelerate: 1, 0.5."""
        assert updates([column(1.0)] * 6, micro_batches=4) == [1.0, 1.0]
        parts = [column(*range(1, 5)), column(*range(5, 9)), column(9, 10)]
        assert updates(parts, micro_batches=2) == pytest.approx([4.5, 9.5], rel=1e-12)

    def test_tail_does_not_leak_into_the_next_epoch(self):
        """torchtune#2745; timoschick/pet#36: one window of 15."""
        model = Weight()
        accumulator = GradientAccumulator(model, sgd(model))
        sizes = []
        for _ in range(2):
            for window in accumulator.windows([column(1.0)] * 63, micro_batches=8):
                for x in window:
                    window.backward(model(x).mean())
                sizes.append(window.step().micro_batches)
        assert sizes == ([8] * 7 + [7]) * 2
        assert accumulator.updates == 16
        assert float(model.w.detach()) == pytest.approx(-16.0, rel=1e-12)

    @pytest.mark.parametrize(("tail", "expected"), [("flush", 4), ("carry", 3), ("drop", 0)])
    def test_epoch_shorter_than_the_window(self, tail, expected):
        """Lightning#21808; transformers#14309; AnimaLoraStudio#305: 0, or a step for every batch."""
        moved = updates([column(1.0)] * 3, epochs=4, micro_batches=4, tail=tail)
        assert moved == [1.0] * expected

    def test_planned_updates_are_the_executed_ones(self):
        """transformers#36297, #37777, #31677: 20 planned."""
        assert len(updates([column(1.0)] * 10, epochs=10, micro_batches=4)) == 10 * -(-10 // 4) == 30

    def test_inner_splits_at_the_end_of_the_loader(self):
        """accelerate#1847: 0, 1, 0.5, 0.5."""
        model = Weight()
        accumulator = GradientAccumulator(model, sgd(model))
        seen, before = [], 0.0
        for window in accumulator.windows([column(1, 1, 1, 1)] * 2, micro_batch_size=2):
            for index, x in enumerate(window):
                window.backward(model(x).mean())
                if index == 1:
                    window.step()
                seen.append(before - float(model.w.detach()))
                before = float(model.w.detach())
        assert seen == [0, 1, 0, 1]

    def test_only_the_last_micro_batch_kept(self):
        """ServiceNow/Fast-LLM#551; AMD-AGI/Primus#1046; sentence-transformers#3854: 3 or 1."""
        model = Weight()
        window = next(
            GradientAccumulator(model, sgd(model)).windows([column(1), column(2), column(3)], micro_batches=3)
        )
        for x in window:
            window.backward(model(x).sum() * 3, reduction="sum")
        assert float(model.w.grad) == pytest.approx(6.0, rel=1e-12)

    def test_reported_loss_is_that_of_the_window(self):
        """torchtitan#1759; allennlp#4706; Lightning#2569; NVIDIA-NeMo/labs-molt#56: 0.75, 6 or 1.5."""
        for k in (1, 2, 4):
            model = Weight(start=1.0)
            accumulator = GradientAccumulator(model, sgd(model, lr=0.0))
            values = column(1, 2, 3, 6).split(4 // k)
            window = next(accumulator.windows(values, micro_batches=k))
            for x in window:
                window.backward(model(x).mean())
            assert window.step().loss == pytest.approx(3.0, rel=1e-12)

    def test_other_optimizers_gradients_do_not_leak(self):
        """Lightning#591."""
        generator, discriminator = Weight(1.0), Weight(2.0)
        accumulator = GradientAccumulator(generator, sgd(generator))
        window = next(accumulator.windows([column(1.0)] * 2, micro_batches=2))
        for x in window:
            window.backward(-discriminator(generator(x)).mean())
        discriminator_window = next(
            GradientAccumulator(discriminator, sgd(discriminator)).windows([column(1.0)], micro_batches=1)
        )
        for x in discriminator_window:
            discriminator_window.backward(0 * discriminator(x).mean())
        assert float(discriminator.w.grad) == 0.0
        assert float(generator.w.grad) == -2.0

    def test_tied_weight(self):
        """Megatron#844."""
        torch.manual_seed(0)
        embedding = nn.Embedding(6, 4).double()
        head = nn.Linear(4, 6, bias=False).double()
        head.weight = embedding.weight
        model = nn.Sequential(embedding, head)
        reference = copy.deepcopy(model)
        batches = [torch.randint(0, 6, (n,)) for n in (5, 1, 3)]
        whole = torch.cat(batches)
        cross_entropy(reference(whole), whole.flip(0) * 0 + whole).backward()
        window = next(GradientAccumulator(model, sgd(model)).windows(batches, micro_batches=3))
        for tokens in window:
            window.backward(cross_entropy(model(tokens), tokens))
        assert torch.allclose(embedding.weight.grad, reference[0].weight.grad, rtol=1e-12, atol=1e-15)


class TestSchedules:
    def train(self, k, micros, schedule):
        model = Weight()
        optimizer = sgd(model)
        scheduler = schedule(optimizer)
        accumulator = GradientAccumulator(model, optimizer, scheduler=scheduler)
        rates = []
        for window in accumulator.windows([column(1.0)] * micros, micro_batches=k):
            for x in window:
                window.backward(model(x).mean())
            rates.append(window.step().lr)
        return rates, optimizer.param_groups[0]["lr"]

    def test_schedule_moves_per_update(self):
        """accelerate#963, #1170; h2o-llmstudio#663; Keras: 1/256, and 1, .1, .01, .001."""
        _, rate = self.train(2, 8, lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5))
        assert rate == 1 / 16
        # Boundaries 2, 4, 6 count updates.
        rates, _ = self.train(2, 6, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 6], 0.1))
        assert rates == pytest.approx([1, 1, 0.1])
        rates, _ = self.train(2, 8, lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 5, 7], 0.1))
        assert rates == pytest.approx([1, 1, 1, 0.1])

    def test_weight_decay_and_adam_count_per_update(self):
        """keras#19990, #19998: 0.729, and 3."""
        model = Weight(start=1.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
        accumulator = GradientAccumulator(model, optimizer)
        for window in accumulator.windows([column(0.0)] * 3, micro_batches=3):
            for x in window:
                window.backward(model(x).mean())
            window.step()
        assert float(model.w.detach()) == pytest.approx(0.9, rel=1e-12)
        assert float(optimizer.state[model.w]["step"]) == 1

    def test_optimizer_in_backward(self):
        """pytorch#124523; GaLore#78; LlamaFactory#5887: -0.4."""
        model = Weight()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with pytest.raises(ConfigError, match="eager='each' would step Adam"):
            GradientAccumulator(model, optimizer, eager="each")
        accumulator = GradientAccumulator(model, optimizer, eager="last", on_nonfinite="raise")
        for window in accumulator.windows([column(1.0)] * 4, micro_batches=4):
            for x in window:
                window.backward(model(x).mean())
            window.step()
        assert float(model.w.detach()) == pytest.approx(-0.1, rel=1e-6)


class TestNormsAndScales:
    def gradient(self, micro_gradients, dtype=torch.float64, **options):
        """What one update subtracts, for micro-batches of equal weight with the given gradients."""
        model = nn.ParameterList([nn.Parameter(torch.zeros(len(micro_gradients[0]), dtype=dtype))])
        accumulator = GradientAccumulator(model, sgd(model), **options)
        window = next(accumulator.windows(torch.ones(len(micro_gradients), 1), micro_batches=len(micro_gradients)))
        for gradient, _ in zip(micro_gradients, window, strict=True):
            window.backward((model[0] * torch.tensor(gradient, dtype=dtype)).sum())
        update = window.step()
        return (-model[0].detach()).tolist(), update

    def test_clip_acts_on_the_sum(self):
        """transformers#1563; facebookresearch/lingua#59; tt-metal#17568: (-0.5, 0.2)."""
        moved, _ = self.gradient([(3.0, 0.0), (-3.0, 0.4)], max_norm=1.0)
        assert moved == pytest.approx([0.0, 0.2], abs=1e-12)

    def test_scaled_gradients_are_unscaled_once_before_the_clip(self):
        """accelerate#641; Swin-Transformer#311; waifu-diffusion#64: 1/65536, or RuntimeError."""
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        moved, update = self.gradient([(1.0,), (3.0,)], torch.float32, max_norm=1.0, scaler=scaler)
        assert update.grad_norm == pytest.approx(2.0)
        assert moved == pytest.approx([1.0], rel=1e-5)

    def test_norm_in_low_precision(self):
        """burn#5699; fairscale#263; torchtitan#4135: gradients 0, and 31.625."""
        moved, _ = self.gradient([(60000.0, 60000.0)], torch.float16, max_norm=1.0)
        assert moved == pytest.approx([0.7071, 0.7071], abs=5e-4)
        _, update = self.gradient([(1.0,) * 1003], torch.bfloat16)
        assert update.grad_norm == pytest.approx(31.670, abs=1e-3)

    def test_non_finite_micro_batch_with_a_scaler(self):
        """espnet#3283: nan for ever."""
        model = nn.ParameterList([nn.Parameter(torch.zeros(1))])
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        accumulator = GradientAccumulator(model, sgd(model), scaler=scaler)
        results = []
        for window in accumulator.windows([torch.tensor([v]) for v in (1.0, INF, 1.0, 2.0)], micro_batches=3):
            for x in window:
                window.backward((model[0] * x).sum())
            window.step()
            results.append((float(model[0].detach()), scaler.get_scale()))
        assert results == [(0.0, 2.0), (-2.0, 2.0)]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_accumulator(self, dtype):
        """DeepSpeed#1800, #2768; Liger-Kernel#512, #830; ISEEKYAN/Megatron-LM#149: 256 and 2048."""
        model = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=dtype))])
        optimizer, seen = sgd(model), []
        optimizer.register_step_pre_hook(lambda *_: seen.append(float(model[0].grad)))
        accumulator = GradientAccumulator(model, optimizer)
        for _ in range(4096):
            accumulator.backward((model[0] * torch.ones(1, dtype=dtype)).sum(), weight=1)
        update = accumulator.step()
        assert seen == [1.0]
        assert update.grad_norm * 4096 == 4096.0


class TestCoupledLosses:
    def test_contrastive_loss_over_the_whole_window(self):
        """open_clip#761, #957, #1211: 0.6931."""
        model = Weight()
        loss = accumulate(
            model,
            lambda m, x: cross_entropy(m(x)[:, None] * torch.ones(4).double(), torch.arange(4)),
            column(1, 2, 3, 4),
            micro_batch_size=2,
            coupled=True,
        )
        assert loss == pytest.approx(math.log(4), rel=1e-12)

    def test_batch_norm_statistics(self):
        """pytorch#46516; Lightning#17446; giotto-deep#75: 0.4, 0.81, 2."""
        layer = nn.BatchNorm1d(1).double()
        accumulator = GradientAccumulator(layer, sgd(layer, lr=0.0), batch_norm="defer")
        with pytest.warns(AccumulationWarning, match="BatchNorm"):
            for window in accumulator.windows([column(0, 0)[:, None], column(4, 4)[:, None]], micro_batches=2):
                for x in window:
                    window.backward(layer(x).square().mean())
                window.step()
        assert float(layer.running_mean) == pytest.approx(0.2, rel=1e-12)
        assert float(layer.running_var) == pytest.approx(0.9 + 0.1 * 16 / 3, rel=1e-12)  # 1.4333
        assert int(layer.num_batches_tracked) == 1

    def test_out_of_memory_keeps_the_effective_batch(self):
        """Composer#1081; EuroEval#69: 2 samples in the update."""
        model = Weight()

        def loss_fn(model, x):
            if len(x) > 1:
                raise torch.OutOfMemoryError("simulated")
            return model(x).mean()

        accumulator = GradientAccumulator(model, sgd(model))
        update = accumulator.update(column(*range(16)), loss_fn, micro_batch_size="auto")
        assert (update.weight, update.micro_batches) == (16, 16)
        assert -float(model.w.detach()) == pytest.approx(7.5, rel=1e-12)


def test_checks_of_step_counts_only_pass_a_rate_that_is_k_times_too_large():
    """LaTeX-OCR#148; aprender#2123. The checker compares values, and sees through clipping."""

    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (model(x) - y).square().mean().backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # hides the factor from the size of the step
                optimizer.step()
                optimizer.zero_grad()

    torch.manual_seed(0)
    batch = (torch.randn(32, 9), torch.randn(32, 1))
    report = check_loop(
        train_step, nn.Linear(9, 1), batch, loss_fn=lambda m, b: (m(b[0]) - b[1]).square().mean(), micro_batches=4
    )
    assert [str(cause.kind) for cause in report.causes] == ["not scaled"]
