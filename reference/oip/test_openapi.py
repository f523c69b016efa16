"""`schemathesis` makes requests up from our OpenAPI, right ones and wrong ones, and compares the answers with it."""

import json
import subprocess
import sys
import urllib.request

import pytest
import tritonclient.http

from conftest import MODEL

OWNER = "Bearer owner-token"
NAMES = {"model": [MODEL], "stream": ["cam-1", "cam-2"]}

# Requests that the description allows may be refused all the same: values have to fit shapes, and streams to be there.
LEFT_OUT = "positive_data_acceptance"


@pytest.mark.parametrize("port", ["rest", "admin"])
def test_answers_are_as_described(guarded, images, tmp_path, port):
    given = tritonclient.http.InferInput("images", list(images.shape), "UINT8")
    given.set_data_from_numpy(images)
    with tritonclient.http.InferenceServerClient(guarded.rest) as client:
        for stream in NAMES["stream"]:
            client.infer(MODEL, [given], parameters={"stream": stream}, headers={"authorization": OWNER})
    with urllib.request.urlopen(f"{guarded.admin_url}/openapi.json") as answer:
        description = json.load(answer)
    for path in description["paths"].values():
        for parameter in path.get("parameters", []):
            # What is there is seldom guessed.
            if parameter["name"] in NAMES:
                parameter["schema"] = {"enum": NAMES[parameter["name"]]}
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description))
    url = guarded.rest_url if port == "rest" else guarded.admin_url
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", url, "--include-tag", port]
    # Events are a stream without an end.
    command += ["--exclude-path-regex", "events$", "--exclude-checks", LEFT_OUT, "--max-examples", "25", "--seed", "21"]
    command += ["--generation-database", "none", "--continue-on-failure", "--no-color", "--request-timeout", "60"]
    command += ["--header", f"Authorization: {OWNER}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    print(run.stdout[-20000:])
    assert run.returncode == 0, run.stdout[-20000:] + run.stderr[-2000:]
