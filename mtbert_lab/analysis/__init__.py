"""What trained models get wrong: intervals, calibration, groups of examples, worst cases, interference."""
