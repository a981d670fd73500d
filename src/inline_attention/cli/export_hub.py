"""`inline export --format hub`: a folder that timm loads, with a model card from the run's records, and its upload."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..lite.decode import first_line
from .arguments import prepare_folder
from .export import facts_of, print_rows

if TYPE_CHECKING:
    from ..training.load_trained import Trained
    from .export import Export


def export_hub(options: "Export", trained: "Trained") -> None:
    """Write the folder, upload it if --push is given, print the result."""
    from ..deploy.card import Facts, model_card
    from ..deploy.hub import FILES, push_to_hub, save_for_hub
    from ..models.counting import count

    if "swap" in trained.arguments:
        raise ValueError(
            f"{options.model} has another attention than timm makes of {trained.name}: a hub folder cannot record that"
        )
    folder = options.out or Path(f"{trained.name}-hub")
    record = facts_of(trained)
    name, arguments, classes, data = (record[key] for key in ("model", "arguments", "classes", "data"))
    facts = Facts(
        name,
        arguments,
        classes,
        data,
        count(trained.model, trained.data.size),
        repo=options.push,
        **run_records(Path(options.model)),
    )
    try:
        card = model_card(facts)
    except (TypeError, ValueError, LookupError, AttributeError) as error:  # what it reads of a run may be damaged
        raise ValueError(f"result.json or environment.json of {options.model} cannot be used: {first_line(error)}") from error
    prepare_folder(folder.parent)
    save_for_hub(trained.model, folder, name=name, arguments=arguments, classes=classes, data=data, card=card)
    address = None
    if options.push is not None:
        try:
            address = push_to_hub(folder, options.push, private=options.private)
        except ValueError as error:
            later = f"hf upload {options.push} {shlex.quote(str(folder))}"
            raise ValueError(f"{error}; the folder is written, `{later}` uploads it") from error
    sizes = {file: (folder / file).stat().st_size for file in FILES}
    if options.json:
        print(json.dumps({"format": "hub", "folder": str(folder), **record, "bytes": sizes, "address": address}, indent=1))
        return
    print(f"{trained.name}: {trained.loaded}" + ("" if trained.trained else "; its weights are random"))
    print_rows({"folder": str(folder), **{file: f"{size:,} bytes" for file, size in sizes.items()}})
    if address is not None:
        print(f"Uploaded: {address}")
    where = f"hf-hub:{options.push}" if options.push else f"local-dir:{folder}"
    print(f"Load it: import inline_attention, timm; timm.create_model({where!r}, pretrained=True)")


def run_records(run: Path) -> dict[str, Any]:
    """Recipe, result and environment of a run's folder, for the model card; nothing for anything else."""
    from ..training.run_folder import RunFolder

    if not (run / "recipe.toml").is_file():
        return {}
    folder = RunFolder(run)
    return {"recipe": asdict(folder.recipe()), "result": folder.record("result"), "environment": folder.record("environment")}
