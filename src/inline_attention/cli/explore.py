"""`inline explore`: see attention in the browser."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Explore:
    """A page in the browser: click a point of a picture and see what up to four models look at from there."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Runs' folders, files of weights, or names of models, to open the page with; others are picked there by name."""
    pretrained: bool = False
    """Let timm fetch the weights of models that are named from its hub."""
    host: str = "127.0.0.1"
    """Address to listen at: this machine only, unless told otherwise (0.0.0.0 is every address that it has)."""
    port: int | None = None
    """Port to listen at; unset: a free one from 7860 on."""
    open: bool = False
    """Open the browser too."""
    seed: int = 0
    """Draws the weights of models that are not trained."""

    def run(self) -> None:
        """Serve until interrupted."""
        from ..explorer.page import serve
        from ..explorer.shelf import Shelf

        shelf = Shelf(self.models, pretrained=self.pretrained, seed=self.seed)
        serve(shelf, host=self.host, port=self.port, open_browser=self.open)
        sys.stdout.flush()
        os._exit(0)  # a thread may still be drawing: taking torch down under it would end in an abort
