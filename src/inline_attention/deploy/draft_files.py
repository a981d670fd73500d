"""Files written under temporary names, and renamed together at the end: all of them, or none."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_files(out: Path, suffixes: Sequence[str], description: Path) -> Iterator[tuple[Path, Path]]:
    """Temporary names of a file and its description: renamed at the end, or removed after an error.

    A process that is killed between two renames leaves files that the description's hashes do not fit.

    Args:
        out: the file.
        suffixes: its own, and those of the files that belong to it, which lie beside it under the same stem.
        description: the last to be renamed.
    """
    mark = f".{out.stem}.{os.getpid()}.tmp"
    drafts = {out.with_suffix(suffix): out.with_name(mark + suffix) for suffix in suffixes}
    drafts[description] = out.with_name(mark + ".json")
    try:
        yield drafts[out], drafts[description]
        _rename_all(drafts, mark)
    finally:
        for left in out.parent.iterdir():
            if left.name.startswith(mark):
                left.unlink(missing_ok=True)


def _rename_all(drafts: Mapping[Path, Path], mark: str) -> None:
    """Give all drafts their names; if one cannot have it, those before it give theirs back."""
    done: list[tuple[Path, Path]] = []
    try:
        for final, draft in drafts.items():
            old = final.with_name(f"{mark}.old.{len(done)}")
            if final.is_file():
                final.replace(old)
            done.append((final, old))
            draft.replace(final)
    except OSError:
        for final, old in done:
            if old.exists():
                old.replace(final)
            elif final.is_file():
                final.unlink()
        raise
