"""Configurations: every field checked, what is unknown refused with a suggestion."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.errors import ConfigError
from queuesmith.evolve.config import (
    Budget,
    Search,
    config_names,
    parse_config,
    read_config,
    with_seeds,
)
from queuesmith.evolve.estimate import estimate
from queuesmith.evolve.gp.program import Program
from queuesmith.evolve.proposers import make_control, make_proposer
from queuesmith.evolve.scoring.scale import make_scale
from queuesmith.evolve.scoring.traffic import freeze_windows, pick_windows, tuning_traffic, who_wins
from queuesmith.windows.frozen import WindowSet

from .toy import CONFIG, toy_config

LEAST = '[[source]]\nfile = "azure_2023_conv@model"\n'


def refusal(text):
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "mine.toml")
    message = str(caught.value)
    assert message.startswith("mine.toml")
    assert "\n" not in message
    return message


def test_a_source_is_all_that_must_be_said():
    config = parse_config(LEAST, "mine.toml")

    assert config.name == "mine"
    assert config.seeds == (0,)
    assert [share.name for share in config.proposers] == ["gp"]
    assert config.search == Search()
    assert config.budget == Budget()
    assert config.second_engine is None


@pytest.mark.parametrize("name", config_names())
def test_packaged_configurations_can_be_read(name):
    config = read_config(name)

    assert config.name == name
    assert config.second_engine is not None
    assert [make_proposer(share).name for share in config.proposers] == [
        share.name for share in config.proposers
    ]
    assert all(source.stand_in or source.file.endswith("@model") for source in config.sources), (
        "it must run where there are no traces"
    )


def test_quick_is_there():
    assert {"quick", "full"} <= set(config_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [", "is not TOML"),
        ("", "needs traffic: either [[source]] tables"),
        (f'window_set = "set.toml"\n{LEAST}', "needs traffic: either"),
        (f"sede = [1]\n{LEAST}", "has no field 'sede'. Did you mean 'seeds'?"),
        (f"{LEAST}stand_inn = 'a@model'\n", "source has no field 'stand_inn'. Did you mean"),
        (f"{LEAST}[windows]\nwindow_length = 3\n", "Did you mean 'window_len'?"),
        (f"{LEAST}[search]\ngeneration = 3\n", "Did you mean 'generations'?"),
        (f"{LEAST}[budget]\nevaluation = 3\n", "Did you mean 'evaluations'?"),
        (f"{LEAST}[sandbox]\ncpu = 3\n", "sandbox has no field 'cpu'"),
        (f"{LEAST}[[proposer]]\nname = 'gp'\nshares = 1\n", "Did you mean 'share'?"),
        ("[[source]]\nstand_in = 'azure_2023_conv@model'\n", "source: file is missing"),
        (f"seeds = []\n{LEAST}", "seeds must be different whole numbers"),
        (f"seeds = [1, 1]\n{LEAST}", "seeds must be different whole numbers"),
        (f"seeds = [-1]\n{LEAST}", "seeds must be different whole numbers"),
        (f"seeds = [true]\n{LEAST}", "seeds must be different whole numbers"),
        (f"seeds = 3\n{LEAST}", "seeds must be an array, got 3"),
        (f"schema = 9\n{LEAST}", "schema must be 1, got 9"),
        (f"loads = ['bussy']\n{LEAST}", "there is no load 'bussy'. Did you mean 'busy'?"),
        (f"loads = []\n{LEAST}", "no load was given"),
        (f"engine = 'llama-3.1-8b/h100'\n{LEAST}", "Did you mean 'llama-3.1-8b/h100_sxm'?"),
        (f"second_engine = 'x'\n{LEAST}", "there is no engine 'x'"),
        (
            f"engine = 'constant_1ms'\nsecond_engine = 'constant_1ms'\n{LEAST}",
            "second_engine is the engine itself",
        ),
        (f"output_length = 'guess'\n{LEAST}", "must be none, exact, noisy"),
        (f"{LEAST}[windows]\nnum_windows = 0\n", "num_windows must be at least 1"),
        (f"{LEAST}[windows]\nnum_windows = 2\n", "per_generation (4) must not be above"),
        (f"{LEAST}[windows]\npicked_from = 3\n", "picked_from (3) must be 0 or at least"),
        (f"{LEAST}[windows]\ntuning = 0.9\n", "must add up to 1 at most, got 1.4"),
        (f"{LEAST}[windows]\nwindow_len = 1.5\n", "window_len must be a whole number, got 1.5"),
        (f"{LEAST}[search]\nstop_early = 1\n", "stop_early must be true or false, got 1"),
        (f"{LEAST}[search]\nchildren = true\n", "children must be a whole number, got True"),
        (f"{LEAST}[search]\nclassics = [1]\n", "classics must be an array of names"),
        (f"{LEAST}[budget]\nwall_seconds = -1\n", "wall_seconds must be at least 0, got -1"),
        (f"{LEAST}[budget]\nwall_seconds = nan\n", "wall_seconds must be at least 0, got nan"),
        (f"{LEAST}[sandbox]\nmemory_mib = 1\n", "memory_mib must be at least 64"),
        (f"{LEAST}[[proposer]]\nname = 'gp'\nshare = 0.5\n", "must add up to 1, got 0.5"),
        (f"{LEAST}[[proposer]]\nname = 'random'\n", "random is always the control"),
        (f"{LEAST}[[proposer]]\nshare = 1\n", "proposer: name is missing"),
        (
            f"{LEAST}[[proposer]]\nname = 'gp'\nshare = 0.5\n[[proposer]]\nname = 'gp'\n",
            "must be given once each",
        ),
        (f"{LEAST}stand_in = 'conv.csv'\n", "stand_in must be a model"),
        ("source = 3\n", "source must be an array, got 3"),
        ("source = [3]\n", "source must be a table, got 3"),
        (f"name = 7\n{LEAST}", "name must be text, got 7"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(text, message):
    assert message in refusal(text)


@given(st.text(max_size=60))
def test_no_text_ends_in_anything_but_one_line(text):
    with pytest.raises(ConfigError, match=r"^mine.toml[^\n]*$"):
        parse_config(f"{text}\n", "mine.toml")


def test_a_configuration_is_found_by_name_or_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(LEAST)

    assert read_config(str(path)).name == "mine"
    with pytest.raises(
        ConfigError, match=r"there is no configuration 'quik'\. Did you mean 'quick'"
    ):
        read_config("quik")
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere.toml"):
        read_config(str(tmp_path / "nowhere.toml"))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(str(path))


@pytest.mark.parametrize("text", [LEAST, f"seeds = [1, 2]\n{LEAST}", f"seeds=[\n 1,\n 2]\n{LEAST}"])
def test_other_seeds_are_written_into_the_text(text):
    config = with_seeds(parse_config(text, "mine.toml"), [7, 8])

    assert config.seeds == (7, 8)
    assert parse_config(config.text, "again").seeds == (7, 8)
    with pytest.raises(ConfigError, match="different whole numbers"):
        with_seeds(config, [7, 7])


def test_sources_may_differ_in_windows_and_parts_never_overlap(tmp_path):
    second = '[[source]]\nfile = "azure_2023_conv@model"\nnum_requests = 900\n'
    second += "num_windows = 3\nwindow_len = 50\n\n[windows]"
    config = toy_config(("[windows]", second))

    windows = freeze_windows(config, tmp_path)

    code, conv = windows.sources
    assert {part: len(cut) for part, cut in code.parts.items()} == {
        "tuning": 4,
        "validation": 4,
        "held_out": 4,
    }
    assert [one.num_requests for one in conv.parts["tuning"]] == [50, 50, 50]
    for source in windows.sources:
        rows = [
            row
            for part in ("tuning", "validation", "held_out")
            for one in source.parts[part]
            for row in (one.start_row, one.start_row + one.num_requests)
        ]
        assert rows == sorted(rows)
    traffic = tuning_traffic(config, windows)
    assert traffic.sources == {
        **dict.fromkeys(range(4), "azure_2023_code@model"),
        **dict.fromkeys(range(4, 7), "azure_2023_conv@model"),
    }


def test_a_missing_file_is_replaced_by_its_stand_in(tmp_path, monkeypatch):
    named = 'file = "not/there.csv"\nstand_in = "azure_2023_code@model"'
    config = toy_config(('file = "azure_2023_code@model"', named))
    monkeypatch.setenv("QUEUESMITH_TRACES", str(tmp_path))

    assert freeze_windows(config, tmp_path).sources[0].file == "azure_2023_code@model"
    (tmp_path / "not").mkdir()
    rows = "\n".join(f"{0.1 * k},{100 + k % 7},{5 + k % 3}" for k in range(2_000))
    (tmp_path / "not" / "there.csv").write_text(f"arrival_time,prompt_len,output_len\n{rows}\n")
    assert freeze_windows(config, tmp_path).sources[0].file == "not/there.csv"


def test_a_window_set_may_be_given(tmp_path):
    path = tmp_path / "set.toml"
    path.write_text(
        WindowSet.freeze(
            "given",
            [{"file": "azure_2023_code@model", "num_requests": 1_000}],
            num_windows=4,
            window_len=60,
        )
    )
    i, j = CONFIG.index("[[source]]"), CONFIG.index("[windows]")
    config = parse_config(f"window_set = {str(path)!r}\n{CONFIG[:i]}{CONFIG[j:]}", "toy")
    folder = tmp_path / "run"
    folder.mkdir()

    assert freeze_windows(config, folder).sha256 == WindowSet.load(path).sha256


def test_picked_windows_differ_in_who_wins(tmp_path):
    """Wins are spread over at least as many classics as without a choice, and no thinner."""
    wide = toy_config(
        ("num_windows = 4", "num_windows = 12"),
        ("per_generation = 2", "per_generation = 1"),
        ("num_requests = 1_000", "num_requests = 4_000"),
        ('classics = ["sjf"]', 'classics = ["sjf", "hrrn", "las", "edf"]'),
    )
    traffic = tuning_traffic(wide, freeze_windows(wide, tmp_path))
    table = who_wins(traffic, wide.search.classics, make_scale(traffic))
    everything = list(range(12))

    picked = pick_windows(table, everything, 4)

    def spread(windows):
        cells = [cell for cell in traffic.cells if cell.window in windows]
        wins = table.wins(cells)
        assert sum(wins.values()) == pytest.approx(len(cells))
        return sum(count**0.5 for count in wins.values())

    assert len(picked) == len(set(picked)) == 4
    assert spread(picked) >= max(spread(everything[:4]), spread(everything[-4:]))
    assert pick_windows(table, everything, 99) == everything


def test_only_tuning_windows_are_picked(tmp_path):
    blind = freeze_windows(toy_config(), tmp_path)
    chosen = freeze_windows(toy_config(("[search]", "[search]")), tmp_path)
    picky = toy_config(("per_generation = 2", "per_generation = 2\npicked_from = 8"))

    picked = freeze_windows(picky, tmp_path)

    assert blind.sources == chosen.sources
    assert picked.sources[0].parts["validation"] == blind.sources[0].parts["validation"]
    assert picked.sources[0].parts["held_out"] == blind.sources[0].parts["held_out"]
    assert len(picked.sources[0].parts["tuning"]) == 4
    last = picked.sources[0].parts["tuning"][-1]
    assert last.start_row + last.num_requests <= 500  # half of the requests


def test_an_estimate_counts_what_a_run_would_evaluate():
    found = estimate(toy_config(), workers=2)

    assert found["evaluations"] == 2 * 3 * 6
    assert found["simulations"] >= found["evaluations"] * 2
    assert found["cpu_seconds"] > 0
    assert found["wall_seconds"] == found["cpu_seconds"] / 2
    assert found["llm"] == {"llm_calls": 0, "llm_tokens": 0, "llm_money": 0}
    capped = estimate(toy_config(("[search]", "[budget]\nevaluations = 7\n\n[search]")), 1)
    assert capped["evaluations"] == 14


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ('name = "gpp"', "there is no proposer 'gpp'. Did you mean 'gp'?"),
        ('name = "gp"\noptions = { victim = true }', "Did you mean 'victims'?"),
        ('name = "gp"\noptions = { victims = 1 }', "victims must be true or false"),
        ('name = "gp"\noptions = { knowledge = ["all"] }', "knowledge must be an array of some"),
        (
            'name = "gp"\noptions = { tuned_share = 2 }',
            "tuned_share must be at least 0 and at most 1",
        ),
        ('name = "gp"\noptions = { constants = "guess" }', "constants are tuned by"),
        ('name = "gp"\noptions = { start = "sjf" }', "start must be an array"),
        ("name = 'gp'\noptions = { start = ['{'] }", "start: "),
        ("""name = 'gp'\noptions = { start = ['{"waiting_key": "luck"}'] }""", "start: "),
        (
            """name = 'gp'\noptions = { start = ['{"waiting_key": "time_left"}'] }""",
            "time_left is not among what this search may use",
        ),
        ('name = "files"', "folder is missing"),
        ('name = "files"\noptions = { folder = "nowhere" }', "nowhere is not a folder"),
    ],
)
def test_options_of_proposers_are_checked(share, message):
    config = parse_config(f"{LEAST}[[proposer]]\n{share}\n", "mine.toml")

    with pytest.raises(ConfigError) as caught:
        make_proposer(config.proposers[0])

    assert message in str(caught.value)


def test_a_search_starts_from_the_programs_it_is_given_and_its_control_does_not():
    given = """{"waiting_key": ["sub", "relative_work", ["mul", 7, "wait_share"]]}"""
    share = f"name = 'gp'\noptions = {{ start = ['{given}'] }}"
    config = parse_config(f"{LEAST}[[proposer]]\n{share}\n", "mine.toml")

    found, control = (
        proposer.propose([], 5, np.random.default_rng(0))
        for proposer in (make_proposer(config.proposers[0]), make_control(config))
    )

    assert found[0].note == "given to start from"
    assert found[0].meta["genome"] == Program.from_json(json.loads(given)).to_json()
    assert all(proposal.note != "given to start from" for proposal in control)


def test_the_control_draws_from_the_space_that_is_searched():
    options = 'name = "gp"\noptions = { victims = false, knowledge = ["predictions"] }'
    config = parse_config(f"{LEAST}[[proposer]]\n{options}\n", "mine.toml")

    assert make_control(config).space == make_proposer(config.proposers[0]).space
    assert make_control(config).space.victims is False


HELD_BACK = (
    LEAST
    + '[[source]]\nfile = "azure_2023_code@model"\nnum_requests = 9_000\nparts = ["held_out"]\n'
)


def test_a_source_can_be_kept_for_the_last_look_alone(tmp_path):
    text = HELD_BACK.replace("[[source]]", "[[source]]\nwindow_len = 50\nnum_windows = 4", 2)
    text += "[windows]\npicked_from = 6\n"
    config = parse_config(text, "mine.toml")
    bred_on, held_back = freeze_windows(config, tmp_path).sources

    assert set(bred_on.parts) == {"tuning", "validation", "held_out"}
    assert set(held_back.parts) == {"held_out"}
    assert len(held_back.parts["held_out"]) == 4
    assert held_back.parts["held_out"][-1].start_row > 6_000  # windows lie all over it
    assert estimate(config, 1)["evaluations"] > 0


@pytest.mark.parametrize("parts", ['["test"]', '["tuning", "tuning"]', "[1]"])
def test_parts_that_there_are_not_are_refused(parts):
    assert "parts" in refusal(HELD_BACK.replace('["held_out"]', parts))


def test_a_run_needs_something_to_be_bred_on():
    only = LEAST + 'parts = ["held_out"]\n'
    assert "no source has windows for tuning" in refusal(only)
