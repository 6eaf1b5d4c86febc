"""
What a training writes for people, brought to the step that it continues from.

Rows that were written after the checkpoint belong to a future that did not happen, and files that the framework opens
for writing lose what they held before the restart. So the text logs are part of a checkpoint and are put back as they
were. TensorBoard's events stay in their folder, and those after the step are marked as superseded there.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HumanOutputFormat,
    JSONOutputFormat,
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
)

from perdure.adapters._sb3_attributes import can_store

_DIGITS = 8


def read_file(file: Any) -> Any:
    """The bytes that a text file open for writing holds so far, as an array."""
    file.flush()
    return np.frombuffer(bytearray(Path(file.name).read_bytes()), np.uint8)


def rewrite_file(file: Any, content: Any) -> None:
    """Make a text file open for writing hold these bytes, and go on behind them."""
    file.seek(0)
    file.truncate()
    file.write(content.tobytes().decode())
    file.flush()


class Logs:
    """
    A model's logger: values recorded and not yet written, its text files, its TensorBoard folder.

    Args:
        logger: The one that ``learn`` has set up.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def capture(self) -> dict[str, Any]:
        """Pending values, and what the files hold."""
        logger = self._logger
        pending = {name: value for name, value in logger.name_to_value.items() if can_store(value)}
        return {
            "values": pending,
            "counts": dict(logger.name_to_count),
            "excluded": {name: logger.name_to_excluded[name] for name in pending if name in logger.name_to_excluded},
            "folder": logger.dir,
            "files": {name: _capture_format(output) for name, output in self._files().items()},
        }

    def restore(self, tree: Mapping[str, Any], step: int) -> None:
        """
        Put pending values and files back; TensorBoard continues in the folder it had.

        Args:
            tree: What `capture` gave.
            step: Environment steps done; what was logged beyond is superseded.
        """
        logger = self._logger
        for target, name in (
            (logger.name_to_value, "values"),
            (logger.name_to_count, "counts"),
            (logger.name_to_excluded, "excluded"),
        ):
            target.clear()
            target.update(tree[name])
        for name, output in self._files().items():
            if name in tree["files"]:
                _restore_format(output, tree["files"][name])
        for output in logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat) and tree["folder"] is not None:
                logger.dir = _continue_tensorboard(output, tree["folder"], step)

    def _files(self) -> dict[str, KVWriter]:
        found: dict[str, KVWriter] = {}
        for output in self._logger.output_formats:
            if isinstance(output, CSVOutputFormat | JSONOutputFormat) or getattr(output, "own_file", False):
                assert isinstance(output, CSVOutputFormat | JSONOutputFormat | HumanOutputFormat)
                found[Path(output.file.name).name] = output
        return found


def _capture_format(output: Any) -> dict[str, Any]:
    return {"content": read_file(output.file), "keys": list(getattr(output, "keys", []))}


def _restore_format(output: Any, tree: Mapping[str, Any]) -> None:
    rewrite_file(output.file, tree["content"])
    if hasattr(output, "keys"):
        output.keys = tree["keys"]


def _continue_tensorboard(output: TensorBoardOutputFormat, saved: str, step: int) -> str:
    from torch.utils.tensorboard import SummaryWriter

    opened = Path(output.writer.log_dir)
    # Beside the one that was just opened, wherever the logs may have been moved to.
    folder = opened.with_name(Path(saved).name)
    output.writer.close()
    if folder != opened:
        for events in opened.glob("events.out.tfevents.*"):
            events.unlink()
        if not any(opened.iterdir()):
            opened.rmdir()
    output.writer = SummaryWriter(log_dir=str(folder), purge_step=step + 1)
    return str(folder)


class BestModel:
    """
    The file of the best model so far, which an `EvalCallback` overwrites with every better one.

    After a step back the file may hold a model of the future that did not happen, and a lesser one may take its place
    soon. That future's model is kept beside it.

    Args:
        folder: ``best_model_save_path`` of the callback.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "best_model.zip"
        self._known: tuple[tuple[int, int], str] | None = None

    def digest(self) -> str:
        """Digest of the file; empty if there is none. Read again only when it has changed."""
        if not self._path.exists():
            return ""
        facts = self._path.stat()
        version = (facts.st_mtime_ns, facts.st_size)
        if self._known is None or self._known[0] != version:
            self._known = (version, blake3(self._path.read_bytes()).hexdigest())
        return self._known[1]

    def keep_unless(self, saved: str) -> str:
        """
        Copy the file aside if it is not the one that the checkpoint knew.

        Returns:
            What was done, for the report; '' if nothing.
        """
        found = self.digest()
        if found in ("", saved):
            return ""
        aside = self._path.with_name(f"best_model.superseded-{found[:_DIGITS]}.zip")
        shutil.copy2(self._path, aside)
        return f"{self._path.name} is of a step beyond the checkpoint and was kept as {aside.name}"
