"""Designs: what they say, what is refused and how, and what their hash stands for."""

from pathlib import Path

import pytest

from queuesmith.engine.presets.step_time import get_preset
from queuesmith.errors import ConfigError, PolicyError, QueuesmithError, TraceError
from queuesmith.policies import get_policy
from queuesmith.study import design_file
from queuesmith.study.design import Design, restore
from queuesmith.study.design_file import design_names

POLICY = "def waiting_key(request, engine):\n    return {key}\n"


def test_atlas_asks_what_it_promises():
    atlas = Design.load("atlas")

    deployable = [policy for policy in atlas.policies if not policy.oracle]
    assert len([policy for policy in deployable if not policy.is_bundle]) >= 13
    assert len(atlas.sources) >= 4
    assert sum(source.num_windows for source in atlas.sources) == 120
    assert atlas.window_len == 1000
    assert len(atlas.loads) == 6
    assert {"constant_1ms", "llama-3.1-8b/h100_sxm", "llama-3.1-8b/a100_sxm"} < set(
        atlas.engine_names
    )
    slowest = max(atlas.engines, key=lambda preset: preset.step_time.a)
    assert slowest.step_time.a > 1.5 * get_preset("llama-3.1-8b/a100_sxm").step_time.a


@pytest.mark.parametrize("name", design_names())
def test_every_design_of_the_package_can_be_read(name):
    assert Design.load(name).name == name


def test_what_is_not_said_has_a_default(small):
    design = small()

    assert (design.reference, design.seed, design.engine) == ("fcfs", 0, "queuesmith")
    assert design.output_length.kind == "noisy"
    assert design.table["sources"][0] == {
        "name": "logged",
        "files": ["log.csv"],
        "model": "",
        "num_windows": 2,
    }


def test_a_policy_file_is_found_beside_the_design(small, tmp_path):
    (tmp_path / "mine.py").write_text(POLICY.format(key="request.num_prompt_tokens"))

    assert small(policies=["fcfs", "mine.py"]).policy_names == ("fcfs", "mine")


