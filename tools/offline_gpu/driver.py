"""There: train the runs of ROOT/runs.json in processes that share one GPU: `python3 driver.py ROOT`. See README.md.

A run is trained and stored as a worker of `mtbert train` does it. Before all others starts a check: some steps on the
GPU and on the CPU have to tell about the same losses, with dropout. As many runs train at once as the GPU's memory
holds, by the guesses of runs.json: each run that finds no memory is offered again and raises all guesses.

After --seconds no run is started; --grace later those that train save a checkpoint and stop, from which the same
command goes on. What happens is told in ROOT/log.txt. The parent process imports no torch.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

Run = dict[str, Any]  # an entry of runs.json, as `pack_up.describe` makes it
WAITING, RUNNING, DONE, FAILED = range(4)
WAIT, OVER = -1, -2  # instead of the index of a run: none can start now; none will
RAISE = 1.25  # of all guesses of memory, where one was too low
TRIES = 2  # of a run whose process dies
REPLACE = 3  # exit code of a process that another has to replace: its GPU context may be broken
CHECK_STEPS, CHECK_BATCH = 60, 4  # of each task
CHECK_LAST, CHECK_SHARE = 20, 0.2  # the mean loss of the last steps may differ by this share
PIPES = {"CUDA_MPS_PIPE_DIRECTORY": "mps/pipe", "CUDA_MPS_LOG_DIRECTORY": "mps/log"}  # inside ROOT
PROBE = (
    "import ctypes; c = ctypes.CDLL('libcuda.so.1'); d = ctypes.c_int(); x = ctypes.c_void_p(); "
    "raise SystemExit(c.cuInit(0) or c.cuDeviceGet(ctypes.byref(d), 0) or "
    "c.cuDevicePrimaryCtxRetain(ctypes.byref(x), d))"
)


def arguments() -> argparse.Namespace:
    """The command's arguments; times on the clock of `time.monotonic`, which all processes share."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the folder that setup.sh made")
    parser.add_argument("--seconds", type=float, default=400.0, help="in which runs start (default: %(default)g)")
    parser.add_argument("--grace", type=float, default=15.0, help="seconds more for runs to end (default: %(default)g)")
    parser.add_argument("--processes", type=int, default=0, help="default: as memory and processors allow")
    parser.add_argument("--memory", type=float, help="GiB for all runs; default: what is free, by nvidia-smi")
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-mps", action="store_true", help="do not start NVIDIA's MPS")
    parser.add_argument(
        "--check", type=float, default=60.0, help="seconds for the check; later the runs start without it; 0: none"
    )
    args = parser.parse_args()
    args.root = args.root.resolve()
    args.results = args.root / "results"
    args.no_start = started + args.seconds
    args.stop = args.no_start + args.grace
    return args


def say(root: Path, text: str) -> None:
    """A line in the log, which many processes write to, and on stdout."""
    line = f"{time.strftime('%H:%M:%S')} {text}\n"
    with open(root / "log.txt", "a") as file:
        file.write(line)
    print(line, end="", flush=True)


