"""The episodic memory of GEM: some examples of every task, by their row numbers.

Sources: Lopez-Paz and Ranzato 2017, who keep the last examples; paper 003, section 2.2.2; Vitter 1985 (reservoir
sampling, algorithm R).
"""

import zlib

import numpy as np
from numpy import ndarray


class EpisodicMemory:
    """At most `size` distinct row numbers for each task: a uniform sample of the examples seen so far (algorithm R).

    A row that was seen before, kept or not, is passed over, so that later passes over a dataset change nothing. The
    content is a function of the seed and of the rows added for the task, in order, however they were split into calls.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self._rows: dict[str, list[int]] = {}
        self._seen: dict[str, set[int]] = {}  # the rows that were offered
        self._random: dict[str, np.random.Generator] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have something stored, in the order in which they came."""
        return tuple(self._rows)

    def rows(self, task: str) -> ndarray:
        """Row numbers stored for a task, int64; empty where there are none."""
        return np.array(self._rows.get(task, []), dtype=np.int64)

    def add(self, task: str, rows: ndarray) -> None:
        """Offer row numbers (N,) of a task, in the order seen."""
        if not len(rows):
            return
        stored = self._rows.setdefault(task, [])
        seen = self._seen.setdefault(task, set())
        if task not in self._random:
            seed = [self.seed, zlib.crc32(task.encode()), 0]
            self._random[task] = np.random.default_rng(seed)
        random = self._random[task]
        for row in rows.tolist():
            if row in seen:
                continue
            seen.add(row)
            place = int(random.random() * len(seen))
            if len(stored) < self.size:
                stored.append(row)
            elif place < self.size:  # with probability size / number seen
                stored[place] = row

    def sample(self, task: str, n: int, step: int) -> ndarray:
        """min(n, stored) different rows of a task, a function of the content, seed, task and step."""
        rows = self.rows(task)
        seed = [self.seed, zlib.crc32(task.encode()), 1, step]
        random = np.random.default_rng(seed)
        return random.choice(rows, size=min(n, len(rows)), replace=False)
