"""The page as people use it, in a real browser. Needs chromium or Chrome; without it the tests say so."""

import io
import re
import shutil
from contextlib import contextmanager
from time import perf_counter

import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright

from .server import running_server

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""What Debian, Ubuntu and Google call it."""
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
expect.set_options(timeout=20_000)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The command, as a user starts and ends it."""
    with running_server(tmp_path_factory.mktemp("uploads"), "inline_deit_nano", "deit_tiny_patch16_224") as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@contextmanager
def visit(browser, address):
    """A fresh visit; a request to another machine, or a script error, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    page = context.new_page()
    elsewhere, errors = [], []
    page.on("request", lambda r: elsewhere.append(r.url) if not r.url.startswith((address, "data:", "blob:", "ws:")) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    expect(page.locator("#map0 img")).to_be_visible(timeout=30_000)
    yield page
    context.close()
    assert not errors
    assert not elsewhere, "the page works without internet"


@pytest.fixture(scope="module")
def page(browser, address):
    """One visit for the tests that follow each other on it: loading the page takes seconds."""
    with visit(browser, address) as opened:
        yield opened


@pytest.fixture
def fresh_page(browser, address):
    with visit(browser, address) as opened:
        yield opened


def shown(page, place=0):
    """The image that the page shows now, as a browser fetched it."""
    source = page.locator(f"#map{place} img").get_attribute("src")
    return source, Image.open(io.BytesIO(page.request.get(source, max_retries=3).body())).convert("RGB")


def wait_for_another(page, source, place=0):
    expect(page.locator(f"#map{place} img")).not_to_have_attribute("src", source, timeout=20_000)


def type_number(page, slider, number, answer, text):
    """Type a slider's value until the page answers it: a tab that has just opened sets its sliders once more."""
    for timeout in (5_000, 10_000, 60_000):
        slider.fill(number)
        slider.press("Enter")
        try:
            expect(page.locator(answer)).to_contain_text(text, timeout=timeout)
        except AssertionError:
            continue
        return
    expect(page.locator(answer)).to_contain_text(text)


def toast(page):
    return page.locator(".toast-body").first


def test_the_page_opens_with_an_answer(page):
    expect(page.locator("#words0")).to_contain_text("Layer 1 of 6 (inline, 14 x 14 tokens), mean of 4 heads.")
    expect(page.locator("#words0")).to_contain_text("Untrained")
    expect(page.locator("#words1")).to_contain_text("Layer 1 of 12 (softmax, 14 x 14 tokens), mean of 3 heads.")
    expect(page.locator("#kernel0 img")).to_be_visible()
    expect(page.locator("#rays img")).to_be_visible()
    assert page.locator("#place2").is_hidden()


def test_a_click_moves_the_query_and_answers_soon(page):
    """The point is where the click was. The tests beside this one take a core: a second is held by the page's own answer."""
    image = page.locator("#image img")
    box = image.bounding_box()
    source, _ = shown(page)
    image.click(position={"x": box["width"] * 0.2, "y": box["height"] * 0.8})
    wait_for_another(page, source)
    down = float(page.locator("#down input[type=number]").input_value())
    across = float(page.locator("#across input[type=number]").input_value())
    assert (down, across) == pytest.approx((0.8, 0.2), abs=0.03)
    times = []
    for share in (0.3, 0.4, 0.5, 0.6, 0.7):
        source, _ = shown(page)
        start = perf_counter()
        image.click(position={"x": box["width"] * share, "y": box["height"] * 0.4})
        wait_for_another(page, source)
        times.append(perf_counter() - start)
    assert min(times) < 4, times


