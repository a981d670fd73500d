"""The report of `inline bench stream`."""

import pytest

from inline_attention.bench.stream import draw, over_plain, per_pixel, rows, sentences


def made_up(size, seconds, held, off):
    return {
        "model": "m",
        "size": size,
        "plain": 100,
        "forward": {"plain": {"best": 0.01, "median": 0.01, "rounds": 5}},
        "stream": {"bands": {"best": seconds, "median": seconds, "rounds": 1}},
        "process": held,
        "difference": off,
    }


RECORDS = [made_up(100, 0.012, 5e8, 2e-7), made_up(1000, 1.5, 2e9, None)]


def test_numbers_by_hand(tmp_path):
    assert per_pixel(RECORDS[0]) == pytest.approx(1.2e-6)
    assert over_plain(RECORDS[0]) == pytest.approx(1.2)
    assert over_plain(RECORDS[1]) == pytest.approx(1.5)
    assert rows(RECORDS) == [
        ["m", "100", "0.0", "1200", "1.20", "0.50", "2e-07"],
        ["m", "1000", "1.5", "1500", "1.50", "2.00", "-"],
    ]
    assert sentences(RECORDS) == [
        "Time per pixel in bands over that of the plain forward pass: at most 1.50 (m at 1000)",
        "Memory of the whole process, GB: at most 2.00 (m at 1000)",
    ]
    draw(RECORDS).savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
