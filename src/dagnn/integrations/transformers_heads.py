"""Every head of the installed transformers, tiny and random: is its accumulated gradient that of the full batch?"""

import contextlib
import functools
import inspect
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined,unused-ignore]

from dagnn.accumulation.check.arithmetic import ratio_of, relative_error, widened
from dagnn.accumulation.check.causes import judge
from dagnn.accumulation.check.diagnosis import fit_finite
from dagnn.accumulation.check.subject import Gradients
from dagnn.errors import ConfigError, DagnnError, closest
from dagnn.integrations.transformers import ExactTrainer, quiet, time_limit, window_gradient

__all__ = ["Verdict", "head_classes", "judge_head"]

SIZES = (2, 2, 2, 1)  # micro-batches of one window: the last is short
_ITEMS = sum(SIZES)
_TOKENS = 9
_SECONDS = 30  # for one class

# The tables of heads in transformers, and what a batch for them holds.
_TASKS = {
    **dict.fromkeys(("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"), "tokens"),
    "PRETRAINING": "pretraining",
    **dict.fromkeys(("SEQUENCE_CLASSIFICATION", "NEXT_SENTENCE_PREDICTION", "IMAGE_CLASSIFICATION",
                     "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION", "AUDIO_XVECTOR"), "items"),
    "TOKEN_CLASSIFICATION": "token classes",
    "QUESTION_ANSWERING": "spans",
    "MULTIPLE_CHOICE": "choices",
    "SEMANTIC_SEGMENTATION": "pixels",
    "MASKED_IMAGE_MODELING": "masked patches",
    "AUDIO_FRAME_CLASSIFICATION": "frames",
    "CTC": "transcripts",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "pairs",
}  # fmt: skip
# Mixtures of experts, which are judged with their load balancing too, under a name with this ending.
_BALANCED = "+output_router_logits"
_EXPERTS = ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM",
            "GraniteMoeForCausalLM", "PhimoeForCausalLM", "GptOssForCausalLM", "MiniMaxForCausalLM")  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What one head class does with a window of four micro-batches.

    Attributes:
        name: the class.
        factor: what the stock Trainer's weights of the micro-batches add up to, over what the right ones do: 1 is
            right, 4 is a mean that nothing divides. Where no weights explain its gradient, the projection on that of
            the full batch. None if skipped.
        error: of the stock Trainer's gradient, relative to the full batch's.
        exact: the same of ExactTrainer's.
        exact_float32, full_float32: errors of ExactTrainer and of the full batch itself in float32, against the full
            batch in float64: the first can be no smaller than the second is by rounding. None where not asked for.
        cause: why the stock gradient is off, in words; empty if it is not.
        note: why the class was skipped, why ExactTrainer refused it or the option that it needs, or what was changed.
        precision: dtype in which it ran.
        seconds: CPU time.
    """

    name: str
    factor: float | None = None
    error: float | None = None
    exact: float | None = None
    exact_float32: float | None = None
    full_float32: float | None = None
    cause: str = ""
    note: str = ""
    precision: str = ""
    seconds: float = 0.0

    @property
    def judged(self) -> bool:
        return self.factor is not None


def head_classes() -> dict[str, tuple[str, str]]:
    """Class name -> (model type, what its batch holds), of every text, vision and audio head, in the tables' order."""
    found: dict[str, tuple[str, str]] = {}
    for table, task in _TASKS.items():
        for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}).items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, (model_type, task))
    return found | {name + _BALANCED: (found[name][0], "balanced tokens") for name in _EXPERTS if name in found}


