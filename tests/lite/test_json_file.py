"""JSON files that are none are named."""

import pytest

from inline_attention.lite.json_file import read_object


@pytest.mark.parametrize(
    "content", [b"", b'{"a": ', b"\xff\xfe{\x00}\x00", b"[" * 100_000, rb'{"a": "\ud800"}', b"[1]", b"null", b'"text"']
)
def test_what_is_no_json_object_is_named(content, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json (cannot be read as JSON|must hold a JSON object)") as error:
        read_object(path)
    assert "\n" not in str(error.value)


def test_a_json_object_is_read(tmp_path):
    (tmp_path / "result.json").write_text('{"a": ["\\ud83d\\ude00", 1.5]}')
    assert read_object(tmp_path / "result.json") == {"a": ["\N{GRINNING FACE}", 1.5]}
