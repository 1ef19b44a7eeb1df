"""The model of a run, found by its id or its name in a grid."""

from pathlib import Path

from mtbert.bert import NAMED_ENCODERS, CheckpointError
from mtbert.data import DataError
from mtbert.multitask import MultitaskBert
from mtbert.paths import cache_dir
from mtbert_lab.store.corpora import read_corpus, run_id_of
from mtbert_lab.store.folders import read_run, run_folder
from mtbert_lab.store.listing import find_run
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.store.runs import load_or_run


def load_model(
    run: str, train_missing: bool = False, data: str | Path | None = None, device: str = "auto"
) -> MultitaskBert:
    """The kept model of a run, from the cache. With `train_missing` a stored run without a model is trained again.

    run: the start of its id, or 'GRID.yaml:NAME:SEED', see `find_run`. device: where it is trained again; the model
    is returned on the CPU. Raises MissingRun unless one run fits, CheckpointError if its model is not there, and
    DataError if it was trained on other data than those that are here.
    """
    run_id = find_run(run, data)
    stored = run_folder(run_id)
    if stored is not None and not has_model(run_id):
        found = read_run(stored)
        if not train_missing:
            raise CheckpointError(
                f"{run_id}: the model is not in the cache {cache_dir()}; option --train (train_missing=True) trains it "
                f"again, which took {found.cost['train_seconds'] / 60:.0f} minutes without evaluation"
            )
        here = run_id_of(found.config, read_corpus(found.config, data))
        digest, _, of_data = run_id.partition("-")
        if not here.startswith(digest):
            raise DataError(f"{run_id}: its settings, its code or its encoder now name another run, {here}; train that")
        if not here.endswith(of_data):
            raise DataError(f"{run_id}: was trained on other data than those that are here, which make {here}")
        load_or_run(found.config, data, device=device, needs_model=True, accept_rejects=True)
    model = MultitaskBert.load(model_folder(run_id))
    config = model.run_config
    needs_folder = model.tokenizer_source == config.encoder and config.encoder not in NAMED_ENCODERS
    if (needs_folder or config.own_code) and not run_id.startswith(config.digest):
        needed = [] if config.encoder in NAMED_ENCODERS else [f"the encoder {config.encoder}"]
        needed += [f"the code of {name}" for name in config.own_code]
        raise CheckpointError(
            f"{run_id}: was trained with another version of {' or '.join(needed)} than the one here; restore it, or "
            "train the run anew, which gives it another id"
        )
    return model
