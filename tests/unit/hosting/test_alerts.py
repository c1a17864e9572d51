"""Alerts and dashboard name existing metrics, and every alert names the page with the cure.

Prometheus' own `promtool`, where it is there (or named by PROMTOOL), reads the rules too and tries them on made-up
days.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.capabilities import MISSING_PREFIX

ROOT = Path(__file__).parents[3]
RULES = ROOT / "conf" / "prometheus" / "alerts.yml"
BOARD = ROOT / "conf" / "grafana" / "chelonia.json"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
NAME = re.compile(r"\bchelonia_[a-z_]+")

TRIAL = """
rule_files: [{rules}]
tests:
  - interval: 1m
    input_series:
      - {{series: 'chelonia_heal_lost{{instance="lib"}}', values: '0x10 2x20'}}
      - {{series: 'chelonia_heal_leader{{instance="lib"}}', values: '1x30'}}
      - {{series: 'chelonia_certificate_days_left{{instance="lib", what="certificate"}}', values: '30x10 13x20'}}
      - {{series: 'chelonia_certificate_days_left{{instance="lib", what="crl"}}', values: '9x60 4x30'}}
      - {{series: 'chelonia_ahash_writable{{instance="meta"}}', values: '1x30'}}
      - {{series: 'chelonia_ahash_master{{instance="meta"}}', values: '1x60'}}
      - {{series: 'chelonia_ahash_replicas_away{{instance="meta"}}', values: '0x10 1x50'}}
      - {{series: 'chelonia_ahash_master{{instance="cut off"}}', values: '0x60'}}
      - {{series: 'chelonia_ahash_replicas_away{{instance="cut off"}}', values: '2x60'}}
      - {{series: 'chelonia_ahash_free_bytes{{instance="meta"}}', values: '1000000000x30 500000000x60'}}
      - {{series: 'chelonia_shepherds{{instance="lib", state="offline"}}', values: '0x10 1x80'}}
      - {{series: 'chelonia_shepherd_free_bytes{{instance="full"}}', values: '0x90'}}
      - {{series: 'chelonia_shepherd_free_bytes{{instance="half"}}', values: '1000000000x90'}}
    alert_rule_test:
      - {{eval_time: 5m, alertname: CheloniaFilesLost, exp_alerts: []}}
      - {{eval_time: 5m, alertname: CheloniaCertificateEnds, exp_alerts: []}}
      - {{eval_time: 20m, alertname: CheloniaNoMaster, exp_alerts: []}}
      - {{eval_time: 20m, alertname: CheloniaReplicaAway, exp_alerts: []}}
      - {{eval_time: 20m, alertname: CheloniaMetadataDiskSoonFull, exp_alerts: []}}
      - {{eval_time: 35m, alertname: CheloniaShepherdAway, exp_alerts: []}}
      - {{eval_time: 50m, alertname: CheloniaCrlEnds, exp_alerts: []}}
      - eval_time: 40m
        alertname: CheloniaReplicaAway
        exp_alerts:
          - exp_labels: {{severity: warning}}
            exp_annotations:
              summary: "replicas of the A-Hash away: 1; without a majority of them nothing can be written"
              runbook: docs/operate/ahash-replicas.md
      - eval_time: 50m
        alertname: CheloniaMetadataDiskSoonFull
        exp_alerts:
          - exp_labels: {{severity: warning, instance: meta}}
            exp_annotations:
              summary: "500MB are left on the A-Hash's disk on meta; below min_free_bytes it refuses changes"
              runbook: docs/operate/backup-and-restore.md
      - eval_time: 60m
        alertname: CheloniaShepherdAway
        exp_alerts:
          - exp_labels: {{severity: warning}}
            exp_annotations:
              summary: "Shepherds away: 1; their copies are made elsewhere where there is room"
              runbook: docs/operate/when-a-shepherd-dies.md
      - eval_time: 70m
        alertname: CheloniaCrlEnds
        exp_alerts:
          - exp_labels: {{severity: warning, instance: lib}}
            exp_annotations:
              summary: "a CRL on lib ends in 4 days: then everything of its CA is refused"
              runbook: docs/operate/certificates.md
      - eval_time: 75m
        alertname: CheloniaSpaceSoonFull
        exp_alerts:
          - exp_labels: {{severity: warning, instance: full}}
            exp_annotations:
              summary: at the pace of the last six hours full is full within a week
              runbook: docs/operate/when-a-disk-dies.md
      - eval_time: 20m
        alertname: CheloniaFilesLost
        exp_alerts:
          - exp_labels: {{severity: critical}}
            exp_annotations:
              summary: 2 files have no verified copy anywhere
              runbook: docs/operate/what-was-lost.md
"""


def exposed() -> str:
    """The text of all modules that expose metrics, in which each name stands without its prefix or with it."""
    return "".join(path.read_text() for path in (ROOT / "chelonia").rglob("*.py"))


def names_in(text: str) -> set[str]:
    return {name.removesuffix("_total") for name in NAME.findall(text)}


@pytest.mark.parametrize("file", [RULES, BOARD], ids=lambda path: path.name)
def test_every_metric_is_one_that_nodes_expose(file: Path) -> None:
    source = exposed()
    for name in names_in(file.read_text()):
        bare = name.removeprefix("chelonia_")
        family, _, last = bare.partition("_")
        made = f'"{last}"' in source and f'"{family}_{{name}}"' in source  # gauges of one family are named in a loop
        assert f'"{name}"' in source or f'"{bare}"' in source or made, name


def test_every_alert_has_a_runbook_that_is_there() -> None:
    text = RULES.read_text()
    pages = re.findall(r"runbook: (\S+)", text)
    assert len(pages) == text.count("- alert: ") == text.count("summary: ")
    for page in pages:
        assert (ROOT / page).is_file(), page


def test_the_dashboard_is_json_with_a_question_in_every_panel() -> None:
    board = json.loads(BOARD.read_text())
    assert all(panel["targets"] and panel["title"] for panel in board["panels"])


@pytest.mark.skipif(PROMTOOL is None, reason=f"{MISSING_PREFIX} command:promtool: Debian has it in `prometheus`")
def test_promtool_reads_the_rules_and_they_fire_as_meant(tmp_path: Path) -> None:
    trial = tmp_path / "trial.yml"
    trial.write_text(TRIAL.format(rules=RULES))
    for words in (("check", "rules", str(RULES)), ("test", "rules", str(trial))):
        ran = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
