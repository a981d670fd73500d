"""The files around the code agree with it: citation, workflow, pre-commit, make targets."""

import ast
import re
import sys
from pathlib import Path

import yaml

import inline_attention
from inline_attention.cli.main import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z]+):.*##", MAKEFILE, flags=re.MULTILINE))


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_of_this_version_and_prefers_the_paper():
    citation = read_yaml("CITATION.cff")
    assert citation["version"] == inline_attention.__version__
    paper = citation["preferred-citation"]
    assert paper["title"] == "Bridging the Divide: Reconsidering Softmax and Linear Attention"
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in (ROOT / "README.md").read_text()


def test_the_only_address_of_the_project_is_the_papers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"] == {"Paper": read_yaml("CITATION.cff")["preferred-citation"]["url"]}
    assert project["authors"] == [{"name": "inline-attention contributors"}]


def test_a_missing_module_is_looked_up_in_the_extra_that_has_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    imported = {"scikit-learn": "sklearn", "openslide-python": "openslide"}
    declared = {
        imported.get(name, name).replace("-", "_"): extra
        for extra in ("train", "dense", "bags", "large", "onnx", "openvino", "explore")
        for name in (re.split(r"[<>=\[]", line)[0] for line in extras[extra])
        if name not in ("inline-attention", "openslide-bin")
    }
    assert declared == EXTRAS


def test_the_workflow_and_the_ci_script_run_make_targets():
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    commands = [step.get("run", "") for job in jobs for step in job["steps"]]
    run = {word for command in commands for word in re.findall(r"^make (\w+)", command)}
    assert run == set(re.findall(r"^make (\w+)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE))
    assert run == {"check", "site", "test"}
    assert run <= TARGETS


def test_the_slow_tests_run_every_week():
    workflow = read_yaml(".github/workflows/slow.yml")
    (job,) = workflow["jobs"].values()
    assert "make slow" in [step.get("run") for step in job["steps"]]
    (schedule,) = workflow[True]["schedule"]  # YAML reads the key `on` as true
    minute, hour, day, month, weekday = schedule["cron"].split()
    assert (day, month) == ("*", "*")
    assert all(field.isdigit() for field in (minute, hour, weekday))


def test_the_workflow_installs_the_browser_that_the_tests_look_for():
    tests = (ROOT / "tests" / "explorer" / "test_browser.py").read_text()
    names = ast.literal_eval(re.search(r"^NAMES = (\(.*\))$", tests, flags=re.MULTILINE)[1])
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.search(r"apt-get install --yes (\S+)", workflow)[1] in names


def test_the_oldest_python_is_the_supported_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (matrix,) = (
        job["strategy"]["matrix"]["python"]
        for job in read_yaml(".github/workflows/ci.yml")["jobs"].values()
        if "strategy" in job
    )
    assert project["requires-python"] == f">={matrix[0]}"


def test_pre_commit_has_the_tools_of_make_check():
    (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
    hooks = {re.search(r"\.venv/bin/(ruff check|ruff format|mypy)", hook["entry"])[1] for hook in repository["hooks"]}
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)[1]
    assert hooks == set(re.findall(r"\$\(BIN\)/(ruff check|ruff format|mypy)", check))


def test_the_documented_make_targets_exist():
    for page in ("README.md", "CONTRIBUTING.md"):
        commands = re.findall(r"^make (\w+)|`make (\w+)`", (ROOT / page).read_text(), flags=re.MULTILINE)
        assert {first or second for first, second in commands} <= TARGETS
