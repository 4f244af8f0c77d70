from experiments.sweep import versions as module


def test_the_digest_changes_with_every_source(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ROOT", tmp_path)

    def write(name, content):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    digests = [module._source_digest()]
    for name, content in (
        ("solver/a.py", ""),
        ("solver/a.py", "1"),
        ("solver/b.py", "1"),
        ("fx_bridge/b.py", "1"),
        ("experiments/zoo/models.py", "1"),
        ("experiments/sweep/worker.py", "1"),
    ):
        write(name, content)
        digests.append(module._source_digest())
    assert len(set(digests)) == len(digests)
    write("solver/a.txt", "1")
    assert module._source_digest() == digests[-1]
