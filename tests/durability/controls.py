"""
Controls: other writers of checkpoints under the same power cuts, each acknowledged as its documentation says.

    python -m tests.durability.controls --on ext4

A harness that catches none of them losing a save would prove nothing about perdure. Needs root, as the cuts do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perdure.testing.powercut import Cut, LoopFileSystem
from perdure.testing.rounds import DEADLINE_SECONDS, Tell, Watch

EXPECTED = np.arange(50_000, dtype=np.float32)


@dataclass(frozen=True)
class Writer:
    """Somebody else's way to save an array, and to read it back."""

    package: str
    save: Callable[[Path], None]
    load: Callable[[Path], np.ndarray]


def _torch_save(path: Path) -> None:
    import torch

    torch.save({"weight": torch.from_numpy(EXPECTED.copy())}, path)


def _torch_load(path: Path) -> np.ndarray:
    import torch

    return torch.load(path, weights_only=True)["weight"].numpy()


def _safetensors_save(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": EXPECTED}, path)


def _safetensors_load(path: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    return load_file(path)["weight"]


def _dcp_save(path: Path) -> None:
    import torch
    from torch.distributed import checkpoint

    checkpoint.save({"weight": torch.from_numpy(EXPECTED.copy())}, checkpoint_id=path, no_dist=True)


def _dcp_load(path: Path) -> np.ndarray:
    import torch
    from torch.distributed import checkpoint

    state = {"weight": torch.zeros(len(EXPECTED))}
    checkpoint.load(state, checkpoint_id=path, no_dist=True)
    return state["weight"].numpy()


def _orbax_save(path: Path) -> None:
    from orbax import checkpoint

    with checkpoint.CheckpointManager(path) as manager:
        manager.save(1, args=checkpoint.args.StandardSave({"weight": EXPECTED}))
        manager.wait_until_finished()


def _orbax_load(path: Path) -> np.ndarray:
    from orbax import checkpoint

    with checkpoint.CheckpointManager(path) as manager:
        restored = manager.restore(
            manager.latest_step(), args=checkpoint.args.StandardRestore({"weight": np.zeros_like(EXPECTED)})
        )
    return np.asarray(restored["weight"])


def _torch_checkpointing() -> Any:
    from torch_checkpointing import CheckpointManager, SyncCheckpointSaverConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    storage = LocalFileSystemStorageConfig(use_direct_io=False)  # with it, saves fail on ext4 in 0.1.1
    return CheckpointManager(CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage))


def _torch_checkpointing_save(path: Path) -> None:
    import torch

    _torch_checkpointing().save(str(path), {"state": {"weight": torch.from_numpy(EXPECTED.copy())}})


def _torch_checkpointing_load(path: Path) -> np.ndarray:
    import torch

    state = {"weight": torch.zeros(len(EXPECTED))}
    _torch_checkpointing().load(str(path), into={"state": state}, strict=True)
    return state["weight"].numpy()


WRITERS: Mapping[str, Writer] = {
    "torch.save": Writer("torch", _torch_save, _torch_load),
    "safetensors": Writer("safetensors", _safetensors_save, _safetensors_load),
    "torch DCP": Writer("torch", _dcp_save, _dcp_load),
    "Orbax": Writer("orbax", _orbax_save, _orbax_load),
    "torch_checkpointing": Writer("torch_checkpointing", _torch_checkpointing_save, _torch_checkpointing_load),
}


def is_here(name: str) -> bool:
    """Whether a writer can be tried."""
    return importlib.util.find_spec(WRITERS[name].package) is not None


def try_writer(name: str, system: LoopFileSystem) -> dict[str, str]:
    """Save, cut the power right after success was reported, and say what is found, by kind of cut."""
    writer = WRITERS[name]
    found: dict[str, str] = {}
    for how in Cut:
        path = system.path / f"{writer.package}-{how.name}-{len(name)}"

        def live(tell: Tell, path: Path = path) -> None:
            writer.save(path)
            tell({"saved": True})

        saving = Watch(live)
        message = next(saving.messages(DEADLINE_SECONDS))
        system.cut(how)
        list(saving.reap())
        system.restore_power()
        if "saved" not in message:
            raise RuntimeError(f"{name} cannot save: {message}")
        found[how.name] = _look(writer, path)
    return found


def _look(writer: Writer, path: Path) -> str:
    def live(tell: Tell) -> None:
        try:
            loaded = writer.load(path)
        except Exception as error:  # noqa: BLE001 - whatever it says, the acknowledged save cannot be loaded
            tell({"lost": f"lost: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"})
        else:
            is_equal = loaded.shape == EXPECTED.shape and bool((loaded == EXPECTED).all())
            tell({"lost": "whole" if is_equal else "lost: other numbers, and no error"})

    looking = Watch(live)
    message = next(looking.messages(DEADLINE_SECONDS))
    list(looking.reap())
    return str(message.get("lost", f"lost: {message.get('error', '')[:120]}"))


def main() -> int:
    """Try writers as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--writer", choices=sorted(WRITERS), action="append", help="all that are installed, if none")
    options = parser.parse_args()
    names = options.writer or [name for name in WRITERS if is_here(name)]
    for name in names:
        importlib.import_module(WRITERS[name].package)  # once, and not in every process
    with LoopFileSystem(options.on) as system:
        found = {name: try_writer(name, system) for name in names}
    caught = [name for name, what in found.items() if any(each != "whole" for each in what.values())]
    sys.stdout.write(json.dumps({"on": options.on, "tried": names, "caught": caught, "found": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
