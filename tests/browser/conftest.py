"""A real browser, without a screen."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: tools/setup.sh tests"
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs another user than root; these pages are ours.
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()
