"""Configuration: precedence, every error by its text, and the round trip through TOML."""

import dataclasses
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.config import CurriculumConfig
from dagnn.errors import ConfigError
from dagnn.training.config import OptimizerConfig, TrainingConfig
from dagnn.training.settings import flatten, settings_of


def resolve(file=None, environment=None, **flags):
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return CurriculumConfig.resolve(file, environment=environment or {}, flags=given)


def message(**flags):
    with pytest.raises(ConfigError) as error:
        resolve(**flags)
    return str(error.value)


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("seed = 1\nmax_steps = 1000\nbatch_size = 64\n[optimizer]\nlr = 0.5\n")
    environment = {"DAGNN_SEED": "2", "DAGNN_MAX_STEPS": "2000", "DAGNN_KERNELS": "reference", "HOME": "/"}
    config = resolve(file, environment, seed="3")
    assert (config.seed, config.max_steps, config.batch_size, config.optimizer.lr) == (3, 2000, 64, 0.5)
    assert config.micro_batches == CurriculumConfig().micro_batches


def test_environment_names_are_distinct_and_reach_nested_settings():
    names = [each.environment_name for each in settings_of(CurriculumConfig).values()]
    assert len(names) == len(set(names))
    assert resolve(environment={"DAGNN_OPTIMIZER_LR": "1e-4"}).optimizer.lr == 1e-4
    assert resolve(environment={"DAGNN_CURRICULUM_LEVELS": "1,2 3"}).curriculum.levels == (1, 2, 3)


def test_process_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("DAGNN_SEED", "17")
    assert CurriculumConfig.resolve().seed == 17


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("seed", -1, "a whole number from 0 to 4294967295"),
        ("seed", True, "a whole number from 0 to 4294967295"),
        ("run_directory", " ", "a path"),
        ("threads", -2, "a whole number of at least 0"),
        ("max_steps", 0, "a whole number of at least 1"),
        ("max_steps", 2.0, "a whole number of at least 1"),
        ("max_steps", "1e3", "a whole number of at least 1"),
        ("batch_size", 0, "a whole number of at least 1"),
        ("batch_size", -8, "a whole number of at least 1"),
        ("micro_batches", 0, "a whole number of at least 1"),
        ("max_norm", -1.0, "a number of at least 0.0"),
        ("ema_decay", 1.0, "a number from 0 to below 1"),
        ("non_finite", "hide", "one of skip, stop"),
        ("eval_every", -1, "a whole number of at least 0"),
        ("eval_samples", 0, "a whole number of at least 1"),
        ("test_samples", 0, "a whole number of at least 1"),
        ("monitor", "", "the name of a metric"),
        ("monitor_mode", "largest", "one of max, min"),
        ("curriculum.levels", (1, 8), "distinct levels from 1 to 7, in rising order"),
        ("curriculum.levels", (), "distinct levels from 1 to 7, in rising order"),
        ("curriculum.levels", (2, 1), "distinct levels from 1 to 7, in rising order"),
        ("curriculum.levels", (1, 1), "distinct levels from 1 to 7, in rising order"),
        ("curriculum.preset", "huge", "one of full, small"),
        ("curriculum.order", "random", "one of mixed, progressive"),
        (
            "curriculum.level_weights",
            (1.0, 2.0),
            "7 numbers of at least 0.0, the first for level 1, or one for all levels",
        ),
        ("curriculum.samples", (0,), "7 whole numbers of at least 1, the first for level 1, or one for all levels"),
        ("curriculum.threshold", 1.5, "a number from 0.0 to 1.0"),
        ("curriculum.minimum_steps", -1, "a whole number of at least 0"),
        ("curriculum.patience", 0, "a whole number of at least 1"),
        ("curriculum.own_runs", -1, "a whole number of at least 0"),
        ("curriculum.certify", "maybe", "true or false"),
        ("curriculum.held_out_windows", 1.0, "a number from 0 to below 1"),
        ("model.backbone", "lstm", "one of features, graph"),
        ("model.graph_dim", 0, "a whole number of at least 1"),
        ("model.width", 0, "a whole number of at least 1"),
        ("model.blocks", 0, "a whole number of at least 1"),
        ("model.slot_width", 0, "a whole number of at least 1"),
        ("model.num_slots", 0, "a whole number of at least 1"),
        ("loss.alpha", -0.5, "a number of at least 0.0"),
        ("loss.beta", math.inf, "a number of at least 0.0"),
        ("loss.gamma", math.nan, "a number of at least 0.0"),
        ("loss.alignment", "guessed", "one of order, searched"),
        ("loss.objective", "mse", "one of edit, ged"),
        ("optimizer.name", "os.system", "one of sgd, adam, adamw, rmsprop, adagrad"),
        ("optimizer.lr", math.nan, "a number above 0.0"),
        ("optimizer.lr", 0.0, "a number above 0.0"),
        ("optimizer.lr", -0.001, "a number above 0.0"),
        ("optimizer.lr", "fast", "a number above 0.0"),
        ("optimizer.momentum", 1.0, "a number from 0 to below 1"),
        ("optimizer.betas", (0.9,), "two numbers from 0 to below 1"),
        ("optimizer.betas", (0.9, 1.0), "two numbers from 0 to below 1"),
        ("optimizer.weight_decay", -1.0, "a number of at least 0.0"),
        ("schedule.name", "linear", "one of constant, step, exponential, cosine, warmup, warmup_cosine, plateau"),
        ("schedule.warmup_steps", -1, "a whole number of at least 0"),
        ("schedule.step_size", 0, "a whole number of at least 1"),
        ("schedule.gamma", 0.0, "a number above 0, at most 1"),
        ("schedule.final_fraction", 1.1, "a number from 0.0 to 1.0"),
        ("schedule.steps", -1, "a whole number of at least 0"),
        ("schedule.patience", -1, "a whole number of at least 0"),
        ("early_stopping.patience", -1, "a whole number of at least 0"),
        ("early_stopping.min_delta", -0.5, "a number of at least 0.0"),
        ("early_stopping.when_right", "maybe", "true or false"),
        ("warm_start", 5, "a path"),
        ("precision", "float16", "one of float32, bfloat16"),
        ("compile", "maybe", "true or false"),
        ("profile_steps", -1, "a whole number of at least 0"),
        ("checkpoint.save_every", -1, "a whole number of at least 0"),
        ("checkpoint.keep_last", 0, "a whole number of at least 1"),
        ("checkpoint.keep_best", -1, "a whole number of at least 0"),
    ],
)
def test_wrong_value_is_named_with_what_is_allowed(key, value, allowed):
    shown = (
        value if isinstance(value, str) and value.strip() else repr(list(value) if isinstance(value, tuple) else value)
    )
    shown = value if value == " " else shown
    assert message(**{key: value}) == f"{key} = {shown}: allowed is {allowed}."


