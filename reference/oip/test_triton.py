"""`tritonclient`, over HTTP and gRPC: what both do alike, by the same tests."""

import json
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from conftest import CLASSES, MODEL, SIDE

NAMES = ["probabilities", "class", "label"]


class Http:
    """The client over HTTP."""

    module = triton_http

    def __init__(self, server):
        self.client = triton_http.InferenceServerClient(server.rest, concurrency=2)

    def metadata(self):
        return self.client.get_server_metadata(), self.client.get_model_metadata(MODEL)

    def config(self):
        return self.client.get_model_config(MODEL)

    def statistics(self, *model):
        return self.client.get_inference_statistics(*model)["model_stats"]

    def index(self):
        return self.client.get_model_repository_index()

    @staticmethod
    def parameters(result):
        return result.get_response()["parameters"]

    @staticmethod
    def version(result):
        return result.get_response()["model_version"]


class Grpc:
    """The client over gRPC."""

    module = triton_grpc

    def __init__(self, server):
        self.client = triton_grpc.InferenceServerClient(server.grpc)

    def metadata(self):
        return self.client.get_server_metadata(as_json=True), self.client.get_model_metadata(MODEL, as_json=True)

    def config(self):
        return self.client.get_model_config(MODEL, as_json=True)["config"]

    def statistics(self, *model):
        return self.client.get_inference_statistics(*model, as_json=True)["model_stats"]

    def index(self):
        return self.client.get_model_repository_index(as_json=True)["models"]

    @staticmethod
    def parameters(result):
        written = result.get_response().parameters
        return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in written.items()}

    @staticmethod
    def version(result):
        return result.get_response().model_version


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def triton(request, server):
    talk = request.param(server)
    yield talk
    talk.client.close()


def tensor(triton, name, array, datatype):
    given = triton.module.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def pictures(triton, images):
    return [tensor(triton, "images", images, "UINT8")]


def answers(result):
    return [result.as_numpy(name).tolist() for name in NAMES]


def refusal(call, *args, **kwargs):
    with pytest.raises(InferenceServerException) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def test_a_client_asks_who_is_there(triton):
    client = triton.client
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "0") and client.is_model_ready(MODEL, "1")
    server, model = triton.metadata()
    assert server["name"] == "ttac" and "binary_tensor_data" in server["extensions"]
    assert (model["name"], model["versions"], model["platform"]) == (MODEL, ["0", "1"], "ttac_safetensors")
    (taken,) = model["inputs"]
    assert taken["name"] == "images" and [int(n) for n in taken["shape"]] == [-1, SIDE, SIDE, 3]
    assert [output["name"] for output in model["outputs"]][:3] == NAMES
    config = triton.config()
    assert config["max_batch_size"] > 0 and config["input"][0]["data_type"] == "TYPE_UINT8"
    assert [int(n) for n in config["input"][0]["dims"]] == [SIDE, SIDE, 3]


def test_a_client_lists_and_loads_models_and_may_not_unload_them(triton):
    assert [(entry["name"], entry["version"], entry["state"]) for entry in triton.index()] == [
        (MODEL, "0", "READY"),
        (MODEL, "1", "READY"),
    ]
    triton.client.load_model(MODEL)
    assert "stays loaded" in refusal(triton.client.unload_model, MODEL)
    assert "no model is called `x`" in refusal(triton.client.load_model, "x")


def test_a_client_asks_for_predictions(triton, images):
    result = triton.client.infer(MODEL, pictures(triton, images), request_id="42")
    probabilities, classes, labels = (result.as_numpy(name) for name in NAMES)
    assert probabilities.shape == (4, CLASSES) and probabilities.dtype == np.float32
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert classes.tolist() == probabilities.argmax(1).tolist()
    assert all(isinstance(label, bytes) and label for label in labels)
    said = triton.parameters(result)
    assert said["stream"] == "default" and said["mode"] == "shadow" and said["weights_version"] == 0
    assert said["weights"].startswith("b3:") and said["learned"] in ("accepted", "skipped-duplicate", "skipped-share", "skipped-backlog")
    # In the mode `shadow` the source answers.
    assert triton.version(result) == "0"


