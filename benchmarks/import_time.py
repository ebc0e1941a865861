"""What `import elbowroom` costs on top of torch: the median of fresh processes."""

import argparse
import json
import statistics
import subprocess
import sys

CODE = """
import time
import torch
start = time.perf_counter()
import elbowroom
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    command = [sys.executable, "-c", CODE]
    seconds = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(options.rounds)
    ]
    result = {"median_s": statistics.median(seconds), "max_s": max(seconds), "limit_s": 0.5}
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"import elbowroom after torch: median {result['median_s'] * 1e3:.1f} ms, "
            f"slowest {result['max_s'] * 1e3:.1f} ms of {options.rounds}, limit 500 ms"
        )


if __name__ == "__main__":
    main()
