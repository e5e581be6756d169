"""Texts made plain: what is spelt in pieces is read in one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinmill.env.audit.plain import commands, folded_strings, inline_python, plain


@pytest.mark.parametrize(
    "source",
    [
        "x = 'rew' + 'ard' + '.txt'",
        "x = ''.join(['re', 'ward', '.txt'])",
        "x = f\"{'reward'}.txt\"",
        "x = 'txt.drawer'[::-1]",
        "import base64\nx = base64.b64decode('cmV3YXJkLnR4dA==').decode()",
        "x = bytes.fromhex('7265776172642e747874').decode()",
        "x = chr(114) + chr(101) + 'ward.txt'",
        "open('/logs/' + 'reward' + chr(46) + 'txt', 'w')",
    ],
)
def test_strings_made_of_constants_are_folded(source):
    assert any("reward.txt" in text for text in folded_strings(source)), folded_strings(source)
    assert "reward.txt" in plain(source)


@pytest.mark.parametrize(
    "command", ["cat rew''ard.txt", 'cat rew""ard.txt', "cat rew\\ard.txt", "echo cmV3YXJkLnR4dCAgIA== | base64 -d"]
)
def test_a_shells_spellings_are_read(command):
    assert "reward.txt" in plain(command)


def test_programs_in_commands_are_found():
    command = "python3 -c 'print(1)'; python3 - <<'X'\nimport os\nX\npython3 -c \"print(\\\"a\\\")\"; echo done"
    assert inline_python(command) == ["import os", "print(1)", 'print("a")']


def test_commands_are_taken_apart_and_patterns_name_no_files():
    assert commands("cd a && LANG=C sudo cat 'b c' | awk '/tests/ {print}' x # end") == [
        ["cd", "a"],
        ["cat", "b c"],
        ["awk", "x"],
    ]
    assert commands("echo 'unclosed") == [["echo", "'unclosed"]]


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_has_a_plain_form_that_begins_with_it(text):
    assert plain(text).startswith(text)
    commands(text)