def judge_head(name: str, *, float32: bool = False) -> Verdict:
    """The verdict on one class, with a tiny random configuration of it; nothing is downloaded.

    ``float32``: run ExactTrainer and the full batch in float32 too. ConfigError for a class that transformers has in no
    table of heads.
    """
    classes = head_classes()
    if name not in classes:
        nearest = closest(name, classes)
        raise ConfigError(
            f"transformers {transformers.__version__} has no head class {name!r} in its tables of text, vision and "
            f"audio models{f': did you mean {nearest}?' if nearest else '.'}"
        )
    start = time.process_time()
    try:
        with quiet(), time_limit(_SECONDS):
            verdict = _judged(name, *classes[name], float32=float32)
    except _SkipError as error:
        verdict = Verdict(name, note=f"skipped: {error}")
    except Exception as error:  # whatever a foreign model raises is a reason to skip it, and is named
        verdict = Verdict(name, note=f"skipped: {type(error).__name__}: {_first_line(error)}")
    return Verdict(**{**vars(verdict), "seconds": time.process_time() - start})


class _SkipError(Exception):
    """Why a class cannot be judged."""


def _judged(name: str, model_type: str, task: str, *, float32: bool) -> Verdict:
    model = _build(
        name.removesuffix(_BALANCED),
        model_type,
        num_labels=2 if task in ("spans", "sentences") or "NextSentence" in name else 3,
    )
    notes = _make_repeatable(model)
    batch, precision = _batch(model, task), torch.float32
    try:
        model.double()
        wide = _as(torch.float64, batch)
        full = _gradient_of(model, wide)
        batch, precision = wide, torch.float64
    except Exception:  # something in it is written for float32: a kernel, a constant, a cast
        model.float()
        full = _gradient_of(model, batch)
    if not all(g is None or bool(g.isfinite().all()) for g in full) or all(g is None or not g.any() for g in full):
        raise _SkipError("the gradient of the full batch is not finite, or zero")
    if relative_error(_gradient_of(model, batch), full) > _tolerance(precision):
        raise _SkipError("two runs of one batch differ")

    micros = _split(batch)
    parts = [_gradient_of(model, micro) for micro in micros]
    stock = window_gradient(transformers.Trainer, model, micros)
    exact, refusal = None, ""
    for coupled in (False, True):
        trainer_class = functools.partial(ExactTrainer, coupled=coupled)
        try:
            exact = relative_error(window_gradient(trainer_class, model, micros), full)
            break
        except DagnnError as error:
            refusal = refusal or f"ExactTrainer refuses: {_first_line(error)}"
    if coupled:
        notes.append(refusal if exact is None else "coupled=True")
    parameters = [p for p in model.parameters() if p.requires_grad]
    report = judge(
        [n for n, p in model.named_parameters() if p.requires_grad],
        parameters,
        stock,
        full,
        parts,
        remedy="",
        tolerance=_tolerance(precision),
        coupled=coupled,
    )
    narrow: dict[str, float] = {}
    if float32 and precision is torch.float64 and exact is not None:
        model.float()
        batch = _as(torch.float32, batch)
        narrow["full_float32"] = relative_error(_gradient_of(model, batch), full)
        narrow["exact_float32"] = relative_error(window_gradient(trainer_class, model, _split(batch)), full)
    return Verdict(
        name,
        factor=_factor(stock, full, parts, parameters),
        error=report.error,
        exact=exact,
        **narrow,
        cause="; ".join(f"{cause.kind}: {cause.explanation}" for cause in report.causes),
        note="; ".join(notes),
        precision=str(precision).removeprefix("torch."),
    )


def _as(dtype: torch.dtype, batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in batch.items()}


def _split(batch: dict[str, Any]) -> list[dict[str, Any]]:
    pieces = {k: torch.split(v, list(SIZES)) if isinstance(v, Tensor) else [v] * len(SIZES) for k, v in batch.items()}
    return [{key: values[i] for key, values in pieces.items()} for i in range(len(SIZES))]


def _factor(stock: Gradients, full: Gradients, parts: Sequence[Gradients], parameters: Sequence[Tensor]) -> float:
    with contextlib.suppress(ConfigError):
        (shares, rest), (right, right_rest) = (fit_finite(parts, each, parameters) for each in (stock, full))
        if max(rest, right_rest) < 1e-4:
            return sum(shares) / sum(right)  # those of a sum add up to the number of micro-batches, of a mean to 1
    return ratio_of(stock, full)[0]


def _tolerance(precision: torch.dtype) -> float:
    return 1e-6 if precision is torch.float64 else 2e-5


