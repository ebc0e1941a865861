"""Limits of memory that jobs and containers have."""

import sys
from pathlib import Path

import pytest

from elbowroom.containers import left_bytes, limit_bytes

MB = 1 << 20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def second(limit: str, used: int, files: int = 0) -> dict[str, str]:
    stat = f"anon 1\nfile 9\ninactive_file {files}\nactive_file 7\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def at(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"proc/self/cgroup": "0::/jobs/a\n"}
        | at("sys/fs/cgroup/jobs/a", second("max", 100 * MB))
        | at("sys/fs/cgroup/jobs", second(str(300 * MB), 200 * MB, 50 * MB)),
    )
    assert left_bytes(tmp_path) == 150 * MB
    assert limit_bytes(tmp_path) == 300 * MB
    write(tmp_path, at("sys/fs/cgroup/jobs/a", second(str(110 * MB), 100 * MB)))
    assert left_bytes(tmp_path) == 10 * MB


def test_the_first_version_is_read_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/x"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "9:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n",
            f"{group}/memory.limit_in_bytes": str(64 * MB),
            f"{group}/memory.usage_in_bytes": str(40 * MB),
            f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * MB}\n",
        },
    )
    assert left_bytes(tmp_path) == 27 * MB
    assert limit_bytes(tmp_path) == 64 * MB


def test_a_container_that_sees_the_path_of_its_host_finds_its_group(tmp_path: Path) -> None:
    inside = at("sys/fs/cgroup", second(str(20 * MB), 30 * MB))
    write(tmp_path, {"proc/self/cgroup": "0::/host/only/path\n"} | inside)
    assert left_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": ""},
        {"proc/self/cgroup": "no sense\n0::/\n"},
        {"proc/self/cgroup": "0::/../../../..\n"},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "many\n"},
    ],
)
def test_where_nothing_is_told_there_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert left_bytes(tmp_path) == limit_bytes(tmp_path) == sys.maxsize


def test_the_machine_itself_is_read() -> None:
    assert left_bytes() > 0
