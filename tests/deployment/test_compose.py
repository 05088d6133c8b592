"""The compose files: valid by the Compose specification, and what they name exists - files, settings, subcommands, profiles."""

import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "docker"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml") if "services:" in path.read_text())


@pytest.fixture(scope="module", params=FILES)
def compose(request):
    return yaml.safe_load((FOLDER / request.param).read_text())


def environment_of(service):
    given = service.get("environment") or {}
    return dict(line.split("=", 1) for line in given) if isinstance(given, list) else given


def own(compose):
    """The services that run the program, by name."""
    return {name: it for name, it in compose["services"].items() if it["image"].startswith("sparsetune:")}


def test_there_is_one_to_begin_with():
    assert "compose.yaml" in FILES


@pytest.mark.parametrize("name", FILES)
def test_a_compose_file_follows_the_specification(name):
    tool = pathlib.Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run([tool, "--builtin-schema", "vendor.compose-spec", FOLDER / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_service_builds_and_mounts_is_there(compose):
    for service in compose["services"].values():
        if "build" in service:
            context = (FOLDER / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file()
            assert set(service["build"].get("args", {})) <= set(
                re.findall(r"^ARG (\w+)", (context / service["build"]["dockerfile"]).read_text(), re.MULTILINE)
            )
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            assert (FOLDER / source).exists() if source.startswith(".") else source in compose["volumes"]


def test_every_setting_is_one_of_the_program(compose, root):
    known = tomllib.loads((root / "config/default.toml").read_text())
    for name, service in own(compose).items():
        for key in environment_of(service):
            if key.startswith("SPARSETUNE_"):
                section, _, setting = key.removeprefix("SPARSETUNE_").lower().partition("__")
                assert setting in known[section], f"{name}: {key}"


def test_the_program_takes_what_it_is_started_with(compose, program):
    for name, service in own(compose).items():
        words = [str(word) for word in service.get("command", ["serve"])]
        done = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_without_a_profile_no_gpu_is_asked_for(compose):
    for name, service in compose["services"].items():
        if "nvidia" in str(service.get("deploy", "")):
            assert service.get("profiles"), name
    assert any(not service.get("profiles") for service in own(compose).values())


def test_no_two_services_of_one_start_take_the_same_port(compose):
    """Those without a profile, and those of each profile alone, where it is not said to name the service."""
    ports = [port for service in compose["services"].values() if not service.get("profiles") for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))
    assert all(port.startswith("127.0.0.1:") for service in compose["services"].values() for port in service.get("ports", []))


def test_a_service_depends_on_what_starts_with_it(compose):
    services = compose["services"]
    for name, service in services.items():
        for other in service.get("depends_on", []):
            wanted = set(services[other].get("profiles") or service.get("profiles") or [])
            assert wanted <= set(service.get("profiles") or wanted), f"{name} on {other}"
            conditions = service["depends_on"]
            if isinstance(conditions, dict) and conditions[other].get("condition") == "service_healthy":
                assert services[other].get("healthcheck"), f"{other} has no health check"
