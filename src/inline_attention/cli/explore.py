"""`inline explore`: show attention in the browser."""

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Explore:
    """Show attention in the browser: click a point of an image and compare up to four models."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs' folders, files of weights, or names of models, to open the page with; others can be chosen there by name."""
    pretrained: bool = False
    """Take the published weights of models that are given by name; they are downloaded unless they are here."""
    host: str = "127.0.0.1"
    """Address to listen at; the default is reached from this machine only, 0.0.0.0 from every network."""
    port: int | None = None
    """Port to listen at; unset: a free one from 7860 on."""
    open: bool = False
    """Open the browser too."""
    seed: int = 0
    """Seed of the weights of untrained models."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        from ..explorer.address import listen

        listener, address = listen(self.host, self.port)  # first: models take seconds to load
        with listener:
            from ..explorer.model_cache import ModelCache
            from ..explorer.server import serve

            model_cache = ModelCache(self.models, pretrained=self.pretrained, seed=self.seed)
            serve(model_cache, _print_address, listener, address, open_browser=self.open)


def _print_address(address: str) -> None:
    print(f"{address}  (Ctrl-C ends it)", flush=True)