BAD = {
    "no such policy": ({"policies": ["fcfs", "sfj"]}, "there is no policy 'sfj'. Did you mean"),
    "policy twice": ({"policies": ["fcfs", "fcfs"]}, "'fcfs' is given twice"),
    "no policies": ({"policies": []}, "policies is missing or empty"),
    "policies as text": ({"policies": "fcfs"}, "policies must be a list, got 'fcfs'"),
    "oracle": ({"policies": ["fcfs", "srpt_oracle"]}, "is told exact output lengths"),
    "no such engine": ({"engines": ["constant_2ms"]}, "there is no engine 'constant_2ms'. Did"),
    "engine twice": ({"engines": ["constant_1ms"] * 2}, "'constant_1ms' is given twice"),
    "no such metric": ({"metrics": ["ttft_men"]}, "no metric 'ttft_men'. Did you mean 'ttft_mean'"),
    "not a metric": (
        {"metrics": ["num_steps"]},
        "num_steps says nothing of which policy is better",
    ),
    "no such load": ({"loads": ["busi"]}, "there is no load 'busi'. Did you mean 'busy'?"),
    "one load under two names": ({"loads": ["busy", 0.8]}, "a load is given twice: busy, 0.8"),
    "load of zero": ({"loads": [0]}, "a load must be above 0"),
    "no loads": ({"loads": None}, "no load was given"),
    "loads against multipliers": (
        {"multipliers": {"LOW": 0.5}},
        "loads and multipliers contradict each other",
    ),
    "multipliers of our engine": (
        {"loads": None, "multipliers": {"LOW": 0.5}},
        "no load was given",
    ),
    "unknown key": ({"polices": ["fcfs"]}, "there is no key 'polices'. Did you mean 'policies'?"),
    "empty window": ({"window_len": 0}, "window_len must be from 2 to"),
    "window of one request": ({"window_len": 1}, "window_len must be from 2 to"),
    "no windows": ({"num_windows": 0}, "num_windows must be from 1 to"),
    "windows as a fraction": ({"num_windows": 2.5}, "num_windows must be a whole number, got 2.5"),
    "negative seed": ({"seed": -1}, "seed must be from 0 to"),
    "no name": ({"name": None}, "name is missing or empty"),
    "path as name": ({"name": "../up"}, "name must be letters, digits, - and _"),
    "no sources": ({"sources": None}, "sources are missing"),
    "sources as text": ({"sources": ["log.csv"]}, "a source must be a table, got 'log.csv'"),
    "source twice": (
        {"sources": [{"name": "a", "file": "log.csv"}] * 2},
        "source 'a' is given twice",
    ),
    "source of nothing": ({"sources": [{"name": "a"}]}, "source 'a' has neither file nor model"),
    "source with two files": (
        {"sources": [{"name": "a", "file": "x", "files": ["y"]}]},
        "has both file and files",
    ),
    "unknown key of a source": (
        {"sources": [{"name": "a", "fil": "x"}]},
        "source 'a': there is no key 'fil'. Did you mean 'file'?",
    ),
    "no such model": (
        {"sources": [{"name": "a", "model": "azure@model"}]},
        "there is no workload model 'azure'",
    ),
    "no share": (
        {"sources": [{"name": "a", "file": "log.csv", "share": 0}]},
        "source 'a': share thins a file to a part of its requests, above 0 and at most 1",
    ),
    "a share of a model": (
        {"sources": [{"name": "a", "model": "azure_2023_conv@model", "share": 0.5}]},
        "without a model; got 0.5",
    ),
    "a file as model": ({"sources": [{"name": "a", "model": "b.csv"}]}, "model must be NAME@model"),
    "output length": ({"output_length": "nosy"}, "must be none, exact, noisy or noisy:SIGMA"),
    "reference": ({"reference": "hrrn"}, "the reference 'hrrn' is not among the policies"),
    "slo": ({"slo": {"ttft": -1}}, "slo: ttft must be positive seconds, got -1"),
    "slo of what": ({"slo": {"tft": 1}}, "there is no key 'tft'. Did you mean 'ttft'?"),
    "slo as text": ({"slo": {"ttft": "fast"}}, "ttft must be a number, got 'fast'"),
    "which simulator": ({"engine": "quesmith"}, "Did you mean 'queuesmith'?"),
    "sensitivity to a stranger": (
        {
            "sensitivity": {
                "predictions": ["none"],
                "engines": ["llama-3.1-8b/a100_sxm"],
                "loads": ["busy"],
                "policies": ["fcfs", "hrrn"],
            }
        },
        "no entry in the design's policies 'hrrn'",
    ),
    "sensitivity without reference": (
        {
            "sensitivity": {
                "predictions": ["none"],
                "engines": ["llama-3.1-8b/a100_sxm"],
                "loads": ["busy"],
                "policies": ["spjf"],
            }
        },
        "add the reference 'fcfs'",
    ),
    "prediction under two names": (
        {
            "sensitivity": {
                "predictions": ["noisy", "noisy:0.198"],
                "engines": ["llama-3.1-8b/a100_sxm"],
                "loads": ["busy"],
                "policies": ["fcfs"],
            }
        },
        "prediction 'noisy:0.198' is given twice",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused_in_one_line(small, changes, reason):
    with pytest.raises((ConfigError, PolicyError, TraceError)) as refused:
        small(**changes)

    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"name = ", "is not TOML"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"", "name is missing or empty"),
        (b"policies = " + b"[" * 5000, "is not TOML"),
    ],
)
def test_a_file_that_is_no_design_is_refused(tmp_path, text, reason):
    path = tmp_path / "bad.toml"
    path.write_bytes(text)

    with pytest.raises(ConfigError, match=reason):
        Design.load(path)


