"""Teachers of stored runs: trained before their student, their outputs stored and read again."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.bert import CheckpointError
from mtbert.config import RunConfig
from mtbert.data import DataError, tokenize
from mtbert.training import load_corpus, prepare_task
from mtbert_lab import sweep
from mtbert_lab.paths import results_dir, stores
from mtbert_lab.store import forget, runs
from mtbert_lab.store import teachers as teachers_of_results
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import has_model, model_folder, run_lock
from mtbert_lab.store.runs import teacher_outputs

CPU = torch.device("cpu")


def outputs_of(student: RunConfig, folder: Path) -> teachers_of_results.TeacherOutputs:
    return teacher_outputs(
        student, load_corpus(student, folder), lambda teacher: load_corpus(teacher, folder), stores()
    )


def test_a_missing_teacher_is_trained_first_and_its_outputs_are_kept(three_tasks, course_data, run_of, monkeypatch):
    student = three_tasks.but(teachers=[three_tasks, three_tasks.but(seed=2)], distil="annealed")
    run = run_of(student)
    assert run.config == student
    teachers = [run_of(config, train_missing=False) for config in student.teachers]
    assert all(has_model(one.run_id) for one in teachers)
    monkeypatch.setattr(teachers_of_results, "_load", lambda *args: pytest.fail("its outputs are stored"))
    assert run_of(student.but(seed=5)).run_id != run.run_id


def test_stored_outputs_stand_for_a_teacher_of_which_nothing_else_is_here(three_tasks, course_data, run_of):
    """Neither its model nor its run, as on another machine: the same student, and nothing is trained before it."""
    student = three_tasks.but(teachers=[three_tasks.but(seed=2)], distil="annealed")
    first = run_of(student)
    [teacher] = results_dir().glob("teachers/*")
    for run_id in (teacher.name, first.run_id):
        shutil.rmtree(model_folder(run_id))
        shutil.rmtree(results_dir() / "runs" / run_id)
    [planned] = sweep.look_up([("student", student)])
    assert planned.run_id == first.run_id and not planned.is_stored
    second = run_of(student)
    assert not has_model(teacher.name)
    pd.testing.assert_frame_equal(second.predictions, first.predictions)


def test_damaged_outputs_are_computed_again(three_tasks, course_data, run_of):
    student = three_tasks.but(teachers=[three_tasks.but(seed=2)])
    first = run_of(student)
    paths = sorted(results_dir().glob("teachers/*/*.npz"))
    assert [path.name.partition("-")[0] for path in paths] == ["quora", "sst", "sts"]
    assert np.load(paths[0])["logits"].dtype == np.float16
    contents = [path.read_bytes() for path in paths]
    paths[0].write_bytes(contents[0][:-1])
    shutil.rmtree(model_folder(paths[0].parent.name))
    teacher, planned = sweep.look_up([("student", student.but(seed=4))])
    assert teacher.run_id == paths[0].parent.name and teacher.needs_model and not planned.needs_model
    shutil.rmtree(results_dir() / "runs" / first.run_id)
    run_of(student)
    assert [path.read_bytes() for path in paths] == contents


def test_a_teacher_whose_tables_are_not_accepted_is_not_trained(mostly_rejected, tiny_config, monkeypatch, run_of):
    """They are of a task that the student does not have."""
    monkeypatch.setattr(runs, "train", lambda *args, **kwargs: pytest.fail("trained"))
    teacher = tiny_config.but(tasks=("sts", "sst"), scheme="unified")
    with pytest.raises(DataError, match="accept_rejects=True"):
        run_of(tiny_config.but(tasks=("sts",), teachers=[teacher]), data=mostly_rejected)


def test_a_forgotten_run_is_no_teacher_any_more(three_tasks, course_data, run_of):
    run_of(three_tasks.but(teachers=[three_tasks], seed=2))
    run_id = run_of(three_tasks).run_id
    assert results_dir() / "teachers" / run_id in forget(run_id)
    assert not list(results_dir().glob("teachers/*"))


def test_the_outputs_are_the_mean_of_the_models_on_the_training_rows(three_tasks, course_data, run_of, course_folder):
    student = three_tasks.but(teachers=[three_tasks, three_tasks.but(seed=2)])
    corpus = load_corpus(student, course_folder)
    models = {config: load_model(run_of(config).run_id) for config in student.teachers}
    probabilities = [
        prepare_task(model, "quora", corpus.train["quora"], CPU).logits(model).sigmoid() for model in models.values()
    ]
    found = outputs_of(student, course_folder).mean_logits(corpus, CPU)
    assert found.keys() == {*student.tasks}
    torch.testing.assert_close(found["quora"].sigmoid(), sum(probabilities) / 2, atol=1e-3, rtol=0)


def test_students_that_start_together_compute_each_output_once(
    three_tasks, course_data, run_of, course_folder, monkeypatch
):
    teachers = [three_tasks, three_tasks.but(seed=2), three_tasks.but(seed=3)]
    run_ids = [run_of(teacher).run_id for teacher in teachers]
    students = [three_tasks.but(teachers=teachers, seed=seed) for seed in (1, 2)]
    corpus = load_corpus(students[0], course_folder)
    loaded, asked, both_ask = [], [], threading.Event()

    def lock(run_id):
        asked.append(run_id)
        if asked.count(run_ids[0]) == 2:  # neither student begins with this teacher
            both_ask.set()
        return run_lock(run_id)

    def load(teacher, run_id):
        loaded.append(run_id)
        assert run_id != run_ids[0] or both_ask.wait(30)
        return load_model(run_id)

    monkeypatch.setattr(teachers_of_results, "run_lock", lock)
    monkeypatch.setattr(teachers_of_results, "_load", load)
    outputs = [outputs_of(student, course_folder) for student in students]
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda one: one.mean_logits(corpus, CPU), outputs)
    assert sorted(loaded) == sorted(run_ids)
    for task, logits in first.items():
        assert torch.equal(logits, second[task])


def test_a_foreign_teacher_is_named_before_training(three_tasks, course_data, run_of, monkeypatch):
    """A model of another run in the teacher's folder."""
    folder = model_folder(run_of(three_tasks).run_id)
    other = three_tasks.but(seed=3)
    load_model(run_of(other).run_id).save(folder)
    monkeypatch.setattr(runs, "train", None)
    with pytest.raises(CheckpointError, match=f"{folder.name}: the model is of run {other.digest}"):
        run_of(three_tasks.but(teachers=[three_tasks], seed=2))


def test_a_teacher_need_not_be_like_its_student(three_tasks, course_data, run_of, course_folder):
    """Another encoding of pairs, another plan."""
    other = three_tasks.but(pairs="sum", pooling="cls", plan="3-bert")
    student = three_tasks.but(teachers=[other], distil="annealed")
    assert load_model(run_of(student).run_id).run_config == student
    teacher, corpus = load_model(run_of(other).run_id), load_corpus(student, course_folder)
    found = outputs_of(student, course_folder).mean_logits(corpus, CPU)
    assert found.keys() == corpus.train.keys()
    for task, table in corpus.train.items():
        batch = tokenize(task, table, teacher.tokenizer_source, "sum").batch(np.arange(len(table)))
        with torch.no_grad():
            logits = teacher({task: batch})[task]
        if task == "sst":  # a mean of classes is that of their probabilities
            logits = logits.log_softmax(-1)
        torch.testing.assert_close(found[task], logits, atol=1e-3, rtol=0)