def test_samples_and_sliders(page):
    source, _ = shown(page)
    page.locator("#samples label", has_text="portrait").click()
    wait_for_another(page, source)
    words = page.locator("#words0")
    type_number(page, page.locator("#layer input[type=number]"), "4", "#words0", "Layer 4 of 6")
    before = words.inner_text()
    page.locator("#head input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    expect(words).not_to_have_text(before, timeout=20_000)
    page.locator("#part label", has_text="local").click()
    expect(page.locator("#words1")).to_contain_text("It has no local part", timeout=20_000)
    page.locator("#part label", has_text="all layers").click()
    expect(page.locator("#words1")).to_contain_text("Strongest at", timeout=20_000)


def test_times_grow_with_the_size(page):
    page.get_by_role("tab", name=re.compile("Time")).click()
    slider = page.locator("#largest input[type=number]")
    type_number(page, slider, "192", "#timed", "At 192 pixels a side: inline_deit_nano")
    expect(page.locator("#times img")).to_be_visible()


def test_models_are_chosen_by_name(fresh_page):
    page = fresh_page
    box = page.locator("#models input")
    box.fill("inline_pvt_nano")
    box.press("Enter")
    expect(page.locator("#place2")).to_be_visible(timeout=30_000)
    expect(page.locator("#words2")).to_contain_text("(inline, 56 x 56 tokens)", timeout=30_000)
    box.fill("/etc/passwd")
    box.press("Enter")
    expect(toast(page)).to_contain_text("/etc/passwd is neither a run of this page nor a model", timeout=20_000)


def upload(page, name, data):
    page.locator("#image button[aria-label='Clear'], #image button[aria-label='Remove Image']").first.click()
    page.locator("#image input[type=file]").set_input_files({"name": name, "mimeType": "image/png", "buffer": data})


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_uploads(fresh_page):
    """An image of one's own; a large one is resized; a file that is no image is refused."""
    page = fresh_page
    source, _ = shown(page)
    upload(page, "mine.png", png(Image.new("RGB", (300, 200), (200, 30, 30))))
    wait_for_another(page, source)
    _, found = shown(page)
    assert found.width / found.height == pytest.approx(1.5, abs=0.01), "as it is"
    upload(page, "large.png", png(Image.new("RGB", (3000, 2000), (30, 200, 30))))
    expect(page.locator("#note")).to_contain_text("3,000 x 2,000 pixels were made 1,024 x 683.", timeout=30_000)
    upload(page, "no.png", b"no image at all")
    expect(toast(page)).to_contain_text("not an image that can be read", timeout=30_000)


def test_an_image_that_is_too_large(page):
    upload(page, "huge.png", png(Image.new("L", (10_000, 10_000), 200)))
    expect(toast(page)).to_contain_text("10,000 x 10,000 pixels are more than this page takes", timeout=60_000)


def test_a_narrow_screen_shows_everything_below_each_other(browser, address, tmp_path):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    visit = context.new_page()
    visit.goto(address)
    expect(visit.locator("#map1 img")).to_be_visible(timeout=30_000)
    assert visit.evaluate("document.documentElement.scrollWidth") <= 391, "nothing sticks out"
    boxes = [visit.locator(f"#map{place}").bounding_box() for place in range(2)]
    assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    context.close()


@pytest.mark.slow
def test_two_visitors_get_their_own_answers(browser, address):
    contexts = [browser.new_context(viewport={"width": 1280, "height": 1000}) for _ in range(2)]
    visits = [context.new_page() for context in contexts]
    for visit in visits:
        visit.goto(address)
        expect(visit.locator("#map0 img")).to_be_visible(timeout=30_000)
    sources = [shown(visit)[0] for visit in visits]
    for visit, name in zip(visits, ("temple", "portrait"), strict=True):
        visit.locator("#samples label", has_text=name).click()
    for visit, source in zip(visits, sources, strict=True):
        wait_for_another(visit, source)
    first, second = (shown(visit)[1] for visit in visits)
    assert first.tobytes() != second.tobytes()
    for context in contexts:
        context.close()


def test_the_server_fetches_nothing_for_a_visitor(browser, address):
    """A question that names an image elsewhere is refused before the page sees it."""
    context = browser.new_context()
    asked = {
        "data": [{"path": "http://10.0.0.1/a.png", "meta": {"_type": "gradio.FileData"}}],
        "fn_index": 0,
        "session_hash": "x",
    }
    answered = context.request.post(f"{address}gradio_api/queue/join", data=asked)
    assert answered.status == 400
    assert "uploads only" in answered.text()
    context.close()
