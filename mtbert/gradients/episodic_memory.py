"""The episodic memory of GEM: some examples of every task, by their row numbers.

Sources: Lopez-Paz and Ranzato 2017, paper 003, section 2.2.2; Vitter 1985 (reservoir sampling, algorithm R).
"""

import zlib

import numpy as np

MEMORIES = ("reservoir", "ring")


class EpisodicMemory:
    """At most `size` distinct row numbers for each task.

    reservoir: a uniform sample of the distinct examples seen so far (algorithm R); a row that was seen before, kept or
    not, is passed over, so that later passes over a dataset change nothing. ring: the `size` distinct examples seen
    last; seeing one again makes it the newest. The content is a function of the seed and of the rows added for the
    task, in order, however they were split into calls. kind: one of MEMORIES.
    """

    def __init__(self, size: int, kind: str, seed: int) -> None:
        self.size, self.kind, self.seed = size, kind, seed
        self._rows: dict[str, np.ndarray] = {}
        self._seen: dict[str, np.ndarray] = {}  # reservoir: whether a row number was seen
        self._random: dict[str, np.random.Generator] = {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have something stored, in the order in which they came."""
        return tuple(self._rows)

    def rows(self, task: str) -> np.ndarray:
        """Row numbers stored for a task, int64; ring: the oldest first; empty where there are none."""
        stored = self._rows.get(task)
        return np.empty(0, dtype=np.int64) if stored is None else stored.copy()

    def add(self, task: str, rows: np.ndarray) -> None:
        """Offer row numbers (N,) of a task, in the order seen."""
        if not len(rows):
            return
        if self.kind == "ring":
            self._rows[task] = self._with_ring(task, rows)
        else:
            self._rows[task] = self._with_reservoir(task, rows)

    def sample(self, task: str, n: int, step: int) -> np.ndarray:
        """min(n, stored) different rows of a task, a function of the content, seed, task and step."""
        rows = self.rows(task)
        random = np.random.default_rng([self.seed, zlib.crc32(task.encode()), 1, step])
        return random.choice(rows, size=min(n, len(rows)), replace=False)

    def _with_ring(self, task: str, rows: np.ndarray) -> np.ndarray:
        newest_first = np.concatenate([self.rows(task), rows])[::-1]
        kept = _distinct(newest_first)[: self.size]
        return kept[::-1].copy()

    def _with_reservoir(self, task: str, rows: np.ndarray) -> np.ndarray:
        seen = self._seen_until(task, rows.max())
        new = _distinct(rows)
        new = new[~seen[new]]
        count = int(seen.sum())
        seen[new] = True
        stored = self.rows(task).tolist()
        for row, u in zip(new.tolist(), self._draws(task, len(new)), strict=True):
            count += 1
            place = int(u * count)
            if len(stored) < self.size:
                stored.append(row)
            elif place < self.size:  # with probability size / count
                stored[place] = row
        return np.array(stored, dtype=np.int64)

    def _seen_until(self, task: str, row: int) -> np.ndarray:
        """Whether each row of a task was seen, for all rows up to this one or beyond."""
        seen = self._seen.get(task, np.zeros(0, dtype=bool))
        missing = row + 1 - len(seen)
        if missing > 0:
            seen = np.concatenate([seen, np.zeros(max(missing, len(seen)), dtype=bool)])
            self._seen[task] = seen
        return seen

    def _draws(self, task: str, n: int) -> list[float]:
        """The next n numbers between 0 and 1 of a task's own generator."""
        if task not in self._random:
            self._random[task] = np.random.default_rng([self.seed, zlib.crc32(task.encode()), 0])
        return self._random[task].random(n).tolist()


def _distinct(rows: np.ndarray) -> np.ndarray:
    """The distinct rows, in the order in which they first occur."""
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]
