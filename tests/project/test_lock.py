"""The locked file has the versions of constraints.txt, all of them with hashes."""

import re
import tomllib

from tests.support.paths import ROOT

ENTRY = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\]+?))? \\")


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def entries():
    """By name: version, marker or None, and hashes; every line belongs to one."""
    found = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line.startswith("#"):
            continue
        if entry := ENTRY.fullmatch(line):
            hashes = []
            found[plain(entry["name"])] = (entry["version"], entry["marker"], hashes)
        else:
            digest = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?", line)
            assert digest, line
            hashes.append(digest[1])
    return found


def test_the_lock_has_the_versions_of_the_constraints_and_no_torch():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    locked = entries()
    versions = {plain(name): version for name, version in pinned.items()}
    assert versions.pop("torch")
    # Others are for platforms on which the constraints were not made.
    elsewhere = {name for name in locked if name not in versions}
    assert all(locked[name][1] for name in elsewhere)
    assert {name: locked[name][0] for name in versions} == versions


def test_every_file_of_the_lock_has_a_hash_of_its_own():
    hashes = [digest for _, _, own in entries().values() for digest in own]
    assert all(own for _, _, own in entries().values())
    assert len(set(hashes)) == len(hashes) > 500


def test_what_the_project_asks_for_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    asked = [re.match(r"[A-Za-z0-9._-]+", line)[0] for group in groups for line in group]
    names = {plain(name) for name in asked} - {"torch"}
    assert names <= entries().keys()
