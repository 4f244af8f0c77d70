import pytest

from experiments.sweep.settings import SweepLimits, read_sweep
from experiments.sweep.sources import ModelSource
from solver import Device, GiB, MiB, Operator, PartitionProblem, save_problem
from tests.support.refusals import refused


@pytest.fixture
def folder(tmp_path):
    problem = PartitionProblem((Operator("a", 3),), (Device("x"),), objective=("latency",))
    save_problem(problem, tmp_path / "saved.json")
    (tmp_path / "mine.toml").write_text(
        '[[devices]]\ncount = 2\nmemory = "3MiB"\n[interconnect]\nbandwidth = "1GB/s"\n'
    )
    return tmp_path


def read(folder, text, models=()):
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return read_sweep(path, models)


FULL = """
models = ["mlp", "saved.json", {file = "saved.json", name = "<script>"},
          {generate = "layered", operators = 20, width = 4, seed = 2, devices = 3, unequal = true},
          {file = "published:layer.gnmt_inference", communication_scale = 1000, no_host = true}]
devices = ["equal", "own", "2x1MiB", "mine.toml", {name = "../../x", devices = [{memory = "1GiB"}]}]
links = ["25GB/s,10us", "unlimited"]
objectives = ["bottleneck", "latency,transfer"]
memory_models = ["inference", "training"]
planners = ["greedy", "auto"]
seeds = [0, 7]
without = ["nothing", "borders", "positions, borders"]
chunks = 2
max_devices = 3
schedule = "1f1b"
microbatches = 8
recompute = "auto"

[limits]
time_limit_s = 2.5
memory_limit = "500MiB"
workers = 2
deterministic = true
kill_after_s = 99
prepare_limit_s = 300
"""


def test_everything_that_can_be_asked_for(folder):
    settings = read(folder, FULL)
    assert [(source.name, source.kind) for source in settings.models] == [
        ("mlp", "zoo"),
        ("saved.json", "file"),
        ("<script>", "file"),
        ("layered operators=20 width=4 seed=2 devices=3 unequal=True", "generator"),
        ("published:layer.gnmt_inference", "file"),
    ]
    assert settings.models[1].own.objective == ("latency",)
    assert len(settings.models[3].own.devices) == 3
    assert not any(device.is_host for device in settings.models[4].own.devices)
    assert [choice.name for choice in settings.devices] == [
        "equal",
        "own",
        "2x1MiB",
        "mine.toml",
        "../../x",
    ]
    assert settings.devices[0].read() is None
    assert [d.memory_bytes for d in settings.devices[2].read().devices] == [MiB, MiB]
    assert [d.memory_bytes for d in settings.devices[3].read().devices] == [3 * MiB] * 2
    assert settings.devices[4].read().devices[0].memory_bytes == GiB
    assert settings.objectives == (("bottleneck",), ("latency", "transfer"))
    assert settings.limits == SweepLimits(2.5, 500 * MiB, 2, True, 99, 300)
    assert (settings.chunks, settings.max_devices) == (2, 3)
    assert (settings.schedule, settings.microbatches) == ("1f1b", 8)
    assert settings.recompute == "auto"
    assert settings.seeds == (0, 7)
    assert settings.without == ((), ("borders",), ("borders", "positions"))


def test_what_is_left_out_has_defaults(folder):
    settings = read(folder, 'models = ["mlp"]')
    assert settings.planners == ("greedy", "chain", "auto")
    assert settings.seeds == (0,)
    assert settings.without == ((),)
    assert settings.devices == settings.links == settings.objectives == ()
    assert settings.limits == SweepLimits(30, 8 * GiB, None, False, None, 600)
    assert read(folder, 'models = ["mlp"]\n[limits]\nmemory_limit = "unlimited"').limits == (
        SweepLimits(memory_limit=None)
    )


def test_a_workload_of_piper_is_one_device_a_stage(folder):
    file = '{file = "published:piper.gnmt", no_replicas = true, communication_scale = 1000}'
    (source,) = read(folder, f"models = [{file}]\n").models
    assert source.own.recompute == "auto" and len(source.own.devices) == 10


