"""Random generators: saved as JSON, put back exactly, and untouched by what runs in between."""

import json
import random

import numpy as np
import torch

from dagnn.accumulation.random_states import rng_state, seed_everything, set_rng_state, untouched_rng


def draws():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), *torch.randn(3).tolist()]  # noqa: NPY002


def test_seeding_repeats_every_generator():
    seed_everything(3)
    first = draws()
    seed_everything(3)
    assert draws() == first
    seed_everything(4)
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_state_survives_json():
    seed_everything(5)
    draws()  # an odd number of gauss draws: the second of the pair is part of the state
    state = json.loads(json.dumps(rng_state(), allow_nan=False))
    expected = [draws() for _ in range(3)]
    seed_everything(0)
    set_rng_state(state)
    assert [draws() for _ in range(3)] == expected


def test_untouched_even_by_an_exception():
    seed_everything(6)
    with untouched_rng():
        expected = draws()
    try:
        with untouched_rng():
            seed_everything(1)
            draws()
            raise KeyError
    except KeyError:
        pass
    assert draws() == expected


def test_ranks_draw_numbers_of_their_own_and_the_first_those_of_one_process():
    def draws(seed, rank):
        seed_everything(seed, rank)
        return random.random(), float(np.random.rand()), torch.rand(2).tolist()  # noqa: NPY002

    assert draws(5, 0) == draws(5, 0)
    assert len({str(draws(2**32 - 1, rank)) for rank in range(50)}) == 50
    seed_everything(5)
    assert draws(5, 0)[0] == random.Random(5).random()
