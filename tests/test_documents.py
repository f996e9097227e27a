"""What of a command line is shown and kept."""

import shlex
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuesmith.documents import hide_secrets, printable

SECRET = "c0ffee-and-more"


@pytest.mark.parametrize(
    "line",
    [
        f"--api-key {SECRET} --port 80",
        f"--api-key={SECRET}",
        f"--api_key first {SECRET} --port 80",
        f"--hf-token {SECRET}",
        f"HF_TOKEN={SECRET} vllm serve m",
        f"compare x.csv --engine-args '--api-key {SECRET}'",
        f"compare x.csv --engine-args=--api-key={SECRET}",
        f"compare x.csv '--engine-args=--port 80 --api-key {SECRET}'",
        f"""compare x.csv --engine-args "--port 80 --hf-token '{SECRET} {SECRET}'" """,
        f"serve m sk-{SECRET}",
        f"--otlp-traces-endpoint http://me:{SECRET}@collector:4317",
        f"""--kv-transfer-config '{{"api_key": "{SECRET}", "port": 1}}'""",
        f"""--additional-config '{{"token": ["{SECRET}"]}}'""",
    ],
)
def test_a_key_is_hidden_wherever_it_stands(line):
    shown = shlex.join(hide_secrets(shlex.split(line)))

    assert SECRET not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "line",
    [
        "compare x.csv --engine-args '--max-num-batched-tokens 8k --port 80'",
        "--long-prefill-token-threshold 512 --ssl-keyfile key.pem",
        "check x.jsonl --columns prompt_len=in,output_len=tokens",
        "policies 'a file with words.py' \"it's\"",
    ],
)
def test_nothing_else_is_changed(line):
    assert hide_secrets(shlex.split(line)) == shlex.split(line)


@given(st.lists(st.text(max_size=30), max_size=5))
def test_any_words_can_be_shown(words):
    assert len(hide_secrets(words)) == len(words)


@given(st.text(st.characters(exclude_categories=[])))
def test_what_is_printable_can_be_written_and_steers_nothing(text):
    shown = printable(text)

    shown.encode("utf-8")
    assert not any(unicodedata.category(each)[0] == "C" for each in shown)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert printable("日本　語 é") == "日本　語 é"
