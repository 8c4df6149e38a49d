"""Pin every package: ask pip what it would install for all extras, and write constraints.txt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The CPU build of torch differs from place to place, so its version is chosen by hand.
CHOSEN = ["torch==2.13.0"]


def main() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    wanted = [f"{ROOT}[all,dev,docs]", "pip", "setuptools", "wheel", "editables", *CHOSEN]
    report = subprocess.run([*command, "--report", "-", *wanted], check=True, capture_output=True, text=True)
    packages = (item["metadata"] for item in json.loads(report.stdout)["install"])
    pins = {p["name"].lower(): p["version"].partition("+")[0] for p in packages if p["name"] != "artesian"}
    lines = ["# Every package, pinned. Written by `make constraints`; do not edit."]
    lines += [f"{name}=={version}" for name, version in sorted(pins.items())]
    (ROOT / "constraints.txt").write_text("\n".join(lines) + "\n")
    print(f"constraints.txt: {len(pins)} packages")


if __name__ == "__main__":
    main()
