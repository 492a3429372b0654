"""Removes what was compiled of this repository from a directory of cargo's, so that the compiled
dependencies remain: nothing of another version of the source is left to be used or to fill the disk.

    python3 .ci/forget.py DIRECTORY
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def names():
    """Of packages and of what they are compiled to."""
    manifests = subprocess.run(
        ["git", "ls-files", "Cargo.toml", "*/Cargo.toml"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()
    found = set()
    for manifest in map(ROOT.joinpath, manifests):
        text = manifest.read_text()
        if "[workspace]" not in text:
            continue
        metadata = subprocess.run(
            ["cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest],
            check=True, capture_output=True, text=True,
        ).stdout
        for package in json.loads(metadata)["packages"]:
            found.add(package["name"])
            found.update(target["name"] for target in package["targets"])
    return {name.replace("-", "_") for name in found}


def main():
    ours = names()
    # <name>-<16 digits>: libraries have a prefix, and files an extension.
    artifact = re.compile(r"(?P<name>.+)-[0-9a-f]{16}(\..*)?")

    def is_ours(path):
        match = artifact.fullmatch(path.name)
        if not match:
            return False
        name = match["name"].replace("-", "_")
        return name in ours or name.removeprefix("lib") in ours

    removed = 0
    for fingerprints in Path(sys.argv[1]).rglob(".fingerprint"):
        for part in (".fingerprint", "deps", "build", "examples"):
            directory = fingerprints.parent / part
            for path in directory.iterdir() if directory.is_dir() else ():
                if is_ours(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed += 1
    print(f"{removed} compiled files of the repository removed from {sys.argv[1]}")


main()
