"""Problems and plans as JSON with a schema version: node-link graph plus devices.

Loading checks everything and names the file and the field that is wrong. Saving writes a
temporary file and renames it, so that what was there stays whole until the new text is.
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import json
import os
import select
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import networkx as nx

from solver.digraph import problem_from_digraph, problem_to_digraph
from solver.errors import PartitionError
from solver.hardware import Device, Interconnect, Link
from solver.json_fields import as_object, check_schema, parse_json
from solver.plan import PartitionPlan
from solver.problem import PartitionProblem

T = TypeVar("T")

SCHEMA_VERSION: Final = 2
_PROBLEM_SCHEMA: Final = "fxpartition.problem"
_PLAN_SCHEMA: Final = "fxpartition.plan"
_MOST_UNPACKED_BYTES: Final = 1 << 30
_PIPE_S: Final = 5.0
"""How long the other end of a pipe may take to come."""
_POLL_S: Final = 0.05
_READ_BYTES: Final = 1 << 16
_SETTINGS: Final = (
    "objective",
    "memory_model",
    "schedule",
    "microbatches",
    "chunks_per_device",
    "max_devices",
    "cuts",
)


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise PartitionError(f"path is {path!r}; write the name of a file, such as 'plan.json'")


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path`: :func:`write_texts_atomically` with one file."""
    _check_path(path)
    write_texts_atomically({path: text})


def write_texts_atomically(texts: Mapping[str | os.PathLike[str], str]) -> None:
    """Write texts to files, by way of temporary files beside them.

    All are complete before the first takes its place.

    A symbolic link stays one: the file that it names is replaced. What is neither a file nor a
    folder, such as ``/dev/null`` or a pipe, is written to as it is, never replaced.

    Parameters
    ----------
    texts : mapping of path to str
        In the order in which they take their places.

    Raises
    ------
    PartitionError
        If a folder is missing or not writable; all files are then as they were.
    """
    made: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            try:
                _write_beside(Path(path), text, made)
            except (OSError, ValueError) as error:
                raise PartitionError(f"cannot write {path}: {_why(error)}") from None
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


def _write_beside(path: Path, text: str, made: list[tuple[str, Path]]) -> None:
    """Write a temporary file; `made` gets its name before it exists, and its place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    data = text.encode("utf-8")
    # Not by its real path: that of a pipe of /dev/stdout is none.
    if path.exists() and not path.is_file():
        with _opened_special(path) as stream:
            stream.write(data)
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


def _opened_special(target: Path) -> IO[bytes]:
    """Open what is no file for writing; nobody may ever read a named pipe."""
    deadline_s = time.monotonic() + _PIPE_S
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not target.is_fifo():
                raise
            if time.monotonic() > deadline_s:
                raise OSError(error.errno, "it is a pipe that nobody reads") from None
            time.sleep(_POLL_S)
            continue
        os.set_blocking(handle, True)
        return os.fdopen(handle, "wb")


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the file or folder that a path names, through symbolic links.

    Raises
    ------
    OSError
        If they lead in a circle.
    """
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
            f"cannot write to the folder {folder}: {_why(error)}; write another path"
        ) from None


