"""Asks a running Triton and a running `ttac serve` the same things, and prints in Markdown where their answers differ:

    reference/python oip reference/oip/beside.py TRITON-HTTP TRITON-GRPC TTAC-HTTP TTAC-GRPC

Addresses are `HOST:PORT`; `beside` starts both. Both have a model `shapes` with the input `images` UINT8 [n,32,32,3] and the outputs `probabilities`, `class`
and `label`. Compared are statuses and the fields of answers, not their texts or values.
"""

import gzip
import http.client
import json
import sys
import time

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL = "shapes"
VALUES = 32 * 32 * 3


def tensor(name="images", datatype="UINT8", shape=(1, 32, 32, 3), values=VALUES, **more):
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": [7] * values, **more}


def body(*inputs, **more):
    return json.dumps({"inputs": list(inputs) or [tensor()], **more}).encode()


def binary(size, extra=0, **more):
    given = {"name": "images", "datatype": "UINT8", "shape": [1, 32, 32, 3], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [given], **more}).encode()
    return head + bytes(VALUES + extra), {"Inference-Header-Content-Length": str(len(head))}


INFER = f"/v2/models/{MODEL}/infer"
ONE = {"outputs": [{"name": "probabilities"}]}

# What is asked over HTTP: a name, method, path, body and headers.
OVER_HTTP = [
    ("the server", "GET", "/v2", b"", {}),
    ("the server, with a slash", "GET", "/v2/", b"", {}),
    ("whether the server runs", "GET", "/v2/health/live", b"", {}),
    ("whether the server is ready", "GET", "/v2/health/ready", b"", {}),
    ("the model", "GET", f"/v2/models/{MODEL}", b"", {}),
    ("a version of the model", "GET", f"/v2/models/{MODEL}/versions/1", b"", {}),
    ("a version that is not there", "GET", f"/v2/models/{MODEL}/versions/9", b"", {}),
    ("a model that is not there", "GET", "/v2/models/x", b"", {}),
    ("whether the model is ready", "GET", f"/v2/models/{MODEL}/ready", b"", {}),
    ("whether a model is ready that is not there", "GET", "/v2/models/x/ready", b"", {}),
    ("the configuration", "GET", f"/v2/models/{MODEL}/config", b"", {}),
    ("statistics of the model", "GET", f"/v2/models/{MODEL}/stats", b"", {}),
    ("statistics of all models", "GET", "/v2/models/stats", b"", {}),
    ("the repository, empty body", "POST", "/v2/repository/index", b"", {}),
    ("the repository, those that are ready", "POST", "/v2/repository/index", b'{"ready":true}', {}),
    ("to load the model", "POST", f"/v2/repository/models/{MODEL}/load", b"{}", {}),
    ("to load a model that is not there", "POST", "/v2/repository/models/x/load", b"{}", {}),
    ("to unload a model that is not there", "POST", "/v2/repository/models/x/unload", b"{}", {}),
    ("a path that is not there", "GET", "/v3", b"", {}),
    ("log settings", "GET", "/v2/logging", b"", {}),
    ("shared memory", "GET", "/v2/systemsharedmemory/status", b"", {}),
    ("GET of `infer`", "GET", INFER, b"", {}),
    ("predictions, JSON", "POST", INFER, body(), {}),
    ("predictions of nested values", "POST", INFER, body(tensor(data=[[[[7] * 3] * 32] * 32])), {}),
    ("predictions by version 1", "POST", f"/v2/models/{MODEL}/versions/1/infer", body(), {}),
    ("predictions with id and parameters", "POST", INFER, body(id="42", parameters={"sequence_start": False, "mine": "x"}), {}),
    ("one output", "POST", INFER, body(**ONE), {}),
    ("best classes", "POST", INFER, body(outputs=[{"name": "probabilities", "parameters": {"classification": 2}}]), {}),
    ("predictions, binary", "POST", INFER, *binary(VALUES)),
    ("answers in binary", "POST", INFER, body(parameters={"binary_data_output": True}), {}),
    ("binary values of the wrong size", "POST", INFER, *binary(VALUES - 1)),
    ("bytes behind the binary values", "POST", INFER, *binary(VALUES, 1)),
    ("a body that is one tensor", "POST", INFER, bytes(VALUES), {"Inference-Header-Content-Length": "0"}),
    ("predictions, gzip", "POST", INFER, gzip.compress(body()), {"Content-Encoding": "gzip"}),
    ("a damaged gzip", "POST", INFER, gzip.compress(body())[:40], {"Content-Encoding": "gzip"}),
    ("an unknown encoding", "POST", INFER, body(), {"Content-Encoding": "br"}),
    ("no JSON", "POST", INFER, b"{", {}),
    ("an unknown model and no JSON", "POST", "/v2/models/x/infer", b"{", {}),
    ("an empty body", "POST", INFER, b"", {}),
    ("no inputs", "POST", INFER, b'{"inputs":[]}', {}),
    ("two inputs of one name", "POST", INFER, body(tensor(), tensor()), {}),
    ("an unknown input", "POST", INFER, body(tensor("x")), {}),
    ("another datatype", "POST", INFER, body(tensor(datatype="INT8")), {}),
    ("a shape of other lengths", "POST", INFER, body(tensor(shape=(1, 16, 16, 3), values=768)), {}),
    ("a shape of two lengths", "POST", INFER, body(tensor(shape=(1, VALUES))), {}),
    ("too few values", "POST", INFER, body(tensor(values=VALUES - 1)), {}),
    ("a value beyond the datatype", "POST", INFER, body(tensor(data=[256] * VALUES)), {}),
    ("a value that is no whole number", "POST", INFER, body(tensor(data=[0.5] * VALUES)), {}),
    ("an empty batch", "POST", INFER, body(tensor(shape=(0, 32, 32, 3), values=0)), {}),
    ("an unknown output", "POST", INFER, body(outputs=[{"name": "x"}]), {}),
    ("best classes of `class`", "POST", INFER, body(outputs=[{"name": "class", "parameters": {"classification": 2}}]), {}),
]


