"""The published workloads of the package, by name.

``published/README.md`` has their sources. A name such as ``published:layer.gnmt_inference`` is
accepted in place of the path of a workload.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from solver import PartitionError
from solver.model.checks import did_you_mean

PREFIX: Final = "published:"
_FOLDER: Final = Path(__file__).with_name("published")
_SUFFIX: Final = ".json.gz"

OPTIMA_MS: Final = {
    "layer.bert24_inference": 17.78990625,
    "layer.bert24_training": 41.7458125,
    "layer.gnmt_inference": 32.910658203125,
    "layer.gnmt_training": 107.0044140625,
    "layer.inceptionv3_inference": 51.55186358642578,
    "layer.inceptionv3_training": 122.76161621,
    "layer.resnet50_inference": 33.774666015625,
    "layer.resnet50_training": 78.6318125,
    "operator.bert_l-3_inference": 27.9185676799125,
    "operator.bert_l-3_training": 65.3031491221,
    "operator.bert_l-6_inference": 29.5795058065,
    "operator.bert_l-6_training": 72.8649663224,
    "operator.bert_l-12_inference": 147.477984449,
    "operator.bert_l-12_training": 437.997637858,
    "operator.resnet50_inference": 124.348849774,
    "operator.resnet50_training": 255.194416452,
}
"""The least bottlenecks by the authors' exact dynamic program, with the communication of the files,
all accelerators and the CPU."""


def published_names() -> tuple[str, ...]:
    """Return the names of all workloads in the package, without the prefix."""
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}")))


def workload_path(name: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the file of the workload ``published:NAME``; any other path unchanged.

    Raises PartitionError if the package has no such workload; the message suggests similar names.
    """
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name).startswith(PREFIX):
        return name
    wanted, names = os.fspath(name).removeprefix(PREFIX), published_names()
    if wanted in names:
        return _FOLDER / f"{wanted}{_SUFFIX}"
    hint = did_you_mean(wanted, names, f"there are {', '.join(names)}")
    raise PartitionError(f"published workload {wanted!r} is unknown; {hint}")
