"""Tiny random models of transformers' head classes, and a batch for each: nothing is downloaded."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

__all__ = ["ITEMS", "SkipError", "first_line", "tiny_batch", "tiny_model"]

ITEMS = 7
_TOKENS = 9
_MOST_PARAMETERS = 4_000_000


class SkipError(Exception):
    """Why a class cannot be judged."""


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


def tiny_model(name: str, model_type: str, num_labels: int) -> Any:
    """A model of class ``name`` with a few thousand random parameters.

    Raises:
        SkipError: no tiny configuration of it builds, or it needs a download or a package that is not there.
    """
    try:
        model_class = getattr(transformers, name)
        config_class = getattr(transformers, CONFIG_MAPPING_NAMES[model_type])
    except (AttributeError, KeyError, ImportError) as error:
        raise SkipError(f"it needs what is not installed or was removed ({first_line(error)})") from error
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
            if size > _MOST_PARAMETERS:
                raise SkipError(f"its smallest configuration here has {size:,} parameters")
            torch.manual_seed(0)
            return model_class(config)
        except Exception as error:  # a configuration that its class refuses: the next is tried
            reasons.append(first_line(error))
    if any("download" in reason or "huggingface.co" in reason or "from_pretrained" in reason for reason in reasons):
        raise SkipError(f"it needs a download ({reasons[0]})")
    raise SkipError(f"no tiny configuration of it builds ({reasons[0]})")


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


def tiny_batch(model: Any, task: str) -> dict[str, Tensor]:
    """Seven items whose labels are ragged: each has another number of valid ones.

    Raises:
        SkipError: it is not known here what the model takes, or it computes no loss from labels.
    """
    torch.manual_seed(1)
    config, accepted = model.config, inspect.signature(model.forward).parameters
    batch: dict[str, Tensor] = {}
    text = getattr(config, "text_config", None) or config
    vocabulary = getattr(text, "vocab_size", None) or 96
    shape = (ITEMS, 2, _TOKENS) if task == "choices" else (ITEMS, _TOKENS)
    if model.main_input_name == "pixel_values" or ("pixel_values" in accepted and "input_ids" not in accepted):
        batch["pixel_values"] = _pixels(config, video="Video" in type(model).__name__)
    elif "input_values" in accepted and "input_ids" not in accepted:
        batch["input_values"] = _sound(config)
    elif "input_features" in accepted and "input_ids" not in accepted:
        batch["input_features"] = _features(config)
    elif "input_ids" in accepted:
        batch["input_ids"] = torch.randint(5, vocabulary, shape)
    else:
        raise SkipError(f"its inputs are not known here ({', '.join(list(accepted)[:4])})")
    if task == "pretraining":
        task = "sentences" if {"next_sentence_label", "sentence_order_label"} & set(accepted) else "tokens"
    if "labels" not in accepted and task != "spans":
        raise SkipError("it computes no loss from labels")
    batch |= _labels(model, task, batch, vocabulary, accepted)
    return batch


def _labels(model: Any, task: str, batch: dict[str, Tensor], vocabulary: int, accepted: Any) -> dict[str, Tensor]:
    num_labels = model.config.num_labels
    if task == "items":
        return {"labels": torch.randint(0, min(num_labels, 2), (ITEMS,))}
    if task == "choices":
        return {"labels": torch.randint(0, 2, (ITEMS,))}
    if task == "spans":
        if "start_positions" not in accepted:
            raise SkipError("it computes no loss from start_positions")
        # Some positions lie outside of the text, and are left out of the mean.
        return {key: torch.randint(0, _TOKENS + 3, (ITEMS,)) for key in ("start_positions", "end_positions")}
    if task == "pixels":
        size = batch["pixel_values"].shape[-2:]
        labels = torch.randint(0, num_labels, (ITEMS, *size))
        return {"labels": labels.masked_fill(_ragged(labels), getattr(model.config, "semantic_loss_ignore_index", 255))}
    if task == "masked patches":
        config = model.config
        num_patches = (config.image_size // config.patch_size) ** 2
        return {"bool_masked_pos": torch.rand(ITEMS, num_patches) < torch.linspace(0.2, 0.8, ITEMS)[:, None]}
    if task == "transcripts":
        labels = torch.randint(5, vocabulary, (ITEMS, 4))
        return {"labels": labels.masked_fill(torch.arange(4) > torch.arange(ITEMS)[:, None] % 4, -100)}
    if task == "frames":
        frames = _run_shape(model, batch)
        return {"labels": nn.functional.one_hot(torch.randint(0, num_labels, frames), num_labels)}
    tokens = batch["input_ids"].shape if "input_ids" in batch else torch.Size((ITEMS, _TOKENS))
    labels = torch.randint(5, vocabulary, tokens) if task != "token classes" else torch.randint(0, num_labels, tokens)
    found = {"labels": labels.masked_fill(_ragged(labels), -100)}
    if task == "sentences":
        key = "next_sentence_label" if "next_sentence_label" in accepted else "sentence_order_label"
        found[key] = torch.randint(0, 2, (ITEMS,))
    return found


def _ragged(labels: Tensor) -> Tensor:
    """Which labels do not count: more in each item than in the one before."""
    share = torch.linspace(0.05, 0.8, ITEMS).reshape(-1, *[1] * (labels.ndim - 1))
    return torch.rand(labels.shape) < share


def _pixels(config: Any, *, video: bool) -> Tensor:
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
    size = getattr(vision, "image_size", None) or getattr(vision, "input_size", None) or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    frames = (getattr(config, "num_frames", 4),) if video else ()
    return torch.randn(ITEMS, *frames, channels, height, width)


def _sound(config: Any) -> Tensor:
    if getattr(config, "max_length", None) and getattr(config, "num_mel_bins", None):
        return torch.randn(ITEMS, config.max_length, config.num_mel_bins)
    return torch.randn(ITEMS, 6000)


def _features(config: Any) -> Tensor:
    part = getattr(config, "encoder_config", None) or getattr(config, "audio_config", None) or config
    bins = getattr(part, "num_mel_bins", None) or getattr(part, "input_feat_per_channel", None)
    if "max_source_positions" in vars(part) and hasattr(part, "num_mel_bins"):
        return torch.randn(ITEMS, bins or 16, 2 * part.max_source_positions)
    width = bins or getattr(part, "feature_projection_input_dim", None) or getattr(part, "input_dim", None) or 16
    return torch.randn(ITEMS, 64, width)


def _run_shape(model: Any, batch: dict[str, Tensor]) -> tuple[int, int]:
    with torch.no_grad():
        logits = model(**batch).logits
    return int(logits.shape[0]), int(logits.shape[1])


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:160] or type(error).__name__
