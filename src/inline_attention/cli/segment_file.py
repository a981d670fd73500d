"""One large image to a map in files, for `inline predict --task segment --stream`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .large_thumbnail import open_thumbnail
from .map_records import MapPaths, write_record

if TYPE_CHECKING:
    from ..dense.segmenter import Segmenter
    from ..large.large_image import LargeImage
    from ..large.segmented_map import SegmentedMap
    from ..training.dense_task import DenseModel
    from .large_options import LargeOptions
    from .map_options import MapOptions


@dataclass(frozen=True)
class MapMaker:
    """Makes the maps of images.

    Args:
        segmenter: on the device where it computes.
        dense: the model that it is of.
        large: how images are read.
        maps: what is written.
        folder: for temporary files.
        settings: all that decides the results, for the records.
    """

    segmenter: "Segmenter"
    dense: "DenseModel"
    large: "LargeOptions"
    maps: "MapOptions"
    folder: Path | None
    settings: Mapping[str, Any]

    def make(self, image: Path, paths: MapPaths, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Segment one image and write its results, the record last; the record.

        The old record is removed first: it must not vouch for files of which some are new.
        """
        from ..large.map_formats import ENDINGS, check_libraries, format_of, write_map
        from ..large.polygons import write_polygons

        start = perf_counter()
        opened = self.large.open(str(image))
        try:
            georeferenced = opened.georeference is not None
            format_ = self.maps.out_format or format_of(paths.map(".tif"), georeferenced=georeferenced)
            check_libraries(format_, polygons=paths.polygons is not None)
            found = self._segment(opened, progress)
        finally:
            opened.close()
        path = paths.map(ENDINGS[format_])
        for folder in {path.parent, *(each.parent for each in filter(None, [paths.polygons]))}:
            folder.mkdir(parents=True, exist_ok=True)
        paths.record.unlink(missing_ok=True)
        write_map(path, found, format_)
        self._save_preview(image, found, paths.preview)
        facts: dict[str, Any] = {"image": str(image), "map": str(path), "format": format_, **_facts(found)}
        facts["preview"] = str(paths.preview)
        if paths.polygons is not None:
            facts |= {"polygons": str(paths.polygons), "polygon_count": write_polygons(paths.polygons, found)}
        facts["seconds"] = round(perf_counter() - start, 2)
        written = [path, paths.preview, *filter(None, [paths.polygons])]
        return write_record(paths.record, facts, written, image, self.settings)

    def _segment(self, image: "LargeImage", progress: Callable[[int, int], None]) -> "SegmentedMap":
        from ..data.transforms import normalisation
        from ..large.image_reader import open_image
        from ..large.segment import stream_segment
        from ..large.segmented_map import MapFiles, Place, collect_map

        data, size, classes = self.dense.task.recipe.data, (image.height, image.width), self.dense.classes
        mean, std = normalisation(data)
        files = MapFiles.reserve(size, len(classes), self.maps.probabilities, self.folder)
        reader = open_image(image, channels=data.channels, mean=mean, std=std)
        found = stream_segment(self.segmenter, reader, folder=self.folder, progress=progress)
        return collect_map(found, classes, Place.of(image), files)

    def _save_preview(self, image: Path, found: "SegmentedMap", path: Path) -> None:
        """Draw the map over a thumbnail, from the coarsest level of the image that is fine enough."""
        from ..large.preview import LONGEST, draw_preview
        from ..large.whole_path import whole_path

        small = open_thumbnail(self.large, str(image), LONGEST)
        with whole_path(path) as temporary:
            draw_preview(small, found).save(temporary, format="PNG")


def _facts(found: "SegmentedMap") -> dict[str, Any]:
    """Size, place and areas."""
    from ..large.class_areas import area_record

    size = found.place.pixel_size
    return {
        "height": found.size[0],
        "width": found.size[1],
        "pixel_size": None if size is None else {"height": size.height, "width": size.width, "unit": size.unit},
        "ignored": found.ignored,
        **area_record(found),
    }