def _run(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    model.train()
    outputs = model(**batch)
    loss = outputs["loss"] if isinstance(outputs, dict) and "loss" in outputs else None
    if loss is None:
        raise _SkipError("it returns no loss for these inputs")
    if loss.numel() != 1 or not loss.requires_grad:
        raise _SkipError("its loss is not one number with a gradient")
    return loss.squeeze()  # type: ignore[no-any-return]


def _gradient_of(model: nn.Module, batch: dict[str, Any]) -> Gradients:
    model.zero_grad()
    _run(model, batch).backward()  # type: ignore[no-untyped-call]
    trained = [p for p in model.parameters() if p.requires_grad]
    return [None if p.grad is None else widened(p.grad).clone() for p in trained]


def _make_repeatable(model: nn.Module) -> list[str]:
    """Take the random numbers out of the model, and freeze BatchNorm; says what it changed where that matters."""
    notes = []
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if isinstance(module, _BatchNorm):
            module.eval()
            module.train = types.MethodType(lambda self, mode=True: self, module)  # type: ignore[method-assign]
            notes = ["BatchNorm in eval mode"]
    return notes


# Field of a configuration -> its tiny value. What a class lacks is left out.
_TINY: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "embedding_size", "emb_dim",
                     "word_embed_proj_dim", "model_dim", "attention_hidden_size", "rnn_hidden_size", "d_embed",
                     "mlp_hidden_size", "encoder_hidden_size", "decoder_hidden_size", "out_hidden_size",
                     "classifier_proj_size", "output_hidden_size", "conv_hidden_size", "lru_width",
                     "hidden_size_per_layer_input"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner",
                     "ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size", "mlp_dim",
                     "expert_ffn_hidden_size", "intermediate_size_mlp", "moe_shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers", "num_encoder_layers", "decoder_num_layers", "encoder_num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads", "num_linear_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_size", "qk_rope_head_dim", "qk_nope_head_dim",
                     "v_head_dim", "global_head_dim", "d_head"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "num_expert_groups"), 1),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "time_step_rank"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len",
                     "max_source_positions", "max_target_positions", "sliding_window", "seq_length"), 64),
    "attention_window": 8, "vocab_size": 96, "image_size": 32, "patch_size": 8, "num_channels": 3, "num_frames": 4,
    "num_mel_bins": 16, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "type_vocab_size": 4,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False, "hidden_dropout": 0.0,
    "embedding_dropout_prob": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
    "cls_token_id": 1, "mask_token_id": 3, "decoder_start_token_id": 1, "tubelet_size": 2,
    "num_mtp_layers": 0, "num_nextn_predict_layers": 0, "vocab_size_per_layer_input": 96,
}  # fmt: skip
_SEVERAL = {"hidden_sizes": 32, "embed_dims": 32, "depths": 1, "num_heads": 2, "num_attention_heads": 2, "conv_dim": 32,
            "tdnn_dim": 32, "decoder_hidden_size": 32, "encoder_hidden_sizes": 32, "depth": 1}  # fmt: skip