class Board:
    """Which run is where, shared by all processes. GPU memory in GiB, times of `time.monotonic`."""

    def __init__(
        self, runs: list[Run], root: Path, processes: int, memory: float, stop: float, context: SpawnContext
    ) -> None:
        self.runs = runs
        self.root = root
        self.memory = memory
        self.stop = stop
        self.lock = context.RLock()
        self.states = context.Array(ctypes.c_int, len(runs), lock=False)
        self.tries = context.Array(ctypes.c_int, len(runs), lock=False)
        self.current = context.Array(ctypes.c_int, [WAIT] * processes, lock=False)  # the run of each process
        self.factor = context.Value(ctypes.c_double, 1.0, lock=False)  # of the guesses of memory
        self.pace = context.Value(ctypes.c_double, 0.0, lock=False)  # seconds for a unit of cost; 0: not known yet
        for i, run in enumerate(runs):
            if self.is_stored(run["run_id"]):
                self.states[i] = DONE

    def is_stored(self, run_id: str) -> bool:
        """Whether a run is in the store."""
        return (self.root / "results" / "runs" / run_id / "run.json").exists()

    def take(self, worker: int) -> int:
        """The first run that may start now, which is this worker's from here on; else WAIT or OVER.

        A run that waits for memory is not overtaken by smaller ones, or it would wait for all of them.
        """
        with self.lock:
            waiting = self._in_state(WAITING)
            ready = [i for i in waiting if self._has_arrived(i) and self._has_time(i)]
            if ready and self._has_memory(ready[0]):
                self._start(ready[0], worker)
                return ready[0]
            if self._in_state(RUNNING):
                return WAIT
            return OVER if all(self._has_arrived(i) for i in waiting) else WAIT

    def _start(self, i: int, worker: int) -> None:
        self.states[i] = RUNNING
        self.tries[i] += 1
        self.current[worker] = i

    def _in_state(self, state: int) -> list[int]:
        return [i for i, other in enumerate(self.states) if other == state]

    def _has_arrived(self, i: int) -> bool:
        return (self.root / "arrived" / self.runs[i]["encoder"]).exists()

    def _has_memory(self, i: int) -> bool:
        """A run that is alone may try in any case."""
        running = self._in_state(RUNNING)
        gib = sum(self.runs[other]["gib"] for other in [*running, i])
        return not running or gib * self.factor.value <= self.memory

    def _has_time(self, i: int) -> bool:
        """Costs are guesses: a run may start that would be late by less than a third."""
        return 0.7 * self.runs[i]["cost"] * self.pace.value <= self.stop - time.monotonic()

    def end(self, worker: int, state: int, seconds: float | None = None) -> None:
        """Note how the run of a worker ended; WAITING: it is offered again. seconds: that a whole run took."""
        with self.lock:
            i = self.current[worker]
            self.states[i] = state
            self.current[worker] = WAIT
            if seconds and seconds >= 1:  # else it was stored already
                new = seconds / self.runs[i]["cost"]
                self.pace.value = 0.7 * self.pace.value + 0.3 * new if self.pace.value else new

    def end_without_memory(self, worker: int) -> bool:
        """The run of a worker found no memory; whether it is offered again: where others took some of it."""
        with self.lock:
            is_alone = len(self._in_state(RUNNING)) == 1
            self.factor.value *= RAISE
            self.tries[self.current[worker]] -= 1
            self.end(worker, FAILED if is_alone else WAITING)
            return not is_alone

    def lose(self, worker: int) -> None:
        """A worker died; its run, if it had one, is offered again, but not for ever."""
        with self.lock:
            i = self.current[worker]
            if i != WAIT:
                self.end(worker, WAITING if self.tries[i] < TRIES else FAILED)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the GPU's memory did not suffice; libraries on the GPU say so in words of their own.

    Inside of a graph the error that ends its capture comes after the one that says so.
    """
    while error is not None:
        text = str(error)
        if isinstance(error, MemoryError) or "out of memory" in text or "ALLOC_FAILED" in text:
            return True
        error = error.__context__
    return False


def attempt(board: Board, worker: int, train: Callable[[], str]) -> bool:
    """Do the run of a worker and note how it ended; whether the process can take another one.

    train: returns a line about the result; SystemExit: stopped with a checkpoint, for another time.
    """
    name = board.runs[board.current[worker]]["name"]
    started = time.monotonic()
    try:
        about = train()
    except SystemExit:
        board.end(worker, WAITING)
        say(board.root, f"stopped: {name}")
        return False
    except Exception as error:
        if is_out_of_memory(error):
            again = board.end_without_memory(worker)
            say(board.root, f"out of memory: {name}; {'it is offered again' if again else 'FAILED, as it was alone'}")
            return False
        if "CUDA" in str(error):
            board.lose(worker)
        else:
            board.end(worker, FAILED)
        say(board.root, f"FAILED: {name}\n{traceback.format_exc()}")
        return "CUDA" not in str(error)
    seconds = time.monotonic() - started
    board.end(worker, DONE, seconds)
    say(board.root, f"done in {seconds:.0f} s: {name}, {about}")
    return True


def train(run: Run, args: argparse.Namespace) -> str:
    """Train and store a run; its score in words. The model is not kept: it would fill the disk."""
    from mtbert.config import RunConfig
    from mtbert_lab.store import Training, read_corpus, read_run, run_folder, run_id_of
    from mtbert_lab.store.models import model_folder

    run_id = run["run_id"]
    config = RunConfig.from_params(run["config"])
    corpus = read_corpus(config)
    if run_id_of(config, corpus) != run_id:
        raise RuntimeError(f"it is {run_id_of(config, corpus)} here, not {run_id}: other tables, encoder or code")
    if Training([args.results], device=args.device, progress=False, wait=False).once(config, corpus):
        shutil.rmtree(model_folder(run_id))
    score = read_run(run_folder(run_id, [args.results])).score()
    return f"{run_id}, dev {score:.4f}"


def release(device: str) -> None:
    """Give memory back, as the process goes on to another run."""
    import torch

    from mtbert.runtime import free_by_default

    free_by_default()
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def first_losses(run: Run, device: str) -> list[float]:
    """The sum of the tasks' losses in the first steps of a run, in small batches; raises RuntimeError without dropout.

    Every step has a batch of each task. On a CPU in fp32, as few of them are fast in bf16.
    """
    import torch

    from mtbert.config import RunConfig
    from mtbert.multitask import MultitaskBert, build_encoder
    from mtbert.runtime import pick_device
    from mtbert.training import Trainer, prepare_task, training_steps
    from mtbert_lab.store import read_corpus

    config = RunConfig.from_params(run["config"]).but(batch_size=CHECK_BATCH, scheme="unified")
    if device == "cpu":
        config = config.but(precision="fp32")
    place = pick_device(device)
    torch.manual_seed(config.seed)
    model = MultitaskBert(config, build_encoder(config)).to(place)
    tables = {}
    for task, table in read_corpus(config).train.items():
        tables[task] = prepare_task(model, task, table, place)
    trainer = Trainer(model, tables, CHECK_STEPS)
    lengths = {task: rows.tokens.lengths for task, rows in tables.items()}
    losses = []
    for number, rows in enumerate(islice(training_steps(config, lengths), CHECK_STEPS), 1):
        step = trainer.step(number, rows)
        losses.append(sum(map(float, step.values())))
        if not all(module.training for module in trainer.model.encoder.modules()):
            raise RuntimeError(f"in step {number} the encoder is in evaluation mode: it has no dropout")
    return losses


def agreement(losses: dict[str, list[float]]) -> tuple[bool, str]:
    """Whether the devices' losses of the last steps are about the same, and a sentence; by device, of each step."""
    means = {device: sum(some[-CHECK_LAST:]) / len(some[-CHECK_LAST:]) for device, some in losses.items()}
    low, high = min(means.values()), max(means.values())
    text = ", ".join(f"{device} {mean:.3f}" for device, mean in means.items())
    return high - low <= CHECK_SHARE * high, f"mean loss of steps up to {CHECK_STEPS}: {text}"


