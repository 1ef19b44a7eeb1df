"""What training needs to go on after an interruption, bit for bit, in one file that is replaced atomically."""

import logging
import os
import time
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)


class Checkpoint:
    """The states of some parts (model, optimizer, schedule: whatever has a `state_dict`), torch's generators, numbers.

    path None: nothing is ever saved. identity names the run; a file of another run is passed over. seconds: how long
    after a save, or the start, the next one is due.
    """

    def __init__(self, path: Path | None, identity: str, parts: dict[str, Any], seconds: float = 300.0) -> None:
        self.path, self.identity, self.parts, self.seconds = path, identity, parts, seconds
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last >= self.seconds

    def save(self, progress: dict[str, Any]) -> None:
        """Replace the file; progress: plain numbers, lists, dicts and tensors."""
        if self.path is None:
            return
        content = {name: part.state_dict() for name, part in self.parts.items()}
        content |= {"progress": progress, "identity": self.identity, "rng": torch.get_rng_state()}
        if torch.cuda.is_available():
            content["cuda_rng"] = torch.cuda.get_rng_state()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, self.path)
        self._last = time.monotonic()

    def restore(self) -> dict[str, Any] | None:
        """Put parts and generators back and return the progress; None where there is no file, or, with a warning,
        where it is damaged or of another run."""
        if self.path is None or not self.path.exists():
            return None
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            log.warning("%s is damaged (%s); training starts from the beginning", self.path.name, error)
            return None
        if content.get("identity") != self.identity:
            log.warning("%s belongs to another run; training starts from the beginning", self.path.name)
            return None
        for name, part in self.parts.items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["rng"])
        if "cuda_rng" in content and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["cuda_rng"])
        return content["progress"]
