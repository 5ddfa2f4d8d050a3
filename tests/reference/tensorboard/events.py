"""What tests/engine/report/event_file_test.cpp expects: the same events by TensorBoard's own writer.

    pip install tensorboard==2.21.0; python tests/reference/tensorboard/events.py

Prints each event in hexadecimal, with a wall time of 0. Also: events.py FOLDER checks that TensorBoard
shows a run's metrics.jsonl, each step once, as a run that was killed and resumed has to.
"""
import json
import sys


def expected():
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
    value = summary_pb2.Summary.Value
    scalars = [("train/loss", 2.5), ("train/grad_norm", 0.125), ("train/lr", 0.001), ("train/tokens", 9984),
               ("speed/tokens_per_s", 81234.5), ("time/exposed_comm_ms", 0.25), ("memory/peak_bytes", 123456789),
               ("train/loss_scale", 65536)]
    step = summary_pb2.Summary(value=[value(tag=tag, simple_value=number) for tag, number in scalars])
    loss = summary_pb2.Summary(value=[value(tag="val/loss", simple_value=4.125)])
    metadata = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=7, tensor_shape=shape, string_val=[b"once upon"])
    text = summary_pb2.Summary(value=[value(tag="sample", tensor=tensor, metadata=metadata)])
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    yield event_pb2.Event(wall_time=0.5, step=0, file_version="brain.Event:2")
    yield event_pb2.Event(wall_time=0.5, step=301, session_log=start)
    yield event_pb2.Event(wall_time=0.5, step=301, summary=step)
    yield event_pb2.Event(wall_time=0.5, step=301, summary=loss)
    yield event_pb2.Event(wall_time=0.5, step=400, summary=text)


def check(folder):
    import numpy
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(folder + "/tensorboard", size_guidance={"scalars": 0})
    events.Reload()
    shown = [(point.step, point.value) for point in events.Scalars("train/loss")]
    lines = map(json.loads, open(folder + "/metrics.jsonl"))
    wanted = [(line["step"], float(numpy.float32(line["loss"]))) for line in lines if "loss" in line]
    assert shown == wanted, f"{len(shown)} points, {len(wanted)} lines"
    print(f"{len(shown)} steps, each once, with metrics.jsonl's losses rounded to f32")


if len(sys.argv) > 1:
    check(sys.argv[1])
else:
    for event in expected():
        print(event.SerializeToString().hex())
