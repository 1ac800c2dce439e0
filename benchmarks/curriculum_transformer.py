"""A sequence-to-sequence Transformer of torch's own modules, and its greedy answers with cached keys and values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.curriculum_text import BEGIN, PAD, Words, padded


@dataclass(frozen=True)
class TransformerSize:
    """Width, heads, layers (of encoder and decoder each), inner width and dropout."""

    width: int = 128
    heads: int = 4
    layers: int = 2
    inner: int = 384
    dropout: float = 0.0


class Seq2SeqTransformer(nn.Module):
    """Texts in, texts out; both in preorder words, so a text is whole when no operand is missing.

    Args:
        source, target: the words of either side.
        size: of the network.
    """

    def __init__(self, source: Words, target: Words, size: TransformerSize) -> None:
        super().__init__()
        self.size, self.target = size, target
        self.source_embedding = embedding(len(source), size.width)
        self.target_embedding = embedding(len(target), size.width)
        settings = {"dropout": size.dropout, "activation": "gelu", "batch_first": True, "norm_first": True}
        shape = (size.width, size.heads, size.inner)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **settings),
            size.layers,
            norm=nn.LayerNorm(size.width),
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*shape, **settings), size.layers, norm=nn.LayerNorm(size.width)
        )
        self.dropout = nn.Dropout(size.dropout)
        self.output = nn.Linear(size.width, len(target))

    def encoded(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """States of the words, and which of them are padding."""
        hidden = texts == PAD
        states = self.source_embedding(texts) + positions(texts.shape[1], self.size.width)
        return self.encoder(self.dropout(states), src_key_padding_mask=hidden), hidden

    def forward(self, texts: Tensor, answers: Tensor) -> Tensor:
        """Scores of every next word of `answers`, each from the words before it.

        Args:
            texts: int64 ``[batch, longest]``.
            answers: int64 ``[batch, longest]``, beginning with `BEGIN`.

        Returns:
            ``[batch, longest, words]``.
        """
        memory, hidden = self.encoded(texts)
        states = self.dropout(self.target_embedding(answers) + positions(answers.shape[1], self.size.width))
        decoded = self.decoder(
            states, memory, tgt_mask=later(answers.shape[1]), tgt_is_causal=True, memory_key_padding_mask=hidden
        )
        return self.output(decoded)

    @torch.no_grad()
    def greedy(self, texts: Sequence[Sequence[int]], *, longest: int) -> list[list[int]]:
        """The most likely next word, again and again until the text is whole.

        Args:
            texts: of any length.
            longest: words after which a text is given up; it is returned as far as it came.
        """
        memory, hidden = self.encoded(padded(texts))
        cache = DecoderCache(self.decoder, memory, hidden)
        position = positions(longest, self.size.width)

        def scores(words: Tensor, step: int) -> Tensor:
            return self.output(cache.step(self.target_embedding(words) + position[step]))

        return grown(scores, len(texts), self.target, longest)


class DecoderCache:
    """A `nn.TransformerDecoder` (norm first, no dropout) run one position at a time: keys and values are kept.

    Args:
        decoder: in eval mode.
        memory: what it attends to: ``[batch, words, width]``.
        hidden: bool ``[batch, words]``, True where there is nothing.
    """

    def __init__(self, decoder: nn.TransformerDecoder, memory: Tensor, hidden: Tensor) -> None:
        self._decoder = decoder
        self._open = ~hidden[:, None, None]
        self._memory = []
        self._past: list[tuple[Tensor, Tensor] | None] = [None] * len(decoder.layers)
        for layer in decoder.layers:
            attention = layer.multihead_attn
            _, keys, values = attention.in_proj_weight.chunk(3)
            _, key_bias, value_bias = attention.in_proj_bias.chunk(3)
            heads = attention.num_heads
            self._memory.append(
                (
                    by_head(functional.linear(memory, keys, key_bias), heads),
                    by_head(functional.linear(memory, values, value_bias), heads),
                )
            )

    def step(self, state: Tensor) -> Tensor:
        """The decoder's output at the next position, for its input there: ``[batch, width]`` both."""
        x = state[:, None]
        for number, layer in enumerate(self._decoder.layers):
            x = x + self._self_attention(number, layer, layer.norm1(x))
            x = x + self._cross_attention(number, layer, layer.norm2(x))
            x = x + layer.linear2(layer.activation(layer.linear1(layer.norm3(x))))
        return self._decoder.norm(x)[:, 0]

    def _self_attention(self, number: int, layer: nn.TransformerDecoderLayer, x: Tensor) -> Tensor:
        attention = layer.self_attn
        projected = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        query, key, value = (by_head(part, attention.num_heads) for part in projected)
        past = self._past[number]
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        self._past[number] = key, value
        return attention.out_proj(joined(functional.scaled_dot_product_attention(query, key, value)))

    def _cross_attention(self, number: int, layer: nn.TransformerDecoderLayer, x: Tensor) -> Tensor:
        attention = layer.multihead_attn
        width = x.shape[-1]
        query = functional.linear(x, attention.in_proj_weight[:width], attention.in_proj_bias[:width])
        key, value = self._memory[number]
        attended = functional.scaled_dot_product_attention(
            by_head(query, attention.num_heads), key, value, attn_mask=self._open
        )
        return attention.out_proj(joined(attended))


def grown(scores: Callable[[Tensor, int], Tensor], count: int, words: Words, longest: int) -> list[list[int]]:
    """Texts grown word by word until each is one whole tree.

    Args:
        scores: ``scores(last words [count], step)`` -> scores of the next ones ``[count, words]``.
        count: texts.
        words: what they are made of.
        longest: words after which a text is given up.
    """
    last = torch.full((count,), BEGIN)
    missing = torch.ones(count, dtype=torch.long)
    found = []
    for step in range(longest):
        last = scores(last, step).argmax(-1)
        last[missing == 0] = PAD
        found.append(last)
        # PAD, should a network that knows nothing say it, ends the text: it stays one that is not whole.
        missing = torch.where(last == PAD, 0, missing + words.arity[last] - 1)
        if not missing.any():
            break
    rows = torch.stack(found, 1).tolist()
    return [[word for word in row if word != PAD] for row in rows]


def answer_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """Mean cross-entropy of the words of `answers` (with `BEGIN`, which is not counted, and padding, neither)."""
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), answers[:, 1:].flatten(), ignore_index=PAD)


def embedding(count: int, width: int) -> nn.Embedding:
    """Vectors of length about 1 per feature, like the positions that are added to them."""
    made = nn.Embedding(count, width)
    nn.init.normal_(made.weight, std=0.7)
    return made


def positions(count: int, width: int) -> Tensor:
    """Sines and cosines, which go on where training has ended: ``[count, width]``.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.
    """
    at = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    return torch.stack([at.sin(), at.cos()], -1).flatten(1)


def later(count: int) -> Tensor:
    """Mask of the positions after one's own: bool ``[count, count]``, True where nothing may be seen."""
    return torch.ones(count, count, dtype=torch.bool).triu(1)


def by_head(x: Tensor, heads: int) -> Tensor:
    """``[batch, words, width]`` -> ``[batch, heads, words, width / heads]``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """``[batch, heads, words, width / heads]`` -> ``[batch, words, width]``."""
    return x.transpose(1, 2).flatten(2)
