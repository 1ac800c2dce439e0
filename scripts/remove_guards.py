"""Removes the guards of training one by one, and reports whether a test notices each.

    python scripts/remove_guards.py [WORD ...]     only the guards whose name has one of the words

A guard is a line that keeps a promise of docs/contributing/promises.md. In a copy of the source it is replaced by a
line without it; then its test must fail there, having passed with the guard in place. Exit code 1 when one is not
missed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
_SECONDS = 300


@dataclass(frozen=True)
class Guard:
    """A promise, the text that keeps it, the text without it, and the test that must notice.

    Attributes:
        name: what is guarded, in words.
        file: below ``src/dagnn``.
        text, without: what is replaced by what; ``text`` occurs once.
        test: as pytest takes it, below ``tests``.
    """

    name: str
    file: str
    text: str
    without: str
    test: str


STORE, SAVE = "training/run/test_store.py", "faults/test_failing_disk.py"
CHECKPOINT, RESUME = "training/run/test_checkpoints.py", "training/run/test_exact_resume.py"
KEPT = "training/run/test_resumable.py"
SECURITY, TRAINER = "faults/test_security.py", "training/test_trainer.py"
ORDER = f"{SAVE}::test_calls_of_a_save_come_in_the_order_that_survives_a_crash"

GUARDS = [
    # A save
    Guard(
        "files are on the disk before the manifest",
        "files.py",
        "        os.fsync(descriptor)\n    finally:\n        os.close(descriptor)\n\n\ndef sync_directory",
        "    finally:\n        os.close(descriptor)\n\n\ndef sync_directory",
        ORDER,
    ),
    Guard(
        "the folder is on the disk before the rename",
        "training/run/checkpoints.py",
        "\n    sync_directory(path)\n",
        "\n",
        ORDER,
    ),
    Guard(
        "the rename is on the disk before the removal",
        "training/run/checkpoints.py",
        "            sync_directory(self.path)\n",
        "",
        ORDER,
    ),
    Guard(
        "the manifest comes last",
        "training/run/checkpoints.py",
        "    for name, content in _file_contents(checkpoint):\n",
        "    write_new(path / _MANIFEST, b'')\n    for name, content in _file_contents(checkpoint):\n",
        ORDER,
    ),
    Guard(
        "a failed save puts the replaced checkpoint back",
        "training/run/checkpoints.py",
        "                if replaced.exists() and not target.exists():\n",
        "                if False:\n",
        f"{SAVE}::test_each_call_of_a_save_fails_once",
    ),
    Guard(
        "leftovers of a killed save are cleared",
        "training/run/checkpoints.py",
        "            else:\n                remove_tree(leftover)\n",
        "",
        f"{SAVE}::test_each_call_of_a_save_fails_once",
    ),
    Guard(
        "the newest are never pruned",
        "training/run/checkpoints.py",
        "*sorted(own)[-self.keep_last :], ",
        "",
        f"{STORE}::test_worsening_scores_never_remove_the_newest",
    ),
    Guard(
        "checkpoints of other runs are not removed",
        "training/run/checkpoints.py",
        "        return (manifest.run_id, manifest.step) == (self.run_id, step)\n",
        "        return True\n",
        f"{STORE}::test_foreign_checkpoints_are_neither_counted_nor_ranked_nor_touched",
    ),
    Guard(
        "what cannot be kept is refused before the first step",
        "training/trainer.py",
        "                self._parts.check(self._counters, self._description)\n",
        "",
        f"{KEPT}::test_values_that_cannot_be_kept_are_refused_before_the_first_step",
    ),
    Guard(
        "an evaluation that fails costs no step",
        "training/trainer.py",
        "            self._save()  # the steps are made",
        "            pass  # the steps are made",
        "training/test_evaluating.py::test_an_evaluation_that_fails_costs_no_step",
    ),
    # A load
    Guard(
        "every byte is verified",
        "training/run/checkpoints.py",
        "if hashlib.sha256(content).hexdigest() != sha256:",
        "if False:",
        f"{CHECKPOINT}::test_flipped_bits_are_found",
    ),
    Guard(
        "the manifest proves itself",
        "training/run/checkpoints.py",
        " or content != _rewritten(manifest)",
        "",
        f"{CHECKPOINT}::test_every_bit_of_the_manifest_is_proved",
    ),
    Guard(
        "sizes are checked before memory is taken",
        "training/run/checkpoints.py",
        "            if status.st_size > num_bytes or (exactly and status.st_size != num_bytes):\n",
        "            if False:\n",
        f"{CHECKPOINT}::test_no_more_is_read_than_the_manifest_says",
    ),
    Guard(
        "links are not followed",
        "training/run/checkpoints.py",
        ' | getattr(os, "O_NOFOLLOW", 0)',
        "",
        f"{CHECKPOINT}::test_symbolic_links_are_refused",
    ),
    Guard(
        "newer formats are refused",
        "training/run/checkpoints.py",
        "    if written > FORMAT:\n",
        "    if False:\n",
        f"{CHECKPOINT}::test_newer_format_is_refused_in_clear_words",
    ),
    Guard(
        "checkpoints of other runs are refused",
        "training/run/checkpoints.py",
        "if manifest.run_id != self.run_id:",
        "if False:",
        STORE,
    ),
    Guard(
        "later checkpoints are set aside",
        "training/trainer.py",
        "        self._store.set_aside_after(step)\n",
        "",
        f"{RESUME}::test_resume_from_a_chosen_step_sets_later_checkpoints_aside",
    ),
    # A resume
    Guard(
        "random numbers come back",
        "training/run/resume.py",
        "                set_rng_state(generators[rank])\n",
        "                pass\n",
        f"{RESUME}::test_stop_after_every_step",
    ),
    Guard(
        "the data's position comes back",
        "training/run/resume.py",
        '        self.loader.load_state_dict(unpacked(state["data"]))\n',
        "",
        f"{RESUME}::test_stop_after_every_step",
    ),
    Guard(
        "averages come back",
        "training/run/resume.py",
        '            self.average.load(tensors["ema"])\n',
        "            pass\n",
        f"{RESUME}::test_stop_after_every_step",
    ),
    Guard(
        "averages are saved under every name",
        "training/averages.py",
        "        if alike == self._weights.keys() and _holds_its_tensors(self._model, own):\n",
        "        if True:\n",
        "training/test_ema.py::test_averages_of_tied_weights_are_saved_under_each_of_their_names",
    ),
    Guard(
        "frozen parameters and eval mode come back",
        "training/run/resume.py",
        '            load_flags(self.model, state["flags"])\n',
        "            pass\n",
        f"{KEPT}::test_flags_and_groups_that_change_while_training_are_resumed",
    ),
    Guard(
        "levels come back",
        "training/run/resume.py",
        '            self.promotion.load_state_dict(state["promotion"])\n',
        "            pass\n",
        f"{RESUME}::test_stop_after_every_step",
    ),
    Guard(
        "other settings are refused",
        "training/run/resume.py",
        "        if key not in free\n",
        "        if False\n",
        "training/run/test_resume.py::test_everything_else_is_refused",
    ),
    Guard(
        "another number of processes is told",
        "training/run/resume.py",
        "    if num_before != processes.size:\n",
        "    if False:\n",
        "faults/test_processes.py::test_one_process_goes_on_with_the_training_of_two",
    ),
    Guard(
        "metrics after the checkpoint are cut off",
        "training/log.py",
        "            self._file.truncate(size)\n",
        "",
        "training/test_metrics.py::test_resuming_cuts_what_came_after_the_checkpoint",
    ),
    # Training
    Guard(
        "an evaluation draws no number of training",
        "training/trainer.py",
        "with untouched_rng(), self.averaged()",
        "with self.averaged()",
        f"{TRAINER}::test_evaluation_leaves_no_trace",
    ),
    Guard(
        "an aborted evaluation changes no data",
        "training/evaluation.py",
        "    loader.load_state_dict(data)\n",
        "",
        f"{RESUME}::test_signal_inside_an_evaluation",
    ),
    Guard(
        "a loss that is not finite makes no step",
        "accumulation/stepping.py",
        "        sound = finite and losses_are_finite(losses)\n",
        "        sound = finite\n",
        "accumulation/test_nonfinite.py",
    ),
    Guard(
        "a loss that is not finite is the reason that is told",
        "training/step.py",
        "        if not totals.empty and not math.isfinite(totals.loss):\n",
        "        if False:\n",
        f"{TRAINER}::test_policy_stop_ends_at_the_first_refusal_and_keeps_the_last_checkpoint",
    ),
    Guard(
        "nan is never the best",
        "training/counters.py",
        "    return math.isfinite(score) and (best is None",
        "    return (best is None",
        "training/test_counters.py",
    ),
    Guard(
        "the second signal leaves at once",
        "training/signals.py",
        "            _raise(signal_number)\n        self.request",
        "            return\n        self.request",
        "training/test_signals.py",
    ),
    Guard(
        "SIGTERM outside of training is 143",
        "training/signals.py",
        "    with _handlers(leave):\n",
        "    if True:\n",
        "faults/test_interrupts.py",
    ),
    Guard(
        "one process at a time has a run",
        "training/run/directory.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        "training/run/test_directory.py",
    ),
    # What strangers send
    Guard(
        "links in a run are refused",
        "training/run/directory.py",
        "is_file(follow_symlinks=False) and not each.is_dir(follow_symlinks=False)",
        "is_file() and not each.is_dir()",
        "training/run/test_directory.py::test_links_in_a_run_are_refused_and_what_they_lead_to_is_kept",
    ),
    Guard(
        "pickles are read by their tensors only",
        "training/run/checkpoint_commands.py",
        "weights_only=True)",
        "weights_only=False)",
        f"{SECURITY}::test_code_in_a_pickle_is_not_run",
    ),
    Guard(
        "claimed sizes are compared with the file's",
        "training/run/checkpoint_commands.py",
        "    if wanted > _LARGEST_RATIO * size:\n",
        "    if False:\n",
        f"{SECURITY}::test_tensor_that_claims_a_terabyte_is_refused",
    ),
    Guard(
        "compressed archives are refused",
        "training/run/checkpoint_commands.py",
        "    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):\n",
        "    if False:\n",
        f"{SECURITY}::test_compressed_archive_is_refused",
    ),
    Guard(
        "names are printed without control characters",
        "training/log.py",
        "each if each.isprintable() else repr(each)[1:-1] for each in text",
        "each for each in text",
        f"{SECURITY}::test_names_in_a_checkpoint_are_neither_paths_nor_escape_codes",
    ),
    Guard(
        "exports never overwrite",
        "files.py",
        "    return _moved_into_place(target, os.link)\n",
        "    return _moved_into_place(target, os.rename)\n",
        "training/run/test_checkpoint_commands.py::test_export_never_overwrites_and_leaves_nothing_behind",
    ),
]


def noticed(guard: Guard, folder: Path) -> str:
    """What the test said about the source without the guard: "missed" when it failed there, as it must."""
    copy = folder / "src"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        place = copy / "dagnn" / guard.file
        text = place.read_text()
        if text.count(guard.text) != 1:
            return f"its text occurs {text.count(guard.text)} times in {guard.file}"
        place.write_text(text.replace(guard.text, guard.without))
        return {0: "NOT NOTICED", 1: "missed"}.get(_tested(guard.test, copy, folder), "the test cannot run")
    finally:
        shutil.rmtree(copy)


def _tested(test: str, source: Path, folder: Path) -> int:
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}"]
    try:
        return subprocess.run(
            [*command, str(ROOT / "tests" / test)], cwd=ROOT, env=environment, capture_output=True, timeout=_SECONDS,
            check=False,
        ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1  # it hangs without its guard: noticed


def main(words: list[str]) -> int:
    """Runs the guards whose name has one of the words (all without words); returns the exit code."""
    chosen = [guard for guard in GUARDS if not words or any(word in guard.name for word in words)]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for test in sorted({guard.test for guard in chosen}):
            if _tested(test, SOURCE, Path(folder)) != 0:
                print(f"{test} does not pass with its guards in place")
                bad += 1
        for guard in chosen:
            found = noticed(guard, Path(folder))
            bad += found != "missed"
            print(f"{found:12}  {guard.name}", flush=True)
    print(f"{len(chosen)} guards removed one by one, {len(chosen) - bad} missed by a test")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
