"""Comparing two results: exactly the planted changes are found."""

from copy import deepcopy
from dataclasses import asdict

import pytest

from inline_attention.bench.compare import compare, read, rows, sentences
from inline_attention.bench.models import ModelCase
from inline_attention.bench.result import Result

MACHINE = {"processor": "x", "threads": 2}


def made_up(sizes=(224, 448, 896), machine=MACHINE):
    def record(size):
        case = asdict(ModelCase("a", "b", size, 1, "step"))
        times = {name: {"best": best} for name, best in (("model", 0.1), ("rival", 0.2), ("product", 0.01))}
        return {**case, "step": times, "memory": {}, "errors": {}}

    return Result("models", dict(machine), 1.0, 0, True, [record(size) for size in sizes])


def slowed(result, factors):
    """The same with (place, candidate) so many times as slow."""
    result = deepcopy(result)
    for (place, candidate), factor in factors.items():
        result.records[place]["step"][candidate]["best"] *= factor
    return result


def test_exactly_the_planted_changes_are_found_worst_first():
    planted = {(0, "model"): 1.2, (1, "rival"): 1.5, (2, "model"): 0.5, (2, "rival"): 1.05}
    found = compare(made_up(), slowed(made_up(), planted), 0.1)
    assert [change.candidate for change in found.slower] == ["rival", "model"]
    assert [change.in_products for change in found.slower] == pytest.approx([1.5, 1.2])
    assert "size 448" in found.slower[0].case
    assert [(change.candidate, change.in_products) for change in found.faster] == [("model", pytest.approx(0.5))]
    assert found.unchanged == 3
    assert [row[1:] for row in rows(found)] == [
        ["step", "rival", "200.00", "300.00", "1.50", "1.50"],
        ["step", "model", "100.00", "120.00", "1.20", "1.20"],
        ["step", "model", "100.00", "50.00", "0.50", "0.50"],
    ]
    assert sentences(found) == ["2 slower, 1 faster, 3 within 10 %", "Both were measured on the same machine and versions"]
    assert not compare(made_up(), slowed(made_up(), planted), 0.6).slower


def test_the_order_of_cases_does_not_matter():
    shuffled = made_up()
    shuffled.records.reverse()
    found = compare(made_up(), shuffled, 0.0)
    assert (found.slower, found.faster, found.unchanged) == ([], [], 6)


def test_a_slower_machine_is_not_slower_code():
    everything = {(place, name): 2.0 for place in range(3) for name in ("model", "rival", "product")}
    assert compare(made_up(), slowed(made_up(), everything), 0.1).unchanged == 6
    faster_machine = slowed(made_up(), {(0, "product"): 0.5, (0, "rival"): 0.5})
    assert [change.candidate for change in compare(made_up(), faster_machine, 0.1).slower] == ["model"]


def test_missing_cases_and_different_machines_are_reported():
    after = made_up((448, 896, 1792), {"processor": "y", "threads": 2, "torch": "3"})
    del after.records[0]["step"]["rival"]  # it failed
    found = compare(made_up(), after, 0.1)
    case = "model a, rival b, size {}, batch 1, mode step, compiled False, dtype float32"
    assert found.unchanged == 3
    assert sentences(found) == [
        "0 slower, 0 faster, 3 within 10 %",
        f"Only in the result before: {case.format(224)}",
        f"Only in the result before: {case.format(448)}, step, rival",
        f"Only in the result after: {case.format(1792)}",
        "The machines differ: processor x and y; torch None and 3",
    ]


def test_a_step_without_products_uses_those_of_the_forward_pass(tmp_path):
    def layer(step, products):
        timing = {"forward": {"four products": {"best": products}}, "step": {"softmax": {"best": step}}}
        return Result("layer", MACHINE, 1.0, 0, True, [{"side": 7, "dim": 64, **timing}])

    (change,) = compare(layer(0.1, 0.01), layer(0.3, 0.02), 0.1).slower
    assert (change.kind, change.candidate, change.in_products) == ("step", "softmax", pytest.approx(1.5))


TEXT = made_up().to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '"models"',
        TEXT.replace('"models"', '"nonesuch"'),
        TEXT.replace("size", "side"),
        TEXT.replace('"product"', '"sum"'),
        TEXT.replace('"best"', '"worst"'),
    ],
)
def test_files_that_are_no_results_are_an_error(tmp_path, text):
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"^{file} is no result of `inline bench` that this version can read$"):
        read(file)


def test_results_of_different_benches_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="the results are of two benches: 'models' and 'layer'"):
        compare(made_up(), Result("layer", MACHINE, 1.0, 0, True, []), 0.1)
    with pytest.raises(ValueError, match="there is no file"):
        read(tmp_path / "missing.json")


def test_a_result_is_equal_after_writing_and_reading(tmp_path):
    file = tmp_path / "models.json"
    file.write_text(made_up().to_json())
    assert read(file) == made_up()
