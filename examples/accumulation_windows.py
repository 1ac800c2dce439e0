"""Token-weighted training with accumulated gradients: the same parameters as with whole batches, to rounding."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dagnn


def sentences(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of token ids ``[sentences, 8]`` and next tokens, -100 where there is none to predict."""
    batches = []
    for _ in range(count):
        tokens = torch.randint(0, 20, (int(torch.randint(1, 6, ())), 8))
        targets = (tokens * 3 + 1) % 20
        targets[torch.rand(targets.shape) < 0.3] = -100
        batches.append((tokens, targets))
    return batches


def valid_tokens(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (batch[1] >= 0).sum()


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def main() -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 20)).double()
    whole = copy.deepcopy(model)
    batches = sentences(42)

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    accumulator = dagnn.GradientAccumulator(model, optimizer, max_norm=1.0)
    for window in accumulator.windows(batches, micro_batches=4, weight=valid_tokens):
        for tokens, targets in window:
            window.backward(loss_of(model, tokens, targets))
        update = window.step()
        print(
            f"update {update.step:2d}  {update.weight:3.0f} tokens  loss {update.loss:.4f}  norm {update.grad_norm:.3f}"
        )

    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.02)
    for start in range(0, len(batches), 4):
        optimizer.zero_grad()
        tokens, targets = (torch.cat(parts) for parts in zip(*batches[start : start + 4], strict=True))
        loss_of(whole, tokens, targets).backward()
        nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
        optimizer.step()

    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    difference = max(float((a - b).detach().abs().max()) for a, b in pairs)
    print(f"largest difference to training on whole batches: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