def test_every_setting_has_an_error_test():
    (parametrize,) = test_wrong_value_is_named_with_what_is_allowed.pytestmark
    assert {case[0] for case in parametrize.args[1]} == set(settings_of(CurriculumConfig))


def test_constructor_checks_as_well_and_takes_lists_and_whole_numbers():
    with pytest.raises(ConfigError, match=r"optimizer\.lr = nan: allowed is a number above 0\.0"):
        CurriculumConfig(optimizer=OptimizerConfig(lr=math.nan))
    config = CurriculumConfig(optimizer=OptimizerConfig(lr=1, betas=[0.5, 0.6]))
    assert (config.optimizer.lr, config.optimizer.betas) == (1.0, (0.5, 0.6))
    assert type(config.optimizer.lr) is float


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"micro_batches": 3}, "micro_batches = 3: allowed is a divisor of batch_size = 512."),
        ({"max_steps": 100}, "schedule.warmup_steps = 100: allowed is less than max_steps = 100."),
        (
            {"curriculum.levels": (2,), "curriculum.level_weights": (1, 0, 1, 1, 1, 1, 1)},
            "curriculum.level_weights = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]: allowed is at least one weight above 0 "
            "among the levels [2].",
        ),
        (
            {"curriculum.order": "progressive", "eval_every": 0},
            "eval_every = 0: allowed is at least 1 when curriculum.order = progressive (nothing promotes).",
        ),
    ],
)
def test_settings_that_contradict_each_other(flags, told):
    assert message(**flags) == told


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("batchsize", "did you mean batch_size?"),
        ("lr", "did you mean optimizer.lr?"),
        ("optimizer.learning_rate", "did you mean optimizer.lr?"),
        ("wight_decay", "did you mean optimizer.weight_decay?"),
        ("gamma", "did you mean loss.gamma or schedule.gamma?"),
        ("optimiser.lr", "did you mean optimizer.lr?"),
        ("levls", "did you mean curriculum.levels?"),
        ("qqq", "run `dagnn train --help` for the list."),
    ],
)
def test_unknown_key_comes_with_the_nearest(key, told):
    assert message(**{key: 1}) == f"unknown setting {key}: {told}"


