"""Files read whole, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from solver.io.json_fields import parse_json
from solver.model.errors import PartitionError
from solver.model.text import shortened, shown

T = TypeVar("T")

_MOST_BYTES: Final = 1 << 30
"""Of a text, more than any problem has."""


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise PartitionError(
            f"path is {shown(path)}; write the name of a file, such as 'plan.json'"
        )


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path`: :func:`write_files_atomically` with one file."""
    _check_path(path)
    write_files_atomically({path: text})


def write_files_atomically(contents: Mapping[str | os.PathLike[str], str | bytes]) -> None:
    """Write texts and bytes to files, by way of temporary files beside them.

    All are complete before the first takes its place, in the order of `contents`. If a folder is
    missing or not writable, all files stay as they were.

    A symbolic link stays one: the file that it names is replaced. Anything that is neither a file
    nor a folder, such as ``/dev/null`` or a pipe, is written to as it is, never replaced.
    """
    made: list[tuple[str, Path]] = []
    try:
        for path, content in contents.items():
            try:
                _write_beside(Path(path), content, made)
            except (OSError, ValueError) as error:
                raise PartitionError(f"cannot write {shortened(path)}: {_why(error)}") from None
        try:
            _put_in_place(made)
        except KeyboardInterrupt:
            # Not half of them: what is left takes moments.
            _put_in_place(made)
            raise
        except OSError as error:
            raise PartitionError(f"cannot write {error.filename2}: {_why(error)}") from None
    finally:
        for temporary, _ in made:
            Path(temporary).unlink(missing_ok=True)


def _write_beside(path: Path, content: str | bytes, made: list[tuple[str, Path]]) -> None:
    """Write a temporary file; `made` gets its name before it exists, and its place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    data = content.encode("utf-8") if isinstance(content, str) else content
    # Not by its real path: that of a pipe of /dev/stdout is none.
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    target = real_path(path)
    # The name is left out: with it, a name of the greatest length would not fit.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".fxpartition.")
    made.append((temporary, target))
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    # mkstemp makes private files; a report is as readable as any new file.
    umask = os.umask(0)
    os.umask(umask)
    Path(temporary).chmod(0o666 & ~umask)


def _put_in_place(made: list[tuple[str, Path]]) -> None:
    for temporary, target in made:
        if os.path.lexists(temporary):
            Path(temporary).replace(target)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the file or folder that a path names; OSError if symbolic links lead in a circle."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link that leads to itself")
    return real


def check_folder_writable(folder: str | os.PathLike[str]) -> None:
    """Raise PartitionError unless a file can be created in `folder`, leaving nothing there."""
    try:
        # Permission bits do not tell: a file system may be read-only, and root may do anything.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise PartitionError(
            f"cannot write to the folder {shortened(folder)}: {_why(error)}; write another path"
        ) from None


def _why(error: OSError | ValueError) -> str:
    """Return the system's error for a path; a ValueError is about characters in it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; PartitionError says in one line why it cannot be read."""
    return parse_json(read_text(path, "a JSON file"), str(path))


def load_json(path: str | os.PathLike[str], build: Callable[[Any], T]) -> T:
    """Return `build` of the data of a JSON file; PartitionError names the file."""
    data = read_json(path)
    try:
        return build(data)
    except PartitionError as error:
        raise PartitionError(f"{shortened(path)}: {error}") from None


def kind_of_file(path: str | os.PathLike[str]) -> str:
    """Return the kind of a path: "file", or "folder", "pipe", "socket", "device".

    Raises OSError if nothing stands there or links lead in a circle, and ValueError if no path has
    such characters.
    """
    mode = os.stat(path).st_mode  # noqa: PTH116 - of any path
    kinds = {
        "file": stat.S_ISREG,
        "folder": stat.S_ISDIR,
        "pipe": stat.S_ISFIFO,
        "socket": stat.S_ISSOCK,
    }
    return next((name for name, is_kind in kinds.items() if is_kind(mode)), "device")


def check_file(path: str | os.PathLike[str], wanted: str) -> None:
    """Raise PartitionError unless a file stands at `path`: to read anything else may never end."""
    try:
        kind = kind_of_file(path)
    except (FileNotFoundError, ValueError):  # no file can have such a name
        raise PartitionError(f"there is no file {os.fspath(path)!r}; give {wanted}") from None
    except OSError as error:
        raise _unreadable(path, error, wanted) from None
    if kind != "file":
        raise PartitionError(f"{os.fspath(path)!r} is a {kind}, not a file; give {wanted}")


def read_text(path: str | os.PathLike[str], wanted: str, most_bytes: int = _MOST_BYTES) -> str:
    """Read a text file of at most `most_bytes`, or the content of a pipe.

    A file whose name ends in ``.gz`` is unpacked. PartitionError says in one line why it is not
    `wanted`.
    """
    _check_path(path)
    source = Path(path)
    is_large = False
    try:
        # Some devices, such as /dev/zero, never end.
        if kind_of_file(source) != "pipe":
            check_file(source, wanted)
        with _unpacked(source) if source.suffix == ".gz" else source.open("rb") as stream:
            # A file may be larger than the memory.
            is_large = source.stat().st_size > most_bytes
            data = b"" if is_large else stream.read(most_bytes + 1)
        if is_large or len(data) > most_bytes:
            raise PartitionError(
                f"{shortened(path)} holds more than {most_bytes:,} bytes, more than it can need; "
                f"give {wanted}"
            )
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise PartitionError(f"{shortened(path)} is not UTF-8 text; give {wanted}") from None
    except PartitionError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, wanted) from None


def _unreadable(
    path: str | os.PathLike[str], error: OSError | ValueError, wanted: str
) -> PartitionError:
    return PartitionError(f"cannot read {shortened(path)}: {_why(error)}; give {wanted}")


@contextlib.contextmanager
def _unpacked(source: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open the content of a gzip file."""
    try:
        with gzip.open(source) as stream:
            yield stream
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PartitionError(
            f"{shortened(source)} is not a whole gzip file ({error}); pack it again"
        ) from None
