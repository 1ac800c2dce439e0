"""ExactTrainer has the full batch's gradient on every head class of transformers that builds; the stock Trainer beside.

Every text, vision and audio head with a loss is built from a tiny random configuration (no download) and judged in
float64 on a window of four ragged micro-batches: at least 200 classes within 1e-6 and none above. In float32 the error
may be 1e-6, or four times that of the full batch itself. Losses that couple the items of a batch (CLIP, load balancing
of experts) run with coupled=True. The second part is what ExactTrainer costs at a step of 20 ms.

    python -m benchmarks.transformers_heads [--quick] [--markdown FILE]
"""

import argparse
import copy
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

AT_LEAST, LARGEST_ERROR, LARGEST_OVERHEAD = 200, 1e-6, 1.03
QUICK = ("LlamaForCausalLM", "GPTNeoXForSequenceClassification", "BertForPreTraining", "BertForQuestionAnswering",
         "RobertaForMaskedLM", "T5ForConditionalGeneration", "ViTForImageClassification", "Wav2Vec2ForCTC",
         "SegformerForSemanticSegmentation", "BertForMultipleChoice", "GPT2ForTokenClassification",
         "Wav2Vec2ForXVector", "CLIPModel", "MixtralForCausalLM+output_router_logits")  # fmt: skip


def missed(verdict: Any) -> bool:
    """Whether ExactTrainer is not exact on a class that could be judged."""
    if not verdict.judged:
        return False
    if verdict.exact is None or not verdict.exact <= LARGEST_ERROR:
        return True
    narrow, itself = verdict.exact_float32, verdict.full_float32
    return narrow is not None and not narrow <= max(LARGEST_ERROR, 4 * itself)


def heads(quick: bool) -> tuple[list[Any], bool]:
    """Verdicts on all classes, printed as they come, and whether the claim holds."""
    from dagnn.commands.check import head_row
    from dagnn.integrations.transformers_heads import head_classes, judge_head

    verdicts = []
    for name in QUICK if quick else head_classes():
        verdicts.append(judge_head(name, float32=True))
        print(head_row(verdicts[-1]) + ("   MISSED" if missed(verdicts[-1]) else ""), flush=True)
    judged = [verdict for verdict in verdicts if verdict.judged]
    wrong = [verdict for verdict in judged if missed(verdict)]
    seconds = sum(verdict.seconds for verdict in verdicts)
    print(
        f"\n{len(judged)} of {len(verdicts)} classes judged in {seconds:.0f} CPU seconds: the stock Trainer is off on "
        f"{sum(bool(verdict.cause) for verdict in judged)}, ExactTrainer on {len(wrong)}."
    )
    print("causes:", dict(Counter(verdict.cause.partition(":")[0] or "none" for verdict in judged)))
    return verdicts, not wrong and len(judged) >= (len(QUICK) if quick else AT_LEAST)


def overhead(rounds: int) -> float:
    """Least time of a window of ExactTrainer over that of the stock Trainer, at about 20 ms per micro-batch."""
    import torch
    import transformers

    from dagnn.integrations.transformers import ExactTrainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256
    )
    ids = torch.randint(0, 512, (4, 48))
    micros = [{"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) < 0.2, -100)} for _ in range(4)]
    first = transformers.LlamaForCausalLM(config)
    trainers = []
    for trainer_class in (transformers.Trainer, ExactTrainer):
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, gradient_accumulation_steps=4, use_cpu=True, report_to="none", disable_tqdm=True
            )
            trainers.append(trainer_class(model=copy.deepcopy(first), args=arguments))

    def window(trainer: Any) -> float:
        begin = time.process_time()
        samples, num_items = trainer.get_batch_samples(iter(micros), 4, trainer.args.device)
        trainer.current_gradient_accumulation_steps = 4
        for i, inputs in enumerate(samples):
            trainer.accelerator.gradient_state._set_sync_gradients(i == 3)
            trainer.training_step(trainer.model, inputs, num_items)
        seconds = time.process_time() - begin
        trainer.model.zero_grad()
        return seconds

    times: list[list[float]] = [[], []]
    for k in range(rounds + 2):
        for which in (0, 1) if k % 2 else (1, 0):
            seconds = window(trainers[which])
            if k > 1:
                times[which].append(seconds)
    stock, ours = min(times[0]), min(times[1])
    print(f"\nlargest overhead allowed {LARGEST_OVERHEAD}; least of {rounds} windows of 4 micro-batches:")
    print(
        f"stock {stock / 4 * 1e3:.2f} ms a micro-batch, ExactTrainer {ours / 4 * 1e3:.2f} ms, ratio {ours / stock:.4f}"
    )
    return ours / stock


def markdown(verdicts: list[Any]) -> str:
    """The page of the documentation."""
    import torch
    import transformers

    rows = sorted((verdict for verdict in verdicts if verdict.judged), key=lambda verdict: verdict.name)
    causes = Counter(verdict.cause.partition(":")[0] or "none" for verdict in rows)
    lines = [
        "# Heads of transformers",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}, {time.strftime('%F')}.",
        "`python -m benchmarks.transformers_heads --markdown docs/how_to/transformers_heads.md` made this page, and",
        "`dagnn check --transformers CLASS` makes a line of it. Each class has a tiny random configuration; a window",
        "has four micro-batches, of 2, 2, 2 and 1 items, whose labels count unequally often.",
        "",
        "*Factor* is what the stock Trainer's weights of the micro-batches add up to: 1 is right. *Error* is the norm",
        "of the difference to the full batch's gradient over the norm of that gradient, for the stock Trainer; *exact*",
        "is the same for [`ExactTrainer`](your_trainer.md), with `coupled=True` where the row says so: there the loss",
        "of an item depends on others, and no factor makes the gradient right. `+output_router_logits` is a mixture of",
        "experts with its load balancing.",
        "",
        f"Of {len(verdicts)} classes in the tables of transformers, {len(rows)} could be judged. In "
        f"{causes.pop('none', 0)} the stock gradient is that of the full batch; the causes of the others: "
        f"{', '.join(f'{cause} {count}' for cause, count in causes.most_common())}.",
        "",
        "What lies behind a factor of 0.86: the loss leaves out the first label of each sequence, and the Trainer",
        "counts it. Whether a loss shifts its labels, the Trainer tells by the loss's name, which follows from the",
        "class's. `GPT2LMHeadModel` has no `ForCausalLM` in its name: its loss shifts, and the count does not.",
        "",
        "| class | factor | error | exact | cause |",
        "|---|---|---|---|---|",
    ]
    for verdict in rows:
        exact = "refused" if verdict.exact is None else f"{verdict.exact:.0e}"
        cause = verdict.cause.partition(":")[0]
        note = f" ({verdict.note})" if verdict.note else ""
        lines.append(f"| {verdict.name} | {verdict.factor:.2f} | {verdict.error:.1e} | {exact} | {cause}{note} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} classes and a few rounds")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as a page")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        import transformers

        transformers.logging.set_verbosity_error()
    except ImportError:
        print("transformers is not installed: nothing to measure (pip install dagnn[transformers])")
        return 0
    verdicts, holds = heads(given.quick)
    if given.markdown:
        Path(given.markdown).write_text(markdown(verdicts))
    ratio = overhead(rounds=20 if given.quick else 60)
    holds &= ratio <= LARGEST_OVERHEAD
    print("holds" if holds else "MISSED")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