def test_all_errors_of_all_sources_at_once(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('seeed = 1\nbatch_size = "64"\n[optimizer]\nlr = nan\n[modle]\nwidth = 3\n')
    environment = {"DAGNN_MAX_STEP": "5", "DAGNN_THREADS": "two", "DAGNN_CACHE": "x"}
    with pytest.raises(ConfigError) as error:
        resolve(file, environment, monitor_mode="up")
    head, *lines = str(error.value).split("\n")
    assert head == "7 settings are wrong:"
    assert sorted(line.strip() for line in lines) == sorted(
        [
            f"unknown setting seeed: did you mean seed? [file {file}]",
            f'batch_size = "64": allowed is a whole number of at least 1, without quotes. [file {file}]',
            f"optimizer.lr = nan: allowed is a number above 0.0. [file {file}]",
            f"unknown setting modle.width: did you mean model.width? [file {file}]",
            "unknown environment variable DAGNN_MAX_STEP: did you mean DAGNN_MAX_STEPS?",
            "threads = two: allowed is a whole number of at least 0. [environment]",
            "monitor_mode = up: allowed is one of max, min.",
        ]
    )


def test_a_section_where_a_value_belongs(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("optimizer = 3\n[seed]\nx = 1\n")
    with pytest.raises(ConfigError) as error:
        resolve(file)
    assert "seed = {'x': 1}: allowed is a whole number from 0 to 4294967295." in str(error.value)
    assert "optimizer is a section, not a setting: it has optimizer.name, optimizer.lr, " in str(error.value)


@pytest.mark.parametrize("text", ["seed = 010", "seed = no", "seed = 1\nseed = 2", "= 3", "seed = "])
def test_text_that_toml_refuses(tmp_path, text):
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.toml is not TOML: "):
        resolve(file)


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*missing\.toml: .*No such file"):
        resolve(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*binary\.toml: .*utf-8"):
        resolve(tmp_path / "binary.toml")


def test_control_characters_of_a_file_are_not_printed(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('"\\u001b[2J" = 1\nmonitor_mode = "\\u001b]0;x"\n')
    with pytest.raises(ConfigError) as error:
        resolve(file)
    assert "\x1b" not in str(error.value)
    assert "'\\x1b[2J'" in str(error.value)


@pytest.mark.parametrize("text", ["1e-3", "0.001", ".001"])
def test_numbers_in_a_flag_and_in_a_file_agree(text):
    assert resolve(optimizer__lr=text).optimizer.lr == 1e-3
    assert CurriculumConfig.from_toml("[optimizer]\nlr = 1e-3").optimizer.lr == 1e-3


def test_samples_and_weights_by_level():
    curriculum = resolve(curriculum__samples="10", curriculum__level_weights="1 2 3 4 5 6 7").curriculum
    assert [curriculum.samples_of(level) for level in (1, 7)] == [10, 10]
    assert [curriculum.weight_of(level) for level in (1, 7)] == [1.0, 7.0]
    assert CurriculumConfig().curriculum.samples_of(4) == 4000


def test_micro_batch_size():
    assert resolve(batch_size=12, micro_batches=3).micro_batch_size == 4


def test_default_configuration_round_trips():
    assert CurriculumConfig.from_toml(CurriculumConfig().to_toml()) == CurriculumConfig()
    assert CurriculumConfig.from_toml("") == CurriculumConfig()


@given(
    lr=st.floats(1e-300, 1e300),
    directory=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    levels=st.sets(st.integers(1, 7), min_size=1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_configuration_round_trips_through_toml(lr, directory, levels, seed):
    config = resolve(optimizer__lr=lr, run_directory=directory, curriculum__levels=tuple(sorted(levels)), seed=seed)
    again = CurriculumConfig.from_toml(config.to_toml())
    assert again == config
    assert again.to_toml() == config.to_toml()


def test_changed_and_differences():
    config = CurriculumConfig()
    other = config.changed({"optimizer.lr": "0.5", "seed": 3})
    assert config.differences(other) == {"seed": (0, 3), "optimizer.lr": (1e-3, 0.5)}
    assert config.differences(config) == {}
    with pytest.raises(ConfigError, match=r"unknown setting optimizer\.rl: did you mean optimizer\.lr\?"):
        config.changed({"optimizer.rl": 1})


def test_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CurriculumConfig().seed = 3


def test_every_setting_has_help_and_its_default_is_allowed():
    for setting in settings_of(CurriculumConfig).values():
        assert setting.help
        assert setting.accepts(setting.default)
    assert flatten(CurriculumConfig()) == {
        key: setting.default for key, setting in settings_of(CurriculumConfig).items()
    }


def test_reading_a_configuration_does_not_import_torch():
    code = "import sys; from dagnn.curriculum import CurriculumConfig as C; C(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_configuration_of_a_trainer_knows_nothing_of_the_curriculum():
    keys = set(settings_of(TrainingConfig))
    assert keys < set(settings_of(CurriculumConfig))
    assert not any(key.startswith(("curriculum.", "model.", "loss.")) for key in keys)
    with pytest.raises(ConfigError, match=r"unknown setting curriculum\.levels: run `dagnn train --help`"):
        TrainingConfig.resolve(environment={}, flags={"curriculum.levels": "1"})


def test_part_of_a_file_is_read_by_the_configuration_that_it_derives_from(tmp_path):
    config = resolve(seed=3, curriculum__levels="1 2", early_stopping__when_right=True)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert TrainingConfig.part_of(tmp_path / "config.toml") == TrainingConfig(seed=3)
    (tmp_path / "config.toml").write_text("seed = -1\n[curriculum]\nlevels = [9]")
    with pytest.raises(ConfigError, match=r"^seed = -1: allowed is [^\n]*$"):
        TrainingConfig.part_of(tmp_path / "config.toml")
