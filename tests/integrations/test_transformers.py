"""ExactTrainer and GradientCheck with real Trainers; skipped where transformers is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dagnn.accumulation.check.arithmetic import relative_error
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError

transformers = pytest.importorskip("transformers", reason="needs pip install dagnn[transformers]")
pytest.importorskip("accelerate", reason="needs pip install dagnn[transformers]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*pin_memory")

from dagnn.integrations.transformers import ExactTrainer, GradientCheck  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "num_labels": 2,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    model_class = getattr(transformers, f"{name}")
    config = model_class.config_class(**SMALL | ({} if "Llama" in name or "Mixtral" in name else NO_DROPOUT) | options)
    config._experts_implementation = "eager"
    return model_class(config).to(dtype)


def items(name, n=7, seed=1):
    """Items of unequal lengths, whose labels count unequally often."""
    torch.manual_seed(seed)
    found = []
    for i in range(n):
        # A span head looks at padding too: with other padding it has another loss.
        ids = torch.randint(1, 50, (7 if "QuestionAnswering" in name else 4 + i % 4,))
        labels = ids.masked_fill(torch.rand(len(ids)) < 0.1 * i, -100)
        item = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "CausalLM" in name or "PreTraining" in name:
            item["labels"] = labels
        if "PreTraining" in name:
            item["next_sentence_label"] = torch.tensor(i % 2)
        if "Classification" in name:
            item["labels"] = torch.tensor(i % 2)
        if "QuestionAnswering" in name:
            item |= {"start_positions": torch.tensor(i % 3), "end_positions": torch.tensor(9 - i)}
        found.append(item)
    return found


def collate(samples):
    """Pads on the right, so a micro-batch is as long as its own longest item."""
    batch = {}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        fill = -100 if key == "labels" else 0
        batch[key] = nn.utils.rnn.pad_sequence(values, True, fill) if values[0].ndim else torch.stack(values)
    return batch


class Recorder(transformers.TrainerCallback):
    """The gradient that each step finds, after clipping."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = [p.grad for p in model.parameters()]
        self.gradients.append([None if g is None else g.clone() for g in gradients])


def trainer_of(trainer_class, model, data, folder, *, callbacks=(), collator=collate, **options):
    settings = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "max_steps": 2,
        "max_grad_norm": 0.0,
        "report_to": "none",
        "use_cpu": True,
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "no",
        "optim": "sgd",
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
    }
    extra = {key: options.pop(key) for key in ("weight", "compute_loss_func", "coupled") if key in options}
    arguments = transformers.TrainingArguments(str(folder), **settings | options)
    trainer = trainer_class(model=model, args=arguments, train_dataset=data, data_collator=collator, **extra)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(data)
    return trainer


def full_gradient(model, batch, loss_fn=lambda model, batch: model(**batch).loss):
    model.train()
    model.zero_grad()
    loss = loss_fn(model, batch)
    loss.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return gradients, float(loss.detach())


HEADS = ["LlamaForCausalLM", "GPTNeoXForSequenceClassification", "BertForPreTraining", "BertForQuestionAnswering"]


@pytest.mark.parametrize("name", HEADS)
def test_each_step_is_that_of_the_full_batch(name, tmp_path):
    """Seven ragged items in micro-batches of two: a window of three micro-batches, and one of a single item."""
    data, recorder = items(name), Recorder()
    trainer = trainer_of(ExactTrainer, build(name), data, tmp_path, callbacks=[recorder], learning_rate=0.0)

    trainer.train()

    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    for found, loss, window in zip(recorder.gradients, logged, (data[:6], data[6:]), strict=True):
        expected, full_loss = full_gradient(build(name), collate(window))
        assert relative_error(found, expected) < 1e-6
        assert loss == pytest.approx(full_loss, abs=1e-3)  # the Trainer rounds what it logs


