"""`inline analyze report`: all analyses of several models, on one page."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .analysis import Analysis, check_point, make_table, masked, name_pictures, spread, whence
from .subjects import Loaded, Shown, load_pictures, open_one, to_draw, whole_picture

if TYPE_CHECKING:
    from ..analysis.maps import QueryMap
    from ..analysis.study import Study

    Maps = dict[str, list[QueryMap]]


@dataclass(frozen=True)
class AnalyzeReport(Analysis):
    """All of it for several models in one HTML file, with what the figures show in words."""

    picture: str | None = None
    """Of the maps: a file, or a sample: flower, temple, portrait; unset: the first of the pictures."""
    point: tuple[float, float] = (0.5, 0.5)
    """Of the maps' query, as shares of height and width."""
    masked: int = 1000
    """Pictures to measure accuracy on; 0 leaves masking out."""
    names: tuple[str, ...] = ()
    """What to call the models, in their order; unset: by their folders or names."""

    def run(self) -> None:
        """Look at everything, write one page, tell what was found."""
        from ..analysis.findings import about_maps, findings
        from ..analysis.report import write_report

        loaded, shown = self.begin()
        loaded = self._named(loaded)
        studies = [self._study(one, shown) for one in loaded]
        many: Shown | None = None
        without: list[str] = []
        if self.masked and shown.labels is None:
            without = ["Accuracy and masking are left out: these pictures have no classes that a model knows."]
        elif self.masked:
            many = load_pictures(loaded, self.masked, data=self.data, root=self.root, split=self.split, seed=self.seed)
            studies, without = self._with_masking(studies, loaded, many)
        found = findings(studies)
        figures, maps = self._draw(loaded, studies, shown)
        found["maps"] = about_maps(maps)
        notes = [
            f"{name_pictures(shown).capitalize()}.",
            *(f"{one.subject.label}: {one.trained.name}, {one.trained.said}." for one in loaded),
        ]
        if many is not None:
            notes.append(f"Accuracy and masking: {name_pictures(many)}.")
        notes += without
        page = write_report(studies, found, figures, notes, self.out / "report.html")
        table = make_table("attention", "top-1, %", "confused pairs, %")
        for study in studies:
            top = "-" if study.masking is None else f"{study.masking.top1:.1f}"
            table.add_row(study.label, study.kind, top, f"{100 * study.confusion.share():.3g}")
        lines = [
            f"{one.title}: {one.says} The paper: {one.paper} {one.verdict.capitalize()}: {one.why}" for one in found.values()
        ]
        numbers = {
            "models": [study.numbers() for study in studies],
            "findings": {key: asdict(one) for key, one in found.items()},
        }
        self.write("report", {**numbers, **whence(shown)}, [table], [page, *figures.values()], *lines, *without)

    def _named(self, loaded: list[Loaded]) -> list[Loaded]:
        if not self.names:
            return loaded
        if len(self.names) != len(loaded) or len(set(self.names)) != len(self.names):
            raise ValueError(f"--names must name each of the {len(loaded)} models once, got {' '.join(self.names)}")
        return [replace(one, subject=replace(one.subject, label=name)) for one, name in zip(loaded, self.names, strict=True)]

    def _study(self, one: Loaded, shown: Shown) -> "Study":
        from ..analysis.confusion import confusion, pictures_of
        from ..analysis.locality import locality, mean_over
        from ..analysis.spectrum import mean_spectrum, spectrum
        from ..analysis.study import Study, kind_of, ray_of

        counted, near, rich = [], [], []
        kind, ray = "", None
        for number, seen in enumerate(self.watch(one, shown, "looking")):
            if number == 0:
                kind, ray = kind_of(seen), ray_of(seen, check_point(self.point), title=one.subject.label)
            counted.append(confusion(seen))
            near.append(locality(seen))
            rich.append(spectrum(seen))
        parameters = sum(p.numel() for p in one.subject.model.parameters())
        return Study(
            one.subject.label, kind, one.trained.name, parameters, len(shown.pictures), pictures_of(counted), ray,
            mean_over(near), mean_spectrum(rich),
        )  # fmt: skip

    def _with_masking(self, studies: list["Study"], loaded: list[Loaded], shown: Shown) -> tuple[list["Study"], list[str]]:
        """The studies with masking, and a line for each model that cannot be masked."""
        found: list[Study] = []
        without: list[str] = []
        for study, one in zip(studies, loaded, strict=True):
            try:
                found.append(replace(study, masking=masked(one, shown, (3, 5, 7), 50, self.seed)))
            except ValueError as error:
                found.append(study)
                without.append(f"{study.label} is not masked: {error}.")
        return found, without

    def _draw(self, loaded: list[Loaded], studies: list["Study"], shown: Shown) -> tuple[dict[str, Path], "Maps"]:
        from ..analysis import plots
        from ..analysis.capture import seen_by
        from ..analysis.maps import one_grid, query_map, rollout

        point, out = check_point(self.point), self.out
        picture, _ = open_one(self.picture, shown)
        maps: Maps = {}
        followed = {}
        for one in loaded:
            seen = seen_by(one.subject.model, whole_picture(one, picture))
            maps[one.subject.label] = [query_map(seen[place], seen[place].place(point)) for place in spread(len(seen))]
            stage = one_grid(seen.layers)
            followed[one.subject.label] = rollout(stage, stage[-1].place(point))[0]
        figures = {
            "confusion": plots.draw_confusion({study.label: study.confusion for study in studies}, out / "confusion.png"),
            "maps": plots.draw_models(to_draw(picture), maps, followed, out / "maps.png"),
            "locality": plots.draw_locality({study.label: study.locality for study in studies}, out / "locality.png"),
            "spectrum": plots.draw_spectrum({study.label: study.spectrum for study in studies}, out / "rank.png"),
        }
        rays = [study.ray for study in studies if study.ray is not None]
        if rays:
            figures = {"rays": plots.draw_rays(rays, out / "rays.png"), **figures}
        results = {study.label: study.masking for study in studies if study.masking is not None}
        if results:
            figures["masking"] = plots.draw_masking(results, out / "masking.png")
        return figures, maps