def test_work_that_is_counted_and_not_timed_may_take_longer(folder):
    text = 'models = ["mlp"]\n[limits]\ntime_limit_s = 10\n'
    assert read(folder, text).limits.clock_limit_s == 35
    assert read(folder, text + "deterministic = true\n").limits.clock_limit_s == 115


def test_models_of_the_command_line_come_last(folder):
    code = ModelSource("pkg:make", "code")
    assert read(folder, 'models = ["mlp"]', [code]).models[1] is code
    assert read(folder, "", [code]).models == (code,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modles = []", "'modles' is unknown; did you mean models?"),
        ("", 'models is missing; write for example models = ["gpt2"]'),
        ("models = []", "models is missing; write for example"),
        ('models = ["gpt3"]', "models[0]: model 'gpt3' is unknown; did you mean gpt2"),
        ('models = ["mlp"]\nseeds = []', "seeds is empty; write an entry"),
        (
            'models = ["mlp", "saved.json"]\nrecompute = "auto"',
            "recompute is 'auto', and no case is of training; write memory_models = [\"training\"]",
        ),
        ('models = ["mlp", "mlp"]', "models: 'mlp' is given twice"),
        (
            'models = ["os:system"]',
            "models[0]: 'os:system' runs code, which no file may name; give it on the command "
            "line: --model os:system",
        ),
        ('models = ["no.json"]', "no.json"),
        ('models = [{file = "no.txt"}]', "models[0]: cannot read"),
        ('models = [{file = "saved.json", nme = "x"}]', "'nme' is unknown; did you mean name"),
        ('models = [{file = "saved.json", no_host = true}]', "models[0]: saved.json: this is a"),
        ('models = [{generate = "layerd"}]', "models[0]: generator 'layerd' is unknown; write one"),
        ('models = ["mlp"]\ndevices = ["4xGiB"]', "devices[0]: devices '4xGiB': "),
        ('models = ["mlp"]\ndevices = ["equal", "equal"]', "devices: 'equal' is given twice"),
        ('models = ["mlp"]\ndevices = ["own", "equal"]', "devices: 'own' is for models that bring"),
        ('models = ["mlp", "saved.json"]\ndevices = ["own"]', "model 'mlp' brings none of its own"),
        ('models = ["mlp"]\nlinks = ["25GB"]', "links[0]: link '25GB': '25GB' is not a bandwidth"),
        ('models = ["mlp"]\nobjectives = ["speed"]', "objectives[0]: 'speed' is unknown; write"),
        ('models = ["mlp"]\nplanners = ["greedi"]', "planners[0]: planner 'greedi' is unknown"),
        ('models = ["mlp"]\nseeds = [-1]', "seeds[0]: seed is -1; write a whole number"),
        ('models = ["mlp"]\nwithout = ["bodrers"]', "without[0]: step 'bodrers' is unknown; did y"),
        (
            'models = ["mlp"]\nwithout = ["borders,positions", "positions,borders"]',
            "without: 'borders,positions' is given twice",
        ),
        ('models = ["mlp"]\nchunks = 0', "chunks is 0; write at least 1"),
        ('models = ["mlp"]\nschedule = "zb"', "schedule is 'zb'; write one of gpipe, 1f1b"),
        ('models = ["mlp"]\n[limits]\ntime_limit = 3', "did you mean time_limit_s?"),
        ('models = ["mlp"]\n[limits]\ntime_limit_s = 0', "limits: time_limit_s is 0; write a pos"),
        ('models = ["mlp"]\n[limits]\nkill_after_s = 3', "limits: kill_after_s is 3, less than"),
        ('models = ["mlp"]\n[limits]\nmemory_limit = "8"', "limits: memory_limit: memory '8'"),
        ('models = ["mlp"]\n[limits]\nworkers = 0', "limits: workers is 0; write a whole number"),
    ],
)
def test_a_wrong_key_is_named_in_one_line_with_the_file(folder, text, says):
    with refused(says, starts=str(folder / "sweep.toml")):
        read(folder, text)
