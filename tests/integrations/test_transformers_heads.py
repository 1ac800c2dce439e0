"""``dagnn check --transformers``: verdicts on single classes, and what cannot be judged."""

import json

import pytest

from dagnn.commands.check import run_heads
from dagnn.errors import ConfigError

pytest.importorskip("transformers", reason="needs pip install dagnn[transformers]")
pytest.importorskip("accelerate", reason="needs pip install dagnn[transformers]")

from dagnn.integrations.transformers_heads import head_classes, judge_head

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_there_are_heads_of_text_vision_and_audio():
    classes = head_classes()

    assert len(classes) > 400
    assert {"LlamaForCausalLM", "ViTForImageClassification", "Wav2Vec2ForCTC"} <= set(classes)


def test_a_head_that_ignores_the_count_is_four_times_too_large():
    verdict = judge_head("GPTNeoXForSequenceClassification")

    assert verdict.factor == pytest.approx(4.0, rel=1e-6)
    assert verdict.cause.startswith("not scaled: the mean losses of 4 micro-batches are added")
    assert verdict.exact < 1e-6 and verdict.precision == "float64" and verdict.note == ""


def test_a_head_that_divides_by_the_count_is_equal():
    verdict = judge_head("LlamaForCausalLM")

    assert verdict.factor == pytest.approx(1.0, rel=1e-6) and verdict.error < 1e-6 and verdict.cause == ""


@pytest.mark.parametrize("name", ["BertForPreTraining", "ViTForImageClassification", "Wav2Vec2ForCTC"])
def test_exact_trainer_is_exact_for_other_kinds(name):
    assert judge_head(name).exact < 1e-6


@pytest.mark.parametrize("name", ["CLIPModel", "MixtralForCausalLM+output_router_logits"])
def test_a_loss_that_couples_items_is_judged_with_the_option_that_it_needs(name):
    verdict = judge_head(name, float32=True)

    assert verdict.note == "coupled=True" and verdict.cause.startswith(
        "batch-coupled loss: no weights of the 4 micro-b"
    )
    assert verdict.exact < 1e-12 and verdict.exact_float32 < max(1e-6, 4 * verdict.full_float32)
    assert verdict.error > 1e-5


def test_an_unknown_class_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean LlamaForCausalLM"):
        judge_head("LLamaForCausalLM")


def test_what_cannot_be_judged_is_named():
    verdict = judge_head("SpeechEncoderDecoderModel")

    assert not verdict.judged and verdict.note.startswith("skipped: ")


def test_the_command_prints_a_table_or_json(capsys):
    names = ["LlamaForCausalLM", "GPTNeoXForSequenceClassification"]

    assert run_heads(names) == 1
    table = capsys.readouterr().out
    assert run_heads(names[:1], as_json=True) == 0
    row = json.loads(capsys.readouterr().out)

    assert "none: equal to the full batch" in table and "not scaled" in table
    assert row["name"] == "LlamaForCausalLM" and row["factor"] == pytest.approx(1.0)


def test_the_command_needs_a_known_class(capsys):
    assert run_heads(["LlamaForCausalLM", "Nothing"]) == 2
    captured = capsys.readouterr()
    assert "has no head class 'Nothing'" in captured.err and not captured.out
