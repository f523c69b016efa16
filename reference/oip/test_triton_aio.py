"""`tritonclient.http.aio` and `tritonclient.grpc.aio`."""

import asyncio

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from conftest import CLASSES, MODEL


def pictures(module, images):
    given = module.InferInput("images", list(images.shape), "UINT8")
    given.set_data_from_numpy(images)
    return [given]


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_many_requests_are_under_way_at_once(server, images, transport):
    module = getattr(tritonclient, transport)

    async def talk():
        async with module.aio.InferenceServerClient(getattr(server, "rest" if transport == "http" else "grpc")) as client:
            assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(MODEL)
            await client.get_server_metadata(), await client.get_model_metadata(MODEL), await client.get_model_config(MODEL)
            await client.get_inference_statistics(MODEL), await client.get_model_repository_index()
            await client.load_model(MODEL)
            results = await asyncio.gather(*(client.infer(MODEL, pictures(module, images)) for _ in range(8)))
            with pytest.raises(InferenceServerException, match="no model is called `x`"):
                await client.infer("x", pictures(module, images))
            return results

    results = asyncio.run(talk())
    first = results[0].as_numpy("probabilities")
    assert first.shape == (4, CLASSES)
    assert all(np.array_equal(result.as_numpy("probabilities"), first) for result in results)


def test_a_stream_is_answered_in_order(server, images):
    async def talk():
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:

            async def requests():
                for number in range(5):
                    name = "x" if number == 2 else MODEL
                    given = pictures(tritonclient.grpc, images[:1])
                    yield {"model_name": name, "inputs": given, "request_id": str(number), "sequence_id": 7}

            return [answer async for answer in client.stream_infer(requests())]

    answers = asyncio.run(talk())
    assert "no model is called `x`" in str(answers[2][1])
    assert [result.get_response().id for result, error in answers if error is None] == ["0", "1", "3", "4"]
