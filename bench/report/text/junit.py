"""Write a node check as JUnit XML, with a test case for each finding.

A finding that was not run is an error, because most readers of JUnit count a skipped case as a pass. Only
findings that are not possible on this machine are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from bench.base.errors import printable
from bench.base.paths import using
from bench.base.stamps import utc
from bench.node_check.check_results import CheckResults
from bench.node_check.judging.finding import Finding
from bench.report.text.check_summary import node_text

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: CheckResults, host: str | None = None) -> bytes:
    """Make the XML document. `host` is the node's name if it is known; bundles do not hold it."""
    findings = results.findings
    suite = ElementTree.Element(
        "testsuite",
        name="bench check",
        timestamp=utc(results.run.started_at).removesuffix("Z"),
        time=f"{results.run.ended_at - results.run.started_at:.1f}",
        tests=str(len(findings)),
        failures=str(sum(f.verdict == "fail" for f in findings)),
        errors=str(sum(f.verdict == "not-run" and f.counts for f in findings)),
        skipped=str(sum(f.verdict == "not-run" and not f.counts for f in findings)),
    )
    if host is not None:
        suite.set("hostname", _clean(host))
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"node": node_text(results), "level": results.level, "run": results.run.id}
    for name, value in (facts | {"verdict": results.verdict}).items():
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    for finding in findings:
        _case(suite, finding)
    ElementTree.indent(suite)
    data: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data


def _case(suite: ElementTree.Element, finding: Finding) -> None:
    name = f"{finding.subject} ({finding.basis})" if finding.figure else finding.subject
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"bench.{finding.check}", name=_clean(name), time="0"
    )
    message = f"{finding.found}; expected {finding.expected} ({finding.source})"
    match finding.verdict:
        case "fail":
            _child(case, "failure", message, finding.advice)
        case "not-run":
            _child(case, "error" if finding.counts else "skipped", message, finding.advice)
        case "warn":
            ElementTree.SubElement(case, "system-out").text = _clean(f"WARN {message}\n{finding.advice}")


def _child(case: ElementTree.Element, kind: str, message: str, advice: str) -> None:
    ElementTree.SubElement(case, kind, message=_clean(message)).text = _clean(advice)


def _clean(text: str) -> str:
    """Escape the control characters of terminals, and replace the characters that XML forbids."""
    return _NOT_XML.sub("?", printable(text))


def write_junit(path: Path, results: CheckResults, host: str) -> None:
    """Write the document, and the folders above it; EnvironmentCannot if that fails."""
    with using(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(junit(results, host))
