"""A student learns the mean prediction of its teachers, which are read; without their weight nothing changes."""

import pytest
import torch
import torch.nn.functional as F

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.training import load_corpus, mean_logits, train
from mtbert.training.checkpoint import TrainingError
from mtbert.training.distillation import distillation_loss, teacher_weight

THREE = ("sst", "quora", "sts")


@pytest.fixture
def taught(course_folder):
    """Train a student, with made-up outputs of its teachers; gives its weights."""

    def taught(config: RunConfig) -> dict[str, torch.Tensor]:
        corpus, draw = load_corpus(config, course_folder), torch.Generator().manual_seed(3)
        teachers = {}
        for task in config.tasks if config.teachers else ():
            width = (5,) if task == "sst" else ()
            teachers[task] = torch.randn(len(corpus.train[task]), *width, generator=draw)
        return train(config, corpus, device="cpu", progress=False, teachers=teachers).model.state_dict()

    return taught


def equal(first, second) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_target_is_between_labels_and_teachers():
    logits, labels = torch.randn(4, 5), torch.tensor([0, 4, 2, 2])
    teachers = torch.randn(4, 5)
    target = 0.25 * teachers.softmax(-1) + 0.75 * F.one_hot(labels, 5)
    found = distillation_loss(TASKS["sst"], logits, labels, teachers, 0.25)
    torch.testing.assert_close(found, F.cross_entropy(logits, target))
    number = logits[:, 0], torch.tensor([0.0, 5.0, 2.5, 1.0]), teachers[:, 0]
    found = distillation_loss(TASKS["sts"], *number, 0.25)
    torch.testing.assert_close(found, F.mse_loss(number[0], 0.25 * number[2] + 0.75 * number[1] / 5))


def test_a_binary_task_is_one_of_two_classes():
    task, z, t, labels = TASKS["quora"], torch.randn(6), torch.randn(6), torch.tensor([0, 1, 1, 0, 1, 0])
    two = [torch.stack((torch.zeros(6), part), -1) for part in (z, t)]
    as_classes = distillation_loss(TASKS["sst"], two[0], labels, two[1], 0.5, temperature=3.0)
    torch.testing.assert_close(distillation_loss(task, z, labels, t, 0.5, temperature=3.0), as_classes)


def test_temperature_softens_both_and_keeps_the_size_of_gradients():
    """At a high temperature the gradient is that of squared differences of logits (Hinton et al., equation 4)."""
    z, t = torch.randn(1, 5, requires_grad=True), torch.randn(1, 5)
    distillation_loss(TASKS["sst"], z, torch.tensor([0]), t, 1.0, temperature=1000.0).backward()
    expected = ((z - z.mean()) - (t - t.mean())) / 5
    torch.testing.assert_close(z.grad, expected.detach(), rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("task", THREE)
def test_a_student_that_is_its_teacher_has_nothing_to_learn(task):
    """Its loss is the entropy of its own prediction, 0 for a number, and its gradient is zero."""
    logits = torch.randn(7, 5) if task == "sst" else torch.randn(7)
    logits.requires_grad_()
    loss = distillation_loss(TASKS[task], logits, torch.zeros(7), logits.detach(), 1.0)
    both = torch.stack((torch.zeros_like(logits), logits), -1) if task == "quora" else logits
    entropy = 0.0 if task == "sts" else torch.distributions.Categorical(logits=both).entropy().mean().item()
    assert loss.item() == pytest.approx(entropy, abs=1e-6)
    loss.backward()
    assert logits.grad.abs().max() < 1e-7


def test_the_mean_is_that_of_probabilities_and_numbers():
    z = [torch.randn(3, 5) for _ in range(3)]
    mean = sum(part.softmax(-1) for part in z) / 3
    torch.testing.assert_close(mean_logits(TASKS["sst"], z).softmax(-1), mean)
    torch.testing.assert_close(mean_logits(TASKS["sst"], z).exp(), mean)
    flat = [part[:, 0] for part in z]
    binary = sum(part.sigmoid() for part in flat) / 3
    torch.testing.assert_close(mean_logits(TASKS["quora"], flat).sigmoid(), binary)
    torch.testing.assert_close(mean_logits(TASKS["sts"], flat), sum(flat) / 3)
    torch.testing.assert_close(mean_logits(TASKS["quora"], flat[:1]), flat[0])


def test_the_weight_of_teachers(three_tasks):
    assert teacher_weight(three_tasks, 1, 10) == 0
    student = three_tasks.but(teachers=[three_tasks])
    assert [teacher_weight(student, step, 4) for step in (1, 4)] == [1, 1]
    assert teacher_weight(student.but(distil=0.3), 2, 4) == 0.3
    annealed = student.but(distil="annealed")
    assert [teacher_weight(annealed, step, 4) for step in (1, 2, 3, 4)] == [1, 0.75, 0.5, 0.25]


# --- training ---------------------------------------------------------------------------------------------------------


def test_weight_zero_is_the_run_without_teachers_and_weight_one_is_not(three_tasks, taught):
    config = three_tasks.but(plan="S1 I1", r_drop=0.5)
    student = config.but(teachers=[three_tasks])
    alone = taught(config)
    assert equal(taught(student.but(distil=0)), alone)
    assert not equal(taught(student), alone)


def test_the_outputs_of_teachers_are_of_all_rows_and_for_students_alone(three_tasks, course_folder):
    student = three_tasks.but(teachers=[three_tasks])
    corpus = load_corpus(student, course_folder)
    few = {task: torch.zeros(3, 5) if task == "sst" else torch.zeros(3) for task in student.tasks}
    with pytest.raises(TrainingError, match=r"'sst': \(40, 5\).*given are .*'sst': \(3, 5\)"):
        train(student, corpus, device="cpu", progress=False, teachers=few)
    columns = {task: torch.zeros(40, 5) if task == "sst" else torch.zeros(40, 1) for task in student.tasks}
    with pytest.raises(TrainingError, match=r"given are .*'sts': \(40, 1\)"):  # it would be broadcast
        train(student, corpus, device="cpu", progress=False, teachers=columns)
    with pytest.raises(TrainingError, match="are needed"):
        train(three_tasks, corpus, device="cpu", progress=False, teachers=few)


def test_training_needs_the_outputs_of_the_teachers(three_tasks, course_folder):
    student = three_tasks.but(teachers=[three_tasks])
    with pytest.raises(TrainingError, match=r"logits for all training rows are needed, .*given are \{\}"):
        train(student, load_corpus(student, course_folder), device="cpu", progress=False)