def wait_for(address):
    """Waits until a server takes requests."""
    for _ in range(600):
        try:
            if over_http(address, "GET", "/v2/health/ready", b"", {})[0].startswith("200"):
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"nobody answers at {address}")


def over_http(address, method, path, body, headers):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, body, {"Connection": "close", **headers})
    answer = connection.getresponse()
    text = answer.read()
    length = answer.getheader("Inference-Header-Content-Length")
    said = text[: int(length)] if length else text
    try:
        value = json.loads(said) if said else None
    except ValueError:
        value = said.decode(errors="replace")
    kind = fields(value) + (", binary" if length else "")
    error = value.get("error", "") if isinstance(value, dict) else ""
    return f"{answer.status} {kind}".strip(), str(error)


def fields(value):
    """The fields of an answer, without those that are the model's or the program's own."""
    if isinstance(value, list):
        return f"list of {fields(value[0])}" if value else "empty list"
    if isinstance(value, dict):
        return "`" + "`, `".join(sorted(value)) + "`"
    return "no body" if value is None else "text"


def infer(raw=True, contents=False, name="images", datatype="UINT8", shape=(1, 32, 32, 3), model=MODEL, version="", values=VALUES, **more):
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id="42")
    given = request.inputs.add(name=name, datatype=datatype, shape=shape)
    if contents:
        given.contents.uint_contents.extend([7] * values)
    if raw:
        request.raw_input_contents.append(bytes(values))
    for output in more.get("outputs", []):
        request.outputs.add(name=output)
    return request