def _why(error: OSError | ValueError) -> str:
    """Return what the system says of a path; a ValueError is about characters in it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def problem_to_json(problem: PartitionProblem) -> dict[str, Any]:
    """Return `problem` as plain data; :func:`problem_from_json` inverts it."""
    interconnect = problem.interconnect
    graph = nx.node_link_data(problem_to_digraph(problem), edges="edges")
    # Edges by reader, not by producer as networkx lists them: they keep the order of reads.
    graph["edges"] = [
        {"source": read, "target": op.name} for op in problem.operators for read in op.reads
    ]
    return {
        "schema": _PROBLEM_SCHEMA,
        "version": SCHEMA_VERSION,
        "graph": graph,
        "devices": [dataclasses.asdict(device) for device in problem.devices],
        "interconnect": {
            "default": dataclasses.asdict(interconnect.default),
            "links": [
                {"source": source, "target": target, **dataclasses.asdict(link)}
                for (source, target), link in interconnect.links.items()
            ],
            "charging": interconnect.charging,
            "overlap": interconnect.overlap,
        },
        "objective": list(problem.objective),
        "memory_model": problem.memory_model,
        "schedule": problem.schedule,
        "microbatches": problem.microbatches,
        "chunks_per_device": problem.chunks_per_device,
        "max_devices": problem.max_devices,
        "cuts": list(problem.cuts),
    }


def problem_digest(problem: PartitionProblem) -> str:
    """Return the SHA-256 of a problem in hexadecimal: equal for problems that are equal alone.

    It is that of the problem's canonical JSON: keys sorted, no blanks, ASCII. The order of what
    a mapping holds does not count; that of operators, reads and devices does.

    Examples
    --------
    >>> from solver.problem import Operator
    >>> operators = (Operator("a", {"fast": 1, "slow": 2}),)
    >>> again = (Operator("a", {"slow": 2, "fast": 1}),)
    >>> devices = (Device("d", device_class="fast"),)
    >>> problem_digest(PartitionProblem(operators, devices)) == problem_digest(
    ...     PartitionProblem(again, devices)
    ... )
    True
    """
    data = problem_to_json(problem)
    data["interconnect"]["links"].sort(key=lambda link: (link["source"], link["target"]))
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def problem_from_json(data: object) -> PartitionProblem:
    """Build a problem from plain data.

    Raises
    ------
    PartitionError
        Naming the field that is missing, unknown or of the wrong kind.
    """
    fields = check_schema(data, "the file's content", _PROBLEM_SCHEMA, SCHEMA_VERSION)
    known = ("graph", "devices", "interconnect", *_SETTINGS)
    _check_fields(fields, required=("graph", "devices"), known=known, where="problem")
    settings: dict[str, Any] = {name: fields[name] for name in _SETTINGS if name in fields}
    objective = settings.get("objective", "bottleneck")
    if isinstance(objective, list):
        if not all(isinstance(name, str) for name in objective):
            raise PartitionError(f"objective is {objective!r}; write a list of names")
        settings["objective"] = tuple(objective)
    elif not isinstance(objective, str):
        raise PartitionError(f"objective is {objective!r}; write a name or a list of names")
    for name in ("memory_model", "schedule"):
        if not isinstance(settings.get(name, ""), str):
            raise PartitionError(f"{name} is {settings[name]!r}; write a name")
    if not isinstance(settings.get("cuts", []), list):
        raise PartitionError(f"cuts is {settings['cuts']!r}; write a list of operators")
    if not isinstance(fields["devices"], list):
        raise PartitionError("devices is not a list")
    devices = [
        _build(Device, entry, f"devices[{index}]") for index, entry in enumerate(fields["devices"])
    ]
    if "interconnect" in fields:
        settings["interconnect"] = _interconnect(fields["interconnect"])
    return problem_from_digraph(_graph(fields["graph"]), devices, **settings)


def plan_to_json(plan: PartitionPlan) -> dict[str, Any]:
    """Return `plan` as plain data; :func:`plan_from_json` inverts it."""
    return {
        "schema": _PLAN_SCHEMA,
        "version": SCHEMA_VERSION,
        "device_order": list(plan.device_order),
        "chunks": dict(plan.chunks),
        "assignment": dict(plan.assignment),
    }


def plan_from_json(data: object) -> PartitionPlan:
    """Build a plan from plain data.

    Raises
    ------
    PartitionError
        Naming the field that is missing, unknown or of the wrong kind.
    """
    fields = check_schema(data, "the file's content", _PLAN_SCHEMA, SCHEMA_VERSION)
    known = ("device_order", "assignment", "chunks")
    _check_fields(fields, required=("device_order", "assignment"), known=known, where="plan")
    order = fields["device_order"]
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise PartitionError("plan: device_order is not a list of device names")
    assignment = as_object(fields["assignment"], "plan: assignment")
    for operator, device in assignment.items():
        if not isinstance(device, str):
            raise PartitionError(
                f"plan: assignment[{operator!r}] is {device!r}; write a device name"
            )
    chunks = as_object(fields.get("chunks", {}), "plan: chunks")
    return PartitionPlan(assignment, tuple(order), chunks)


def save_problem(problem: PartitionProblem, path: str | os.PathLike[str]) -> None:
    """Write `problem` to a JSON file."""
    write_text_atomically(path, json.dumps(problem_to_json(problem), indent=1) + "\n")


def load_problem(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read a problem from a JSON file; PartitionError names the file and the field."""
    data = read_json(path)
    try:
        return problem_from_json(data)
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def save_plan(plan: PartitionPlan, path: str | os.PathLike[str]) -> None:
    """Write `plan` to a JSON file."""
    write_text_atomically(path, json.dumps(plan_to_json(plan), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> PartitionPlan:
    """Read a plan from a JSON file; PartitionError names the file and the field."""
    data = read_json(path)
    try:
        return plan_from_json(data)
    except PartitionError as error:
        raise PartitionError(f"{path}: {error}") from None


def read_json(path: str | os.PathLike[str]) -> object:
    """Read a JSON file; PartitionError says in one line why it cannot be read."""
    return parse_json(read_text(path, "a JSON file"), str(path))


def read_text(path: str | os.PathLike[str], wanted: str) -> str:
    """Read a text file; PartitionError says in one line why it is not `wanted`.

    A file whose name ends in ``.gz`` is unpacked.
    """
    _check_path(path)
    source = Path(path)
    try:
        # Some devices, such as /dev/zero, never end.
        if source.is_char_device() or source.is_block_device():
            raise PartitionError(f"{path} is a device, not a file; give {wanted}")
        if source.is_fifo():
            return _from_pipe(source, wanted).decode("utf-8")
        if source.suffix == ".gz":
            return _unpacked(source).decode("utf-8")
        return source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PartitionError(f"{path} is not UTF-8 text; give {wanted}") from None
    except PartitionError:
        raise
    except (OSError, ValueError) as error:
        raise PartitionError(f"cannot read {path}: {_why(error)}; give {wanted}") from None


def _from_pipe(source: Path, wanted: str) -> bytes:
    """Return what comes through a pipe, such as standard input, if anybody writes to it."""
    handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    blocks: list[bytes] = []
    deadline_s = time.monotonic() + _PIPE_S
    try:
        while True:
            try:
                block = os.read(handle, _READ_BYTES)
            except BlockingIOError:
                select.select([handle], [], [])  # someone has it open, and takes its time
                continue
            if block:
                blocks.append(block)
            elif blocks:
                return b"".join(blocks)
            elif time.monotonic() > deadline_s:
                raise PartitionError(
                    f"{source} is a pipe to which nobody has written for {_PIPE_S:g} s; give "
                    f"{wanted}"
                )
            else:
                time.sleep(_POLL_S)
    finally:
        os.close(handle)


def _unpacked(source: Path) -> bytes:
    """Return what a gzip file holds, unless that is more than any problem is."""
    try:
        with gzip.open(source) as stream:
            data = stream.read(_MOST_UNPACKED_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PartitionError(
            f"{source} is not a whole gzip file ({error}); pack it again"
        ) from None
    if len(data) > _MOST_UNPACKED_BYTES:
        raise PartitionError(
            f"{source} unpacks to more than {_MOST_UNPACKED_BYTES} bytes; unpack it, and give that"
        )
    return data


def _check_fields(
    fields: Mapping[str, Any], *, required: tuple[str, ...], known: tuple[str, ...], where: str
) -> None:
    for name in required:
        if name not in fields:
            raise PartitionError(f"{where}: {name} is missing")
    for name in fields:
        if name not in known:
            raise PartitionError(f"{where}: {name!r} is unknown; the fields are {', '.join(known)}")


def _build(kind: type[T], value: object, where: str) -> T:
    fields = as_object(value, where)
    known = tuple(entry.name for entry in dataclasses.fields(kind))  # type: ignore[arg-type]
    required = ("name",) if kind is Device else ()
    _check_fields(fields, required=required, known=known, where=where)
    if not isinstance(fields.get("is_host", False), bool):
        raise PartitionError(f"{where}: is_host is {fields['is_host']!r}; write true or false")
    try:
        return kind(**fields)
    except PartitionError as error:
        raise PartitionError(f"{where}: {error}") from None


def _interconnect(value: object) -> Interconnect:
    fields = as_object(value, "interconnect")
    known = ("default", "links", "charging", "overlap")
    _check_fields(fields, required=(), known=known, where="interconnect")
    entries = fields.get("links", [])
    if not isinstance(entries, list):
        raise PartitionError("interconnect: links is not a list")
    links: dict[tuple[str, str], Link] = {}
    for index, entry in enumerate(entries):
        where = f"interconnect: links[{index}]"
        link = dict(as_object(entry, where))
        ends = tuple(link.pop(end, None) for end in ("source", "target"))
        if not all(isinstance(end, str) for end in ends):
            raise PartitionError(f"{where}: source and target must be names of devices")
        if ends in links:
            raise PartitionError(f"{where}: {ends[0]!r} -> {ends[1]!r} is given twice")
        links[str(ends[0]), str(ends[1])] = _build(Link, link, where)
    if not isinstance(fields.get("overlap", False), bool):
        raise PartitionError("interconnect: overlap is not true or false")
    return Interconnect(
        default=_build(Link, fields.get("default", {}), "interconnect: default"),
        links=links,
        charging=fields.get("charging", "peer_to_peer"),
        overlap=fields.get("overlap", False),
    )


def _graph(value: object) -> nx.DiGraph:
    fields = as_object(value, "graph")
    if fields.get("directed") is not True or fields.get("multigraph") is not False:
        raise PartitionError("graph: must say directed true and multigraph false")
    for name in ("nodes", "edges"):
        if not isinstance(fields.get(name), list):
            raise PartitionError(f"graph: {name} is not a list")
    seen: set[str] = set()
    for index, node in enumerate(fields["nodes"]):
        where = f"graph: nodes[{index}]"
        identity = as_object(node, where).get("id")
        if not isinstance(identity, str):
            raise PartitionError(f"{where}: id is {identity!r}; write a string")
        if identity in seen:
            raise PartitionError(f"{where}: the id {identity!r} is given twice")
        seen.add(identity)
    for index, edge in enumerate(fields["edges"]):
        where = f"graph: edges[{index}]"
        for end in ("source", "target"):
            node = as_object(edge, where).get(end)
            if not isinstance(node, str) or node not in seen:
                raise PartitionError(f"{where}: {end} is {node!r}, which is not a node")
    if not isinstance(fields.get("graph", {}), dict):
        raise PartitionError(
            "graph: graph (its attributes) is not an object; write {} if there are none"
        )
    graph: nx.DiGraph = nx.node_link_graph(fields, edges="edges")
    return graph
