"""The description of the gRPC services has the names and numbers of those that clients carry."""

import pathlib
import subprocess
import sys
import urllib.request

import grpc
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from conftest import MODEL

PROTO = pathlib.Path(__file__).resolve().parent / "proto"


def compiled(folder, name):
    """Compiles a description of ours."""
    out = folder / "set"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--descriptor_set_out={out}", name]
    subprocess.run(command, check=True)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def described(message, prefix=""):
    """Lists the fields of a message and of those in it as `{name: (number, type, repeated, type of messages)}`."""
    fields = {
        prefix + message.name + "." + field.name: (field.number, field.type, field.label, field.type_name)
        for field in message.field
    }
    for inner in message.nested_type:
        fields |= described(inner, prefix + message.name + ".")
    return fields


def test_messages_are_those_of_triton(tmp_path):
    ours = compiled(tmp_path, "inference.proto")
    known = {}
    for module in [service_pb2, model_config_pb2]:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            known |= described(message)
        for enum in file.enum_type:
            known |= {f"{enum.name}.{value.name}": value.number for value in enum.value}
        for service in file.service:
            calls = {call.name: call for call in service.method}
    for message in ours.message_type:
        for name, field in described(message).items():
            assert known.get(name) == field, name
    for enum in ours.enum_type:
        assert {f"{enum.name}.{value.name}": value.number for value in enum.value}.items() <= known.items()
    (service,) = ours.service
    assert (ours.package, service.name) == ("inference", "GRPCInferenceService")
    for call in service.method:
        known = calls[call.name]
        known.ClearField("options")
        assert call == known, call.name


def test_health_is_asked_as_balancers_do(server, tmp_path):
    file = compiled(tmp_path, "health.proto")
    assert (file.package, file.service[0].name) == ("grpc.health.v1", "Health")
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        # Field 1 is 1: `SERVING`.
        assert check(b"") == b"\x08\x01"
        assert check(b"\x0a\x1einference.GRPCInferenceService") == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(watch) == b"\x08\x01"
        watch.cancel()


def test_calls_are_counted_as_those_of_http(server):
    with urllib.request.urlopen(f"{server.admin_url}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'ttac_requests_total{transport="grpc",code="200"}' in metrics
    assert f'model="{MODEL}"' in metrics
