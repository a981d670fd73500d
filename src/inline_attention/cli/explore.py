"""`inline explore`: show attention in the browser."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .large_options import LargeOptions

if TYPE_CHECKING:
    from ..explorer.large_view import LargeView

LONGEST = 1024
"""Side of the thumbnail of a large image."""


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
    image: Path | None = None
    """An image file of any size: a tab shows its thumbnail, and models take the whole of it where it is clicked."""
    large: Annotated[LargeOptions, tyro.conf.arg(name="")] = field(default_factory=LargeOptions)
    seed: int = 0
    """Seed of the weights of untrained models."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        from ..explorer.address import listen

        listener, address = listen(self.host, self.port)  # first: models take seconds to load
        with listener:
            from ..explorer.model_cache import ModelCache
            from ..explorer.server import serve

            view = self._large_view()
            model_cache = ModelCache(self.models, pretrained=self.pretrained, seed=self.seed)
            serve(model_cache, _print_address, listener, address, large=view, open_browser=self.open)

    def _large_view(self) -> "LargeView | None":
        """The large image, opened once: one that cannot be read is an error at the start."""
        from ..explorer.large_view import LargeView
        from .large_thumbnail import open_thumbnail

        if self.image is None:
            self.large.refuse_without("--image")
            return None
        self.large.check()
        path = str(self.image)
        return LargeView(self.image.name, lambda: self.large.open(path), open_thumbnail(self.large, path, LONGEST))


def _print_address(address: str) -> None:
    print(f"{address}  (Ctrl-C ends it)", flush=True)
