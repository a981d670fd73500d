"""The server without a browser."""

import pytest

from .server import running_server


@pytest.mark.slow  # the tests with a browser end their server in the same way
def test_ctrl_c_ends_it_while_an_answer_is_being_computed(tmp_path):
    with running_server(tmp_path, "inline_deit_nano"):
        pass
