"""How pages look: contrast, axes, widths, in both themes."""

import pytest

from queuesmith.report import render_html

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_comparison(comparison, complaints, width, dark):
    assert complaints(render_html(comparison), width, dark) == {}


def test_what_is_wrong_is_seen(comparison, complaints):
    """The check before this one can fail."""
    html = render_html(comparison).replace("--soft: #59636e", "--soft: #a0a0a0")
    html = html.replace(
        "<h2>Leaderboard</h2>", "<h2>`Leader`</h2><p style='min-width:1400px'>wide</p>"
    )

    found = complaints(html)

    assert {"contrast", "backticks", "wide"} <= set(found)
