"""The error browser, by its parts: what it filters, how it moves, and that sentences are shown only when asked for."""

import pandas as pd
import pytest

from mtbert.analysis import browser as browsing
from mtbert.analysis.browser import ANY, ErrorBrowser


@pytest.fixture
def browser(course_folder):
    rows = [
        ("sst", "1-bert", "ids-sst-dev-3", 4, 0, 0.9, "far off", 5),
        ("sst", "1-bert", "ids-sst-dev-7", 1, 2, 0.5, "next class", 9),
        ("sst", "3-bert", "ids-sst-dev-7", 1, 3, 0.4, "far off", 9),
        ("sst", "1-bert", "of another version", 1, 2, 0.5, "next class", 30),
    ]
    columns = ["task", "model", "id", "label", "predicted", "confidence", "kind", "words"]
    return ErrorBrowser(pd.DataFrame(rows, columns=columns), course_folder)


def test_it_starts_at_the_first_error_and_stops_at_the_last(browser):
    previous, following = browser.buttons
    assert "1 of 3</b>: ids-sst-dev-3, label 4, predicted 0, confidence 0.90, far off, 5 words" in browser.about.value
    previous.click()
    assert browser.place.value == 1
    for _ in range(5):
        following.click()
    assert browser.place.value == 3 and "of another version" in browser.about.value


def test_filters_narrow_the_list_and_go_back_to_its_start(browser):
    browser.place.value = 3
    browser.words.value = (6, 20)
    assert "1 of 1</b>: ids-sst-dev-7" in browser.about.value
    browser.kind.value = "far off"
    assert browser.about.value == "No such errors."
    browser.model.value = "3-bert"
    assert "predicted 3" in browser.about.value
    browser.kind.value = ANY
    assert browser.place.max == 1


def test_sentences_are_shown_only_when_asked_for(browser, capsys):
    assert browser.text.value == ""
    browser.sentences.value = True
    assert " and " in browser.text.value or browser.text.value.startswith("a ")
    browser.place.value = 3
    assert browser.text.value == "The data are not here."
    browser.sentences.value = False
    assert browser.text.value == ""
    browser.root, browser.sentences.value = None, True
    assert browser.text.value == "The data are not here."


def test_what_is_shown_without_a_kernel_is_a_sentence(browser, monkeypatch):
    shown = []
    monkeypatch.setattr(browsing, "display", lambda bundle, raw: shown.append(bundle))
    browsing.show(browser, "Needs a kernel.")
    assert shown[0]["text/plain"] == "Needs a kernel." and "application/vnd.jupyter.widget-view+json" in shown[0]
