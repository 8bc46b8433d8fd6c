"""The command line of the small models.

    python3 -m mha_lesson train                 what there is to train
    python3 -m mha_lesson train speech          trains it, shows its scores, and asks nothing
    python3 -m mha_lesson train speech --variant "1 head" --seed 3
    python3 -m mha_lesson train sweep speech    trains every variant with several seeds, for lesson 10

A stopped run goes on where it was when the same command is given again; --fresh starts anew.
Nothing in the course's folder is overwritten: results go to the folder named by --to, which is
`trained` in the folder you are in.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from mha_lesson import places
from mha_lesson.models import TASK_NAMES, get_task

SEEDS = (0, 1, 2)
AGAIN = "import sys; from mha_lesson.models.command import main; sys.exit(main())"

EXAMPLES = f"""examples:
  {places.COMMAND} train                                (what there is to train)
  {places.COMMAND} train speech
  {places.COMMAND} train speech --variant "1 head" --seed 3
  {places.COMMAND} train sweep digits --seeds 0 1       (every variant, each in a process of its own)
"""


def main(argv: list[str] | None = None) -> int:
    """Do what the command line says. Gives the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    many = arguments[:1] == ["sweep"]
    options = None
    if arguments:  # read before torch is asked for: the help needs none
        options = (sweep_parser() if many else train_parser()).parse_args(arguments[many:])
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        print("The small models need PyTorch, and this Python has none: pip install torch", file=sys.stderr)
        return 1
    if options is None:
        print(overview())
        return 0
    try:
        return sweep(options) if many else train_one(options)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from the last hundred steps.", file=sys.stderr)
        return 130


def overview() -> str:
    """All tasks with what they are."""
    lines = [f"{places.COMMAND} train NAME   trains one of these:", ""]
    for name in TASK_NAMES:
        task = get_task(name)
        steps = task.shipped_steps or task.steps
        lines.append(f"  {name:10}  {task.title}  ({steps} steps)")
    lines += ["", f"{places.COMMAND} train sweep NAME   compares its variants (long)", "-h   all options"]
    return "\n".join(lines)


def _common(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{places.COMMAND} train {command}".rstrip(),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=TASK_NAMES, metavar="NAME", help=", ".join(TASK_NAMES))
    parser.add_argument("--steps", type=_positive, help="steps of training")
    parser.add_argument("--to", type=Path, default=Path("trained"), metavar="FOLDER", help="where results go")
    parser.add_argument("--threads", type=_positive, help="CPU threads")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text}")
    return number


def train_parser() -> argparse.ArgumentParser:
    """Options of the command that trains one model."""
    parser = _common("")
    parser.add_argument("--variant", help='for example "8 heads"; default: the one that comes with the course')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--fresh", action="store_true", help="do not go on with a stopped run")
    parser.add_argument("--json", action="store_true", help="the facts as one line of JSON, without a bar")
    return parser


def sweep_parser() -> argparse.ArgumentParser:
    """Options of the command that compares variants."""
    parser = _common("sweep")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--variants", nargs="+", help="default: all")
    return parser


# ------------------------------------------------------------------------------ one model


def train_one(options) -> int:
    """Train, score, and write the weights with the facts."""
    import torch

    from mha_lesson.models import training

    if options.threads:
        torch.set_num_threads(options.threads)
    task = get_task(options.name)
    name = options.variant or task.shipped
    if name not in task.variants:
        print(f"--variant: expected one of: {'; '.join(task.variants)}", file=sys.stderr)
        return 2
    steps = options.steps or (task.shipped_steps if name == task.shipped else None) or task.steps
    stem = f"{task.name}-{name.replace(' ', '_').replace(',', '')}-seed{options.seed}"
    checkpoint = options.to / f"{stem}.checkpoint"
    if options.fresh:
        checkpoint.unlink(missing_ok=True)
    device = training.choose_device(options.device)
    with Bar(steps, task.title, quiet=options.json) as bar:
        before = peak_memory()
        model, facts = training.train(
            task, task.variants[name], options.seed,
            steps=steps, device=str(device), checkpoint=checkpoint, watch=bar,
        )  # fmt: skip
        after = peak_memory()
    training.rounded(model)  # the scores are those of the weights that are stored
    facts |= {
        "variant_name": name,
        "scores": {k: round(v, 4) for k, v in task.scores(model).items()},
        "forward_ms": round(forward_time(task, model, device) * 1e3, 2),
        "peak_mb": None if before is None else round(after - before, 1),
        "command": f'python3 -m mha_lesson train {task.name} --variant "{name}" --seed {options.seed} --steps {steps}',
        **training.circumstances(device),
    }
    path = options.to / f"{stem}.safetensors"
    training.save(model, path, facts)
    checkpoint.unlink(missing_ok=True)  # not before: what scoring trips over costs no training
    print(json.dumps(facts) if options.json else report(facts, path))
    return 0


