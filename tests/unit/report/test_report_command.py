"""``joulewise report``: what it prints, what it writes and where, and what it says when it cannot."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from joulewise import ledger
from joulewise.cli.main import app
from joulewise.errors import EnvironmentFault, UserError
from sample_run import sample_run
from synthetic_table import row, table


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders that stand for runs, read as the sample run; the list of what was read comes third."""
    read = []

    def load(paths):
        read.append([Path(path) for path in paths])
        return sample_run(6)

    monkeypatch.setattr(ledger, "load", load)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b", read


def report(*arguments):
    return CliRunner().invoke(app, ["report", *(str(a) for a in arguments)])


def test_tables_and_a_page_in_the_run_folder(folders):
    done = report(folders[0])
    assert done.exit_code == 0, done.output
    assert "Savings against vanilla" in done.stdout
    assert "<html" in (folders[0] / "report.html").read_text()
    assert "report.html" in done.stderr


def test_the_page_of_several_runs_lies_here(folders, tmp_path):
    done = report(folders[0], folders[1])
    assert done.exit_code == 0
    assert (tmp_path / "joulewise-report.html").exists()
    assert f"Page: {tmp_path / 'joulewise-report.html'}" in done.stderr
    assert not (folders[0] / "report.html").exists()


def test_a_run_named_twice_counts_once(folders):
    assert report(folders[0], f"{folders[0]}/../a").exit_code == 0
    assert len(folders[2][0]) == 1
    assert (folders[0] / "report.html").exists()


def test_json_alone(folders):
    done = report(folders[0], "--json", "--price-per-kwh", "0.3", "--currency", "EUR")
    data = json.loads(done.stdout)
    assert (data["price_per_kwh"], data["currency"]) == (0.3, "EUR")
    assert len(data["savings"]) == 9
    assert not (folders[0] / "report.html").exists()


def test_json_and_a_page(folders, tmp_path):
    done = report(folders[0], "--json", "--html", tmp_path / "x.html", "--without-polluted")
    assert json.loads(done.stdout)["without_polluted"] is True
    assert "<html" in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_the_tables_stand_and_it_says_what_to_install(folders, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    done = report(folders[0])
    assert done.exit_code == 0
    assert "Savings against vanilla" in done.stdout
    assert missing in done.stderr
    assert "pip install 'joulewise[report]'" in done.stderr
    assert not (folders[0] / "report.html").exists()


def test_a_page_that_was_asked_for_and_cannot_be_made_is_a_fault(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = report(folders[0], "--html", "x.html")
    assert isinstance(done.exception, EnvironmentFault)


def test_a_page_that_cannot_be_written_names_the_place(folders, tmp_path):
    done = report(folders[0], "--html", tmp_path / "none" / "x.html")
    assert isinstance(done.exception, EnvironmentFault)
    assert "none/x.html" in str(done.exception)
    assert "--html" in str(done.exception)


def test_what_is_no_run_folder_is_refused(tmp_path):
    done = report(tmp_path)
    assert isinstance(done.exception, UserError)
    assert "not a run folder" in str(done.exception)


def test_markdown_and_latex_instead_of_the_page(folders, tmp_path):
    done = report(folders[0], "--markdown", tmp_path / "x.md", "--latex", tmp_path / "x.tex")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x.md").read_text().startswith("# Joulewise report")
    assert "\\toprule" in (tmp_path / "x.tex").read_text()
    assert not (folders[0] / "report.html").exists()


@pytest.mark.parametrize(
    ("option", "start"), [("--markdown", "# Joulewise"), ("--latex", "% Made"), ("--html", "<!doc")]
)
def test_a_dash_is_standard_output_and_nothing_else_is_printed_there(folders, option, start):
    done = report(folders[0], option, "-")
    assert done.stdout.startswith(start)
    assert "━" not in done.stdout
    assert done.exit_code == 0


@pytest.mark.parametrize("options", [("--json", "--markdown", "-"), ("--latex", "-", "--html", "-")])
def test_two_outputs_do_not_share_standard_output(folders, options):
    done = report(folders[0], *options)
    assert isinstance(done.exception, UserError)
    assert "would both go to standard output" in str(done.exception)


def test_a_currency_without_a_price_is_refused_with_the_way_out(folders):
    done = report(folders[0], "--currency", "EUR")
    assert isinstance(done.exception, UserError)
    assert "--price-per-kwh" in str(done.exception)


@pytest.mark.parametrize("option", ["--markdown", "--latex"])
def test_tables_that_cannot_be_written_name_the_place(folders, tmp_path, option):
    done = report(folders[0], option, tmp_path / "none" / "x")
    assert isinstance(done.exception, EnvironmentFault)
    assert "none/x" in str(done.exception)
    assert option in str(done.exception)


def test_a_negative_price_is_refused(folders):
    assert report(folders[0], "--price-per-kwh", "-1").exit_code == 2


def test_importing_the_command_loads_nothing_heavy():
    import subprocess

    code = "import sys, joulewise.cli.report; print(*{'numpy', 'pyarrow', 'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("text", ["", "0", "1,", "1,x", "-1", "1.5"])
def test_k_that_are_no_numbers(folders, text):
    done = report(folders[0], "--pass-at", text)
    assert isinstance(done.exception, UserError)
    assert "give whole numbers from 1 on" in str(done.exception)


def test_k_of_a_run_without_programs(folders):
    done = report(folders[0], "--pass-at", "1, 3", "--json")
    assert isinstance(done.exception, UserError)
    assert "--pass-at is about programs" in str(done.exception)
    assert json.loads(report(folders[0], "--json").stdout)["pass_at_k"] == []


def test_k_of_a_run_with_programs(folders, monkeypatch):
    rows = [
        row(task="humaneval", metric="tests_passed", repeat=i, correct=i == 0, score=float(i == 0), output_hash=h)
        for i, h in enumerate("abc")
    ]
    monkeypatch.setattr(ledger, "load", lambda _: table(rows))
    (found,) = json.loads(report(folders[0], "--pass-at", "1, 3", "--json").stdout)["pass_at_k"]
    assert [k for k, _ in found["at"]] == [1, 3]
