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


class Names:
    """Of the packages of the repository, and of what they are compiled to."""

    def __init__(self):
        manifests = subprocess.run(
            ["git", "ls-files", "Cargo.toml", "*/Cargo.toml"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.split()
        self.packages, self.libraries, self.programs = set(), set(), set()
        for manifest in map(ROOT.joinpath, manifests):
            if "[workspace]" in manifest.read_text():
                self.add(manifest)

    def add(self, manifest):
        metadata = subprocess.run(
            ["cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest],
            check=True, capture_output=True, text=True,
        ).stdout
        for package in json.loads(metadata)["packages"]:
            self.packages.add(package["name"])
            for target in package["targets"]:
                name = target["name"].replace("-", "_")
                self.programs.add(name)  # a library has a test program
                if "lib" in target["kind"]:
                    self.libraries.add(name)

    def of(self, directory, name):
        """Whether what cargo calls this in this directory is compiled of the repository.

        Tests have the names of dependencies: `tokio`, and `unwind`, on which the standard library
        depends.
        """
        if directory in (".fingerprint", "build"):
            return name in self.packages
        name = name.replace("-", "_")
        library = name.removeprefix("lib")
        return library in self.libraries if library != name else name in self.programs


def main():
    ours = Names()
    # <name>-<16 digits>, and an extension of files. Programs are there without the digits too: a test
    # would run one of another version, if nothing builds it.
    artifact = re.compile(r"(?P<name>[^.]+?)(?P<digits>-[0-9a-f]{16})?(\..*)?")

    removed = 0
    for fingerprints in Path(sys.argv[1]).rglob(".fingerprint"):
        for part in (".fingerprint", "deps", "build", "examples", "."):
            directory = fingerprints.parent / part
            for path in directory.iterdir() if directory.is_dir() else ():
                match = artifact.fullmatch(path.name)
                if not match or not ours.of(part, match["name"]):
                    continue
                if match["digits"] is None and not (part in ("examples", ".") and path.is_file()):
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                removed += 1
    print(f"{removed} compiled files of the repository removed from {sys.argv[1]}")


main()