def test_a_float32_gradient_is_as_good_as_that_of_the_full_batch(tmp_path):
    name, recorder = "GPTNeoXForSequenceClassification", Recorder()
    data = items(name)[:6]
    trainer_of(ExactTrainer, build(name, torch.float32), data, tmp_path, callbacks=[recorder], max_steps=1).train()

    expected, _ = full_gradient(build(name), collate(data))
    itself, _ = full_gradient(build(name, torch.float32), collate(data))
    assert relative_error(recorder.gradients[0], expected) < max(1e-6, 4 * relative_error(itself, expected))


def test_label_smoothing_clipping_and_checkpointing_are_the_trainer_s(tmp_path):
    name, recorder = "LlamaForCausalLM", Recorder()
    data = items(name)[:6]
    options = {"label_smoothing_factor": 0.1, "gradient_checkpointing": True, "max_grad_norm": 0.5, "max_steps": 1}
    trainer = trainer_of(ExactTrainer, build(name), data, tmp_path, callbacks=[recorder], **options)
    trainer.train()

    def smoothed(model, batch):
        labels = batch.pop("labels")
        return trainer.label_smoother(model(**batch), labels, shift_labels=True)

    expected, _ = full_gradient(build(name), collate(data), smoothed)
    norm = sum(float(g.square().sum()) for g in expected) ** 0.5
    assert norm > 0.5
    assert relative_error(recorder.gradients[0], [g * 0.5 / norm for g in expected]) < 1e-5


def test_bfloat16_autocast_is_near_the_full_batch(tmp_path):
    name, recorder = "GPTNeoXForSequenceClassification", Recorder()
    data = items(name)[:6]
    trainer_of(
        ExactTrainer, build(name, torch.float32), data, tmp_path, callbacks=[recorder], bf16=True, max_steps=1
    ).train()

    expected, _ = full_gradient(build(name), collate(data))
    assert relative_error(recorder.gradients[0], expected) < 0.1


def test_resumed_training_is_training_that_never_stopped(tmp_path):
    name = "BertForPreTraining"  # its windows run as a whole: several denominators
    data, whole, resumed = items(name, 18), build(name), build(name)
    options = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.1, "max_steps": 3}
    trainer_of(ExactTrainer, whole, data, tmp_path / "a", **options).train()

    trainer_of(ExactTrainer, build(name), data, tmp_path / "b", **options | {"max_steps": 1}).train()
    trainer_of(ExactTrainer, resumed, data, tmp_path / "b", **options).train(
        resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-1")
    )

    assert relative_error(list(resumed.parameters()), list(whole.parameters())) < 1e-9


def test_gradient_check_says_what_the_stock_trainer_does(tmp_path):
    name, models = "GPTNeoXForSequenceClassification", []
    for with_check in (False, True):
        models.append(build(name))
        trainer = trainer_of(transformers.Trainer, models[-1], items(name), tmp_path)
        if with_check:
            check = GradientCheck(trainer)
            trainer.add_callback(check)
            with pytest.warns(AccumulationWarning, match="not scaled: the mean losses of 3 micro-batches are added"):
                trainer.train()
        else:
            trainer.train()

    assert not check.report.equal and "ExactTrainer" in check.report.causes[0].change
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))  # it changes no bit


@pytest.mark.parametrize("name", HEADS)
def test_gradient_check_passes_the_exact_trainer(name, tmp_path):
    trainer = trainer_of(ExactTrainer, build(name), items(name), tmp_path, max_grad_norm=1e-3)
    trainer.add_callback(check := GradientCheck(trainer, on_unequal="raise"))

    trainer.train()

    assert check.report.equal


def test_gradient_check_can_stop_the_training(tmp_path):
    name = "GPTNeoXForSequenceClassification"
    trainer = trainer_of(transformers.Trainer, build(name), items(name), tmp_path)
    trainer.add_callback(GradientCheck(trainer, on_unequal="raise"))

    with pytest.raises(AccumulationError, match="NOT EQUAL to the full batch: not scaled"):
        trainer.train()


