"""A point of a large image that holds data, near one that is asked for."""

from .large_image import LargeImage

ROWS_AT_ONCE = 256


def check_point_has_data(image: LargeImage, point: tuple[float, float]) -> None:
    """Raise if the pixel at a point, (y, x) as shares of the image's sides, is masked or holds no data."""
    size = (image.height, image.width)
    row, column = (min(int(share * side), side - 1) for share, side in zip(point, size, strict=True))
    if not image.may_lack_data or image.has_data(row, row + 1)[0, column]:
        return
    nearest = nearest_with_data(image, (row, column))
    if nearest is None:
        raise ValueError("the image has no pixel with data that is not masked")
    shares = (f"{(at + 0.5) / side:.{len(str(side))}f}" for at, side in zip(nearest, size, strict=True))
    here, there = " ".join(f"{share:g}" for share in point), " ".join(shares)
    raise ValueError(f"the point {here} holds no data or is masked: the nearest that can be taken is {there}")


def nearest_with_data(image: LargeImage, pixel: tuple[int, int]) -> tuple[int, int] | None:
    """The nearest pixel (row, column) with data that is not masked. Rows around the pixel are read, ever more of them."""
    reach = ROWS_AT_ONCE
    while True:
        found = _nearest_in_rows(image, pixel, max(0, pixel[0] - reach), min(image.height, pixel[0] + reach + 1))
        if found is not None and _distance(found, pixel) <= reach**2:
            return found
        if reach >= image.height:
            return found
        reach *= 4


def _nearest_in_rows(image: LargeImage, pixel: tuple[int, int], first: int, last: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    for start in range(first, last, ROWS_AT_ONCE):
        places = image.has_data(start, min(start + ROWS_AT_ONCE, last)).nonzero()
        if not len(places):
            continue
        places[:, 0] += start
        at = int((places - places.new_tensor(pixel)).square().sum(1).argmin())
        here = (int(places[at, 0]), int(places[at, 1]))
        if best is None or _distance(here, pixel) < _distance(best, pixel):
            best = here
    return best


def _distance(a: tuple[int, int], b: tuple[int, int]) -> int:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
