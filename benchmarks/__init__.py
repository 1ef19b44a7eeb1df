"""What training steps and processes cost; imported by the command line alone, others read results/bench.csv."""
