"""What times a stranger's ways in does walk them, and tells apart what counts."""

import importlib.util
import json
import subprocess
import sys


def script(root):
    spec = importlib.util.spec_from_file_location("stranger", root / "scripts/stranger.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_command_is_the_readmes(root):
    assert script(root).first_command() == ["cargo", "run", "--release", "--", "quickstart"]


def test_builds_are_told_apart(root):
    watch = script(root).Watch("clone", "from a clone")
    watch.add("the build", False, 300.0)
    watch.leave_out("another", "left out")
    watch.add("quickstart", True, 2.0)
    assert watch.total == 2.0
    table = script(root).table({"paths": [watch.told()]})
    assert "| the build (not counted) | 300.0 |" in table and "| another (not counted) | not run |" in table
    assert "| **from a clone** | **2.0** |" in table


def test_the_page_leads_to_a_plan_that_runs(root, program, tmp_path):
    """By the page's requests: tests/browser drives it. Nothing is built or fetched."""
    report = tmp_path / "report.json"
    command = [sys.executable, root / "scripts/stranger.py", "--paths", "page", "--browser", "no", "--program", program, "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = json.loads(report.read_text())["paths"]
    assert [step["step"] for step in path["steps"]][-1].startswith("bundle run") and path["seconds"] > 0
    assert "not run" not in done.stdout and path["what"] in done.stdout
