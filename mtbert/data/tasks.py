"""The datasets of the course (CS224N default project): their files, columns and labels."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Task:
    """A dataset of the course."""

    name: str
    files: str  # with {split}
    sentence_columns: tuple[str, ...]
    label_column: str
    kind: Literal["classes", "binary", "similarity"]
    num_classes: int | None

    @property
    def is_pair(self) -> bool:
        """Whether a row holds two sentences."""
        return len(self.sentence_columns) == 2

    @property
    def label_range(self) -> tuple[int, int]:
        """Lowest and highest label, both allowed."""
        return (0, self.num_classes - 1) if self.num_classes else (0, 5)

    def file_name(self, split: str) -> str:
        """The course's name for the file of a split."""
        return self.files.format(split="test-student" if split == "test" else split)


ONE, TWO = ("sentence",), ("sentence1", "sentence2")
TASKS = {
    "sst": Task("sst", "ids-sst-{split}.csv", ONE, "sentiment", "classes", 5),
    "cfimdb": Task("cfimdb", "ids-cfimdb-{split}.csv", ONE, "sentiment", "classes", 2),
    "quora": Task("quora", "quora-{split}.csv", TWO, "is_duplicate", "binary", 2),
    "sts": Task("sts", "sts-{split}.csv", TWO, "similarity", "similarity", None),
}
