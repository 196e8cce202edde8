"""report.html: the record for people, in one file that opens offline.

The page holds its numbers as text, so it reads without JavaScript; plotly.js is inlined once and draws the figures.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.metrics.server import reopen_command
from testbed.record import number_text
from testbed.record.reader import Record
from testbed.record.writer import replace_text
from testbed.report import plots, wording

if TYPE_CHECKING:
    from markupsafe import Markup

_FIGURES: Final = (plots.utilization, plots.rates, plots.breakdown, plots.timeline, plots.loss)


def write_report(record: Record) -> Path:
    """Write, or write again, the record's report.html and return its path. Raises MissingRequirementError."""
    figures = {make.__name__: figure for make in _FIGURES if (figure := make(record)) is not None}
    page = template("report.html.j2").render(
        record=record,
        summary=record.summary,
        wording=wording,
        reopen_command=reopen_command(record.path),
        median_iteration=plots.median_iteration(record),
        **inlined(figures),
        documents={
            "Plan": record.plan,
            "Environment": record.environment,
            "Calibration": record.calibration,
        },
    )
    path = record.path / "report.html"
    replace_text(path, page)
    return path


def inlined(figures: Mapping[str, plots.Figure]) -> dict[str, Any]:
    """What a page needs to draw its figures offline: their names, their JSON, and plotly.js if there are any."""
    from plotly.offline import get_plotlyjs

    return {
        "figures": set(figures),
        # `</script>` inside a string would end the element that carries it.
        "figures_json": json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "plotly_js": get_plotlyjs() if figures else "",
    }


def _breakable(text: str) -> "Markup":
    """Names may break into lines before what divides their parts."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(r"(?=[._(,])", text))


def template(name: str) -> Any:
    """A page's template, with the filters that write numbers for people."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("testbed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        time=number_text.time_text,
        rate=number_text.rate_text,
        size=number_text.size_text,
        percent=number_text.percent_text,
        change=wording.change_text,
        digits=number_text.digits,
        breakable=_breakable,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        shaping_accuracy=wording.shaping_accuracy,
        measured_on=wording.measured_on,
        deviation=lambda link: wording.deviation_text(wording.deviation(link)),
        pretty=lambda document: json.dumps(document, indent=2, ensure_ascii=False),
    )
    return environment.get_template(name)
