"""The clients of `kserve`, over HTTP and gRPC."""

import asyncio

import grpc
import httpx
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

from conftest import CLASSES, MODEL


def request(images, binary, name="images"):
    given = InferInput(name, list(images.shape), "UINT8")
    given.set_data_from_numpy(images, binary_data=binary)
    return InferRequest(MODEL, [given], request_id="42", parameters={"stream": "kserve"})


def column(response, name):
    (found,) = [output for output in response.outputs if output.name == name]
    return found.as_numpy()


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_rest(server, images, binary):
    async def talk():
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
            url = server.rest_url
            assert await client.is_server_live(url) and await client.is_server_ready(url)
            assert await client.is_model_ready(url, MODEL)
            with pytest.raises(httpx.HTTPStatusError, match="expected one of `images`.*found `pixels`"):
                await client.infer(url, request(images, binary, "pixels"), MODEL)
            return await client.infer(url, request(images, binary), MODEL)

    response = asyncio.run(talk())
    assert response.id == "42" and response.parameters["stream"] == "kserve"
    probabilities = column(response, "probabilities")
    assert probabilities.shape == (4, CLASSES)
    assert column(response, "class").tolist() == probabilities.argmax(1).tolist()


@pytest.mark.parametrize("binary", [True, False], ids=["raw", "contents"])
def test_grpc(server, images, binary):
    async def talk():
        async with InferenceGRPCClient(server.grpc) as client:
            assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(MODEL)
            with pytest.raises(grpc.RpcError) as raised:
                await client.infer(request(images, binary, "pixels"))
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            return await client.infer(request(images, binary))

    response = asyncio.run(talk())
    assert response.id == "42"
    probabilities = column(response, "probabilities")
    assert probabilities.shape == (4, CLASSES) and np.allclose(probabilities.sum(1), 1, atol=1e-5)
