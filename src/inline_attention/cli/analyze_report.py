"""`inline analyze report`: all analyses of several models on one HTML page."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from .analyze_base import Analysis, check_point, image_facts, make_table, measure_masking, name_images, spread
from .analyze_inputs import AnalyzedImages, LoadedModel, choose_image, load_images, to_draw, whole_image
from .progress import stages

if TYPE_CHECKING:
    from ..analysis.maps import QueryMap
    from ..analysis.model_analysis import ModelAnalysis

    Maps = dict[str, list[QueryMap]]


@dataclass(frozen=True)
class AnalyzeReport(Analysis):
    """Run all analyses of several models and write one HTML page, with the findings in words."""

    image: str | None = None
    """Image of the maps: a file, or a sample: flower, temple, portrait; unset: the first of the images."""
    point: tuple[float, float] = (0.5, 0.5)
    """Query of the maps, as shares of height and width."""
    masked: int = 1000
    """Images to measure accuracy on; 0 leaves masking out."""
    names: tuple[str, ...] = ()
    """Labels of the models, in their order; unset: their folders or names."""

    def run(self) -> None:
        """Run the analyses, write the page, print the findings."""
        from ..analysis.findings import about_maps, findings
        from ..analysis.html_report import write_report

        console = Console(stderr=True)
        models, images = self.begin()
        models = self._label(models)
        studies = [self._analyse(one, images) for one in models]
        many: AnalyzedImages | None = None
        left_out: list[str] = []
        if self.masked and images.labels is None:
            left_out = ["Accuracy and masking are left out: these images have no classes that a model knows."]
        elif self.masked:
            with stages(console) as stage:
                stage(f"reading up to {self.masked:,} images to measure accuracy on")
                many = load_images(models, self.masked, data=self.data, root=self.root, split=self.split, seed=self.seed)
            studies, left_out = self._with_masking(studies, models, many)
        found = findings(studies)
        with stages(console) as stage:
            stage("drawing figures")
            figures, maps = self._draw(models, studies, images)
        found["maps"] = about_maps(maps)
        notes = [
            f"{name_images(images).capitalize()}.",
            *(f"{one.subject.label}: {one.trained.name}, {one.trained.loaded}." for one in models),
        ]
        if many is not None:
            notes.append(f"Accuracy and masking: {name_images(many)}.")
        notes += left_out
        page = write_report(studies, found, figures, notes, self.out / "report.html")
        table = make_table("attention", "top-1, %", "confused pairs, %")
        for study in studies:
            top = "-" if study.masking is None else f"{study.masking.top1:.1f}"
            table.add_row(study.label, study.kind, top, f"{100 * study.confusion.share():.3g}")
        lines = [str(one) for one in found.values()]
        if len(studies) == 1:
            lines.append("One model is described. To compare it, and to hold it against the paper, give two or more.")
        numbers = {
            "models": [study.numbers() for study in studies],
            "findings": {key: asdict(one) for key, one in found.items()},
        }
        self.write("report", {**numbers, **image_facts(images)}, [table], [page, *figures.values()], *lines, *left_out)

    def _label(self, models: list[LoadedModel]) -> list[LoadedModel]:
        if not self.names:
            return models
        if len(self.names) != len(models) or len(set(self.names)) != len(self.names):
            raise ValueError(f"--names must name each of the {len(models)} models once, got {' '.join(self.names)}")
        return [replace(one, subject=replace(one.subject, label=name)) for one, name in zip(models, self.names, strict=True)]

    def _analyse(self, one: LoadedModel, images: AnalyzedImages) -> "ModelAnalysis":
        from ..analysis.confusion import confusion, merge_batches
        from ..analysis.locality import locality, mean_locality
        from ..analysis.model_analysis import ModelAnalysis, kind_of, ray_of
        from ..analysis.rank import mean_rank_stats, rank_stats

        confusions, localities, ranks = [], [], []
        kind, ray = "", None
        for number, seen in enumerate(self.capture(one, images, "report")):
            if number == 0:
                kind, ray = kind_of(seen), ray_of(seen, check_point(self.point), title=one.subject.label)
            confusions.append(confusion(seen))
            localities.append(locality(seen))
            ranks.append(rank_stats(seen))
        parameters = sum(p.numel() for p in one.subject.model.parameters())
        return ModelAnalysis(
            one.subject.label, kind, one.trained.name, parameters, len(images.images), merge_batches(confusions), ray,
            mean_locality(localities), mean_rank_stats(ranks),
        )  # fmt: skip

    def _with_masking(
        self, studies: list["ModelAnalysis"], models: list[LoadedModel], images: AnalyzedImages
    ) -> tuple[list["ModelAnalysis"], list[str]]:
        """The studies with masking, and a line for each model that cannot be masked."""
        found: list[ModelAnalysis] = []
        left_out: list[str] = []
        for study, one in zip(studies, models, strict=True):
            try:
                found.append(replace(study, masking=measure_masking(one, images, (3, 5, 7), 50, self.seed)))
            except ValueError as error:
                found.append(study)
                left_out.append(f"{study.label} is not masked: {error}.")
        return found, left_out

    def _draw(
        self, models: list[LoadedModel], studies: list["ModelAnalysis"], images: AnalyzedImages
    ) -> tuple[dict[str, Path], "Maps"]:
        from ..analysis import map_plots, plots
        from ..analysis.capture import capture_pass
        from ..analysis.maps import one_grid, query_map, rollout

        point, out = check_point(self.point), self.out
        image, _ = choose_image(self.image, images)
        maps: Maps = {}
        rollouts = {}
        for one in models:
            seen = capture_pass(one.subject.model, whole_image(one, image))
            maps[one.subject.label] = [query_map(seen[place], seen[place].place(point)) for place in spread(len(seen))]
            stage = one_grid(seen.layers)
            rollouts[one.subject.label] = rollout(stage, stage[-1].place(point))[0]
        figures = {
            "confusion": plots.draw_confusion({study.label: study.confusion for study in studies}, out / "confusion.png"),
            "maps": map_plots.draw_models(to_draw(image), maps, rollouts, out / "maps.png"),
            "locality": plots.draw_locality({study.label: study.locality for study in studies}, out / "locality.png"),
            "rank": plots.draw_rank({study.label: study.rank for study in studies}, out / "rank.png"),
        }
        rays = [study.ray for study in studies if study.ray is not None]
        if rays:
            figures = {"rays": plots.draw_rays(rays, out / "rays.png"), **figures}
        results = {study.label: study.masking for study in studies if study.masking is not None}
        if results:
            figures["masking"] = plots.draw_masking(results, out / "masking.png")
        return figures, maps
