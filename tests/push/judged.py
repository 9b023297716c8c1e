"""All findings about a node, of the machine and of one engine, as tests hold them against a survey."""

from __future__ import annotations

from bench.push.node_findings import Need, PreflightFinding, judge_engine, judge_machine, stops_first
from bench.push.node_survey import Survey


def judge(survey: Survey, need: Need) -> list[PreflightFinding]:
    return stops_first([*judge_machine(survey, need), *judge_engine(survey, need)])