def test_any_notation_of_the_same_pictures_has_the_same_answer(triton, images, files):
    infer = triton.client.infer
    expected = answers(infer(MODEL, pictures(triton, images)))
    assert answers(infer(MODEL, [tensor(triton, "files", np.array(files, object), "BYTES")])) == expected
    # Whoever normalises otherwise is told how it is done.
    wrong = np.full((1, 3, SIDE, SIDE), 100, np.float32)
    said = refusal(infer, MODEL, [tensor(triton, "pixel_values", wrong, "FP32")])
    mean, std = (np.array(json.loads(said.split(f"{name} ")[1].split("]")[0] + "]"), np.float32) for name in ("mean", "std"))
    values = ((images / np.float32(255) - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
    assert answers(infer(MODEL, [tensor(triton, "pixel_values", values, "FP32")])) == expected
    # One by one as well: no image changes the answer of another.
    each = [answers(infer(MODEL, pictures(triton, images[i : i + 1]))) for i in range(4)]
    assert [[one[column][0] for one in each] for column in range(3)] == expected


def test_a_larger_picture_is_scaled(triton, images):
    large = images.repeat(2, axis=1).repeat(2, axis=2)
    result = triton.client.infer(MODEL, [tensor(triton, "images", large, "UINT8")])
    assert result.as_numpy("class").tolist() == triton.client.infer(MODEL, pictures(triton, images)).as_numpy("class").tolist()


def test_a_client_asks_for_some_outputs_and_for_the_best_classes(triton, images):
    wanted = triton.module.InferRequestedOutput
    outputs = [wanted("probabilities", class_count=3), wanted("logits"), wanted("source_class")]
    result = triton.client.infer(MODEL, pictures(triton, images), outputs=outputs)
    best, logits, source = (result.as_numpy(name) for name in ("probabilities", "logits", "source_class"))
    assert best.shape == (4, 3) and logits.shape == (4, CLASSES)
    for row, of_source, scores in zip(best, source, logits):
        score, index, label = row[0].decode().split(":")
        assert float(score) > 0 and int(index) == of_source == scores.argmax() and label
    assert result.as_numpy("label") is None


def test_a_client_names_streams_in_three_ways(triton, images):
    def stream(**given):
        return triton.parameters(triton.client.infer(MODEL, pictures(triton, images), **given))["stream"]

    assert stream(parameters={"stream": "cam1"}) == "cam1"
    assert stream(sequence_id=9, sequence_start=True) == "9"
    assert stream(sequence_id="night", sequence_end=True) == "night"
    assert stream(headers={"ttac-stream": "cam2"}) == "cam2"


def test_a_client_forbids_learning_and_picks_a_lane(triton, images):
    for version in ["0", "1"]:
        result = triton.client.infer(MODEL, pictures(triton, images), model_version=version, parameters={"learn": False})
        assert triton.parameters(result)["learned"] == "off"
        assert triton.version(result) == version


def test_a_client_counts_what_was_done(triton, images):
    def counted():
        stats = triton.statistics(MODEL)
        return sum(int(lane.get("inference_count", 0)) for lane in stats), sum(
            int(lane["inference_stats"]["queue"].get("count", 0)) for lane in stats
        )

    images_before, queue_before = counted()
    triton.client.infer(MODEL, pictures(triton, images))
    images_after, queue_after = counted()
    assert images_after >= images_before + 4 and queue_after > queue_before
    assert len(triton.statistics()) == 2


def test_every_mistake_is_said(triton, images):
    infer, given = triton.client.infer, pictures(triton, images)
    wanted = triton.module.InferRequestedOutput
    short = triton.module.InferInput("images", [5, SIDE, SIDE, 3], "UINT8")
    short.set_data_from_numpy(images.repeat(2, 0)[:5])
    short.set_shape([4, SIDE, SIDE, 3])
    for words, arguments, named in [
        ("no model is called `x`; there are `shapes`", ("x", given), {}),
        ("no version `7`: expected `0`", (MODEL, given), {"model_version": "7"}),
        ("found 2", (MODEL, given + given), {}),
        ("found `pixels`", (MODEL, [tensor(triton, "pixels", images, "UINT8")]), {}),
        ("expected datatype UINT8, found INT8", (MODEL, [tensor(triton, "images", images.astype(np.int8), "INT8")]), {}),
        ("expected shape [n,n,n,3], found [4, 3072]", (MODEL, [tensor(triton, "images", images.reshape(4, -1), "UINT8")]), {}),
        ("needs 12288 bytes, found 15360", (MODEL, [short]), {}),
        ("file 0: ", (MODEL, [tensor(triton, "files", np.array([b"no picture"], object), "BYTES")]), {}),
        ("found `features`", (MODEL, given), {"outputs": [wanted("features")]}),
        ("only `probabilities` can be given as classes", (MODEL, given), {"outputs": [wanted("class", class_count=2)]}),
        ("parameter `learn`: expected true or false", (MODEL, given), {"parameters": {"learn": "no"}}),
        ("stream: expected a name of 1 to 128 bytes", (MODEL, given), {"parameters": {"stream": "x" * 129}}),
        ("at most 256 samples", (MODEL, [tensor(triton, "images", np.zeros((300, 8, 8, 3), np.uint8), "UINT8")]), {}),
    ]:
        assert words in refusal(infer, *arguments, **named)
    # The same connection goes on.
    assert infer(MODEL, given).as_numpy("class") is not None


def test_what_is_left_out_of_triton_is_said(triton):
    for call, arguments in [
        (triton.client.get_system_shared_memory_status, ()),
        (triton.client.get_cuda_shared_memory_status, ()),
        (triton.client.get_trace_settings, ()),
        (triton.client.get_log_settings, ()),
    ]:
        assert "nothing is at" in refusal(call, *arguments)


def test_many_requests_are_under_way_at_once(triton, images):
    expected = answers(triton.client.infer(MODEL, pictures(triton, images)))
    if triton.module is triton_http:
        started = [triton.client.async_infer(MODEL, pictures(triton, images)) for _ in range(8)]
        results = [one.get_result() for one in started]
    else:
        results, lock, done = [], threading.Lock(), threading.Event()

        def take(result, error):
            with lock:
                results.append(error or result)
                if len(results) == 8:
                    done.set()

        for _ in range(8):
            triton.client.async_infer(MODEL, pictures(triton, images), callback=take)
        assert done.wait(60)
    assert all(answers(result) == expected for result in results)


# ------------------------------------------------------------------------------------- HTTP alone


@pytest.fixture
def http(server):
    talk = Http(server)
    yield talk
    talk.client.close()


def test_tensors_are_binary_or_json_as_the_client_wants(http, images):
    expected = answers(http.client.infer(MODEL, pictures(http, images)))
    for binary_in in [True, False]:
        given = triton_http.InferInput("images", list(images.shape), "UINT8")
        given.set_data_from_numpy(images, binary_data=binary_in)
        for binary_out in [True, False]:
            outputs = [triton_http.InferRequestedOutput(name, binary_data=binary_out) for name in NAMES]
            result = http.client.infer(MODEL, [given], outputs=outputs)
            probabilities, classes, labels = (result.as_numpy(name) for name in NAMES)
            assert np.allclose(probabilities, expected[0], rtol=1e-6) and classes.tolist() == expected[1]
            texts = [label if isinstance(label, bytes) else label.encode() for label in labels.tolist()]
            assert texts == expected[2]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_are_compressed_both_ways(http, images, algorithm):
    result = http.client.infer(
        MODEL, pictures(http, images), request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    assert answers(result) == answers(http.client.infer(MODEL, pictures(http, images)))


# ------------------------------------------------------------------------------------- gRPC alone


@pytest.fixture
def grpc(server):
    talk = Grpc(server)
    yield talk
    talk.client.close()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_messages_are_compressed(grpc, images, algorithm):
    result = grpc.client.infer(MODEL, pictures(grpc, images), compression_algorithm=algorithm)
    assert answers(result) == answers(grpc.client.infer(MODEL, pictures(grpc, images)))


def test_a_stream_is_answered_in_order(grpc, images):
    results, done = [], threading.Event()

    def take(result, error):
        results.append((result, error))
        if len(results) == 6:
            done.set()

    grpc.client.start_stream(take)
    for number in range(6):
        # The fourth is wrong, which does not end the stream.
        name = "images" if number != 3 else "pixels"
        given = [tensor(grpc, name, images[number % 4 : number % 4 + 1], "UINT8")]
        grpc.client.async_stream_infer(MODEL, given, request_id=str(number), parameters={"stream": "live"})
    assert done.wait(60)
    grpc.client.stop_stream()
    assert "found `pixels`" in str(results[3][1])
    del results[3]
    assert [result.get_response().id for result, _ in results] == ["0", "1", "2", "4", "5"]
    assert all(result.get_response().parameters["triton_final_response"].bool_param for result, _ in results)
    assert results[0][0].as_numpy("class").tolist() == results[3][0].as_numpy("class").tolist()


def test_codes_say_the_kind_of_a_mistake(grpc, images):
    with pytest.raises(InferenceServerException) as raised:
        grpc.client.infer("x", pictures(grpc, images))
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    with pytest.raises(InferenceServerException) as raised:
        grpc.client.infer(MODEL, [tensor(grpc, "pixels", images, "UINT8")])
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"
    large = np.zeros((240, 256, 256, 3), np.uint8)
    with pytest.raises(InferenceServerException) as raised:
        grpc.client.infer(MODEL, [tensor(grpc, "images", large, "UINT8")])
    assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    with pytest.raises(InferenceServerException) as raised:
        grpc.client.get_log_settings()
    assert raised.value.status() == "StatusCode.UNIMPLEMENTED"
    with pytest.raises(InferenceServerException) as raised:
        grpc.client.infer(MODEL, pictures(grpc, images), client_timeout=1e-4)
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"


# ------------------------------------------------------------------------------------- tokens


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def closed(request, guarded):
    talk = request.param(guarded)
    yield talk
    talk.client.close()


def test_a_token_opens_what_its_roles_allow(closed, images):
    seer, boss = ({"authorization": f"Bearer {name}-token"} for name in ("seer", "boss"))
    client, given = closed.client, pictures(closed, images[:1])
    assert client.is_server_ready() and client.get_server_metadata()
    assert "wants a token" in refusal(client.get_model_metadata, MODEL)
    assert "not one that this server knows" in refusal(client.get_model_metadata, MODEL, headers={"authorization": "Bearer x"})
    assert client.get_model_metadata(MODEL, headers=seer)
    assert "needs the role `admin`" in refusal(client.load_model, MODEL, headers=seer)
    client.load_model(MODEL, headers=boss)
    assert "needs the role `predict`" in refusal(client.infer, MODEL, given, headers=boss)
    assert "no stream is called `hall`" in refusal(client.infer, MODEL, given, headers=seer, parameters={"stream": "hall"})
    # Four images are allowed at once, and two a second: eight come faster.
    said = ""
    for _ in range(8):
        try:
            result = client.infer(MODEL, given, headers=seer, parameters={"stream": "cam-1"})
            # The token may not teach, and is answered all the same.
            assert closed.parameters(result)["learned"] == "off"
        except InferenceServerException as error:
            said = str(error)
    assert "may send 2 images a second; try again in" in said