# Tried in turn, until one builds: some classes tie fields to each other in ways of their own.
_WITHOUT: tuple[tuple[str, ...], ...] = (
    (),
    ("head_dim", "kv_channels", "num_key_value_heads", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"),
    ("embedding_size", "embed_dim", "dim", "sliding_window", "patch_size", "image_size"),
    tuple(k for k in _TINY if k not in ("num_hidden_layers", "n_layer", "num_layers", "vocab_size",
                                        "encoder_layers", "decoder_layers", "pad_token_id", "eos_token_id",
                                        "bos_token_id", "intermediate_size")),
)  # fmt: skip


def _build(name: str, model_type: str, num_labels: int) -> Any:
    """A model of class ``name`` with a few thousand random parameters; _SkipError where none builds."""
    try:
        model_class = getattr(transformers, name)
        config_class = getattr(transformers, CONFIG_MAPPING_NAMES[model_type])
    except (AttributeError, KeyError, ImportError) as error:
        raise _SkipError(f"it needs what is not installed or was removed ({_first_line(error)})") from error
    reasons = []
    for without in _WITHOUT:
        try:
            torch.manual_seed(0)
            config = config_class(**_tiny(config_class, without) | {"num_labels": num_labels})
            for part in (config, *(getattr(config, sub, None) for sub in getattr(config_class, "sub_configs", {}))):
                if part is not None:
                    part._attn_implementation = "eager"
                    part._experts_implementation = "eager"
                    for token, number in (("decoder_start_token_id", 1), ("pad_token_id", 0)):
                        if getattr(part, token, None) is None:
                            setattr(part, token, number)
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(config).parameters())
            if size > 4_000_000:
                raise _SkipError(f"its smallest configuration here has {size:,} parameters")
            torch.manual_seed(0)
            return model_class(config)
        except Exception as error:  # a configuration that its class refuses: the next is tried
            reasons.append(_first_line(error))
    if any("download" in reason or "huggingface.co" in reason or "from_pretrained" in reason for reason in reasons):
        raise _SkipError(f"it needs a download ({reasons[0]})")
    raise _SkipError(f"no tiny configuration of it builds ({reasons[0]})")


def _tiny(config_class: type[Any], without: Sequence[str]) -> dict[str, Any]:
    fields = inspect.signature(config_class.__init__).parameters
    values: dict[str, Any] = {}
    for field, parameter in fields.items():
        default = parameter.default
        if field in without or field in ("self", "kwargs"):
            continue
        if isinstance(default, float) and any(
            word in field for word in ("dropout", "drop_path", "layerdrop", "pdrop", "jitter")
        ):
            values[field] = 0.0
        elif field in _SEVERAL and isinstance(default, (list, tuple)) and all(isinstance(x, int) for x in default):
            values[field] = type(default)([_SEVERAL[field]] * len(default))
        elif default is None and field in ("num_experts", "head_dim", "q_lora_rank"):
            continue  # None has a meaning of its own there
        elif field in _TINY and not isinstance(default, (list, tuple)):
            values[field] = _TINY[field]
    for field, sub_class in getattr(config_class, "sub_configs", {}).items():
        if sub_class is not transformers.AutoConfig:
            values[field] = _tiny(sub_class, without)
    return values


def _batch(model: Any, task: str) -> dict[str, Any]:
    """Seven items whose labels are ragged: each has another number of valid ones."""
    torch.manual_seed(1)
    config, accepted = model.config, inspect.signature(model.forward).parameters
    batch: dict[str, Any] = {}
    text = getattr(config, "text_config", None) or config
    vocabulary = getattr(text, "vocab_size", None) or 96
    shape = (_ITEMS, 2, _TOKENS) if task == "choices" else (_ITEMS, _TOKENS)
    if task == "pairs":
        if not {"input_ids", "pixel_values", "return_loss"} <= set(accepted):
            raise _SkipError("it computes no loss of pairs of text and image")
        ids = torch.randint(5, vocabulary - 1, shape).scatter(1, torch.tensor([[_TOKENS - 1]] * _ITEMS), vocabulary - 1)
        return {"input_ids": ids, "pixel_values": _pixels(config, video=False), "return_loss": True}
    if task == "balanced tokens":
        batch, task = {"output_router_logits": True}, "tokens"
    if model.main_input_name == "pixel_values" or ("pixel_values" in accepted and "input_ids" not in accepted):
        batch["pixel_values"] = _pixels(config, video="Video" in type(model).__name__)
    elif "input_values" in accepted and "input_ids" not in accepted:
        batch["input_values"] = _sound(config)
    elif "input_features" in accepted and "input_ids" not in accepted:
        batch["input_features"] = _features(config)
    elif "input_ids" in accepted:
        batch["input_ids"] = torch.randint(5, vocabulary, shape)
    else:
        raise _SkipError(f"its inputs are not known here ({', '.join(list(accepted)[:4])})")
    if task == "pretraining":
        task = "sentences" if {"next_sentence_label", "sentence_order_label"} & set(accepted) else "tokens"
    if "labels" not in accepted and task != "spans":
        raise _SkipError("it computes no loss from labels")
    batch |= _labels(model, task, batch, vocabulary, accepted)
    return batch