OVER_GRPC = [
    ("whether the server runs", "ServerLive", service_pb2.ServerLiveRequest()),
    ("whether the server is ready", "ServerReady", service_pb2.ServerReadyRequest()),
    ("the server", "ServerMetadata", service_pb2.ServerMetadataRequest()),
    ("whether the model is ready", "ModelReady", service_pb2.ModelReadyRequest(name=MODEL)),
    ("whether a model is ready that is not there", "ModelReady", service_pb2.ModelReadyRequest(name="x")),
    ("the model", "ModelMetadata", service_pb2.ModelMetadataRequest(name=MODEL)),
    ("a model that is not there", "ModelMetadata", service_pb2.ModelMetadataRequest(name="x")),
    ("a version that is not there", "ModelMetadata", service_pb2.ModelMetadataRequest(name=MODEL, version="9")),
    ("a version that is no number", "ModelMetadata", service_pb2.ModelMetadataRequest(name=MODEL, version="new")),
    ("statistics of all models", "ModelStatistics", service_pb2.ModelStatisticsRequest()),
    ("the repository", "RepositoryIndex", service_pb2.RepositoryIndexRequest()),
    ("to load the model", "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=MODEL)),
    ("to load a model that is not there", "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="x")),
    ("to unload a model that is not there", "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="x")),
    ("log settings", "LogSettings", service_pb2.LogSettingsRequest()),
    ("shared memory", "SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
    ("predictions, raw", "ModelInfer", infer()),
    ("predictions, contents", "ModelInfer", infer(raw=False, contents=True)),
    ("both forms", "ModelInfer", infer(contents=True)),
    ("neither form", "ModelInfer", infer(raw=False)),
    ("predictions by version 1", "ModelInfer", infer(version="1")),
    ("an unknown model", "ModelInfer", infer(model="x")),
    ("an unknown version", "ModelInfer", infer(version="9")),
    ("an unknown input", "ModelInfer", infer(name="x")),
    ("another datatype", "ModelInfer", infer(datatype="INT8")),
    ("a shape of other lengths", "ModelInfer", infer(shape=(1, 16, 16, 3), values=768)),
    ("too few values", "ModelInfer", infer(values=VALUES - 1)),
    ("an unknown output", "ModelInfer", infer(outputs=["x"])),
    ("a stream with a mistake", "ModelStreamInfer", infer(name="x")),
    ("a stream", "ModelStreamInfer", infer()),
]


def over_grpc(address, call, request):
    with grpc.insecure_channel(address) as channel:
        stub = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)
        try:
            if call == "ModelStreamInfer":
                (answer,) = stub(iter([request]), timeout=60)
                inner = ", ".join(name.name for name, _ in answer.infer_response.ListFields())
                return f"OK `{'`, `'.join(name.name for name, _ in answer.ListFields())}` ({inner})", answer.error_message
            answer = stub(request, timeout=60)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    if call == "ModelInfer":
        return f"OK, {'raw' if answer.raw_output_contents else 'contents'}", ""
    listed = [f"`{field.name}`" + (f" {str(value).lower()}" if isinstance(value, bool) else "") for field, value in answer.ListFields()]
    return ("OK " + ", ".join(listed)).strip(), ""


def table(title, ask, asked, triton, ours):
    print(f"\n| {title} | Triton | `ttac serve` |\n|---|---|---|")
    same = 0
    for name, *rest in asked:
        (theirs, text), (mine, words) = ask(triton, *rest), ask(ours, *rest)
        if theirs == mine:
            same += 1
        else:
            print(f"| {name} | {theirs}{shown(text)} | {mine}{shown(words)} |")
    print(f"\n{same} of {len(asked)} are alike.")


def shown(text):
    return f": {text.splitlines()[0][:100]}" if text else ""


if __name__ == "__main__":
    triton_http, triton_grpc, ours_http, ours_grpc = sys.argv[1:]
    wait_for(triton_http)
    wait_for(ours_http)
    table("over HTTP", over_http, OVER_HTTP, triton_http, ours_http)
    table("over gRPC", over_grpc, OVER_GRPC, triton_grpc, ours_grpc)