class Bar:
    """A progress bar with the loss, on a terminal; called as watch(step, loss, model)."""

    def __init__(self, steps: int, title: str, quiet: bool):
        from tqdm import tqdm

        self.bar = tqdm(total=steps, desc=title, unit="step", disable=quiet or None, smoothing=0.05)

    def __call__(self, step: int, loss: float, model) -> None:
        self.bar.update(step - self.bar.n)
        if step % 20 == 0:
            self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()


def peak_memory() -> float | None:
    """The most memory this process has held so far, in MB; None where the system does not say (Windows)."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)  # bytes on a Mac, kB elsewhere


def forward_time(task, model, device) -> float:
    """Seconds of CPU time for the forward pass of one training batch: the median of 20."""
    import torch

    batch = [t.to(device) for t in task.batch(torch.Generator().manual_seed(0))]
    times = []
    with torch.no_grad():
        for _ in range(22):
            began = time.process_time()
            task.loss(model, *batch).item()
            times.append(time.process_time() - began)
    return sorted(times[2:])[10]  # the first two warm up


def report(facts: dict, path: Path) -> str:
    """What came out, for people."""
    scores = ", ".join(f"{name} {value}" for name, value in facts["scores"].items())
    return (
        f"{facts['variant_name']}, seed {facts['seed']}: {scores}\n"
        f"{facts['parameters']} parameters, {facts['steps']} steps, {facts['cpu_seconds']} seconds of CPU time\n"
        f"weights: {path}"
    )


# ------------------------------------------------------------------------------ many models


def sweep(options) -> int:
    """Every variant with every seed, each in a fresh process with one thread; rows that exist are kept."""
    from tqdm import tqdm

    task = get_task(options.name)
    names = options.variants or [v for v in task.variants if not (task.shipped_steps and v == task.shipped)]
    unknown = [v for v in names if v not in task.variants]
    if unknown:
        print(f"--variants: unknown {unknown}; expected some of: {'; '.join(task.variants)}", file=sys.stderr)
        return 2
    path = options.to / f"{task.name}_sweep.json"
    stored = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    steps = options.steps or task.steps
    rows = [r for r in stored if r["steps"] in (0, steps)]  # 0: nothing to train
    if len(rows) < len(stored):
        print(f"{path.name}: {len(stored) - len(rows)} runs of another length are left out")
    done = {(r["variant_name"], r["seed"]) for r in rows}
    left = {(variant, seed): None for seed in options.seeds for variant in names if (variant, seed) not in done}
    for variant, seed in (bar := tqdm(list(left), desc=task.name, unit="run", disable=None)):  # None: on a terminal
        rows.append(fresh_run(task.name, variant, seed, steps, options.to))
        write_rows(path, task, rows)
        bar.write(f"{variant:24} seed {seed}  {rows[-1]['scores']}  {rows[-1]['cpu_seconds']} s")
    print(f"{len(rows)} rows: {path}")
    return 0


def fresh_run(name: str, variant: str, seed: int, steps: int, folder: Path) -> dict:
    """The facts of one training run in a process of its own."""
    command = [sys.executable, "-c", AGAIN, name, "--variant", variant, "--seed", str(seed)]
    command += ["--steps", str(steps), "--to", str(folder / "sweep"), "--threads", "1", "--device", "cpu", "--json"]
    done = subprocess.run(command, env=places.child_environment(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}, {variant}, seed {seed} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write_rows(path: Path, task, rows: list[dict]) -> None:
    """The table so far as JSON; the old file stays until the new one is whole."""
    table = {
        "task": task.name,
        "title": task.title,
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "command": f"python3 -m mha_lesson train sweep {task.name}",
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    partial.replace(path)
