"""`torch.hub.load` where the package is not installed: it is found beside hubconf.py."""

import json
import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path

import timm

import inline_attention

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]

PROGRAM = """
import importlib.util, json, os, sys
sys.path.append(sys.argv[1])  # of site-packages, without its .pth files, which name the package's folder
assert importlib.util.find_spec("inline_attention") is None
import torch
folder, here = sys.argv[2:]
sys.modules["timm"] = None  # as if it were missing
try:
    torch.hub.load(folder, "inline_deit_tiny", source="local")
except RuntimeError as error:
    missing = str(error)
del sys.modules["timm"]
model = torch.hub.load(folder, "inline_deit_tiny", source="local", num_classes=10, depth=1)
from safetensors.torch import save_file
whole = torch.hub.load(folder, "inline_deit_tiny", source="local", pretrained=False)
save_file(whole.state_dict(), here + "/inline_deit_tiny.safetensors")
os.environ["INLINE_WEIGHTS"] = here
trained = torch.hub.load(folder, "inline_deit_tiny", source="local", pretrained=True)
torch.hub.set_dir(here)  # where a download from GitHub would be
os.symlink(folder, here + "/me_inline_main")
print(json.dumps({
    "missing": missing,
    "classes": model.num_classes,
    "depths": model.depths(),
    "same": all(map(torch.equal, trained.state_dict().values(), whole.state_dict().values())),
    "names": torch.hub.list("me/inline:main", trust_repo=True),
    "help": torch.hub.help("me/inline:main", "inline_swin_tiny", trust_repo=True),
    "downloaded": torch.hub.load("me/inline:main", "inline_swin_nano", trust_repo=True).num_classes,
    "file": sys.modules["inline_attention"].__file__,
    "left": [path for path in sys.path if path in (folder, folder + "/src")],
}))
"""


def test_every_model_loads_where_the_package_is_not_installed(tmp_path):
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, sysconfig.get_path("purelib"), str(ROOT), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["missing"] == "Missing dependencies: timm"
    assert (said["classes"], said["depths"]) == (10, [1])
    assert said["same"]
    assert said["names"] == sorted(timm.list_models("inline_*"))
    assert said["help"].startswith("InLine-Swin-T")
    assert "pretrained: load the published weights" in said["help"]
    assert said["downloaded"] == 1000
    assert Path(said["file"]).samefile(inline_attention.__file__)
    assert said["left"] == []


def test_the_dependencies_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.split(r"[<>=]", line)[0].replace("-", "_") for line in project["dependencies"]]
    assert runpy.run_path(str(ROOT / "hubconf.py"))["dependencies"] == needed
