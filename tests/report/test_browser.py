"""The page in a real browser."""

from __future__ import annotations

import shutil

import pytest

from vgrpo_report.commands import write

pytestmark = pytest.mark.slow
pytest.importorskip("selenium")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium and chromedriver are not on the path", allow_module_level=True)


@pytest.fixture
def browser():
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    options.binary_location = shutil.which("chromium")
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def resize(browser, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def visible(browser, query):
    return [each for each in browser.find_elements("css selector", query) if each.is_displayed()]


def test_the_slider_changes_pictures_the_toggle_changes_the_axis_and_it_fits(browser, made, painted, tmp_path):
    from selenium.webdriver.common.keys import Keys

    folders = made("first"), made("second", done=2, wanted=9)
    for folder in folders:
        for at in (0, 2, 4)[: 3 if folder.name == "first" else 2]:
            painted(folder, at, ["one" * 90, "<b>two</b>"])
    write(folders, tmp_path / "page.html")
    browser.get((tmp_path / "page.html").as_uri())
    slider = browser.find_element("id", "moment")
    shown = lambda: [image.get_attribute("data-at") for image in visible(browser, "#gallery img[data-at]")]  # noqa: E731
    sources = lambda: [image.get_attribute("src") for image in visible(browser, "#gallery img[data-at]")]  # noqa: E731
    assert shown() == ["4", "2"] * 2
    last = sources()
    slider.send_keys(Keys.HOME)
    assert shown() == ["0"] * 4
    assert browser.find_element("id", "moment-shown").text == "0"
    assert all(image.get_property("naturalWidth") > 0 for image in visible(browser, "#gallery img"))
    slider.send_keys(Keys.ARROW_RIGHT)
    assert shown() == ["2"] * 4
    slider.send_keys(Keys.END)
    assert sources() == last

    lines = lambda: {each.get_attribute("id") for each in visible(browser, "#curves g[id$='.held']")}  # noqa: E731
    assert lines() == {"x-iteration.ocr.0.held", "x-iteration.ocr.1.held"}
    browser.find_element("css selector", "input[value=iteration]").send_keys(Keys.ARROW_RIGHT)
    assert lines() == {"x-evaluations.ocr.0.held", "x-evaluations.ocr.1.held"}
    assert visible(browser, "g[id='x-evaluations.ocr.0.held'] use")  # their shape is defined in a group that is hidden now

    for width in (360, 1400):
        resize(browser, width)
        for details in browser.find_elements("tag name", "details"):
            browser.execute_script("arguments[0].open = true", details)
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.get_log("browser") == []
