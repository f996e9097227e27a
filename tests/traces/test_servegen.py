"""ServeGen's statistics: what is parsed, from where, and that they are no trace."""

import io
import json
import tarfile

import numpy as np
import pytest

from queuesmith.errors import TraceError
from queuesmith.traces import load_trace
from queuesmith.traces.readers.servegen import is_servegen, read_servegen

RATES = "0,0,0,,0,0\n600,0.085,6.69,Gamma,0.02,73.0\n1200,0.5,1.25,Weibull,0.75,1.5\n"
LENGTHS = {
    "21600": {"input_tokens": "{}", "output_tokens": "{}", "reason_ratio": "{}"},
    "0": {
        "input_tokens": "{100: 0.25, 45: 0.5, 0: 0.1, 46: 0.25}",
        "output_tokens": "{7: 2.0, 9: 6.0, 8: 0.0}",
        "reason_ratio": "{0.0: 0.5, 0.5: 0.5}",
    },
    "43200": {"input_tokens": "{5: 1}", "output_tokens": "{6: 1}", "image_tokens": [1]},
}
FILES = {
    "chunk-10-trace.csv": RATES.replace("0.085", "0.25"),
    "chunk-2-trace.csv": RATES,
    "chunk-2-dataset.json": json.dumps(LENGTHS),
    "chunk-7-dataset.json": json.dumps(LENGTHS),
    "README": "not read",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def archive(path, mode):
    with tarfile.open(path, mode) as tar:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(f"reason/model/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_rates_and_lengths_of_every_client(folder):
    statistics = read_servegen(folder)

    assert statistics.name == folder.name
    assert [client.number for client in statistics.clients] == [2, 10]
    first, second = statistics.clients
    assert first.start.tolist() == [0, 600, 1200]
    assert first.rate.tolist() == [0, 0.085, 0.5]
    assert second.rate.tolist() == [0, 0.25, 0.5]
    assert first.gap_cv.tolist() == [0, 6.69, 1.25]
    assert first.gap_family.tolist() == ["", "Gamma", "Weibull"]
    assert first.gap_parameters.tolist() == [[0, 0], [0.02, 73], [0.75, 1.5]]
    assert [one.start for one in first.lengths] == [0, 43_200]
    assert first.lengths[0].prompt_len.values.tolist() == [45, 46, 100]
    assert first.lengths[0].prompt_len.weights.tolist() == [0.5, 0.25, 0.25]
    assert first.lengths[0].output_len.weights.tolist() == [0.25, 0.75]
    assert first.lengths[0].output_len.mean == 8.5
    assert first.lengths[0].reason_ratio.mean == 0.25
    assert first.lengths[1].reason_ratio is None
    assert second.lengths == ()
    assert statistics.notes == (
        "clients without lengths: 1 of 2",
        "clients without rates, left out: 1",
    )


@pytest.mark.parametrize("mode", ["w", "w:xz", "w:gz", "w:bz2"])
def test_an_archive_is_as_good_as_its_folder(folder, tmp_path, mode):
    packed = read_servegen(archive(tmp_path / "model.tar", mode))
    plain = read_servegen(folder)

    for one, other in zip(packed.clients, plain.clients, strict=True):
        assert one.number == other.number
        assert one.rate.tolist() == other.rate.tolist()
        assert len(one.lengths) == len(other.lengths)
    assert packed.name == "model.tar"
    assert packed.sha256 != plain.sha256


def test_the_hash_of_a_folder_knows_names_and_contents(folder):
    before = read_servegen(folder).sha256
    (folder / "README").write_text("changed", encoding="utf-8")
    assert read_servegen(folder).sha256 == before
    (folder / "chunk-2-trace.csv").rename(folder / "chunk-3-trace.csv")
    assert read_servegen(folder).sha256 != before


def test_statistics_are_no_trace(folder, tmp_path):
    for path in (folder, folder / "chunk-2-trace.csv", archive(tmp_path / "x", "w:xz")):
        assert is_servegen(path)
        with pytest.raises(TraceError, match=r"statistics of ServeGen, not requests.*@model"):
            load_trace(path)


def test_other_things_are_no_statistics(tmp_path):
    (tmp_path / "trace.csv").write_text("arrival_time,prompt_len,output_len\n1,2,3\n")
    with tarfile.open(tmp_path / "other.tar", "w") as tar:
        tar.add(tmp_path / "trace.csv", "trace.csv")

    assert not is_servegen(tmp_path)
    assert not is_servegen(tmp_path / "trace.csv")
    assert not is_servegen(tmp_path / "other.tar")
    assert not is_servegen(tmp_path / "missing")
    assert len(load_trace(tmp_path / "trace.csv")) == 1
    for path, says in (
        (tmp_path, r"no chunk-N-trace\.csv"),
        (tmp_path / "trace.csv", "not a tar archive"),
        (tmp_path / "other.tar", r"no chunk-N-trace\.csv"),
        (tmp_path / "missing", "there is no file"),
    ):
        with pytest.raises(TraceError, match=says):
            read_servegen(path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("chunk-2-trace.csv", "0,1,1,Gamma,1\n", "row 1 has not"),
        ("chunk-2-trace.csv", "\n", "row 1 has not"),
        ("chunk-2-trace.csv", "0,x,1,Gamma,1,1\n", "is damaged"),
        ("chunk-2-trace.csv", "0,nan,1,Gamma,1,1\n", "finite numbers"),
        ("chunk-2-trace.csv", "0,-1,1,Gamma,1,1\n", "finite numbers"),
        ("chunk-2-trace.csv", "600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "in order of time"),
        ("chunk-2-trace.csv", "0,1,1,Cauchy,1,1\n", "Gamma or Weibull, got Cauchy"),
        ("chunk-2-dataset.json", "{", "is damaged"),
        ("chunk-2-dataset.json", "[]", "must map seconds"),
        ("chunk-2-dataset.json", '{"x": {}}', "must map seconds"),
        ("chunk-2-dataset.json", '{"0": {"input_tokens": "{1: 2, 3}"}}', "input_tokens is damaged"),
        ("chunk-2-dataset.json", '{"0": {"input_tokens": "{1: nan}"}}', "finite numbers"),
        ("chunk-2-dataset.json", '{"0": {"input_tokens": 5}}', "input_tokens is damaged"),
    ],
)
def test_damage_is_named_with_its_file(folder, name, text, says):
    (folder / name).write_text(text, encoding="utf-8")

    with pytest.raises(TraceError, match=says) as caught:
        read_servegen(folder)

    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "num_clients", "rate", "num_bins", "notes"),
    [
        ("deepseek-r1.tar.xz", 73, 16.0147, 184, ()),
        ("language_m-small.tar.xz", 43, 1174.4038, 1125, ("clients without lengths: 5 of 43",)),
    ],
)
def test_the_published_statistics(traces_dir, file, num_clients, rate, num_bins, notes):
    statistics = read_servegen(traces_dir / "servegen" / file)

    assert len(statistics.clients) == num_clients
    assert sum(client.rate.mean() for client in statistics.clients) == pytest.approx(rate, abs=1e-4)
    assert sum(len(client.lengths) for client in statistics.clients) == num_bins
    assert statistics.notes == notes


def test_the_first_published_client(traces_dir):
    client = read_servegen(traces_dir / "servegen" / "deepseek-r1.tar.xz").clients[0]

    assert client.number == 0
    assert np.flatnonzero(client.rate)[0] == 4
    assert (client.rate[4], client.gap_family[4]) == (0.085, "Gamma")
    # A gamma distribution's coefficient of variation is one over the root of its shape.
    assert client.gap_cv[4] == pytest.approx(client.gap_parameters[4, 0] ** -0.5)
    assert client.lengths[0].prompt_len.values[:2].tolist() == [45, 46]