def work(
    number: int, args: argparse.Namespace, board: Board, checks: list[tuple[Run, str]], answers: Any, go: Any
) -> None:
    """A process: its checks, then one run after another. answers: queue of device and losses, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    import torch

    from mtbert.training import watch

    watch.set(lambda progress, total: time.monotonic() > args.stop)
    for run, device in checks:
        torch.set_num_threads(1 if args.device == device else os.cpu_count())
        try:
            answers.put((device, first_losses(run, device)))
        except Exception:
            answers.put((device, traceback.format_exc()))
        release(device)
    torch.set_num_threads(1)
    go.wait()
    while time.monotonic() < args.no_start:
        taken = board.take(number)
        if taken == OVER:
            return
        if taken == WAIT:
            time.sleep(0.5)
            continue
        if not attempt(board, number, lambda taken=taken: train(board.runs[taken], args)):
            os._exit(REPLACE)
        release(args.device)


def checked(answers: Any, root: Path, expected: int, seconds: float) -> bool:
    """Whether the check lets the runs start; without all answers in time it does."""
    losses = {}
    until = time.monotonic() + seconds
    for _ in range(expected):
        try:
            device, answer = answers.get(timeout=max(0.1, until - time.monotonic()))
        except queue.Empty:
            say(root, f"check: no answer within {seconds:g} s; going on")
            return True
        if isinstance(answer, str):
            say(root, f"check: FAILED on {device}\n{answer}")
            return False
        name = device if device not in losses else f"{device} again"
        losses[name] = answer
    agrees, text = agreement(losses)
    say(root, f"check: {text}: {'they agree' if agrees else 'FAILED, they do not agree'}")
    return agrees


def free_memory() -> float:
    """Free memory of the first GPU in GiB."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30)
    return float(answer.stdout.split()[0]) / 1024


