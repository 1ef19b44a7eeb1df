"""`python -m benchmarks`, in the root of a checkout: mtbert against its peers, on a CPU.

`python -m benchmarks gpu` is gpu.py, `python -m benchmarks predictions` is predictions.py.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Measure some benchmarks and update their rows of bench.csv; the exit code, 1 where one failed."""
    import torch

    from benchmarks.catalogue import BENCHMARKS
    from benchmarks.harness import Setting, run_benchmarks
    from mtbert.paths import cache_dir
    from mtbert_lab.paths import results_dir

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="can be given several times")
    parser.add_argument("--repeats", type=int, default=5, help="of each contender; results need at least 5")
    parser.add_argument("--threads", type=int, help="of torch; default: torch's choice")
    parser.add_argument("--out", type=Path, help="default: bench.csv in the results store")
    parser.add_argument("--data", type=Path, help="folder of the course's CSV files")
    given = parser.parse_args(arguments)
    # By default torch.compile loads code from a folder in /tmp, which another user can make first.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    setting = Setting(data=given.data, repeats=given.repeats)
    names = given.only or BENCHMARKS
    chosen = {name: benchmark for name, benchmark in BENCHMARKS.items() if name in names}
    failed = False
    for outcome in run_benchmarks(chosen, setting, given.out or results_dir() / "bench.csv"):
        failed |= outcome.failed
        print(outcome.text, flush=True)
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["gpu"]:  # it needs few packages
        from benchmarks.gpu import main as on_gpu

        sys.exit(on_gpu(sys.argv[2:]))
    if sys.argv[1:2] == ["predictions"]:
        from benchmarks.predictions import main as of_predictions

        sys.exit(of_predictions(sys.argv[2:]))
    sys.exit(main(sys.argv[1:]))
