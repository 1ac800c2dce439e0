"""Two processes under torchrun with gloo: DDP, plain modules with a group, fully_shard. See two_ranks.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dagnn.accumulation import GradientAccumulator
from dagnn.accumulation.ranks import buckets
from dagnn.errors import ConfigError


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """name of a case -> its results on rank 0 and rank 1."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, folder]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=180, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return {name: (ranks[0][name], ranks[1][name]) for name in ranks[0]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # (1 + 1 + 1 + 9) / 4, not the mean of the ranks' means 5; so is the reported loss, at w = 1.
        ("unequal_counts", [[3.0], [3.0]]),
        ("plain_module_with_a_group", 3.0),
        ("unequal_numbers_of_batches", [10 / 3, 3.5, 5.0]),
        ("empty_window_on_one_rank", [3.0]),
        ("collectives_per_window", [1]),
        # find_unused_parameters False and True; DDP alone diverges in the first case.
        ("parameter_used_in_one_micro_batch_only", [[1.5, 1.5], [1.5, 1.5]]),
        ("static_graph", [1.5, 1.5]),
        ("forward_before_the_window", 3.0),
        ("ddp_works_as_usual_after_a_window", 1.5),
        ("aux_loss_with_its_own_denominator", [2.0, 0.1, 8.0]),
        ("non_finite_on_one_rank_skips_on_both", [["non-finite", None], 2.0]),
        ("buffers_follow_rank_0", 2.0),
        ("out_of_memory_on_one_rank_halves_on_both", [1, 3.0]),
    ],
)
def test_value_is_right_and_the_same_on_both_ranks(results, name, expected):
    def approximately(value):
        return (
            [approximately(v) for v in value]
            if isinstance(value, list)
            else value
            if isinstance(value, (str, type(None)))
            else pytest.approx(value, rel=1e-12)
        )

    for rank in (0, 1):
        assert results[name][rank] == approximately(expected)


def test_random_ragged_training_equals_one_process(results):
    for error, norms, expected_norms in results["random_ragged_training_equals_one_process"]:
        assert error <= 1e-12
        assert norms == pytest.approx(expected_norms, rel=1e-12)


def test_plain_module_without_a_group_warns(results):
    for warned in results["plain_module_warns"]:
        assert len(warned) == 1
        assert "gradients are not summed over them" in warned[0]


def test_fully_shard_equals_one_process_with_either_reduction(results):
    for runs in results["fully_shard_each_and_last"]:
        for error, norms in runs:
            assert error <= 1e-12
            assert all(norm == pytest.approx(expected, rel=1e-12) for norm, expected in norms)


def test_fully_shard_in_bfloat16_is_as_good_as_bfloat16(results):
    for error, norms in results["fully_shard_in_bfloat16_with_float32_reduction"]:
        assert error <= 1e-3
        assert all(norm == pytest.approx(expected, rel=1e-2) for norm, expected in norms)


def test_fully_shard_parameter_first_used_in_the_last_micro_batch(results):
    for weight, bias, *_ in results["fully_shard_parameter_first_used_in_the_last_micro_batch"]:
        assert weight == pytest.approx([0.75] * 4, abs=0.01)
        assert bias == pytest.approx([0.5] * 2, abs=0.01)


def test_what_fully_shard_cannot_do_is_a_named_error(results):
    for message in results["fully_shard_with_unequal_micro_batches"]:
        assert "must run the same number of micro-batches per window, got 2, 1" in message
    for message in results["fully_shard_refuses_drop"]:
        assert "on_nonfinite='drop' cannot be used with fully_shard" in message


def test_buckets_keep_order_dtype_and_limit():
    tensors = [torch.zeros(3), torch.zeros(2).double(), torch.zeros(4), torch.zeros(9), torch.zeros(1)]
    groups = list(buckets(tensors, limit=32))
    assert sorted(sum(t.numel() * t.element_size() for t in group) for group in groups) == [4, 16, 28, 36]
    assert all(len({t.dtype for t in group}) == 1 for group in groups)
    assert sorted(t.numel() for group in groups for t in group) == sorted(t.numel() for t in tensors)


def test_undivided_losses_add_up_over_ranks(results):
    assert results["undivided_losses_add_up_over_ranks"] == ([16.0, 1.0, 3],) * 2


def test_bad_fsdp_sync():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="fsdp_sync must be 'each'"):
        GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), fsdp_sync="never")
