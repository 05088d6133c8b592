"""The manifests: valid by the schemas of Kubernetes, and consistent with each other, with the program and with its settings."""

import pathlib
import subprocess
import sys
import tomllib
import urllib.parse

import kubernetes_validate
import pytest
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "kubernetes"
OBJECTS = [(path.name, it) for path in sorted(FOLDER.glob("*.yaml")) for it in yaml.safe_load_all(path.read_text())]
# The oldest that is still common, and the newest that the package knows.
VERSIONS = ["1.28", kubernetes_validate.latest_version()]


def pods():
    return [(it["metadata"]["name"], it) for _, it in OBJECTS if it["kind"] in ("Deployment", "DaemonSet")]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "it"), OBJECTS, ids=[f"{name}:{it['kind']}" for name, it in OBJECTS])
def test_an_object_follows_its_schema(name, it, version):
    kubernetes_validate.validate(it, version, strict=True)


def test_a_mistake_would_be_found():
    _, deployment = pods()[0]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**deployment, "spec": {**deployment["spec"], "replica": 3}}, VERSIONS[-1], strict=True)


def test_everything_is_in_one_namespace():
    assert {it["metadata"].get("namespace", it["metadata"]["name"]) for _, it in OBJECTS} == {"sparsetune"}


def test_selectors_find_the_pods():
    labels = {name: it["spec"]["template"]["metadata"]["labels"] for name, it in pods()}
    for name, it in pods():
        assert it["spec"]["selector"]["matchLabels"] == labels[name]
    for _, it in OBJECTS:
        if it["kind"] in ("Service", "PodDisruptionBudget"):
            wanted = it["spec"]["selector"].get("matchLabels", it["spec"]["selector"])
            assert [name for name, has in labels.items() if wanted.items() <= has.items()] == ["sparsetune-server"]


def test_probes_and_ports_are_those_of_the_program(root):
    paths = yaml.safe_load((root / "openapi.yaml").read_text())["paths"]
    container = dict(pods())["sparsetune-server"]["spec"]["template"]["spec"]["containers"][0]
    asked = [container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [one["path"] for one in asked] == ["/healthz", "/healthz", "/readyz?for=requests"]
    for one in asked:
        path, _, query = one["path"].partition("?")
        known = {it["name"]: it["schema"]["enum"] for it in paths[path]["get"].get("parameters", [])}
        # Traffic must not depend on workers, whose nodes may be scaled to nothing.
        assert all(value in known[name] for name, value in urllib.parse.parse_qsl(query))
    assert {one["port"] for one in asked} == {port["name"] for port in container["ports"]} == {"http"}
    assert container["args"][container["args"].index("--listen") + 1].endswith(f":{container['ports'][0]['containerPort']}")


def test_every_setting_is_one_of_the_program(root):
    known = tomllib.loads((root / "config/default.toml").read_text())
    keys = [key for _, it in OBJECTS if it["kind"] in ("Secret", "ConfigMap") for key in it.get("data", it.get("stringData"))]
    keys += [one["name"] for _, it in pods() for one in it["spec"]["template"]["spec"]["containers"][0].get("env", [])]
    for key in keys:
        if key.startswith("SPARSETUNE_"):
            section, _, setting = key.removeprefix("SPARSETUNE_").lower().partition("__")
            assert setting in known[section], key


def test_the_program_takes_its_arguments(program):
    for name, it in pods():
        words = it["spec"]["template"]["spec"]["containers"][0]["args"]
        done = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_what_pods_refer_to_is_there(root):
    there = {(it["kind"], it["metadata"]["name"]) for _, it in OBJECTS}
    for _, it in pods():
        spec = it["spec"]["template"]["spec"]
        container = spec["containers"][0]
        for source in container["envFrom"]:
            kind = "ConfigMap" if "configMapRef" in source else "Secret"
            assert (kind, next(iter(source.values()))["name"]) in there
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
        user = next(line.split()[1] for line in (root / "docker/Dockerfile.cpu").read_text().splitlines() if line.startswith("USER "))
        assert str(spec["securityContext"]["runAsUser"]) == user


def test_there_is_time_to_end(root):
    """The program gives its jobs back within server.shutdown_s; the grace period is longer, with the pause before the signal."""
    shutdown = tomllib.loads((root / "config/default.toml").read_text())["server"]["shutdown_s"]
    for _, it in pods():
        spec = it["spec"]["template"]["spec"]
        pause = int(spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["", "0"])[1])
        assert spec["terminationGracePeriodSeconds"] >= 2 * shutdown + pause


def test_the_files_are_tidy():
    tool = pathlib.Path(sys.executable).with_name("yamllint")
    rules = "{extends: default, rules: {line-length: {max: 170}, document-start: disable, comments: {min-spaces-from-content: 1}, braces: {max-spaces-inside: 1}, truthy: {check-keys: false}}}"
    done = subprocess.run([tool, "--strict", "-d", rules, FOLDER, FOLDER.parent / "docker"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
