"""What ``fx_bridge`` and its packages export."""

import importlib
import pkgutil

import pytest

import fx_bridge

ROOMS = [entry.name for entry in pkgutil.iter_modules(fx_bridge.__path__) if entry.ispkg]


def exported(name):
    module = importlib.import_module(name)
    return {each: getattr(module, each) for each in getattr(module, "__all__", ())}


def test_the_package_exports_few_names():
    names = fx_bridge.__all__
    assert len(names) <= 41
    assert len(set(names)) == len(names)
    assert {"Training", "Pipeline", "Placement", "Costs", "partition_module"} <= set(names)
    assert callable(fx_bridge.capture)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_s_names_are_its_own_and_none_is_called_as_a_file_in_it(room):
    package = importlib.import_module(f"fx_bridge.{room}")
    files = {entry.name for entry in pkgutil.iter_modules(package.__path__)}
    names = exported(f"fx_bridge.{room}")
    assert not files & set(names)
    for name, value in names.items():
        maker = getattr(value, "__module__", None)
        assert maker is None or maker.startswith(f"fx_bridge.{room}."), name


def test_what_the_package_and_a_room_export_is_one():
    package = exported("fx_bridge")
    rooms = {name: value for room in ROOMS for name, value in exported(f"fx_bridge.{room}").items()}
    both = package.keys() & rooms.keys()
    assert {"device_map", "split_spec"} <= both
    assert all(rooms[name] is package[name] for name in both)
