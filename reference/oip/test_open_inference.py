"""The clients of the protocol's working group: `open-inference-openapi` over HTTP, `open-inference-grpc` over gRPC.

The second defines the package `inference` of gRPC, as `tritonclient` does, and a process can hold one of them; it has its own.
"""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.errors import BadRequestError
from open_inference.openapi.types import InferenceRequest, RequestInput

from conftest import CLASSES, MODEL, SIDE


def request(images, name="images"):
    given = RequestInput(name=name, shape=list(images.shape), datatype="UINT8", data=images.tolist())
    return InferenceRequest(id="42", inputs=[given])


def test_rest(server, images):
    client = OpenInferenceClient(base_url=server.rest_url)
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness(MODEL)
    client.check_model_version_readiness(MODEL, "0")
    assert client.read_server_metadata().name == "ttac"
    for metadata in [client.read_model_metadata(MODEL), client.read_model_version_metadata(MODEL, "0")]:
        assert metadata.versions == ["0", "1"] and metadata.inputs[0].shape == [-1, SIDE, SIDE, 3]
    response = client.model_infer(MODEL, request=request(images))
    outputs = {output.name: output for output in response.outputs}
    probabilities = np.array(outputs["probabilities"].data.dict()["__root__"]).reshape(4, CLASSES)
    assert response.id == "42" and outputs["class"].data.dict()["__root__"] == probabilities.argmax(1).tolist()
    assert client.model_version_infer(MODEL, "0", request=request(images)).model_version == "0"
    with pytest.raises(ApiError) as raised:
        client.read_model_metadata("x")
    assert raised.value.status_code == 404 and "no model is called `x`" in raised.value.body["error"]
    with pytest.raises(BadRequestError) as raised:
        client.model_infer(MODEL, request=request(images, "pixels"))
    assert "found `pixels`" in raised.value.body["error"]


def test_grpc(server):
    program = f"""
        import grpc
        from open_inference.grpc import protocol
        from open_inference.grpc.service import GRPCInferenceServiceStub

        stub = GRPCInferenceServiceStub(grpc.insecure_channel("{server.grpc}"))
        assert stub.ServerLive(protocol.ServerLiveRequest()).live
        assert stub.ServerReady(protocol.ServerReadyRequest()).ready
        assert stub.ModelReady(protocol.ModelReadyRequest(name="{MODEL}")).ready
        assert stub.ServerMetadata(protocol.ServerMetadataRequest()).name == "ttac"
        assert list(stub.ModelMetadata(protocol.ModelMetadataRequest(name="{MODEL}", version="0")).versions) == ["0", "1"]
        request = protocol.ModelInferRequest(model_name="{MODEL}", id="42")
        tensor = request.inputs.add(name="images", datatype="UINT8", shape=[1, {SIDE}, {SIDE}, 3])
        tensor.contents.uint_contents.extend([7] * {SIDE * SIDE * 3})
        written = stub.ModelInfer(request)
        assert written.id == "42" and len(written.outputs[0].contents.fp32_contents) == {CLASSES}
        request.inputs[0].ClearField("contents")
        request.raw_input_contents.append(bytes([7] * {SIDE * SIDE * 3}))
        raw = stub.ModelInfer(request)
        assert len(raw.raw_output_contents[0]) == 4 * {CLASSES}
        request.inputs[0].contents.uint_contents.append(7)
        try:
            stub.ModelInfer(request)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "found both" in error.details()
        else:
            raise AssertionError("both forms were taken")
        print("done")
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert run.stdout == "done\n", run.stderr
