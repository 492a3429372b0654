"""Makes a directory have the same files as this one, and touches no file that it has already: cargo
compiles again what has changed.

    git ls-files -z | python3 .ci/mirror.py DIRECTORY
"""

import os
import shutil
import stat
import sys
from pathlib import Path


def is_same(source, copy):
    """Whether both are the same file: kind, permissions and contents."""
    try:
        kind = copy.lstat().st_mode
    except FileNotFoundError:
        return False
    if kind != source.lstat().st_mode:
        return False
    if stat.S_ISLNK(kind):
        return source.readlink() == copy.readlink()
    return source.read_bytes() == copy.read_bytes()


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def main():
    top = Path(sys.argv[1])
    names = [os.fsdecode(name) for name in sys.stdin.buffer.read().split(b"\0")]
    # One that is removed, and not yet in the index, is listed.
    files = {Path(name) for name in names if name and os.path.lexists(name)}
    directories = {parent for file in files for parent in file.parents}
    top.mkdir(parents=True, exist_ok=True)
    # A directory comes before what is in it.
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top)
        is_directory = path.is_dir() and not path.is_symlink()
        if os.path.lexists(path) and name not in (directories if is_directory else files):
            remove(path)
    changed = [file for file in files if not is_same(file, top / file)]
    for file in changed:
        copy = top / file
        if os.path.lexists(copy):
            remove(copy)
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Without its time: it is new here.
        shutil.copy(file, copy, follow_symlinks=False)
    print(f"{len(changed)} of {len(files)} files are not those of the last run")


main()
