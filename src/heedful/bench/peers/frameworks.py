"""How the attention of other frameworks is called. Each runs in a process of its own, on torch's number of threads."""

# What is imported here comes with the extra:
# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.bench.contender import Contender
from heedful.bench.settings import Inputs


def onnxruntime(inputs: Inputs) -> Contender:
    """Its fused MultiHeadAttention, which takes (B, T, heads · head size)."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    setting = inputs.setting
    shape = [setting.B, setting.Tq, setting.Hq * setting.D]
    names = ["query", "key", "value"]
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["output"],
        domain="com.microsoft",
        num_heads=setting.Hq,
        unidirectional=int(setting.mask == "causal"),
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
        return (output.view(setting.B, setting.Tq, setting.Hq, setting.D).transpose(1, 2),)

    return Contender(lambda: session.run(None, arrays), tensors_of)


def openvino(inputs: Inputs) -> Contender:
    """Its scaled_dot_product_attention, compiled for latency in the setting's own precision."""
    import openvino
    from openvino import opset13

    precision = {"fp32": openvino.Type.f32, "bf16": openvino.Type.bf16, "fp16": openvino.Type.f16}[
        inputs.setting.dtype
    ]
    queries = (inputs.query, inputs.key, inputs.value)
    parameters = [opset13.parameter(list(tensor.shape), precision) for tensor in queries]
    node = opset13.scaled_dot_product_attention(*parameters, causal=inputs.setting.mask == "causal")
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
    shared = [_openvino_tensor(openvino, tensor, precision) for tensor in queries]

    def tensors_of(_: Any) -> tuple[Tensor, ...]:
        output = request.get_output_tensor(0)
        flat = torch.frombuffer(bytearray(output.data.tobytes()), dtype=_dtype_of(output))
        return (flat.view(tuple(output.shape)),)

    return Contender(lambda: request.infer(shared, share_inputs=True), tensors_of)


def _openvino_tensor(openvino: Any, tensor: Tensor, precision: Any) -> Any:
    if tensor.dtype == torch.bfloat16:  # numpy has none: as bits
        held = openvino.Tensor(precision, list(tensor.shape))
        held.data[:] = tensor.view(torch.int16).numpy().view(held.data.dtype)
        return held
    return openvino.Tensor(tensor.numpy())


def _dtype_of(output: Any) -> torch.dtype:
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    return names[output.element_type.get_type_name()]


def jax(inputs: Inputs) -> Contender:
    """jax.nn.dot_product_attention under jit, which takes (B, T, heads, head size)."""
    import jax
    import jax.numpy as jnp
    import numpy

    dtype = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}[inputs.setting.dtype]
    arrays = [
        jnp.asarray(tensor.transpose(1, 2).float().contiguous().numpy(), dtype=dtype)
        for tensor in (inputs.query, inputs.key, inputs.value)
    ]
    causal = inputs.setting.mask == "causal"
    attend = jax.jit(
        lambda query, key, value: jax.nn.dot_product_attention(query, key, value, is_causal=causal)
    )

    def tensors_of(raw: Any) -> tuple[Tensor, ...]:
        floats = torch.from_numpy(numpy.array(raw, dtype=numpy.float32))
        return (floats.transpose(1, 2),)

    return Contender(lambda: attend(*arrays).block_until_ready(), tensors_of)
