"""Attention of other frameworks. Each runs in a process of its own, with torch's number of threads."""

# These imports come with the extra "bench":
# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.bench.peers.contender import Contender
from heedful.bench.workload import WorkloadInputs


def onnxruntime(inputs: WorkloadInputs) -> Contender:
    """Prepare ONNX Runtime's fused MultiHeadAttention, whose inputs are (B, T, heads · head size)."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    workload = inputs.workload
    shape = [workload.B, workload.Tq, workload.Hq * workload.D]
    names = ["query", "key", "value"]
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["output"],
        domain="com.microsoft",
        num_heads=workload.Hq,
        unidirectional=int(workload.mask == "causal"),
    )
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in [*names, "output"]
    ]
    graph = helper.make_graph([node], "attention", tensors[:3], tensors[3:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    arrays = {
        name: tensor.transpose(1, 2).flatten(2).numpy()
        for name, tensor in zip(names, (inputs.query, inputs.key, inputs.value), strict=True)
    }

    def tensors_of(raw: Any) -> tuple[Tensor, ...]:
        output = torch.from_numpy(raw[0])
        return (output.view(workload.B, workload.Tq, workload.Hq, workload.D).transpose(1, 2),)

    return Contender(lambda: session.run(None, arrays), tensors_of)


def openvino(inputs: WorkloadInputs) -> Contender:
    """Prepare OpenVINO's scaled_dot_product_attention, compiled for latency in the workload's precision."""
    import openvino
    from openvino import opset13

    precision = {"fp32": openvino.Type.f32, "bf16": openvino.Type.bf16, "fp16": openvino.Type.f16}[
        inputs.workload.dtype
    ]
    tensors = (inputs.query, inputs.key, inputs.value)
    parameters = [opset13.parameter(list(tensor.shape), precision) for tensor in tensors]
    node = opset13.scaled_dot_product_attention(
        *parameters, causal=inputs.workload.mask == "causal"
    )
    compiled = openvino.Core().compile_model(
        openvino.Model([node], parameters, "attention"),  # pyright: ignore[reportGeneralTypeIssues]
        "CPU",
        {
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        },
    )
    request = compiled.create_infer_request()
    shared = [_openvino_tensor(openvino, tensor, precision) for tensor in tensors]

    def tensors_of(_: Any) -> tuple[Tensor, ...]:
        output = request.get_output_tensor(0)
        flat = torch.frombuffer(bytearray(output.data.tobytes()), dtype=_dtype_of(output))
        return (flat.view(tuple(output.shape)),)

    return Contender(lambda: request.infer(shared, share_inputs=True), tensors_of)


def _openvino_tensor(openvino: Any, tensor: Tensor, precision: Any) -> Any:
    """Return an OpenVINO tensor with the same values."""
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16, so the bits are copied
        copy = openvino.Tensor(precision, list(tensor.shape))
        copy.data[:] = tensor.view(torch.int16).numpy().view(copy.data.dtype)
        return copy
    return openvino.Tensor(tensor.numpy())


def _dtype_of(output: Any) -> torch.dtype:
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    return names[output.element_type.get_type_name()]


def jax(inputs: WorkloadInputs) -> Contender:
    """Prepare jax.nn.dot_product_attention under jit, whose inputs are (B, T, heads, head size)."""
    import jax
    import jax.numpy as jnp
    import numpy

    dtype = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}[inputs.workload.dtype]
    arrays = [
        jnp.asarray(tensor.transpose(1, 2).float().contiguous().numpy(), dtype=dtype)
        for tensor in (inputs.query, inputs.key, inputs.value)
    ]
    causal = inputs.workload.mask == "causal"
    attend = jax.jit(
        lambda query, key, value: jax.nn.dot_product_attention(query, key, value, is_causal=causal)
    )

    def tensors_of(raw: Any) -> tuple[Tensor, ...]:
        floats = torch.from_numpy(numpy.array(raw, dtype=numpy.float32))
        return (floats.transpose(1, 2),)

    return Contender(lambda: attend(*arrays).block_until_ready(), tensors_of)
