"""`inline export --format hub`: a folder that timm loads, with a model card from what the run recorded; uploaded if asked."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import prepare_folder
from .export import facts_of, print_rows

if TYPE_CHECKING:
    from ..training.trained import Trained
    from .export import Export


def export_hub(asked: "Export", trained: "Trained") -> None:
    """Write the folder, upload it if asked, tell."""
    from ..deploy.card import Facts, model_card
    from ..deploy.hub import FILES, push_to_hub, save_for_hub
    from ..models.counting import count

    if "swap" in trained.arguments:
        raise ValueError(f"{asked.model} has another attention than timm makes of {trained.name}: a hub folder cannot say so")
    folder = asked.out or Path(f"{trained.name}-hub")
    told = facts_of(trained)
    name, arguments, classes, data = (told[key] for key in ("model", "arguments", "classes", "data"))
    facts = Facts(
        name, arguments, classes, data, count(trained.model, trained.data.size), repo=asked.push, **recorded(Path(asked.model))
    )
    prepare_folder(folder.parent)
    save_for_hub(trained.model, folder, name=name, arguments=arguments, classes=classes, data=data, card=model_card(facts))
    address = None
    if asked.push is not None:
        try:
            address = push_to_hub(folder, asked.push, private=asked.private)
        except ValueError as error:
            later = f"hf upload {asked.push} {shlex.quote(str(folder))}"
            raise ValueError(f"{error}; the folder is written, `{later}` uploads it") from error
    sizes = {file: (folder / file).stat().st_size for file in FILES}
    if asked.json:
        print(json.dumps({"format": "hub", "folder": str(folder), **told, "bytes": sizes, "address": address}, indent=1))
        return
    print(f"{trained.name}: {trained.said}" + ("" if trained.trained else "; its weights were drawn, not learned"))
    print_rows({"folder": str(folder), **{file: f"{size:,} bytes" for file, size in sizes.items()}})
    if address is not None:
        print(f"Uploaded: {address}")
    where = f"hf-hub:{asked.push}" if asked.push else f"local-dir:{folder}"
    print(f"Load it: import inline_attention, timm; timm.create_model({where!r}, pretrained=True)")


def recorded(run: Path) -> dict[str, Any]:
    """What the folder of a run says of how its weights came about and how good they are; nothing for anything else."""
    from ..training.run_folder import RunFolder

    if not (run / "recipe.toml").is_file():
        return {}
    found: dict[str, Any] = {"recipe": asdict(RunFolder(run).recipe())}
    for name in ("result", "environment"):
        path = run / f"{name}.json"
        try:
            found[name] = json.loads(path.read_text()) if path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{path} cannot be read as JSON, perhaps it is truncated: {error}") from error
    return found