def test_a_design_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'atlas'"):
        Design.load("atlass")
    with pytest.raises(ConfigError, match="there is no design"):
        Design.load(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        Design.load(tmp_path / "folder.toml")


def test_the_slot_engine_takes_its_own_policies_and_no_loads(small):
    slots = {"engine": "lssp_slots", "engines": None, "loads": None, "multipliers": {"LOW": 0.5}}
    slots |= {"policies": ["fifo", "edf"], "reference": "fifo", "metrics": ["weighted_goodput"]}

    assert small(**slots).load_names == ("LOW",)
    for change, reason in (
        ({"policies": ["fifo", "sjf"]}, "no policy of the slot engine 'sjf'"),
        ({"multipliers": {"LOW": 0.5, "ALSO": 0.5}}, "two multipliers are equal"),
        ({"multipliers": {"LOW": -1}}, "multiplier LOW must be above 0"),
        ({"multipliers": {"LOW": "half"}}, "multiplier LOW must be a number"),
        ({"multipliers": None}, "needs multipliers of the reference rate"),
        ({"engines": ["constant_1ms"]}, "has no engines; leave it out"),
        ({"loads": ["busy"]}, "contradict each other"),
    ):
        with pytest.raises(QueuesmithError, match=reason):
            small(**{**slots, **change})


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "Another"},
        {"policies": ["fcfs", "spjf", "sjf"]},
        {"loads": ["busy", 1.6]},
        {"engines": ["llama-3.1-8b/h100_sxm"]},
        {"window_len": 29},
        {"seed": 1},
        {"metrics": ["ttft_mean"]},
        {"output_length": "exact"},
        {"slo": {"ttft": 2.0}},
    ],
)
def test_the_hash_covers_every_setting(small, changes):
    assert small(**changes).sha256 != small().sha256


def test_the_hash_covers_what_a_source_holds_and_what_a_policy_says(small, tmp_path):
    policy = tmp_path / "mine.py"
    policy.write_text(POLICY.format(key="request.num_prompt_tokens"))
    before = small(policies=["fcfs", "mine.py"]).sha256

    assert small(policies=["fcfs", "mine.py"]).sha256 == before

    policy.write_text(POLICY.format(key="-request.num_prompt_tokens"))
    other_policy = small(policies=["fcfs", "mine.py"]).sha256
    design = small(policies=["fcfs", "mine.py"])
    log = tmp_path / "log.csv"
    log.write_text(log.read_text().replace(",7\n", ",8\n").replace(",5\n", ",6\n"))

    assert len({before, other_policy, design.sha256}) == 3


def test_the_hash_does_not_depend_on_where_the_design_lies(small, tmp_path):
    here = small()
    there = tmp_path / "elsewhere"
    there.mkdir()
    for name in ("small.toml", "log.csv"):
        (there / name).write_bytes((tmp_path / name).read_bytes())

    assert Design.load(there / "small.toml").sha256 == here.sha256


def test_fewer_windows_are_another_design(small):
    design = small()

    assert len(design.with_windows(1).windows) == 2
    assert design.with_windows(1).sha256 != design.sha256
    assert design.with_windows(9).sha256 == design.sha256
    with pytest.raises(ConfigError, match="at least 1 window"):
        design.with_windows(0)


@pytest.mark.parametrize("name", design_names())
def test_a_design_comes_back_from_what_a_study_writes_down(name):
    design = Design.load(name)
    policies = [{"name": policy.name, "source": policy.source} for policy in design.policies]

    assert restore(design.table, policies).table == design.table


def test_a_policy_comes_back_as_it_was_when_the_study_was_run(small):
    changed = get_policy("aged_sjf(SECONDS_PER_TOKEN=0.5)")
    design = small(policies=["fcfs", changed.name])
    policies = [{"name": policy.name, "source": policy.source} for policy in design.policies]

    assert restore(design.table, policies).policies[1] == changed


def test_the_page_names_every_key():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "study_design.md").read_text()

    for keys in (design_file._KEYS, design_file._SOURCE_KEYS, design_file._SENSITIVITY_KEYS):
        for key in keys:
            assert f"`{key}`" in page or f"\n{key} = " in page or f"[{key}" in page, key