def _labels(model: Any, task: str, batch: dict[str, Tensor], vocabulary: int, accepted: Any) -> dict[str, Tensor]:
    num_labels = model.config.num_labels
    if task == "items":
        return {"labels": torch.randint(0, min(num_labels, 2), (_ITEMS,))}
    if task == "choices":
        return {"labels": torch.randint(0, 2, (_ITEMS,))}
    if task == "spans":
        if "start_positions" not in accepted:
            raise _SkipError("it computes no loss from start_positions")
        # Some positions lie outside of the text, and are left out of the mean.
        return {key: torch.randint(0, _TOKENS + 3, (_ITEMS,)) for key in ("start_positions", "end_positions")}
    if task == "pixels":
        size = batch["pixel_values"].shape[-2:]
        labels = torch.randint(0, num_labels, (_ITEMS, *size))
        return {"labels": labels.masked_fill(_ragged(labels), getattr(model.config, "semantic_loss_ignore_index", 255))}
    if task == "masked patches":
        config = model.config
        num_patches = (config.image_size // config.patch_size) ** 2
        return {"bool_masked_pos": torch.rand(_ITEMS, num_patches) < torch.linspace(0.2, 0.8, _ITEMS)[:, None]}
    if task == "transcripts":
        labels = torch.randint(5, vocabulary, (_ITEMS, 4))
        return {"labels": labels.masked_fill(torch.arange(4) > torch.arange(_ITEMS)[:, None] % 4, -100)}
    if task == "frames":
        frames = _run_shape(model, batch)
        return {"labels": nn.functional.one_hot(torch.randint(0, num_labels, frames), num_labels)}
    tokens = batch["input_ids"].shape if "input_ids" in batch else torch.Size((_ITEMS, _TOKENS))
    labels = torch.randint(5, vocabulary, tokens) if task != "token classes" else torch.randint(0, num_labels, tokens)
    found = {"labels": labels.masked_fill(_ragged(labels), -100)}
    if task == "sentences":
        key = "next_sentence_label" if "next_sentence_label" in accepted else "sentence_order_label"
        found[key] = torch.randint(0, 2, (_ITEMS,))
    return found


def _ragged(labels: Tensor) -> Tensor:
    """Which labels do not count: more in each item than in the one before."""
    share = torch.linspace(0.05, 0.8, _ITEMS).reshape(-1, *[1] * (labels.ndim - 1))
    return torch.rand(labels.shape) < share


def _pixels(config: Any, *, video: bool) -> Tensor:
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
    size = getattr(vision, "image_size", None) or getattr(vision, "input_size", None) or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    frames = (getattr(config, "num_frames", 4),) if video else ()
    return torch.randn(_ITEMS, *frames, channels, height, width)


def _sound(config: Any) -> Tensor:
    if getattr(config, "max_length", None) and getattr(config, "num_mel_bins", None):
        return torch.randn(_ITEMS, config.max_length, config.num_mel_bins)
    return torch.randn(_ITEMS, 6000)


def _features(config: Any) -> Tensor:
    part = getattr(config, "encoder_config", None) or getattr(config, "audio_config", None) or config
    bins = getattr(part, "num_mel_bins", None) or getattr(part, "input_feat_per_channel", None)
    if "max_source_positions" in vars(part) and hasattr(part, "num_mel_bins"):
        return torch.randn(_ITEMS, bins or 16, 2 * part.max_source_positions)
    width = bins or getattr(part, "feature_projection_input_dim", None) or getattr(part, "input_dim", None) or 16
    return torch.randn(_ITEMS, 64, width)


def _run_shape(model: Any, batch: dict[str, Tensor]) -> tuple[int, int]:
    with torch.no_grad():
        logits = model(**batch).logits
    return int(logits.shape[0]), int(logits.shape[1])


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:160] or type(error).__name__