@contextlib.contextmanager
def mps(root: Path) -> Iterator[None]:
    """NVIDIA's MPS, by which kernels of several processes run side by side; without it where it does not start."""
    control = shutil.which("nvidia-cuda-mps-control")
    before = dict(os.environ)
    for variable, place in PIPES.items():
        (root / place).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(root / place)
    try:
        subprocess.run([control or "nvidia-cuda-mps-control", "-d"], check=True, capture_output=True, timeout=20)
        subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, timeout=30)
        say(root, "MPS is on")
    except (OSError, subprocess.SubprocessError) as error:
        say(root, f"without MPS: {error}")
        for variable in PIPES:
            os.environ.pop(variable)
        os.environ.update({name: before[name] for name in PIPES if name in before})
    try:
        yield
    finally:
        if control and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([control], input="quit\n", text=True, capture_output=True, timeout=20)


def look_after(workers: list[BaseProcess], start: Callable[[int], BaseProcess], board: Board, no_start: float) -> None:
    """Until all have ended: replace processes that died; end those that do not stop in time."""
    while any(process.is_alive() for process in workers):
        time.sleep(0.2)
        for number, process in enumerate(workers):
            if process.exitcode in (None, 0) or time.monotonic() > no_start:
                continue
            if process.exitcode != REPLACE:
                say(board.root, f"process {number} ended with {process.exitcode}")
            board.lose(number)
            workers[number] = start(number)
        late = time.monotonic() - board.stop
        if late > 5:
            for process in workers:
                process.terminate()
        if late > 15:
            for process in workers:
                process.kill()


def prepare(args: argparse.Namespace) -> None:
    """Environment and import path of this process and its children; setup.sh put everything into ROOT."""
    sys.path[:0] = [str(args.root / "code"), str(args.root / "site")]
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", RAYON_NUM_THREADS="2", HF_HUB_OFFLINE="1")
    os.environ.update(MTBERT_RESULTS=str(args.results), MTBERT_CACHE=str(args.root / "cache"))
    os.environ.update(MTBERT_CHECKPOINT_SECONDS="100000")  # when they stop alone
    if (args.root / "data").is_dir():
        os.environ.update(MTBERT_DATA=str(args.root / "data"))


def main() -> None:
    """The command."""
    args = arguments()
    prepare(args)
    runs = json.loads((args.root / "runs.json").read_text())
    runs = [run for run in runs if args.only in run["name"]]
    memory = args.memory or (free_memory() if args.device != "cpu" else inf)
    most = min(len(runs), memory / min(run["gib"] for run in runs))
    processes = args.processes or max(1, min(os.cpu_count(), int(most)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    context = multiprocessing.get_context("spawn")
    board = Board(runs, args.root, processes, memory, args.stop, context)
    answers, go = context.Queue(), context.Event()
    plain = sorted((run for run in runs if run["is_plain"]), key=lambda run: run["gib"])
    checks = [(run, device) for run in plain[:1] for device in (args.device, "cpu") if args.check]

    def start(number: int, checks: list[tuple[Run, str]] = []) -> BaseProcess:  # noqa: B006
        process = context.Process(target=work, args=(number, args, board, checks, answers, go))
        process.start()
        return process

    with contextlib.ExitStack() as stack:
        if args.device != "cpu" and not args.no_mps:
            stack.enter_context(mps(args.root))
        say(args.root, f"{len(runs)} runs, {processes} processes, {memory:.1f} GiB")
        workers = [start(number, checks[number::processes]) for number in range(processes)]
        try:
            if checks and not checked(answers, args.root, len(checks), args.check):
                sys.exit(1)
            go.set()
            look_after(workers, start, board, args.no_start)
        finally:
            for process in workers:
                process.terminate()
            for process in workers:
                process.join(10)
                process.kill()
    ended = list(board.states)
    say(args.root, f"end: {ended.count(DONE)} done, {ended.count(FAILED)} failed, {ended.count(WAITING)} not trained")


if __name__ == "__main__":
    main()