def test_load_balancing_of_experts_is_refused_and_not_judged(tmp_path):
    options = {"num_local_experts": 4, "output_router_logits": True}
    data = items("MixtralForCausalLM")

    with pytest.raises(AccumulationError, match="reduces over items before the loss does"):
        trainer_of(ExactTrainer, build("MixtralForCausalLM", **options), data, tmp_path).train()

    stock = trainer_of(transformers.Trainer, build("MixtralForCausalLM", **options), data, tmp_path)
    stock.add_callback(check := GradientCheck(stock))
    with pytest.warns(AccumulationWarning, match="cannot be judged"):
        stock.train()
    assert check.report is None and stock.state.global_step == 2


def clip(dtype=torch.float32, dropout=0.0):
    torch.manual_seed(0)
    tower = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
    tower |= {"projection_dim": 12, "attention_dropout": dropout}
    tokens = {"vocab_size": 60, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.CLIPConfig(
        text_config=tower | tokens, vision_config=tower | {"image_size": 8, "patch_size": 4}, projection_dim=12
    )
    return transformers.CLIPModel(config).to(dtype)


def pairs(n=7, dtype=torch.float32):
    """Images with texts of unequal lengths."""
    torch.manual_seed(1)
    texts = [torch.cat([torch.randint(3, 59, (3 + i % 4,)), torch.tensor([59])]) for i in range(n)]
    return [{"input_ids": ids, "pixel_values": torch.randn(3, 8, 8).to(dtype)} for ids in texts]


def collate_pairs(samples):
    ids = nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], True, 1)
    pixels = torch.stack([sample["pixel_values"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "pixel_values": pixels, "return_loss": True}


def experts(dtype=torch.float32):
    return build("MixtralForCausalLM", dtype, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.5)


COUPLED = {
    "clip": (clip, pairs, collate_pairs),
    "experts": (experts, lambda n=7, dtype=None: items("MixtralForCausalLM", n), collate),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", COUPLED)
def test_coupled_losses_have_the_gradient_of_the_full_batch(kind, dtype, tmp_path):
    """Seven ragged items in micro-batches of two: a window of three micro-batches, and one of a single item."""
    model_of, data_of, collator = COUPLED[kind]
    model, data, recorder = model_of(dtype), data_of(dtype=dtype), Recorder()
    seen = []
    inner = model.text_model.encoder if kind == "clip" else model.model.layers[0]
    inner.register_forward_hook(lambda module, args, kwargs, output: seen.append(len([*args, *kwargs.values()][0])),
                                with_kwargs=True)  # fmt: skip
    options = {"coupled": True, "learning_rate": 0.0, "remove_unused_columns": False, "gradient_checkpointing": True}
    trainer = trainer_of(ExactTrainer, model, data, tmp_path, callbacks=[recorder], collator=collator, **options)

    trainer.train()

    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    for found, loss, window in zip(recorder.gradients, logged, (data[:6], data[6:]), strict=True):
        expected, full_loss = full_gradient(model_of(dtype), collator(window))
        assert relative_error(found, expected) < 1e-6 or (full_loss == 0.0 and kind == "clip")
        assert loss == pytest.approx(full_loss, abs=1e-3)
    assert len(seen) > 6 and max(seen[-7:]) == 2  # a micro-batch at a time


def test_coupled_losses_draw_the_same_dropout_in_both_passes(tmp_path):
    """The gradient is that of the loss that was logged: a step along it lowers that very loss by its square norm."""
    gradients, losses = [], []
    for step in (0.0, 1e-9):
        model, recorder = clip(torch.float64, dropout=0.5), Recorder()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=False):
                parameter -= step * gradient
        trainer = trainer_of(ExactTrainer, model, pairs(6, torch.float64), tmp_path, callbacks=[recorder],
                             collator=collate_pairs, coupled=True, learning_rate=0.0, remove_unused_columns=False,
                             max_steps=1)  # fmt: skip
        losses.append([])
        compute = trainer.compute_loss

        def recorded(*args, compute=compute, **kwargs):
            loss = compute(*args, **kwargs)
            losses[-1].append(float(loss.detach()))
            return loss

        trainer.compute_loss = recorded
        trainer.train()
        gradients = recorder.gradients[0]
    (*_, before), (*_, after) = losses
    assert (before - after) / 1e-9 == pytest.approx(sum(float(g.square().sum()) for g in gradients), rel=1e-3)


def test_gradient_check_judges_coupled_losses_against_the_joined_batch(tmp_path):
    options = {"collator": collate_pairs, "remove_unused_columns": False}
    stock = trainer_of(transformers.Trainer, clip(), pairs(), tmp_path, **options)
    stock.add_callback(check := GradientCheck(stock, coupled=True))
    with pytest.warns(AccumulationWarning, match="batch-coupled loss: no weights of the 3 micro-batches make"):
        stock.train()
    assert "ExactTrainer with coupled=True" in check.report.causes[0].change

    exact = trainer_of(ExactTrainer, clip(), pairs(), tmp_path, coupled=True, **options)
    exact.add_callback(check := GradientCheck(exact, on_unequal="raise"))
    exact.train()
    assert check.report.equal

    dropping = trainer_of(ExactTrainer, clip(dropout=0.5), pairs(), tmp_path, coupled=True, **options)
    dropping.add_callback(check := GradientCheck(dropping))
    with pytest.warns(AccumulationWarning, match="cannot be judged: .* draws other random numbers: set dropout to 0"):
        dropping.train()
    assert check.report is None


def test_what_coupled_refuses(tmp_path):
    trainer = trainer_of(ExactTrainer, clip(), pairs(), tmp_path, collator=collate_pairs, remove_unused_columns=False)
    with pytest.raises(AccumulationError, match=r"the loss of an item depends on .* give coupled=True"):
        trainer.train()

    with pytest.raises(ConfigError, match=r"got weight=... and coupled=True"):
        trainer_of(ExactTrainer, clip(), [], tmp_path, coupled=True, weight=len)

    def unmasked(samples):
        return {key: value for key, value in collate_pairs(samples).items() if key != "attention_mask"}

    trainer = trainer_of(
        ExactTrainer, clip(), pairs(), tmp_path, collator=unmasked, coupled=True, remove_unused_columns=False
    )
    with pytest.raises(
        AccumulationError, match=r"cannot be joined: \['input_ids'\] has the lengths 5, 7, 5, and no mask"
    ):
        trainer.train()


def test_wrong_arguments_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="updates inside backward"):
        arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", optim="adalomo")
        ExactTrainer(model=build("LlamaForCausalLM"), args=arguments)
    with pytest.raises(ConfigError, match="on_unequal must be"):
        GradientCheck(trainer_of(ExactTrainer, build("LlamaForCausalLM"), [], tmp_path), on_unequal="stop")


def test_an_old_version_is_refused_with_its_number():
    code = "import transformers; transformers.__version__ = '4.9.1'; import dagnn.integrations.transformers"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert "transformers 4.9.1 is installed, but dagnn.integrations.transformers needs 5.17 or newer" in done.stderr


RANKS = """
import os, sys, tempfile, torch
sys.path[:0] = [{tests!r}, {src!r}]
from test_transformers import *

name = sys.argv[1]
data, recorder = items(name, 12), Recorder()
trainer = trainer_of(ExactTrainer, build(name), data, tempfile.mkdtemp(), callbacks=[recorder], learning_rate=0.0,
                     ddp_backend="gloo", max_steps=1)
trainer.train()
assert trainer.accelerator.num_processes == 2
expected, loss = full_gradient(build(name), collate(data))
print("error", relative_error(recorder.gradients[0], expected), trainer.state.log_history[0]["loss"] - loss)
assert relative_error(recorder.gradients[0], expected) < 1e-6
assert abs(trainer.state.log_history[0]["loss"] - loss) < 1e-3
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPTNeoXForSequenceClassification", "BertForPreTraining"])
def test_two_processes_have_the_gradient_of_the_full_batch(name, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS.format(tests=str(Path(__file__).parent), src=str(ROOT / "src")))

    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script, name],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
