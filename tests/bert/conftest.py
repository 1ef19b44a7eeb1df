"""What the tests of the encoder share: batches."""

from collections.abc import Callable

import pytest
import torch

from mtbert.bert import BertConfig


@pytest.fixture(scope="session")
def inputs() -> Callable[[BertConfig, list[int]], dict[str, torch.Tensor]]:
    """inputs(config, lengths): a padded batch of random ids without the padding's, as keywords of a model.

    Of BERT with the types of two sentences; RoBERTa's are all of type 0, and the others have none.
    """

    def inputs(config: BertConfig, lengths: list[int]) -> dict[str, torch.Tensor]:
        shape = (len(lengths), max(lengths))
        position, length = torch.arange(shape[1]), torch.tensor(lengths)[:, None]
        mask = position < length
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(config.pad_token_id + 1, config.vocab_size, shape, generator=generator)
        batch = dict(input_ids=ids.where(mask, config.pad_token_id), attention_mask=mask.long())
        if config.model_type == "bert":
            batch["token_type_ids"] = (position >= length // 2) * (config.type_vocab_size - 1) * mask
        return batch

    return inputs
