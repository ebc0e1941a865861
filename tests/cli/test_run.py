"""The verb run, on real scripts in real processes: they must not notice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.integrations.launch import LAUNCHERS
from tests.cli.programs import RUN, run, weights


def are_equal(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)


TRAIN = '''
"""Trains, and notes everything that a script can see of how it was started."""
import atexit
import os
import sys

assert "torch" not in sys.modules
os.environ["MKL_NUM_THREADS"] = "1"

import torch
from torch import nn
from neighbour import WIDTH

atexit.register(print, "its own ending", flush=True)


def main():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(6):
        x = torch.randn(128, 64)
        loss = nn.CrossEntropyLoss()(model(x), x[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), sys.argv[1])
    seen = [sys.argv[1:], __name__, __file__, sys.path[0], __package__, __doc__]
    print(*seen, sys.stdin.read(), sep="|")
    if "--wrong" in sys.argv:
        model(torch.randn(3, 5))
    if "--stop" in sys.argv:
        os.kill(os.getpid(), 2)
    if "--code" in sys.argv:
        sys.exit(7)


if __name__ == "__main__":
    main()
'''


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAIN)
    (tmp_path / "package" / "neighbour.py").write_text("WIDTH = 256\n")
    return tmp_path


def test_a_script_runs_and_fails_as_it_would_alone(scripts: Path) -> None:
    script = "package/train.py"
    words = ["--memory", "1", "-m", "--wrong"]
    plain = run(scripts, sys.executable, script, "plain.pt", *words, given="in")
    exact = run(scripts, *RUN, "--tolerance", 0, script, "exact.pt", *words, given="in")
    assert plain.returncode == exact.returncode == 1
    assert plain.stdout.replace("plain.pt", "exact.pt") == exact.stdout
    assert "its own ending" in exact.stdout
    assert are_equal(scripts / "plain.pt", scripts / "exact.pt")
    *trace, summary = exact.stderr.splitlines()
    # Torch goes another way through its own module.py when there are hooks.
    places = [
        [line for line in text if line.startswith("  File") and "module.py" not in line]
        for text in (plain.stderr.splitlines(), trace)
    ]
    assert places[0] == places[1]
    assert trace[-1] == plain.stderr.splitlines()[-1]
    # Of the last pass that came to its end.
    assert summary.startswith("elbowroom: Sequential: 0.4 MB saved")
    assert "7 passes" in summary and "gradient exact" in summary


def test_a_module_runs_as_it_would_alone(scripts: Path) -> None:
    (scripts / "package" / "neighbour.py").rename(scripts / "neighbour.py")
    words = ["package.train", "out.pt", "--json", "--code"]
    done = run(scripts, *RUN, "--quiet", "--ledger", "ledger.json", "-m", *words)
    assert (done.returncode, done.stderr) == (7, "")
    file = scripts / "package" / "train.py"
    shown = [str(words[1:]), "__main__", str(file), str(scripts), "package"]
    assert done.stdout.startswith("|".join(shown) + "|Trains, and notes")
    ledger = json.loads((scripts / "ledger.json").read_text())
    (module,) = ledger["modules"]
    assert (ledger["version"], ledger["tolerance"], module["passes"]) == (1, 0.1, 6)
    assert module["ledger"]["ratio"] > 4
    assert module["ledger"]["rows"]
    assert module["encode_s"] > 0


def test_an_interrupt_ends_the_process_as_an_interrupt(scripts: Path) -> None:
    ours = run(scripts, *RUN, "--ledger", "ledger.json", "package/train.py", "out.pt", "--stop")
    assert ours.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in ours.stderr
    assert "elbowroom: Sequential" in ours.stderr
    assert "its own ending" in ours.stdout
    assert json.loads((scripts / "ledger.json").read_text())["modules"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.py"], "there is no file 'none.py'"),
        (["-m", "no.such"], "finds none called 'no.such'"),
        (["."], "is a folder"),
        (["python", "x.py"], "'python' is not needed"),
        (["srun", "x.py"], "'srun' starts processes, and comes first"),
        (["accelerate", "launch", "x.py"], "the launcher of this name is not installed"),
        (["--memory", "much", "x.py"], "memory must be a size"),
        (["--overhead", "-1", "x.py"], "--overhead must be a share such as 0.25, or none, got -1"),
        (["--overhead", "fast", "x.py"], "--overhead must be a share such as 0.25, or none, got"),
        (["--tolerance", "2", "x.py"], "--tolerance must be a share from 0 (exact) to 1, got 2"),
        (["--ledger", "no/where.json", "x.py"], "--ledger must name a file in a folder"),
        (["--ledger", __file__, "x.py"], "--ledger must name a new file or an old ledger"),
        (["--ledger", os.devnull, "x.py"], "--ledger must name a file in a folder"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(
    words: list[str], said: str, command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(LAUNCHERS, "accelerate", "no_such_launcher.run")
    ending = command("run", *words)
    assert ending.code == 2
    assert ending.out == ""
    assert said in ending.err
    assert len(ending.err.splitlines()) == 1


def test_json_is_one_line_on_standard_error(scripts: Path) -> None:
    done = run(scripts, *RUN, "--json", "package/train.py", "out.pt")
    (module,) = json.loads(done.stderr)["modules"]
    assert module["gradient_error"] >= module["ledger"]["gradient_error"]


LARGE = Path(__file__).parents[2] / "examples" / "large_batch.py"

MEASURED = """
import runpy, sys, torch


