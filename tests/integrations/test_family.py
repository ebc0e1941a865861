"""What the processes of a run tell each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elbowroom.integrations.family import VARIABLE, Family, rank_here
from elbowroom.integrations.orders import Orders


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Family:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in (VARIABLE, "RANK", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "PYTHONPATH"):
        # Set once, so that what the test sets goes again.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return Family.begin(Orders(tolerance=0.25, memory="1 GB"))


def test_a_child_finds_its_run(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Family.join() is None
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/one", "/two"]))
    family.announce()
    family.announce()
    assert Family.join() == family
    hook, *others = os.environ["PYTHONPATH"].split(os.pathsep)
    assert others == ["/one", "/two"] and (Path(hook) / "sitecustomize.py").exists()
    code = "import sys; print([p for p in sys.path if 'follow' in p], 'sitecustomize')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[] sitecustomize\n", "")
    monkeypatch.setenv(VARIABLE, '{"orders": {"from": "another release"}}')
    assert Family.join() is None


def test_the_own_sitecustomize_of_a_child_runs(family: Family, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own')")
    os.environ["PYTHONPATH"] = str(tmp_path / "own")
    family.announce()
    command = [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["own", str(tmp_path / "own" / "sitecustomize.py")]


def test_reports_are_read_whole_and_go_with_the_run(family: Family) -> None:
    assert family.reports() == []
    assert family.may_say("once") and not family.may_say("once") and family.may_say("twice")
    pid = os.fork()
    if pid == 0:
        family.report({"outcomes": [1]}, "process1")
        os._exit(0)
    os.waitpid(pid, 0)
    (Path(family.folder) / "process2.json").write_text('{"outcomes": [')
    assert family.reports() == [{"outcomes": [1]}]
    assert os.stat(family.folder).st_mode & 0o777 == 0o700
    family.end()
    assert not os.path.exists(family.folder)
    # Who is late finds nobody to tell.
    family.report({"outcomes": [2]}, "process3")
    assert not os.path.exists(family.folder)


def test_processes_of_one_launch_share_a_folder(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "0")
    first = Family.begin(Orders())
    monkeypatch.setenv("RANK", "1")
    second = Family.begin(Orders())
    assert rank_here() == second.rank == "1"
    assert first.folder == second.folder != family.folder
    assert first.peers == 1
    second.report({"outcomes": []}, "rank1")
    first.await_peers()
    assert first.reports() == [{"outcomes": []}]
    first.end()
    second.report({"outcomes": []}, "rank1")
    assert not os.path.exists(first.folder)
