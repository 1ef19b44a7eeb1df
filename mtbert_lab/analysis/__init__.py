"""What trained models get wrong: calibration, groups of examples, worst cases, interference."""