def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024


print(status("VmSize"), status("VmRSS"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(status("VmPeak"))
"""


def test_out_of_memory_alone_and_not_with_a_budget(tmp_path: Path) -> None:
    """Under a limit of the system, set from what the plain script was seen to take."""

    def limited(limit_bytes: int, *words: object) -> subprocess.CompletedProcess[str]:
        shell = 'ulimit -v "$0" && exec "$@"'
        return run(tmp_path, "sh", "-c", shell, limit_bytes // 1024, *words)

    free = run(tmp_path, sys.executable, "-c", MEASURED, LARGE, 3)
    assert free.returncode == 0, free.stderr
    first, *losses, last = free.stdout.splitlines()
    before, resident = map(int, first.split())
    needed = int(last) - before
    limit_bytes = before + int(0.7 * needed)
    alone = limited(limit_bytes, sys.executable, LARGE, 3)
    assert alone.returncode == 1
    assert "memory" in alone.stderr.splitlines()[-1]
    budget = resident + int(0.4 * needed)
    words = ["--memory", budget, "--ledger", "ledger.json", LARGE, 3]
    ours = limited(limit_bytes, *RUN, *words)
    assert ours.returncode == 0, ours.stderr
    for plain, mine in zip(losses, ours.stdout.splitlines(), strict=True):
        assert float(mine.split()[-1]) == pytest.approx(float(plain.split()[-1]), rel=1e-3)
    (module,) = json.loads((tmp_path / "ledger.json").read_text())["modules"]
    assert 0 < module["peak_bytes"] <= budget


def test_a_budget_out_of_reach_is_one_sentence(tmp_path: Path) -> None:
    ours = run(tmp_path, *RUN, "--memory", "50 MB", LARGE, 1)
    assert ours.returncode == 2
    assert ours.stderr.startswith("elbowroom: the process holds ")
    assert len(ours.stderr.splitlines()) == 1


COMPILED = """
import sys
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
first = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.GELU())


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.last = nn.Linear(64, 256), nn.Linear(256, 8)

    def forward(self, x):
        return self.last(self.wide(x).tanh())


second = Head()
options = dict(backend="aot_eager", fullgraph=True)
called = torch.compile(first, **options)
second.compile(**options)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
for _ in range(3):
    x = torch.randn(256, 64)
    nn.functional.cross_entropy(second(called(x)), x[:, :8].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save({**first.state_dict(), **second.state_dict(prefix="second.")}, sys.argv[1])
"""


def test_compiled_modules_are_compressed_inside_their_graphs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED, encoding="utf-8")
    alone = run(tmp_path, sys.executable, "train.py", "alone.pt")
    assert (alone.returncode, alone.stderr) == (0, "")
    ours = run(tmp_path, *RUN, "--ledger", "ledger.json", "train.py", "ours.pt")
    assert ours.returncode == 0, ours.stderr
    lines = ours.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["Sequential", "Head"]
    assert all(
        "3 passes" in line and "(not predicted for compiled parts)" in line for line in lines
    )
    for module in json.loads((tmp_path / "ledger.json").read_text())["modules"]:
        assert module["ledger"]["ratio"] > 3
        assert all("compiled" in row["readers"] for row in module["ledger"]["rows"])
    mine, theirs = weights(tmp_path / "ours.pt"), weights(tmp_path / "alone.pt")
    assert not all(torch.equal(mine[name], theirs[name]) for name in mine | theirs)
    for name in mine | theirs:
        torch.testing.assert_close(mine[name], theirs[name], atol=1e-3, rtol=0)


def test_a_name_that_no_model_has_is_told(scripts: Path) -> None:
    done = run(scripts, *RUN, "--exact", "head", "--exact", "0", "package/train.py", "out.pt")
    said = [line for line in done.stderr.splitlines() if "no module is called" in line]
    assert said == ["elbowroom: no module is called 'head': --exact head kept nothing exact"]


def test_a_script_that_trains_nothing_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("print('done')\n")
    done = run(tmp_path, *RUN, "other.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == (
        "elbowroom: no module was trained where it could be watched: nothing was compressed\n"
    )
    done = run(tmp_path, *RUN, "--memory", "1GB", "--quiet", "other.py")
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert done.stderr.startswith("elbowroom: the budget of 1.00 GB was not kept to: no module")
    assert len(done.stderr.splitlines()) == 1


PEAKS = """
import sys
import torch

torch.set_num_threads(1)
before, after = (int(word) * 10**6 for word in sys.argv[1:])
held = bytearray(before)
del held
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
for _ in range(2):
    torch.nn.MSELoss()(model(torch.randn(64, 256)), torch.zeros(64, 8)).backward()
held = bytearray(after)
"""


@pytest.mark.parametrize(("before", "after", "code"), [(1500, 0, 0), (0, 1500, 3)])
def test_a_budget_is_kept_to_while_training(
    tmp_path: Path, before: int, after: int, code: int
) -> None:
    """What the script takes before it trains is its own, and is told apart."""
    (tmp_path / "train.py").write_text(PEAKS)
    done = run(tmp_path, *RUN, "--memory", "1GB", "train.py", before, after)
    summary, *failure = done.stderr.splitlines()
    assert "above the budget of 1.00 GB" in summary
    assert ("while training" in summary) == ("outside of training" in summary) == (not failure)
    assert done.returncode == code, done.stderr
    assert len(failure) == (code == 3)
    assert all("1.00 GB was exceeded: the process took" in line for line in failure)


LAUNCHER = '''
"""Trains in a process that it starts; is another program from its second line on."""
import importlib.util
import os
import subprocess
import sys

if "again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
assert "elbowroom" not in sys.modules
assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
assert "torch" not in sys.modules
other = [sys.executable, "-c", "import sys; print('elbowroom' in sys.modules)"]
print(subprocess.run(other, capture_output=True, text=True, check=True).stdout)
print(subprocess.run(["echo", "no Python"], capture_output=True, text=True).stdout)
subprocess.run([sys.executable, "train.py", "out.pt"], stdin=subprocess.DEVNULL, check=True)
'''


def test_programs_that_the_script_becomes_or_starts_are_accompanied(scripts: Path) -> None:
    for file in (scripts / "package").iterdir():
        file.rename(scripts / file.name)
    (scripts / "launcher.py").write_text(LAUNCHER)
    kept = scripts / "kept"
    kept.mkdir()
    done = run(scripts, *RUN, "launcher.py", TMPDIR=str(kept))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[:2] == ["False", "no Python"]
    assert lines[2].startswith("['out.pt']|__main__|") and lines[3] == "its own ending"
    (line,) = done.stderr.splitlines()
    assert line.startswith("elbowroom: Sequential: 0.4 MB saved") and "6 passes" in line
    assert not list(kept.glob("elbowroom*"))
