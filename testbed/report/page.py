"""report.html: the record for people, in one file that opens offline, and report.md beside it.

The page holds its numbers as text, so it reads without JavaScript; Vega is inlined once and draws the figures.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.errors import SpecError
from testbed.metrics.server import reopen_command
from testbed.record import number_text
from testbed.record.reader import DOCUMENTS, Record
from testbed.record.writer import replace_text
from testbed.report import plots, vega, wording
from testbed.report.drawing import script, write_pictures
from testbed.report.figures import Figure
from testbed.report.markdown import run_markdown

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_LONGEST_DOCUMENT: Final = 100_000
"""Characters: a plan of many nodes has more than all figures together."""
_FIGURES: Final = (plots.utilization, plots.rates, plots.breakdown, plots.timeline, plots.loss, plots.slot_latency)


def write_report(record: Record, *, pictures: bool = False) -> Path:
    """Write, or write again, the record's report.html and report.md, and return the page's path.

    `pictures`: its figures as SVG and PNG too, in `report-figures`, which takes a second or two that runs do without.
    Raises MissingRequirementError.
    """
    figures = record_figures(record)
    page = template("report.html.j2").render(
        record=record,
        summary=record.summary,
        answer=wording.headline(record.summary),
        wording=wording,
        reopen_command=reopen_command(record.path),
        median_iteration=plots.median_iteration(record),
        critical_path=plots.critical_path(record),
        **inlined(figures),
        documents={name.capitalize(): _document(getattr(record, name), f"{name}.json") for name in DOCUMENTS},
    )
    path = record.path / "report.html"
    replace_text(path, page)
    drawn = write_pictures(path, figures) if pictures else []
    replace_text(path.with_suffix(".md"), run_markdown(record.summary, drawn, record.path))
    return path


def _document(content: Mapping[str, Any], file: str) -> str:
    """As text; of one that would make most of the page only where it is."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return text if len(text) <= _LONGEST_DOCUMENT else f"{number_text.size_text(len(text))}: {file} beside this page"


def record_figures(record: Record) -> dict[str, Figure]:
    """Those that the run left something to draw for, by name."""
    return {make.__name__: figure for make in _FIGURES if (figure := make(record)) is not None}


def inlined(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """What a page needs to draw its figures offline: their names, their JSON, and Vega if there are any."""
    drawn = {name: {"spec": vega.on_page(each), "readouts": vega.readouts(each)} for name, each in figures.items()}
    text = json.dumps({"config": vega.PAGE, "figures": drawn}, separators=(",", ":"), allow_nan=False)
    return {
        "figures": set(figures),
        # `</script>` inside a string would end the element that carries it.
        "figures_json": text.replace("<", "\\u003c"),
        "vega_script": script() if figures else "",
    }


def _breakable(text: str) -> "Markup":
    """Names may break into lines before what divides their parts."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(r"(?=[._(,])", text))


def require_page_name(path: Path) -> None:
    """Raise SpecError for a --page that would not be opened as one."""
    if path.suffix != ".html":
        raise SpecError(f"--page {path}: a page's name ends in .html")


def template(name: str) -> Any:
    """A page's template."""
    return _environment().get_template(name)


def _code(text: str) -> "Markup":
    """What stands between backticks as code."""
    from markupsafe import Markup

    parts = re.split("`([^`]+)`", text)  # text and code in turn
    element = Markup("<code>{}</code>")
    return Markup().join(element.format(part) if number % 2 else part for number, part in enumerate(parts))


@cache
def _environment() -> "Environment":
    """With the filters that write numbers for people. It compiles each template once."""
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
        code=_code,
        shaping_accuracy=wording.shaping_accuracy,
        measured_on=wording.measured_on,
        deviation=lambda link: wording.deviation_text(wording.deviation(link)),
    )
    return environment
