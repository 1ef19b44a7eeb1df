"""What training steps and processes cost; nothing imports it, others read results/bench.csv."""
