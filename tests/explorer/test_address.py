"""Where the server listens, and by which names it is called."""

import re
import socket

import pytest

from inline_attention.cli.main import main
from inline_attention.explorer.address import Address, listen


def test_only_names_of_this_server():
    """Others could point here without belonging to it (DNS rebinding)."""
    address = Address("192.168.1.5", 7860)
    for given in ("192.168.1.5:7860", "localhost:7860", "LocalHost:7860", "127.0.0.1:7860", "[::1]:7860"):
        assert address.is_named(given), given
    refused = ("evil.com:7860", "192.168.1.6:7860", "192.168.1.5", "localhost:80", "x@localhost:7860", "localhost:7860/a", "",
               "localhost:x", "[::1", "localhost:7860#")  # fmt: skip
    for given in refused:
        assert not address.is_named(given), given
    assert Address("localhost", 80).is_named("localhost"), "browsers leave out port 80"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_for_every_network_takes_addresses_in_digits_and_its_own_name(host):
    address = Address(host, 7860)
    for given in ("10.1.2.3:7860", "[fe80::1]:7860", "localhost:8080", f"{socket.gethostname()}:7860"):
        assert address.is_named(given), given
    assert not address.is_named("evil.com:7860")
    assert not address.is_named("10.1.2.3.evil.com:7860")
    assert str(address) == "http://localhost:7860/"


def test_it_listens_at_a_free_port():
    first, address = listen("127.0.0.1", None)
    second, other = listen("localhost", None)
    with first, second:
        assert 7860 <= address.port < other.port < 7960
        with pytest.raises(ValueError, match=rf"cannot listen at 127.0.0.1:{address.port}: the port is taken"):
            listen("127.0.0.1", address.port)
    assert str(Address("::1", 7860)) == "http://[::1]:7860/"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "99999"], "--port takes a number from 1 to 65535, or 0 for any free one, got 99999"),
        (["--port", "-1"], "--port takes a number from 1 to 65535"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1:7860: this machine has no such address"),
        (["--host", "a..b"], "--host 'a..b' is no address and no known name"),
        (["--host", ""], "--host is empty: give a value, or leave it out"),
    ],
)
def test_a_host_or_port_that_cannot_be_is_one_line_before_models_load(monkeypatch, capsys, options, message):
    monkeypatch.setattr("inline_attention.explorer.model_cache.ModelCache.__init__", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(SystemExit) as stop:
        main(["explore", *options])
    assert stop.value.code == 2
    assert re.fullmatch(rf"inline: {re.escape(message)}.*\n", capsys.readouterr().err)
